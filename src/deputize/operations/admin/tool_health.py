"""Report the health of a tenant's tools."""

import asyncio
from functools import partial
from typing import Any, Final

from deputize.catalog.snapshot import TenantTools
from deputize.core.caller import Caller
from deputize.core.contract.timing import TimeoutClass
from deputize.core.errors import ToolRequiresSetup
from deputize.evidence.call_measurements import Measurement
from deputize.evidence.health_score import WINDOW, HealthScore, load_recent_measurements, score_health
from deputize.execute.circuits.circuit import CircuitState
from deputize.execute.circuits.storage import report_circuits
from deputize.govern.token_authorization import list_visible_tools, require_admin_scope
from deputize.lifecycle.runtime import Runtime

# Of more tools, those with most errors are reported.
_MAX_TOOLS: Final = 200
_MAX_CIRCUITS: Final = 200


class ToolHealth:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def report_health(self, caller: Caller) -> dict[str, Any]:
        """Report the health of the tools that were called lately, the worst first, and the paused services."""
        require_admin_scope(caller)
        runtime = self._runtime
        authority = await runtime.authority.load_tenant(caller.tenant)
        authority.revocations.check(caller)
        await runtime.call_measurements.store_measurements(runtime.store)
        async with runtime.store.read_transaction(caller.tenant) as connection:
            measurements = await load_recent_measurements(
                connection, caller.tenant, runtime.clock.now(), tools=list_visible_tools(caller), limit=_MAX_TOOLS
            )
            circuits = await report_circuits(connection, caller.tenant, _MAX_CIRCUITS)
        scores = await asyncio.to_thread(_score_tools, authority.tools, measurements)
        return {
            "minutes": int(WINDOW.total_seconds()) // 60,
            "tools": [each.to_json() for each in scores],
            "circuits": [each for each in circuits if each["state"] != CircuitState.CLOSED],
        }


def _score_tools(tools: TenantTools, measurements: dict[str, list[Measurement]]) -> list[HealthScore]:
    scores = [
        score_health(name, versions, partial(_find_limit, tools, name)) for name, versions in measurements.items()
    ]
    return sorted((each for each in scores if each is not None), key=lambda each: (each.score, each.tool))


def _find_limit(tools: TenantTools, name: str, version: str) -> float:
    """Find the seconds of a version's timeout class; those of the default class if it is not there any more."""
    entry = tools.find_entry(name)
    tool_version = None if entry is None else entry.by_version.get(version)
    try:
        timeout_class = None if tool_version is None else tool_version.contract.timeout.timeout_class
    except ToolRequiresSetup:
        # An incompatible release registered it.
        timeout_class = None
    return (timeout_class or TimeoutClass.STANDARD).seconds
