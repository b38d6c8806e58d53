"""What a terminal shows of a ticket: all of it, and nothing that a caller wrote does anything there."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.doors.cli.approval_shown import asked, away, one_screen, waiting_lines

pytestmark = pytest.mark.requirement("GOV-3")

LAST = "2026-11-15T14:02:00+00:00"
NOW = datetime(2026, 11, 14, 14, 2, tzinfo=UTC)
# Whatever moves the cursor, changes the direction or hides what follows.
HARMFUL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]")
HOSTILE = st.text(
    alphabet=st.one_of(st.characters(), st.sampled_from("\x1b\r\n\u202e\u2066\u200b\x9b\U000e0041⟨⟩✓")), max_size=60
)


def ticket(words: str, **changes: Any) -> dict[str, Any]:
    """A ticket in which others wrote these words wherever they can."""
    change = {"resource": words, "op": "delete", "scope": words, "before": {words: words}, "count": 3}
    preview = {
        "by": "tool", "changes": [change], "resources": [words], "impact": {words: words}, "unknown": [],
        "preconditions": [{"name": words, "holds": True, "detail": words}], "problem": None,
    }  # fmt: skip
    named = {"name": "crm.delete_user", "version": "2.1.0", "digest": "sha256:c41e"}
    vote = {"by": words, "approve": True, "reason": words, "at": "2026-11-14T14:00:00+00:00", "broke_glass": True}
    return {
        "ticket_id": "01997f2e-3b1c-7a52-8d3e-2f60b1c4d5e6", "call_id": "c", "state": "open",
        "tool": {**named, "title": words, "description": words},
        "effects": "destructive", "undo": words, "for_user": words, "agents": [words], "task": words, "session": words,
        "environment": "production", "arguments": {words: [words, {words: words}]}, "preview": preview,
        "rules": [{"id": words, "where": words, "reason": words}],
        "demands": [{"rule": words, "groups": [words], "quorum": 2, "step_up": words, "have": 1}],
        "groups": [words], "escalates_at": "2026-11-14T14:17:00+00:00", "expires_at": "2026-11-15T14:02:00+00:00",
        "votes": [vote], **changes,
    }  # fmt: skip


@given(HOSTILE)
def test_every_word_of_others_is_plain_and_on_its_own_line(words: str) -> None:
    lines = [*one_screen(ticket(words), now=NOW), *waiting_lines(ticket(words), now=NOW)]

    assert not [line for line in lines if HARMFUL.search(line)]
    # Nothing of theirs begins a line, where a state of ours would stand.
    assert [line[:1] for line in lines if not line.startswith("  ")] == ["⏸", "⏸"]


def test_the_screen_has_an_end_however_much_was_written() -> None:
    lines = list(one_screen(ticket("A" * 50_000, arguments={str(n): "A" * 50_000 for n in range(500)}), now=NOW))

    assert len(lines) < 80
    assert max(map(len, lines)) < 1100
    assert any(re.search(r"more of 50,000 characters⟩", line) for line in lines)


def test_it_says_who_is_asked_and_what_happens_when_nobody_answers() -> None:
    told = {
        "groups": ["oncall"],
        "escalates_at": "2026-11-14T14:17:00+00:00",
        "expires_at": "2026-11-15T14:02:00+00:00",
    }

    assert asked(told, now=NOW) == "asked oncall · escalates in 15 minutes · a no unless decided within 1 day"
    assert asked({**told, "escalates_at": None, "groups": []}, now=NOW).startswith("asked nobody any more · a no")
    assert away("2026-11-14T14:02:30+00:00", now=NOW) == "in 30 seconds"
    assert away("2026-11-14T14:00:00+00:00", now=NOW) == "now"
