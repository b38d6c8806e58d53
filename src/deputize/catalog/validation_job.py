"""Validate documents, and list their errors, in a process of their own if the schema makes that take long.

The validator matches patterns in linear time, but the author of the schema chooses the factor: one megabyte took
13 s with a pattern of 900 states, and nothing can interrupt it. `schema_cost.py` estimates the steps. The errors of
35 bytes took 44 s with a recursive schema.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson

from deputize.catalog.schema_cost import SchemaCost, measure_schema
from deputize.catalog.schema_errors import find_errors, is_quick_to_list, list_errors
from deputize.catalog.schemas import Validator, compile_schema
from deputize.core.bounded_dict import BoundedDict
from deputize.core.contract.contract import Schema
from deputize.core.json_values import count_values_in, is_large_document

# A step takes up to 15 ns, so this many take 45 ms at most, and usually much less.
MAX_LOOP_STEPS: Final = 3_000_000
JobRunner = Callable[[Callable[[bytes], bytes], bytes], Awaitable[bytes | None]]
_validators: BoundedDict[bytes, Validator] = BoundedDict(8)


def is_costly_document(cost: SchemaCost, canonical: bytes) -> bool:
    """Tell whether validating a document may take longer than the event loop can wait."""
    size = len(canonical)
    exponents = canonical.count(b"e-") + canonical.count(b"e+")
    values, fractions = count_values_in(canonical), canonical.count(b".")
    return cost.estimate_steps(size=size, values=values, fractions=fractions, exponents=exponents) > MAX_LOOP_STEPS


class CompiledSchema:
    """A schema with its validator and its cost. `is_valid` is the Rust validator's own bound method."""

    __slots__ = ("_cost", "_quick_bytes", "_schema", "_validator", "is_valid")

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._validator: Validator = compile_schema(schema)
        self._cost = measure_schema(schema)
        # Whatever a document of so many bytes contains, validating it is quick.
        self._quick_bytes = MAX_LOOP_STEPS // self._cost.estimate_steps(size=1, values=1, fractions=1, exponents=1)
        self.is_valid = self._validator.is_valid

    def is_costly(self, canonical: bytes) -> bool:
        """Tell whether a document must not be validated here, nor in a thread."""
        return len(canonical) > self._quick_bytes and is_costly_document(self._cost, canonical)

    async def check(self, value: Any, canonical: bytes, run_job: JobRunner) -> bool | None:
        """Tell whether a document is valid: here, in a thread if it is large, in another process if it is costly.

        None if that takes too long.
        """
        is_large = is_large_document(canonical)
        if await asyncio.to_thread(self.is_costly, canonical) if is_large else self.is_costly(canonical):
            return await self.check_off_loop(canonical, run_job)
        return await asyncio.to_thread(self.is_valid, value) if is_large else self.is_valid(value)

    async def check_off_loop(self, canonical: bytes, run_job: JobRunner) -> bool | None:
        """Tell whether a document, given as JSON, is valid, in another process; None if that takes too long."""
        reply = await run_job(validate_job, _build_payload(self._schema, canonical))
        return None if reply is None else reply == b"valid"

    def find_errors(self, value: Any) -> list[dict[str, Any]]:
        """List what is invalid in a document; one error about the whole of it if the list would take long."""
        return find_errors(self._validator, value, self._schema, self._cost)

    async def describe_errors(self, value: Any, run_job: JobRunner) -> list[dict[str, Any]]:
        """List the errors of an invalid document: few here, others in another process; none if that takes too long."""
        if is_quick_to_list(self._cost, value):
            return list_errors(self._validator, value, self._schema)
        reply = await run_job(list_errors_job, _build_payload(self._schema, orjson.dumps(value)))
        errors: list[dict[str, Any]] = [] if reply is None else orjson.loads(reply)
        return errors


def validate_job(payload: bytes) -> bytes:
    """Validate one document; this runs in the other process."""
    validator, document, _ = _parse_payload(payload)
    return b"valid" if validator.is_valid(document) else b"invalid"


def list_errors_job(payload: bytes) -> bytes:
    """List the errors of one document; this runs in the other process."""
    return orjson.dumps(list_errors(*_parse_payload(payload)))


def _build_payload(schema: Schema, canonical: bytes) -> bytes:
    return orjson.dumps({"schema": schema, "document": canonical.decode()})


def _parse_payload(payload: bytes) -> tuple[Validator, Any, Schema]:
    request = orjson.loads(payload)
    key = orjson.dumps(request["schema"])
    validator = _validators.get(key) or _validators.put(key, compile_schema(request["schema"]))
    return validator, orjson.loads(request["document"]), request["schema"]
