"""Validate documents in a process of their own if the schema's patterns or branches make that take long.

The validator matches patterns in linear time, but the author of the schema chooses the factor: one megabyte took
13 s with a pattern of 900 states, and nothing can interrupt it. `schema_cost.py` estimates the steps.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import orjson

from deputize.catalog.schema_cost import SchemaCost
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
    reply = await run_job(validate_job, orjson.dumps({"schema": schema, "document": canonical.decode()}))
    return None if reply is None else reply == b"valid"


def validate_job(payload: bytes) -> bytes:
    """Validate one document; this runs in the other process."""
    request = orjson.loads(payload)
    key = orjson.dumps(request["schema"])
    validator = _validators.get(key) or _validators.put(key, compile_schema(request["schema"]))
    return b"valid" if validator.is_valid(orjson.loads(request["document"])) else b"invalid"
