"""Documents that are large or take a long search are redacted and rendered in a thread, others where they are."""

import threading

import pytest

from deputize.lifecycle.recording.redaction import redact_responses, run_for_document


@pytest.mark.parametrize(
    ("canonical", "is_off_loop"),
    [
        (b"{}", False),
        (b"[" + b"0," * 1_000 + b"0]", False),
        (b"[" + b"0," * 3_000 + b"0]", True),
        (b'"' + b"a" * 200_000 + b'"', True),
        (b'"' + b"a " * 4_000 + b'"', False),
        (b'"' + b"a@b.example " * 400 + b'"', True),
    ],
)
async def test_only_a_large_document_leaves_the_event_loop(canonical: bytes, is_off_loop: bool) -> None:
    thread = await run_for_document(canonical, threading.get_ident)
    assert (thread != threading.get_ident()) is is_off_loop


def test_input_responses_are_redacted_and_hidden_as_a_whole_if_that_would_take_long() -> None:
    responses = {"who": {"action": "accept", "content": {"note": "ana@example.org", "password": "x"}}}
    assert redact_responses(responses) == {
        "who": {"action": "accept", "content": {"note": "[email]", "password": "[redacted]"}}
    }
    assert redact_responses({"who": "ana@example.org " * 400}) == {"who": "[redacted]"}
