"""A document that its schema makes costly is validated in another process, with the same result."""

from collections.abc import Callable
from typing import Any

from deputize.catalog.costly_documents import is_costly_document, validate_off_loop
from deputize.catalog.schema_cost import measure_schema

SLOW: dict[str, Any] = {"type": "string", "pattern": "[ab]*a[ab]{900}c"}


async def run_here(job: Callable[[bytes], bytes], payload: bytes) -> bytes:
    return job(payload)


async def run_out_of_time(job: Callable[[bytes], bytes], payload: bytes) -> None:
    return None


def test_patterns_and_size_together_make_a_document_costly() -> None:
    cost = measure_schema(SLOW)
    assert is_costly_document(cost, b'"' + b"a" * 1_000_000 + b'"')
    assert not is_costly_document(cost, b'"' + b"a" * 1_000 + b'"')
    assert not is_costly_document(measure_schema({"type": "string"}), b'"' + b"a" * 1_000_000 + b'"')


async def test_the_other_process_reaches_the_same_result() -> None:
    assert await validate_off_loop(SLOW, b'"' + b"a" * 901 + b'c"', run_here) is True
    assert await validate_off_loop(SLOW, b'"b"', run_here) is False
    assert await validate_off_loop(SLOW, b'"b"', run_out_of_time) is None
