"""Render approval requests: everything is shown, and no text of a caller affects the terminal."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.interfaces.cli.render.approvals import (
    describe_pending_approval,
    format_time_left,
    render_approval,
    render_pending_approval,
)

pytestmark = pytest.mark.requirement("GOV-3")

LAST = "2026-11-15T14:02:00+00:00"
NOW = datetime(2026, 11, 14, 14, 2, tzinfo=UTC)
# Whatever moves the cursor, changes the direction or hides what follows.
HARMFUL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]")
HOSTILE = st.text(
    alphabet=st.one_of(st.characters(), st.sampled_from("\x1b\r\n\u202e\u2066\u200b\x9b\U000e0041⟨⟩✓")), max_size=60
)


def make_request(text: str, **changes: Any) -> dict[str, Any]:
    """Make an approval request in which callers wrote a text wherever they can."""
    change = {"resource": text, "op": "delete", "scope": text, "before": {text: text}, "count": 3}
    preview = {
        "by": "tool", "changes": [change], "resources": [text], "impact": {text: text}, "unknown": [],
        "preconditions": [{"name": text, "holds": True, "detail": text}], "problem": None,
    }  # fmt: skip
    named = {"name": "crm.delete_user", "version": "2.1.0", "digest": "sha256:c41e"}
    vote = {"by": text, "approve": True, "reason": text, "at": "2026-11-14T14:00:00+00:00", "broke_glass": True}
    return {
        "approval_id": "01997f2e-3b1c-7a52-8d3e-2f60b1c4d5e6", "call_id": "c", "state": "open",
        "tool": {**named, "title": text, "description": text},
        "effects": "destructive", "undo": text, "for_user": text, "agents": [text], "task": text, "session": text,
        "environment": "production", "arguments": {text: [text, {text: text}]}, "preview": preview,
        "rules": [{"id": text, "where": text, "reason": text}],
        "demands": [{"rule": text, "groups": [text], "quorum": 2, "step_up": text, "have": 1}],
        "groups": [text], "escalates_at": "2026-11-14T14:17:00+00:00", "expires_at": "2026-11-15T14:02:00+00:00",
        "votes": [vote], "suspicions": [{"number": "E3305", "kind": "sql", "path": text, "text": text}], **changes,
    }  # fmt: skip


@given(HOSTILE)
def test_every_word_of_others_is_plain_and_on_its_own_line(words: str) -> None:
    lines = [
        *render_approval(make_request(words), now=NOW),
        *render_pending_approval(make_request(words), "c", now=NOW),
    ]

    assert not [line for line in lines if HARMFUL.search(line)]
    # Nothing of theirs begins a line, where a state of ours would stand.
    assert [line[:1] for line in lines if not line.startswith("  ")] == ["⏸", "⏸"]


def make_undo(text: str) -> dict[str, Any]:
    """Make a request for several steps in which callers wrote a text wherever they can."""
    request = make_request(text)
    step = {
        "entry_id": "e", "undone_call_id": "c", "undone_tool": text, "tool": text, "decision": "ask", "detail": None,
        "source_agents": [text], "arguments": {text: text, "name": "a"}, "origins": {text: "arguments"},
        "rules": request["rules"], "preview": request["preview"], "suspicions": request["suspicions"],
    }  # fmt: skip
    refused = {**step, "decision": "refused", "detail": text, "arguments": None, "rules": [], "preview": None}
    return {**request, "undo_steps": [step, refused]}


@given(HOSTILE)
def test_every_word_of_others_is_plain_in_the_steps_of_an_undo(words: str) -> None:
    lines = list(render_approval(make_undo(words), now=NOW))
    assert not [line for line in lines if HARMFUL.search(line)]
    assert [line[:1] for line in lines if not line.startswith("  ")] == ["⏸"]


def test_the_steps_of_an_undo_say_what_is_approved() -> None:
    lines = list(render_approval(make_undo("x"), now=NOW))
    first = lines.index("  Steps, in this order: one approval for 1")
    assert lines[first - 1] == "  x for x   undo of 2 calls in production"
    assert lines[first + 1 : first + 5] == [
        "     1  x  needs this approval by x · takes back x in call c",
        '          x: "x"  (written by x)',
        '          name: "a"  (it was not recorded where from)',
        "          Caution: E3305 x",
    ]
    assert "     2  x  would be refused: x · takes back x in call c" in lines
    assert "  Arguments" not in lines


@pytest.mark.requirement("GOV-6")
def test_what_looks_like_an_injection_attempt_is_below_the_arguments() -> None:
    suspicion = {"number": "E3305", "kind": "sql", "path": "/q", "text": "looks like SQL injection in /q"}
    lines = list(render_approval(make_request("x", suspicions=[suspicion]), now=NOW))
    assert lines[lines.index("  Caution") + 1] == "    E3305 looks like SQL injection in /q"
    assert "  Caution" not in list(render_approval(make_request("x", suspicions=None), now=NOW))


def test_the_screen_has_an_end_however_much_was_written() -> None:
    lines = list(
        render_approval(make_request("A" * 50_000, arguments={str(n): "A" * 50_000 for n in range(500)}), now=NOW)
    )

    assert len(lines) < 80
    assert max(map(len, lines)) < 1100
    assert any(re.search(r"more of 50,000 characters⟩", line) for line in lines)


def test_a_pending_approval_names_the_approvers_and_the_deadline() -> None:
    approval = {
        "groups": ["oncall"],
        "escalates_at": "2026-11-14T14:17:00+00:00",
        "expires_at": "2026-11-15T14:02:00+00:00",
    }

    assert (
        describe_pending_approval(approval, now=NOW)
        == "Waiting for approval by group oncall. Escalates in 15 minutes. Denied automatically in 1 day."
    )
    without_groups = describe_pending_approval({**approval, "escalates_at": None, "groups": []}, now=NOW)
    assert without_groups.startswith("Waiting for approval, but no group is left to decide. Denied")
    both = describe_pending_approval({**approval, "groups": ["oncall", "leads"]}, now=NOW)
    assert both.startswith("Waiting for approval by groups oncall, leads. ")
    assert format_time_left("2026-11-14T14:02:30+00:00", now=NOW) == "in 30 seconds"
    assert format_time_left("2026-11-14T14:00:00+00:00", now=NOW) == "now"
