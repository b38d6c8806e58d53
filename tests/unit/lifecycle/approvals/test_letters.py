"""What people are told: a few facts in our own words, whatever names callers chose."""

from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.lifecycle.approvals.letters import About, Letter, about_many, about_one, named

pytestmark = pytest.mark.requirement("GOV-3")

UNTIL = datetime(2026, 11, 16, 7, 30, tzinfo=UTC)
LINK = "https://deputize.example/console/tickets/t1"


def _about(**more: str | None) -> About:
    facts = {"ticket": "t1", "tool": "crm.delete_user", "user": "ana@example.com", "agent": "bot", **more}
    return About(**facts, expires_at=UNTIL)  # type: ignore[arg-type]  # texts, each where one belongs


def _event(letter: Letter) -> dict[str, object]:
    told: dict[str, object] = orjson.loads(letter.event("l1", "/v1/approvals", UNTIL))
    return told


def test_one_call_is_told_with_who_until_when_and_where() -> None:
    letter = about_one("asked", "acme", "oncall", _about(), LINK)
    assert letter.title == "crm.delete_user waits for a yes or a no"
    assert letter.lines == (
        "For ana@example.com, by bot, in acme.",
        "Asked of oncall until 2026-11-16 07:30 UTC; after that the answer is no.",
        LINK,
    )
    assert _event(letter)["data"] == {
        "kind": "asked", "tenant": "acme", "group": "oncall", "ticket_id": "t1", "tool": "crm.delete_user",
        "for_user": "ana@example.com", "agent": "bot", "expires_at": "2026-11-16T07:30:00+00:00", "url": LINK,
    }  # fmt: skip


def test_without_an_address_of_its_own_the_command_line_is_named() -> None:
    assert about_one("reminder", "acme", "oncall", _about(), None).lines[-1] == "deputize approvals show t1"
    assert about_many("acme", "oncall", [("a.b", 7)], False, UNTIL, None).lines[-1] == "deputize approvals list"


def test_broken_glass_is_told_as_done() -> None:
    letter = about_one("broken-glass", "acme", "oncall", _about(agent=None), LINK)
    assert letter.title == "crm.delete_user was let through: two people broke the glass"
    assert letter.lines == ("For ana@example.com, in acme.", LINK)
    assert _event(letter)["type"] == "tool.permission.decided"


def test_many_calls_are_counted_by_tool() -> None:
    tools = [(f"crm.tool_{number}", 20 - number) for number in range(12)]
    letter = about_many("acme", "oncall", tools, True, UNTIL, LINK)
    assert letter.title == "More than 174 calls wait for oncall"
    assert letter.lines[:1] == ("20 × crm.tool_0",)
    assert letter.lines[-3:] == (
        "and 2 more tools", "In acme; the first is denied at 2026-11-16 07:30 UTC if nobody decides.", LINK,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("ana", "ana"),
        ("ana_b@example.com", "ana_b@example.com"),
        ("auth0:5f|7c", "auth0:5f·7c"),
        ("@everyone", "·everyone"),
        ("<!channel>", "··channel·"),
        ("[click](https://evil.example)", "·click··https···evil.example·"),
        ("a\x1b[31m\u202eb", "a·x1b·31m·u202eb"),
        ("two\nlines", "two·nlines"),
        ("__bold__ **b** `c`", "·bold····b····c·"),
        ("x" * 100, "x" * 64 + "…"),
    ],
)
def test_a_name_can_only_be_read(hostile: str, shown: str) -> None:
    assert named(hostile) == shown


@given(st.text(max_size=300))
def test_no_name_holds_what_a_chat_or_a_mail_makes_something_of(text: str) -> None:
    shown = named(text)
    assert len(shown) <= 65
    assert not set(shown) & set("<>[](){}*`~#!|&/\\\"'$%^\n\r\t ")
    assert "://" not in shown
    assert not shown.startswith("@")
    letter = about_one("asked", "acme", text or "g", _about(user=text, agent=text, tool=text), LINK)
    assert len(letter.lines) == 3
    assert letter.text.count("\n") == 2
    assert letter.text.count("://") == 1
