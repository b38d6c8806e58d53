"""A document that its schema makes costly is validated in another process, with the same result."""

from collections.abc import Callable
from typing import Any

from deputize.catalog import costly_documents
from deputize.catalog.compiled_tool import CompiledTool
from deputize.catalog.costly_documents import is_costly_document, validate_off_loop
from deputize.catalog.schema_cost import measure_schema
from deputize.catalog.schema_errors import UNLISTED_ERROR
from tests.support.contracts import make_contract

SLOW: dict[str, Any] = {"type": "string", "pattern": "[ab]*a[ab]{900}c"}


EXPRESSION: dict[str, Any] = {
    "type": "object", "additionalProperties": False, "properties": {"expression": {"$ref": "#/$defs/node"}},
    "$defs": {
        "node": {"anyOf": [{"$ref": "#/$defs/sum"}, {"$ref": "#/$defs/product"}, {"type": "number"}]},
        "sum": {"type": "object", "properties": {"left": {"$ref": "#/$defs/node"}}},
        "product": {"type": "object", "properties": {"left": {"$ref": "#/$defs/node"}}},
    },
}  # fmt: skip


def nest(levels: int) -> dict[str, Any]:
    value: Any = "no number"
    for _ in range(levels):
        value = {"left": value}
    return {"expression": value}


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


async def test_errors_of_a_recursive_schema_are_listed_in_another_process() -> None:
    tool = CompiledTool(make_contract(input_schema=EXPRESSION))
    jobs: list[Callable[[bytes], bytes]] = []

    async def note_job(job: Callable[[bytes], bytes], payload: bytes) -> bytes:
        jobs.append(job)
        return job(payload)

    errors = await tool.describe_input_errors(nest(3), note_job)
    assert [each["path"] for each in errors] == ["/expression"]
    assert jobs == [costly_documents.list_errors_job]
    # Sixty levels would take longer than anybody waits, here and there.
    assert await tool.describe_input_errors(nest(60), run_out_of_time) == []
    assert tool.list_input_errors(nest(60)) == [UNLISTED_ERROR]


async def test_few_errors_are_listed_at_once_and_many_in_another_process() -> None:
    plain: dict[str, Any] = {
        "type": "object",
        "additionalProperties": {"anyOf": [{"required": [f"r{each}"], "type": "object"} for each in range(40)]},
    }
    tool = CompiledTool(make_contract(input_schema=plain))
    assert len(await tool.describe_input_errors({"a": 1}, run_out_of_time)) == 1
    assert await tool.describe_input_errors({f"p{each}": 1 for each in range(100)}, run_out_of_time) == []
    assert await tool.describe_input_errors({"a": "x" * 100_000}, run_out_of_time) == []
