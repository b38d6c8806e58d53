"""Pages before hostile eyes and hostile texts: whatever callers write is shown, and does nothing."""

import re
import unicodedata
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.errors import MalformedRequest
from deputize.interfaces.console.csrf import SECURITY_HEADERS
from deputize.interfaces.console.render import STYLESHEET, STYLESHEET_PATH, render_template
from deputize.interfaces.console.view import (
    build_alert,
    build_list_view,
    build_request_view,
    build_time_view,
    format_sentence,
)
from tests.unit.interfaces.console.sample_requests import (
    NOW,
    REQUEST_ID,
    make_list_item,
    make_request,
    make_undo_request,
)

pytestmark = pytest.mark.requirement("GOV-3")

MARKUP = (
    "</textarea></title><script>alert(1)</script><img src=x onerror=alert(2)>\" autofocus onfocus='alert(3)' {{7*7}}"
)
HIDDEN_CHARACTERS = "\u202egpj.exe\u2066\u200b\u2060\ufeff\U000e0041\U000e007f\ue000\x1b[31m\x9b2J\x07\r\n\x00"
HOSTILE = MARKUP + HIDDEN_CHARACTERS + "![x](http://evil.example/p.png)"
VOID = frozenset({"meta", "link", "input", "br"})


class ParsedPage(HTMLParser):
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

    def find_all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def render_request(request: dict[str, Any], **context: Any) -> str:
    known: dict[str, Any] = {
        "user": "sam", "form_token": "token", "can_sign_out": True, "sign_in_again_url": None, "alert": None,
        "reason": "", "code_session": "", **context,
    }  # fmt: skip
    return render_template(
        "approval_request.html", root="", approval_request=build_request_view(request, now=NOW), **known
    )


def find_texts(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to every text in an approval request that someone else wrote."""
    if isinstance(value, dict):
        return [way for name, each in value.items() for way in find_texts(each, (*path, name))]
    if isinstance(value, list):
        return [way for place, each in enumerate(value) for way in find_texts(each, (*path, place))]
    return [path] if isinstance(value, str) and not str(path[-1]).endswith("at") else []


def replace_text(request: dict[str, Any], path: tuple[Any, ...], text: str) -> dict[str, Any]:
    holder: Any = request
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = text
    return request


def parse_harmless(source: str) -> ParsedPage:
    page = ParsedPage(source)
    allowed = {
        "html", "head", "meta", "title", "link", "body", "header", "main", "footer", "a", "form", "input", "span",
        "bdi", "button", "div", "p", "h1", "h2", "strong", "time", "section", "dl", "dt", "dd", "code", "ul", "li",
        "q", "details", "summary", "pre", "aside", "label", "textarea", "br", "table", "thead", "tbody", "tr",
        "th", "td",
    }  # fmt: skip
    assert {tag for tag, _ in page.elements} <= allowed
    for _, attributes in page.elements:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
    hidden = {each for each in source if unicodedata.category(each) in ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")}
    assert hidden <= {"\n"}
    return page


@pytest.mark.parametrize("way", find_texts(make_request()), ids=lambda way: "/".join(map(str, way)))
def test_no_text_of_a_request_becomes_markup_or_hides_anything(way: tuple[Any, ...]) -> None:
    page = parse_harmless(render_request(replace_text(make_request(), way, HOSTILE)))
    assert len(page.find_all("form")) == (1 if way == ("state",) else 2)
    assert [each["href"] for each in page.find_all("a")] == [
        each["href"] for each in ParsedPage(render_request(make_request())).find_all("a")
    ]


@pytest.mark.parametrize(
    "way", [each for each in find_texts(make_undo_request()) if each[0] == "undo_steps"], ids=lambda way: str(way[1:])
)
def test_no_text_of_a_step_becomes_markup_or_hides_anything(way: tuple[Any, ...]) -> None:
    parse_harmless(render_request(replace_text(make_undo_request(), way, HOSTILE)))


def test_the_steps_of_an_undo_are_a_table_that_says_what_is_approved() -> None:
    page = ParsedPage(render_request(make_undo_request()))
    text = re.sub(r"\s+", " ", page.text)
    for said in (
        "Undo of 4 calls", "one approval for 2", 'name"Ada" as it was before the call', "id7 written by billing-bot",
        "needs this approvaldestructive-needs-human", "needs no approval", "would be refusedits user is gone",
        "Expected changes of step 1", "has no preview, because a step before it changes the same",
        "exactly these steps, each once",
    ):  # fmt: skip
        assert said in text, said
    assert len(page.find_all("tr")) == 5
    # What the first step is, stands in the table alone.
    assert "Delete a user" not in text


def test_a_step_that_is_shortened_is_named_before_the_decision() -> None:
    request = make_undo_request()
    request["undo_steps"][2]["arguments"]["name"] = "x" * 5_000
    assert "Some values are shortened" in ParsedPage(render_request(request)).text


def test_names_of_arguments_are_texts_of_callers_too() -> None:
    page = parse_harmless(render_request(make_request(arguments={HOSTILE: {HOSTILE: [HOSTILE]}})))
    assert "<script>alert(1)</script>" in page.text
    assert r"\u202egpj.exe" in page.text


def test_reasons_and_alerts_come_back_harmlessly() -> None:
    page = parse_harmless(render_request(make_request(), typed=MARKUP, alert={"message": MARKUP, "advice": MARKUP}))
    assert MARKUP in page.text


@given(st.text(st.characters()))
def test_whatever_is_in_an_argument_the_page_stays_one(text: str) -> None:
    parse_harmless(render_request(make_request(arguments={"a": text, text: 1}, for_user=text)))


def test_fifty_kilobytes_are_shortened_and_can_be_expanded() -> None:
    source = render_request(make_request(arguments={"big": "x" * 51_200}))
    page = parse_harmless(source)
    assert "50,900 more of 51,200 characters" in page.text
    assert "show all, 51,200 characters" in page.text
    assert "x" * 51_200 in page.text
    assert "Some values are shortened" in page.text
    assert "shortened" not in ParsedPage(render_request(make_request())).text.lower()


def test_a_page_does_not_grow_without_end() -> None:
    many = {f"name{number}": "\u202e" * 51_200 for number in range(300)}
    source = render_request(make_request(arguments=many))
    parse_harmless(source)
    assert len(source) < 3_000_000
    assert "100 more arguments" in source


def test_the_page_says_who_for_whom_what_what_changes_why_until_when_and_who_else() -> None:
    text = re.sub(r"\s+", " ", ParsedPage(render_request(make_request())).text)
    for said in (
        "Waiting for a decision", "crm.delete_user",
        "Requested 42 min ago by billing-bot for planner on behalf of ana@acme.example in production.",
        "close the account of case 881", '"asked by the customer"',
        "− delete crm.users/7 × 1", "− delete crm.invoices/* × 14", "Also affects: search.index/7",
        "no open orders: ✓ holds", "can be undone with crm.restore_user",
        "What cannot be taken back is put to a person.rule destructive-needs-human, policies/default.cedar:8",
        "15 Nov 2026, 13:20 UTC (in 23 h 18 min)", "14 Nov 2026, 14:20 UTC (in 18 min)",
        "2 approvals from oncall, later also leads; 1 so far", "eva@acme.example ✓ approved 21 min ago: GDPR 881",
        "Previewed 42 min ago", "Approve", "Deny",
    ):  # fmt: skip
        assert said in text


def test_the_form_sends_back_what_was_seen() -> None:
    page = ParsedPage(render_request(make_request()))
    sent = {each["name"]: each["value"] for each in page.find_all("input") if each.get("name") == "binding"}
    assert sent == {"binding": "ab" * 32}
    deny, approve = page.find_all("form")[1]["action"], page.find_all("button")[2]["formaction"]
    assert (deny, approve) == (f"/console/approvals/{REQUEST_ID}/deny", f"/console/approvals/{REQUEST_ID}/approve")


def test_a_preview_from_the_contract_says_what_it_does_not_know() -> None:
    generic = {
        "by": "contract", "changes": [{"resource": "crm.users", "op": "delete", "scope": "7"}],
        "resources": ["crm.users/7"], "preconditions": [], "impact": {}, "unknown": ["before", "count"],
    }  # fmt: skip
    text = ParsedPage(render_request(make_request(preview=generic, undo=None))).text
    assert "because this tool has no preview: the state before, how many items" in text
    assert "no undo is declared" in text


def test_a_preview_that_failed_says_so() -> None:
    text = ParsedPage(
        render_request(
            make_request(preview={"by": "contract", "problem": "the CRM does not answer", "unknown": ["count"]})
        )
    ).text
    assert "The tool’s preview failed: the CRM does not answer" in text
    assert "No changes are predicted" not in text
    assert "Unknown: how many items" in text
    assert "Previewed" not in text


def test_a_break_glass_decision_is_shown() -> None:
    vote = {"by": "eva", "approve": True, "reason": "", "at": "2026-11-14T13:41:00+00:00", "broke_glass": True}
    assert "eva ⚠ approved by break-glass" in re.sub(
        r"\s+", " ", ParsedPage(render_request(make_request(votes=[vote]))).text
    )


def test_who_may_not_decide_reads_why_and_gets_no_form() -> None:
    page = ParsedPage(
        render_request(make_request(may_decide=False, may_deny=False, why_not="you took part in this call"))
    )
    assert "You cannot decide this: you took part in this call" in page.text
    assert page.find_all("textarea") == []


def test_who_signed_in_too_weakly_may_still_say_no_and_is_shown_the_way() -> None:
    told = make_request(may_decide=False, why_not="this approval needs the sign-in method hwk")
    page = ParsedPage(render_request(told, sign_in_again_url="/console/sign-in?again=1"))
    assert "You cannot approve this: this approval needs the sign-in method hwk" in page.text
    assert [each.get("class") for each in page.find_all("button")] == ["link", "deny"]
    assert {"class": "button", "href": "/console/sign-in?again=1"} in page.find_all("a")


@pytest.mark.parametrize("state", ["approved", "used", "denied", "expired", "void", "canceled", "of tomorrow"])
def test_a_closed_request_shows_its_outcome_and_has_no_form(state: str) -> None:
    page = ParsedPage(render_request(make_request(state=state, may_decide=False, why_not="closed")))
    assert page.find_all("textarea") == []
    assert "This request is closed" in page.text
    assert "UTC (in 23 h" not in page.text


def test_everything_to_type_in_has_a_label_and_every_section_a_heading() -> None:
    page = ParsedPage(render_request(make_request()))
    ids = {attributes.get("id") for _, attributes in page.elements}
    assert {each["for"] for each in page.find_all("label")} == {each["id"] for each in page.find_all("textarea")}
    assert {each["aria-labelledby"] for each in page.find_all("section")} <= ids
    assert len(page.find_all("h1")) == 1
    assert page.find_all("html")[0]["lang"] == "en"


def test_the_list_shows_what_waits_and_leads_there() -> None:
    requests = build_list_view([make_list_item(), make_list_item(agent=None, for_user=HOSTILE)], now=NOW)
    page = parse_harmless(
        render_template(
            "approval_requests.html",
            root="/gw",
            user="sam",
            form_token="t",
            can_sign_out=True,
            approval_requests=requests,
            older_url=None,
            has_accounts=True,
        )
    )
    assert page.find_all("a")[1]["href"] == f"/gw/console/approvals/{REQUEST_ID}"
    assert "by billing-bot on behalf of ana@acme.example." in page.text


def test_times_are_shown_relative_to_now() -> None:
    for distance, told in (
        (timedelta(seconds=30), "in less than a minute"), (timedelta(minutes=5), "in 5 min"),
        (timedelta(hours=2), "in 2 h"), (timedelta(days=1, hours=3), "in 1 d 3 h"),
        (timedelta(days=9, hours=3), "in 9 d"), (-timedelta(hours=1, minutes=1), "1 h 1 min ago"),
    ):  # fmt: skip
        found = build_time_view((NOW + distance).isoformat(), now=NOW)
        assert found is not None
        assert found.distance == told


def test_the_style_is_ours_and_named_by_what_it_is() -> None:
    assert f'href="{STYLESHEET_PATH}"' in render_request(make_request())
    assert b"url(" not in STYLESHEET
    assert b"@import" not in STYLESHEET
    policy = SECURITY_HEADERS["content-security-policy"]
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
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", STYLESHEET.decode().split("prefers-color-scheme")[scheme]))
    for ink in ("ink", "soft", "link", "good", "bad", "pending"):
        for ground in ("page", "card"):
            assert _contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    for ground in ("note", "alert", "field"):
        assert _contrast(colours["ink"], colours[ground]) >= 4.5, ground
    for fill in ("good-fill", "bad-fill"):
        assert _contrast("#ffffff", colours[fill]) >= 4.5, fill


@pytest.mark.parametrize(
    ("state", "call_state", "outcome", "is_followed"),
    [
        ("open", "awaiting_approval", None, False),
        ("approved", "queued", "waiting for a worker", True),
        ("used", "running", "running", True),
        ("used", "succeeded", "succeeded", False),
        ("used", "timed_out", "timed out", False),
        ("denied", "denied", None, False),
    ],
)
def test_an_approved_calls_page_follows_it_to_its_outcome(
    state: str, call_state: str, outcome: str | None, is_followed: bool
) -> None:
    view = build_request_view({**make_request(), "state": state, "call_state": call_state}, now=NOW)
    assert (view["outcome"] and view["outcome"].text, view["is_ongoing"]) == (outcome, is_followed)


@pytest.mark.requirement("GOV-6")
def test_what_looks_like_an_injection_attempt_is_shown_and_escaped() -> None:
    suspicion = {"number": "E3305", "kind": "sql", "path": "/<b>", "text": "looks like SQL injection in /<b>"}
    page = render_request(make_request(suspicions=[suspicion]))
    assert "looks like SQL injection in /&lt;b&gt;</bdi> (E3305)." in page
    assert "Caution" not in render_request(make_request())


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("the form cannot be read", "The form cannot be read."),
        ("which tools?", "Which tools?"),
        ("it's over!", "It's over!"),
        ("policies/default.cedar has no rules", "policies/default.cedar has no rules."),
        ("crm.get_user is off", "crm.get_user is off."),
        ("max_age must be a number", "max_age must be a number."),
    ],
)
def test_a_message_becomes_a_sentence_whose_names_stay_as_they_are_written(message: str, sentence: str) -> None:
    assert format_sentence(message) == sentence


def test_a_person_at_a_form_is_not_sent_to_the_document_of_the_api() -> None:
    assert "/docs" not in build_alert(MalformedRequest("a field of the form was sent twice"))["advice"]
    assert build_alert(MalformedRequest("no", advice="Choose one."))["advice"] == "Choose one."
