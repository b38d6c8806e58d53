"""Large documents are redacted and rendered in a thread, small ones where they are."""

import threading

import pytest

from deputize.lifecycle.recording.commitments import run_for_document


@pytest.mark.parametrize(
    ("canonical", "is_off_loop"),
    [
        (b"{}", False),
        (b"[" + b"0," * 1_000 + b"0]", False),
        (b"[" + b"0," * 3_000 + b"0]", True),
        (b'"' + b"a" * 200_000 + b'"', True),
    ],
)
async def test_only_a_large_document_leaves_the_event_loop(canonical: bytes, is_off_loop: bool) -> None:
    thread = await run_for_document(canonical, threading.get_ident)
    assert (thread != threading.get_ident()) is is_off_loop
