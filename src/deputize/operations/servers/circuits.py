"""Show administrators the circuits of their tenant: which services are paused, since when and why, and the history."""

from typing import Any, Final

from deputize.core.caller import Caller
from deputize.execute.circuits.storage import SQL, format_time, report_circuits
from deputize.govern.token_authorization import require_admin
from deputize.lifecycle.runtime import Runtime

_MAX_CIRCUITS: Final = 200
_MAX_TRANSITIONS: Final = 100


class CircuitReports:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def list_circuits(self, caller: Caller) -> dict[str, Any]:
        """List the circuits that have counted failures lately, and their last changes of state, the newest first."""
        require_admin(caller)
        (await self._runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            circuits = await report_circuits(connection, caller.tenant, _MAX_CIRCUITS)
            transitions = await connection.fetch(SQL["list_transitions"], caller.tenant, _MAX_TRANSITIONS)
        return {
            "circuits": circuits,
            "transitions": [
                {
                    "service": row["service"],
                    "before": row["from_state"],
                    "state": row["to_state"],
                    "at": format_time(row["changed_at"]),
                    "reason": row["reason"] or None,
                }
                for row in transitions
            ],
        }
