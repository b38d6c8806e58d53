"""Judge a manifest that was sent from outside: a simple one in a thread, any other in another process.

`judge_job` runs in that process (`execute/job_processes.py`), where a schema may take its time. What it returns was
parsed and admitted there; names and facts of other tools are compared later, under the registry's lock.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from deputize.catalog.importers.manifest import parse_contract
from deputize.catalog.registration_rules import admit_contract
from deputize.catalog.schema_cost import is_quick_to_check
from deputize.core.canonical import canonicalize
from deputize.core.contract.contract import Contract
from deputize.core.errors import ToolNotAdmitted

# Run a job in another process: the job's function and its input; None if it took too much time or memory.
JobRunner = Callable[[Callable[[bytes], bytes], bytes], Awaitable[bytes | None]]


async def judge_manifest(manifest: Any, run_job: JobRunner) -> Contract:
    """Parse and admit a contract, or raise `ToolNotAdmitted` with every reason."""
    try:
        payload = await asyncio.to_thread(orjson.dumps, manifest)
    except TypeError as error:
        raise ToolNotAdmitted("the manifest is nested too deep to be read") from error
    if is_quick_to_check(payload):
        return await asyncio.to_thread(_judge, manifest)
    reply = await run_job(judge_job, payload)
    if reply is None:
        raise ToolNotAdmitted(
            "the manifest takes too long to check; simplify its schemas, or try again if many are checked now"
        )
    if reply[:1] == b"-":
        refusal = orjson.loads(reply[1:])
        raise ToolNotAdmitted(refusal["message"], details=refusal["details"])
    return await asyncio.to_thread(Contract.model_validate_json, reply[1:])


def judge_job(payload: bytes) -> bytes:
    """Judge a manifest in another process: `+` and the contract, or `-` and the refusal."""
    try:
        contract = _judge(orjson.loads(payload))
    except ToolNotAdmitted as refusal:
        return b"-" + orjson.dumps({"message": refusal.message, "details": refusal.details})
    return b"+" + canonicalize(contract.model_dump(mode="json"))


def _judge(manifest: Any) -> Contract:
    contract = parse_contract(manifest)
    admit_contract(contract)
    return contract
