"""Judge a new version beside the registered ones away from the event loop: small contracts in a thread, large ones in
another process, because their schemas decide how long it takes.
"""

import asyncio
from dataclasses import asdict
from typing import Final

import orjson

from deputize.catalog.compatibility.changes import ChangeLevel
from deputize.catalog.compatibility.version_numbers import (
    CONJUNCT,
    find_neighbours,
    find_release_reasons,
    measure_bump,
    suggest_version,
)
from deputize.catalog.importers.manifest_job import JobRunner
from deputize.catalog.schema_rules import Reason
from deputize.catalog.snapshot import ToolEntry
from deputize.core.canonical import canonicalize
from deputize.core.contract.contract import Contract, LifecycleState

# Comparing so many bytes takes a few milliseconds, unless they combine schemas: 2 KB of alternatives took 450 ms.
_SMALL_BYTES: Final = 4_096
_COMBINATIONS: Final = (
    b'"anyOf"', b'"oneOf"', b'"allOf"', b'"not"', b'"if"', b'"contains"', b'"patternProperties"', b'"dependentSchemas"',
    b'"$ref"', b'"pattern"', b'"format"',
)  # fmt: skip


def is_quick_comparison(payload: bytes) -> bool:
    """Tell whether the schemas in these bytes can be compared in a thread, because they cannot take long."""
    return len(payload) <= _SMALL_BYTES and not any(keyword in payload for keyword in _COMBINATIONS)


async def judge_release(contract: Contract, entry: ToolEntry | None, run_job: JobRunner) -> list[Reason]:
    """List the reasons why a version number is wrong; none if the version is registered already or is the first.

    Retired versions do not count: nothing can call them any more, and that is final.
    """
    if entry is None or contract.version in entry.by_version:
        return []
    versions_in_use = [each.version for each in entry.versions if each.state is not LifecycleState.RETIRED]
    older, newer = find_neighbours(contract.version, versions_in_use)
    if older is None and newer is None:
        return []
    payloads = [b"" if version is None else entry.by_version[version].raw for version in (older, newer)] + [
        await asyncio.to_thread(lambda: canonicalize(contract.model_dump(mode="json")))
    ]
    payload = b"\n".join(payloads)
    if is_quick_comparison(payload):
        reply: bytes | None = await asyncio.to_thread(judge_job, payload)
    else:
        reply = await run_job(judge_job, payload)
    if not reply:
        return _build_incomparable_reasons(contract, older, newer)
    return [Reason(**each) for each in orjson.loads(reply)]


def judge_job(payload: bytes) -> bytes:
    """Judge a version in another process: the older, the newer and the new contract, one to a line; empty if none.

    The answer is empty if another release of the gateway registered something that this one cannot read.
    """
    try:
        older, newer, contract = (_parse_contract(each) for each in payload.split(b"\n"))
    except ValueError:
        return b""
    assert contract is not None
    return orjson.dumps([asdict(each) for each in find_release_reasons(contract, older=older, newer=newer)])


def _parse_contract(raw: bytes) -> Contract | None:
    return Contract.model_validate_json(raw) if raw else None


def _build_incomparable_reasons(contract: Contract, older: str | None, newer: str | None) -> list[Reason]:
    """Refuse what could not be compared, or not in time, unless the numbers announce a break on both sides anyway."""
    is_break_from_older = older is None or measure_bump(older, contract.version) is ChangeLevel.MAJOR
    is_break_to_newer = newer is None or measure_bump(contract.version, newer) is ChangeLevel.MAJOR
    if is_break_from_older and is_break_to_newer:
        return []
    fix = "simplify its schemas, or try again if many are checked now"
    if older is not None:
        fix += f"; or register it as {suggest_version(older, ChangeLevel.MAJOR)}, which may break callers"
    return [
        Reason(
            conjunct=CONJUNCT,
            path="/version",
            reason="cannot be compared with the registered ones, or not in time",
            fix=fix,
        )
    ]
