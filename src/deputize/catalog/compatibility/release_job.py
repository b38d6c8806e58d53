"""Judge a new version beside the registered ones away from the event loop: small contracts in a thread, large ones in
another process, because their schemas decide how long it takes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

import orjson

from deputize.catalog.compatibility.changes import ChangeLevel
from deputize.catalog.compatibility.contract_changes import compare_contracts
from deputize.catalog.compatibility.version_numbers import (
    CONJUNCT,
    find_neighbours,
    find_release_reasons,
    get_level,
    measure_bump,
    suggest_version,
)
from deputize.catalog.importers.manifest_job import JobRunner
from deputize.catalog.schema_rules import Reason
from deputize.catalog.snapshot import ToolEntry
from deputize.catalog.versions import parse_version
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
    reply = await _run_comparison(judge_job, b"\n".join(payloads), run_job)
    if not reply:
        return _build_incomparable_reasons(contract, older, newer)
    return [Reason(**each) for each in orjson.loads(reply)]


async def suggest_number(contract: Contract, entry: ToolEntry, run_job: JobRunner) -> str:
    """Suggest the number of a contract whose own is registered with other content: the next after the newest release.

    What cannot be compared, or not in time, counts as breaking.
    """
    releases = [each.version for each in entry.versions if parse_version(each.version).is_release]
    if not releases:
        return suggest_version(contract.version, ChangeLevel.PATCH)
    newest = max(releases, key=parse_version)
    raw = await asyncio.to_thread(lambda: canonicalize(contract.model_dump(mode="json")))
    reply = await _run_comparison(measure_job, entry.by_version[newest].raw + b"\n" + raw, run_job)
    return suggest_version(newest, ChangeLevel(int(reply)) if reply else ChangeLevel.MAJOR)


async def _run_comparison(job: Callable[[bytes], bytes], payload: bytes, run_job: JobRunner) -> bytes | None:
    return await asyncio.to_thread(job, payload) if is_quick_comparison(payload) else await run_job(job, payload)


def measure_job(payload: bytes) -> bytes:
    """Measure in another process how much a contract changes for callers of an older one; empty if unreadable."""
    try:
        older, contract = (Contract.model_validate_json(each) for each in payload.split(b"\n"))
    except ValueError:
        return b""
    return str(int(get_level(compare_contracts(older, contract)))).encode()


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
