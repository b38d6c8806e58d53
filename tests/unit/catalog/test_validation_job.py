"""A document that its schema makes costly is validated in another process, with the same result."""

from collections.abc import Callable
from typing import Any

from deputize.catalog import validation_job
from deputize.catalog.compiled_tool import CompiledTool
from deputize.catalog.predicates import CompiledPredicates, find_failed_job
from deputize.catalog.schema_cost import measure_schema
from deputize.catalog.schema_errors import UNLISTED_ERROR
from deputize.catalog.validation_job import CompiledSchema, JobRunner, is_costly_document
from deputize.core.contract.predicates import Predicate
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


def make_job_notes() -> tuple[list[Callable[[bytes], bytes]], JobRunner]:
    jobs: list[Callable[[bytes], bytes]] = []

    async def note_job(job: Callable[[bytes], bytes], payload: bytes) -> bytes:
        jobs.append(job)
        return job(payload)

    return jobs, note_job


def test_patterns_and_size_together_make_a_document_costly() -> None:
    cost = measure_schema(SLOW)
    assert is_costly_document(cost, b'"' + b"a" * 1_000_000 + b'"')
    assert not is_costly_document(cost, b'"' + b"a" * 1_000 + b'"')
    assert not is_costly_document(measure_schema({"type": "string"}), b'"' + b"a" * 1_000_000 + b'"')


async def test_the_other_process_reaches_the_same_result() -> None:
    slow = CompiledSchema(SLOW)
    assert await slow.check_off_loop(b'"' + b"a" * 901 + b'c"', run_here) is True
    assert await slow.check_off_loop(b'"b"', run_here) is False
    assert await slow.check_off_loop(b'"b"', run_out_of_time) is None


async def test_errors_of_a_recursive_schema_are_listed_in_another_process() -> None:
    tool = CompiledTool(make_contract(input_schema=EXPRESSION))
    jobs, note_job = make_job_notes()
    errors = await tool.input.describe_errors(nest(3), note_job)
    assert [each["path"] for each in errors] == ["/expression"]
    assert jobs == [validation_job.list_errors_job]
    # Sixty levels would take longer than anybody waits, here and there.
    assert await tool.input.describe_errors(nest(60), run_out_of_time) == []
    assert tool.list_input_errors(nest(60)) == [UNLISTED_ERROR]


async def test_few_errors_are_listed_at_once_and_many_in_another_process() -> None:
    plain: dict[str, Any] = {
        "type": "object",
        "additionalProperties": {"anyOf": [{"required": [f"r{each}"], "type": "object"} for each in range(40)]},
    }
    tool = CompiledTool(make_contract(input_schema=plain))
    assert len(await tool.input.describe_errors({"a": 1}, run_out_of_time)) == 1
    assert await tool.input.describe_errors({f"p{each}": 1 for each in range(100)}, run_out_of_time) == []
    assert await tool.input.describe_errors({"a": "x" * 100_000}, run_out_of_time) == []


async def test_comparisons_of_many_values_are_evaluated_in_another_process() -> None:
    predicates = CompiledPredicates(
        [
            Predicate(name="known", compare=("/output/* in /input/known",)),
            Predicate(name="one_row", compare=("/change/rows == 1",)),
            Predicate(name="few", holds={"properties": {"output": {"maxItems": 10}}}),
        ]
    )
    arguments, state = {"known": list(range(10_000))}, {"before": {"rows": 1}, "after": {"rows": 3}}
    jobs, note_job = make_job_notes()
    for output, some_state, names in (
        ([1, 2], None, []),
        (list(range(9_999)), None, ["few"]),
        (list(range(10_001)), state, ["known", "one_row", "few"]),
    ):
        failures = await predicates.find_failed(arguments, output, some_state, note_job)
        assert failures is not None
        assert [each.name for each in failures] == names
    assert set(jobs) == {find_failed_job}
    assert await predicates.find_failed(arguments, [1], state, run_out_of_time) is None
