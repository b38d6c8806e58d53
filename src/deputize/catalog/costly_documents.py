"""Validate documents, and list their errors, in a process of their own if the schema makes that take long.

The validator matches patterns in linear time, but the author of the schema chooses the factor: one megabyte took
13 s with a pattern of 900 states, and nothing can interrupt it. `schema_cost.py` estimates the steps. The errors of
35 bytes took 44 s with a recursive schema.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson

from deputize.catalog.schema_cost import SchemaCost
from deputize.catalog.schema_errors import is_quick_to_list, list_errors
from deputize.catalog.schemas import Validator, compile_schema
from deputize.core.bounded_dict import BoundedDict
from deputize.core.contract.contract import Schema
from deputize.core.json_values import count_values_in

# A step takes up to 15 ns, so this many take 45 ms at most, and usually much less.
MAX_LOOP_STEPS: Final = 3_000_000
JobRunner = Callable[[Callable[[bytes], bytes], bytes], Awaitable[bytes | None]]
_validators: BoundedDict[bytes, Validator] = BoundedDict(8)


def is_costly_document(cost: SchemaCost, canonical: bytes) -> bool:
    """Tell whether validating a document may take longer than the event loop can wait."""
    size = len(canonical)
    if cost.estimate_steps(size=size, values=size) <= MAX_LOOP_STEPS:
        return False
    return cost.estimate_steps(size=size, values=count_values_in(canonical)) > MAX_LOOP_STEPS


async def validate_off_loop(schema: Schema, canonical: bytes, run_job: JobRunner) -> bool | None:
    """Validate a document, given as JSON, in another process; None if that takes too long."""
    reply = await run_job(validate_job, _build_payload(schema, canonical))
    return None if reply is None else reply == b"valid"


async def describe_errors(
    validator: Validator, value: Any, schema: Schema, cost: SchemaCost, run_job: JobRunner
) -> list[dict[str, Any]]:
    """List what is invalid in a document: few errors here, others in another process; none if that takes too long."""
    if is_quick_to_list(cost, value):
        return list_errors(validator, value, schema)
    reply = await run_job(list_errors_job, _build_payload(schema, orjson.dumps(value)))
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
