"""Report how a tool does against what its contract promises, and advise on its timeout class."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

import structlog

from deputize.catalog.snapshot import ToolEntry, ToolVersion
from deputize.catalog.versions import parse_version
from deputize.core.caller import Caller
from deputize.core.contract.contract import Contract
from deputize.core.contract.names import to_full_name
from deputize.core.errors import ToolRequiresSetup
from deputize.evidence.call_measurements import MICROSECONDS, CallEnd, Measurement, load_measurements
from deputize.evidence.objective_levels import compute_p99, compute_share, judge_objectives
from deputize.evidence.timeout_advice import MAX_TIMEOUT_SHARE, advise_timeout
from deputize.govern.token_authorization import is_tool_visible, require_admin, require_admin_scope
from deputize.lifecycle.runtime import Runtime
from deputize.operations.admin.deprecations import find_version
from deputize.store.pool import CONNECTION_ERRORS

# Of more versions, those with most calls are reported.
_MAX_VERSIONS: Final = 20
_WARNING_DAYS: Final = 7
log = structlog.get_logger(__name__)


class ServiceLevels:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def report_levels(self, caller: Caller, name: str, version: str | None, days: int) -> dict[str, Any]:
        """Report what was measured of a tool's versions in the last days, beside what each contract declares."""
        require_admin_scope(caller)
        runtime, full_name = self._runtime, to_full_name(name)
        authority = await runtime.authority.load_tenant(caller.tenant)
        authority.revocations.check(caller)
        entry = authority.tools.get_entry(full_name, visible=partial(is_tool_visible, caller))
        if version is not None:
            find_version(authority.tools, entry.name, version)
        await runtime.call_measurements.store_measurements(runtime.store)
        measurements = await self._load_measurements(caller.tenant, entry.name, version, days)
        tool_versions = _choose_versions(entry, version, measurements)
        contracts = await asyncio.to_thread(lambda: [_find_contract(each) for each in tool_versions])
        return {
            "name": entry.name,
            "days": days,
            "since": (runtime.clock.now().date() - timedelta(days=days - 1)).isoformat(),
            "versions": [
                {"version": each.version, "state": each.state, **_describe_levels(contract, measurements[each.version])}
                for each, contract in zip(tool_versions, contracts, strict=True)
                if contract is not None
            ],
        }

    async def list_timeout_warnings(self, caller: Caller, contract: Contract) -> list[str]:
        """List what the measurements of an earlier version say against the timeout of a new one."""
        require_admin(caller)
        tools = (await self._runtime.authority.load_tenant(caller.tenant)).tools
        entry = tools.find_entry(contract.full_name)
        if entry is None or len(entry.by_version) == 1:
            return []
        try:
            measurements = await self._load_measurements(caller.tenant, entry.name, None, _WARNING_DAYS)
        except CONNECTION_ERRORS as error:
            # The version is registered; a warning is not worth an error.
            log.warning("measurements_not_read", tool=contract.full_name, reason=repr(error))
            return []
        return await asyncio.to_thread(_find_timeout_warnings, entry, contract, measurements)

    async def _load_measurements(
        self, tenant: str, name: str, version: str | None, days: int
    ) -> dict[str, Measurement]:
        since = self._runtime.clock.now().date() - timedelta(days=days - 1)
        async with self._runtime.store.read_transaction(tenant) as connection:
            measurements = await load_measurements(
                connection, tenant, name, since, version=version, limit=_MAX_VERSIONS
            )
        return {each.version: each for each in measurements}


def _choose_versions(
    entry: ToolEntry, version: str | None, measurements: dict[str, Measurement]
) -> Sequence[ToolVersion]:
    """Choose the versions that were measured, the newest first; without any, the requested or the newest one."""
    chosen_versions = [each for each in entry.versions if each.version in measurements]
    if not chosen_versions:
        chosen_versions = [entry.versions[0] if version is None else entry.by_version[version]]
    for each in chosen_versions:
        measurements.setdefault(each.version, Measurement(version=each.version, ends={}))
    return chosen_versions


def _find_contract(version: ToolVersion) -> Contract | None:
    """Find the contract of a version; None if an incompatible release registered it."""
    try:
        return version.contract
    except ToolRequiresSetup:
        return None


def _describe_levels(contract: Contract, measurement: Measurement) -> dict[str, Any]:
    calls, p99 = measurement.calls, compute_p99(contract, measurement)
    return {
        "calls": calls,
        "ends": {end.value: measurement.get_calls(end) for end in CallEnd},
        "latency": {
            "calls": measurement.timed_calls,
            "p50_seconds": _round_seconds(measurement.compute_quantile(0.5)),
            "p95_seconds": _round_seconds(measurement.compute_quantile(0.95)),
            "p99_seconds": _round_seconds(p99),
        },
        "timeout_share": compute_share(measurement.get_calls(CallEnd.TIMEOUT), calls),
        "mean_cost": measurement.cost_micros / MICROSECONDS / calls if calls else None,
        "objectives": [each.to_json() for each in judge_objectives(contract, measurement)],
        "timeout": advise_timeout(contract.timeout, measurement, p99).to_json(),
    }


def _round_seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _find_timeout_warnings(entry: ToolEntry, contract: Contract, measurements: dict[str, Measurement]) -> list[str]:
    """Compare a timeout with what the newest measured version before it took."""
    number = parse_version(contract.version)
    for each in entry.versions:
        measurement = measurements.get(each.version)
        if measurement is None or parse_version(each.version) >= number:
            continue
        earlier_contract = _find_contract(each)
        if earlier_contract is None:
            continue
        has_longer_timeout = contract.timeout.effective_seconds > earlier_contract.timeout.effective_seconds
        timeouts = measurement.get_calls(CallEnd.TIMEOUT)
        if has_longer_timeout and timeouts > MAX_TIMEOUT_SHARE * measurement.timed_calls:
            # How long those calls would have taken is not known.
            return []
        advice = advise_timeout(contract.timeout, measurement, compute_p99(earlier_contract, measurement))
        return [f"{entry.name} {each.version}, measured: {advice.text}"] if advice.is_too_short else []
    return []
