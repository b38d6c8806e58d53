"""Pages before hostile eyes and hostile texts: whatever callers write is shown, and does nothing."""

import re
import unicodedata
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.doors.console.guard import HEADERS
from deputize.doors.console.render import STYLE, STYLE_NAME, render
from deputize.doors.console.view import list_view, moment, ticket_view
from tests.unit.doors.console.tickets import NOW, TICKET, listed, ticket

pytestmark = pytest.mark.requirement("GOV-3")

MARKUP = (
    "</textarea></title><script>alert(1)</script><img src=x onerror=alert(2)>\" autofocus onfocus='alert(3)' {{7*7}}"
)
HIDDEN = "\u202egpj.exe\u2066\u200b\u2060\ufeff\U000e0041\U000e007f\ue000\x1b[31m\x9b2J\x07\r\n\x00"
HOSTILE = MARKUP + HIDDEN + "![x](http://evil.example/p.png)"
VOID = frozenset({"meta", "link", "input", "br"})


class Page(HTMLParser):
    """Every element and its attributes, and the text between; unbalanced markup is an error."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def shown(told: dict[str, Any], **facts: Any) -> str:
    known: dict[str, Any] = {
        "who": "sam", "form_token": "token", "leaves": True, "again": None, "alert": None, "typed": "",
        "code_session": "", **facts,
    }  # fmt: skip
    return render("ticket.html", root="", ticket=ticket_view(told, now=NOW), **known)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to every text in a ticket that somebody else wrote."""
    if isinstance(value, dict):
        return [way for name, each in value.items() for way in leaves(each, (*path, name))]
    if isinstance(value, list):
        return [way for place, each in enumerate(value) for way in leaves(each, (*path, place))]
    return [path] if isinstance(value, str) and not str(path[-1]).endswith("at") else []


def with_text(told: dict[str, Any], way: tuple[Any, ...], text: str) -> dict[str, Any]:
    holder: Any = told
    for step in way[:-1]:
        holder = holder[step]
    holder[way[-1]] = text
    return told


def harmless(source: str) -> Page:
    page = Page(source)
    allowed = {
        "html", "head", "meta", "title", "link", "body", "header", "main", "footer", "a", "form", "input", "span",
        "bdi", "button", "div", "p", "h1", "h2", "strong", "time", "section", "dl", "dt", "dd", "code", "ul", "li",
        "q", "details", "summary", "pre", "aside", "label", "textarea", "br",
    }  # fmt: skip
    assert {tag for tag, _ in page.elements} <= allowed
    for _, attributes in page.elements:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
    hidden = {each for each in source if unicodedata.category(each) in ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")}
    assert hidden <= {"\n"}
    return page


@pytest.mark.parametrize("way", leaves(ticket()), ids=lambda way: "/".join(map(str, way)))
def test_no_text_of_a_ticket_becomes_markup_or_hides_anything(way: tuple[Any, ...]) -> None:
    page = harmless(shown(with_text(ticket(), way, HOSTILE)))
    assert len(page.all("form")) == (1 if way == ("state",) else 2)
    assert [each["href"] for each in page.all("a")] == [each["href"] for each in Page(shown(ticket())).all("a")]


def test_names_of_arguments_are_texts_of_callers_too() -> None:
    page = harmless(shown(ticket(arguments={HOSTILE: {HOSTILE: [HOSTILE]}})))
    assert "<script>alert(1)</script>" in page.text
    assert r"\u202egpj.exe" in page.text


def test_reasons_and_alerts_come_back_harmlessly() -> None:
    page = harmless(shown(ticket(), typed=MARKUP, alert={"message": MARKUP, "advice": MARKUP}))
    assert MARKUP in page.text


@given(st.text(st.characters()))
def test_whatever_is_in_an_argument_the_page_stays_one(text: str) -> None:
    harmless(shown(ticket(arguments={"a": text, text: 1}, for_user=text)))


def test_fifty_kilobytes_are_shortened_told_and_can_be_unfolded() -> None:
    source = shown(ticket(arguments={"big": "x" * 51_200}))
    page = harmless(source)
    assert "50,900 more of 51,200 characters" in page.text
    assert "show all, 51,200 characters" in page.text
    assert "x" * 51_200 in page.text
    assert "Some of it is shortened above" in page.text
    assert "shortened" not in Page(shown(ticket())).text.lower()


def test_a_page_does_not_grow_without_end() -> None:
    many = {f"name{number}": "\u202e" * 51_200 for number in range(300)}
    source = shown(ticket(arguments=many))
    harmless(source)
    assert len(source) < 3_000_000
    assert "100 more arguments" in source


def test_the_page_says_who_for_whom_what_what_changes_why_until_when_and_who_else() -> None:
    text = re.sub(r"\s+", " ", Page(shown(ticket())).text)
    for said in (
        "Waiting for a decision", "crm.delete_user", "billing-bot for planner on behalf of ana@acme.example",
        "asked 42 min ago in production", "close the account of case 881", '"asked by the customer"',
        "− delete crm.users/7 × 1", "− delete crm.invoices/* × 14", "Also touches: search.index/7",
        "no open orders: ✓ holds", "can be undone with crm.restore_user",
        "What cannot be taken back is put to a person.rule destructive-needs-human, policies/default.cedar:8",
        "15 Nov 2026, 13:20 UTC (in 23 h 18 min)", "14 Nov 2026, 14:20 UTC (in 18 min)",
        "2 people of oncall, later also leads; 1 said yes so far", "eva@acme.example ✓ approved 21 min ago: GDPR 881",
        "The tool looked 42 min ago", "Approve", "Deny",
    ):  # fmt: skip
        assert said in text


def test_the_form_sends_back_what_was_seen() -> None:
    page = Page(shown(ticket()))
    sent = {each["name"]: each["value"] for each in page.all("input") if each.get("name") == "binding"}
    assert sent == {"binding": "ab" * 32}
    deny, approve = page.all("form")[1]["action"], page.all("button")[2]["formaction"]
    assert (deny, approve) == (f"/console/tickets/{TICKET}/deny", f"/console/tickets/{TICKET}/approve")


def test_a_preview_from_the_contract_says_what_it_does_not_know() -> None:
    generic = {
        "by": "contract", "changes": [{"resource": "crm.users", "op": "delete", "scope": "7"}],
        "resources": ["crm.users/7"], "preconditions": [], "impact": {}, "unknown": ["before", "count"],
    }  # fmt: skip
    text = Page(shown(ticket(preview=generic, undo=None))).text
    assert "because this tool cannot look ahead: what is there now, how many" in text
    assert "nothing is declared that undoes it" in text


def test_a_preview_that_failed_says_so() -> None:
    text = Page(
        shown(ticket(preview={"by": "contract", "problem": "the CRM does not answer", "unknown": ["count"]}))
    ).text
    assert "could not look at what would happen: the CRM does not answer" in text
    assert "No change is foretold" not in text
    assert "Not known: how many" in text
    assert "The tool looked" not in text


def test_broken_glass_is_told() -> None:
    vote = {"by": "eva", "approve": True, "reason": "", "at": "2026-11-14T13:41:00+00:00", "broke_glass": True}
    assert "eva ⚠ broke the glass" in re.sub(r"\s+", " ", Page(shown(ticket(votes=[vote]))).text)


def test_who_may_not_decide_reads_why_and_gets_no_form() -> None:
    page = Page(shown(ticket(may_decide=False, may_deny=False, why_not="you have a part in this call")))
    assert "You cannot decide this: you have a part in this call" in page.text
    assert page.all("textarea") == []


def test_who_signed_in_too_weakly_may_still_say_no_and_is_shown_the_way() -> None:
    told = ticket(may_decide=False, why_not="your sign-in does not show hwk")
    page = Page(shown(told, again="/console/sign-in?again=1"))
    assert "You cannot approve this: your sign-in does not show hwk" in page.text
    assert [each.get("class") for each in page.all("button")] == ["quiet", "deny"]
    assert {"class": "button", "href": "/console/sign-in?again=1"} in page.all("a")


@pytest.mark.parametrize("state", ["approved", "used", "denied", "expired", "void", "canceled", "of tomorrow"])
def test_a_ticket_that_is_closed_says_how_in_words_and_takes_no_answer(state: str) -> None:
    page = Page(shown(ticket(state=state, may_decide=False, why_not="closed")))
    assert page.all("textarea") == []
    assert "nothing left to decide" in page.text
    assert "Denied if nobody decides" not in page.text


def test_everything_to_type_in_has_a_label_and_every_section_a_heading() -> None:
    page = Page(shown(ticket()))
    ids = {attributes.get("id") for _, attributes in page.elements}
    assert {each["for"] for each in page.all("label")} == {each["id"] for each in page.all("textarea")}
    assert {each["aria-labelledby"] for each in page.all("section")} <= ids
    assert len(page.all("h1")) == 1
    assert page.all("html")[0]["lang"] == "en"


def test_the_list_shows_what_waits_and_leads_there() -> None:
    tickets = list_view([listed(), listed(agent=None, for_user=HOSTILE)], now=NOW)
    page = harmless(
        render(
            "tickets.html",
            root="/gw",
            who="sam",
            form_token="t",
            leaves=True,
            tickets=tickets,
            older=None,
            accounts=True,
        )
    )
    assert page.all("a")[1]["href"] == f"/gw/console/tickets/{TICKET}"
    assert "billing-bot on behalf of ana@acme.example asked" in page.text


def test_moments_are_told_from_here() -> None:
    for distance, told in (
        (timedelta(seconds=30), "in less than a minute"), (timedelta(minutes=5), "in 5 min"),
        (timedelta(hours=2), "in 2 h"), (timedelta(days=1, hours=3), "in 1 d 3 h"),
        (timedelta(days=9, hours=3), "in 9 d"), (-timedelta(hours=1, minutes=1), "1 h 1 min ago"),
    ):  # fmt: skip
        found = moment((NOW + distance).isoformat(), now=NOW)
        assert found is not None
        assert found.away == told


def test_the_style_is_ours_and_named_by_what_it_is() -> None:
    assert f'href="/console/{STYLE_NAME}"' in shown(ticket())
    assert b"url(" not in STYLE
    assert b"@import" not in STYLE
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "script-src" not in policy


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_words_stand_out_from_what_they_stand_on(scheme: int) -> None:
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", STYLE.decode().split("prefers-color-scheme")[scheme]))
    for ink in ("ink", "soft", "link", "good", "bad", "waits"):
        for ground in ("page", "card"):
            assert _contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    for ground in ("note", "alert", "field"):
        assert _contrast(colours["ink"], colours[ground]) >= 4.5, ground
    for fill in ("good-fill", "bad-fill"):
        assert _contrast("#ffffff", colours[fill]) >= 4.5, fill
