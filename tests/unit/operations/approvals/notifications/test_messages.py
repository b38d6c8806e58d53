"""What people are told: a few facts in our own words, whatever names callers chose."""

from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.operations.approvals.notifications.messages import (
    ApprovalNotification,
    PendingApproval,
    build_digest,
    build_notice,
    sanitize_name,
)

pytestmark = pytest.mark.requirement("GOV-3")

UNTIL = datetime(2026, 11, 16, 7, 30, tzinfo=UTC)
LINK = "https://deputize.example/console/approvals/t1"


def _make_subject(**more: str | None) -> PendingApproval:
    facts = {"approval_id": "t1", "tool": "crm.delete_user", "user": "ana@example.com", "agent": "bot", **more}
    return PendingApproval(**facts, expires_at=UNTIL)  # type: ignore[arg-type]  # texts, each where one belongs


def _parse_event(message: ApprovalNotification) -> dict[str, object]:
    told: dict[str, object] = orjson.loads(message.to_cloud_event("l1", "/v1/approvals", UNTIL))
    return told


def test_a_notification_names_the_caller_the_deadline_and_the_link() -> None:
    letter = build_notice("asked", "acme", "oncall", _make_subject(), LINK)
    assert letter.title == "crm.delete_user needs your approval"
    assert letter.lines == (
        "For ana@example.com, by bot, in acme.",
        "Group oncall can decide until 2026-11-16 07:30 UTC; then it is denied.",
        LINK,
    )
    assert _parse_event(letter)["data"] == {
        "kind": "asked", "tenant": "acme", "group": "oncall", "approval_id": "t1", "tool": "crm.delete_user",
        "for_user": "ana@example.com", "agent": "bot", "expires_at": "2026-11-16T07:30:00+00:00", "url": LINK,
    }  # fmt: skip


def test_without_an_address_of_its_own_the_command_line_is_named() -> None:
    assert build_notice("reminder", "acme", "oncall", _make_subject(), None).lines[-1] == "deputize approvals show t1"
    assert build_digest("acme", "oncall", [("a.b", 7)], False, UNTIL, None).lines[-1] == "deputize approvals list"


def test_a_break_glass_notification_says_it_happened() -> None:
    letter = build_notice("broken-glass", "acme", "oncall", _make_subject(agent=None), LINK)
    assert letter.title == "crm.delete_user was approved by emergency override (break glass) by two people"
    assert letter.lines == ("For ana@example.com, in acme.", LINK)
    assert _parse_event(letter)["type"] == "tool.permission.decided"


def test_many_calls_are_counted_by_tool() -> None:
    tools = [(f"crm.tool_{number}", 20 - number) for number in range(12)]
    letter = build_digest("acme", "oncall", tools, True, UNTIL, LINK)
    assert letter.title == "More than 174 calls need approval by oncall"
    assert letter.lines[:1] == ("20 × crm.tool_0",)
    assert letter.lines[-3:] == (
        "and 2 more tools", "In acme; the first is denied at 2026-11-16 07:30 UTC unless it is decided.", LINK,
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
    assert sanitize_name(hostile) == shown


@given(st.text(max_size=300))
def test_no_name_holds_what_a_chat_or_a_mail_makes_something_of(text: str) -> None:
    shown = sanitize_name(text)
    assert len(shown) <= 65
    assert not set(shown) & set("<>[](){}*`~#!|&/\\\"'$%^\n\r\t ")
    assert "://" not in shown
    assert not shown.startswith("@")
    letter = build_notice("asked", "acme", text or "g", _make_subject(user=text, agent=text, tool=text), LINK)
    assert len(letter.lines) == 3
    assert letter.text.count("\n") == 2
    assert letter.text.count("://") == 1
