"""Report what the calls of a tenant did in the last hour, minute by minute."""

from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import orjson

from deputize.core.caller import Caller
from deputize.evidence.call_measurements import CallEnd, Measurement
from deputize.evidence.entry_filters import EntryFilter
from deputize.govern.token_authorization import require_auditor
from deputize.lifecycle.runtime import Runtime
from deputize.store.queries import load_statements

_SQL = load_statements("measurements")
MINUTES: Final = 60
_REFUSALS: Final = EntryFilter(decision="deny", of_calls=True)
_MAX_REFUSALS: Final = 200
_SEARCH_MS: Final = 250
_END_ID: Final = UUID(int=(1 << 128) - 1)


class Activity:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def report_minutes(self, caller: Caller) -> dict[str, Any]:
        """Report calls that reached their tools, errors, latency and refusals of each minute, oldest first.

        Of very many refusals the newest are counted, which the report says.
        """
        require_auditor(caller)
        runtime = self._runtime
        (await runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)
        await runtime.call_measurements.store_measurements(runtime.store)
        last = runtime.clock.now().replace(second=0, microsecond=0)
        first = last - timedelta(minutes=MINUTES - 1)
        first_id = UUID(int=int(first.timestamp() * 1000) << 80)
        async with runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(
                _SQL["list_minutes"], caller.tenant, first, _REFUSALS.list_labels(),
                orjson.dumps(_REFUSALS.list_needles()).decode(), first_id, _END_ID, _MAX_REFUSALS, _SEARCH_MS,
            )  # fmt: skip
        by_minute = {row["minute"]: row for row in rows}
        minutes = []
        for each in (first + timedelta(minutes=number) for number in range(MINUTES)):
            row = by_minute.get(each)
            measurement = Measurement(
                version="",
                ends={} if row is None else {CallEnd.SUCCESS: row["calls"]},
                max_latency_us=0 if row is None else row["max_latency_us"],
                latencies=[] if row is None else list(zip(row["buckets"], row["counts"], strict=True)),
            )
            p95 = measurement.compute_quantile(0.95)
            minutes.append(
                {
                    "minute": each.isoformat(),
                    "calls": measurement.calls,
                    "errors": 0 if row is None else row["errors"],
                    "refusals": 0 if row is None else row["refusals"],
                    "p95_seconds": None if p95 is None else round(p95, 6),
                }
            )
        refusal_count = sum(row["refusals"] for row in rows)
        has_all_refusals = refusal_count < _MAX_REFUSALS and not any(row["is_cut"] for row in rows)
        return {"minutes": minutes, "has_all_refusals": has_all_refusals}
