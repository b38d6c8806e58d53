"""Score the health of a tool, from 0 to 1, by what was measured in the last 15 minutes."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from deputize.evidence.call_measurements import CallEnd, Measurement
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("measurements")
WINDOW: Final = timedelta(minutes=15)
# The report of activity shows the last hour.
KEPT_MINUTES: Final = timedelta(minutes=75)
# The shares at which a penalty is full. The alerts of Prometheus fire above the same ones.
MAX_ERROR_SHARE: Final = 0.1
MAX_TIMEOUT_SHARE: Final = 0.05
ERROR_WEIGHT: Final = 0.5
LATENCY_WEIGHT: Final = 0.3
TIMEOUT_WEIGHT: Final = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthScore:
    """The health of a tool, and what lowers it: each penalty is from 0 to 1."""

    tool: str
    score: float
    calls: int
    error_share: float
    timeout_share: float
    # That of the version which is closest to its limit; None if no call has a latency that counts.
    p99_seconds: float | None
    limit_seconds: float
    error_penalty: float
    latency_penalty: float
    timeout_penalty: float

    def to_json(self) -> dict[str, Any]:
        return {
            "tool": self.tool,
            "score": round(self.score, 4),
            "calls": self.calls,
            "error_share": round(self.error_share, 6),
            "timeout_share": round(self.timeout_share, 6),
            "p99_seconds": None if self.p99_seconds is None else round(self.p99_seconds, 6),
            "limit_seconds": self.limit_seconds,
            "penalties": {
                "errors": round(ERROR_WEIGHT * self.error_penalty, 4),
                "latency": round(LATENCY_WEIGHT * self.latency_penalty, 4),
                "timeouts": round(TIMEOUT_WEIGHT * self.timeout_penalty, 4),
            },
        }


def score_health(
    tool: str, measurements: Sequence[Measurement], find_limit: Callable[[str], float]
) -> HealthScore | None:
    """Score a tool by what was measured of its versions; None without calls.

    A call that timed out is an error, too: a tool whose calls all time out scores 0.
    """
    calls = sum(each.calls for each in measurements)
    if not calls:
        return None
    error_share = 1 - sum(each.get_calls(CallEnd.SUCCESS) for each in measurements) / calls
    timeout_share = sum(each.get_calls(CallEnd.TIMEOUT) for each in measurements) / calls
    p99_seconds, limit_seconds = max(
        ((each.compute_quantile(0.99), find_limit(each.version)) for each in measurements),
        key=lambda pair: (pair[0] or 0.0) / pair[1],
    )
    error_penalty = min(error_share / MAX_ERROR_SHARE, 1.0)
    latency_penalty = min((p99_seconds or 0.0) / limit_seconds, 1.0)
    timeout_penalty = min(timeout_share / MAX_TIMEOUT_SHARE, 1.0)
    penalty = ERROR_WEIGHT * error_penalty + LATENCY_WEIGHT * latency_penalty + TIMEOUT_WEIGHT * timeout_penalty
    return HealthScore(
        tool=tool,
        score=max(1.0 - penalty, 0.0),
        calls=calls,
        error_share=error_share,
        timeout_share=timeout_share,
        p99_seconds=p99_seconds,
        limit_seconds=limit_seconds,
        error_penalty=error_penalty,
        latency_penalty=latency_penalty,
        timeout_penalty=timeout_penalty,
    )


async def load_recent_measurements(
    connection: Connection, tenant: str, now: datetime, *, tools: Sequence[str] | None, limit: int
) -> dict[str, list[Measurement]]:
    """Load what was measured of a tenant's tools, or of these, in the window, of more tools those with most errors."""
    measurements: defaultdict[str, list[Measurement]] = defaultdict(list)
    # The minute in which the window begins is left out, so that nothing older counts.
    for row in await connection.fetch(_SQL["list_recent_measurements"], tenant, now - WINDOW, limit, tools):
        other_errors = row["errors"] - row["timeouts"]
        ends = {
            CallEnd.SUCCESS: row["calls"] - row["errors"],
            CallEnd.TIMEOUT: row["timeouts"],
            CallEnd.FAILURE: other_errors,
        }
        measurements[row["name"]].append(
            Measurement(
                version=row["version"],
                ends=ends,
                max_latency_us=row["max_latency_us"],
                latencies=list(zip(row["buckets"], row["counts"], strict=True)),
            )
        )
    return dict(measurements)


async def delete_old_minutes(connection: Connection, now: datetime) -> None:
    """Delete the minutes that no report shows any more."""
    await connection.execute(_SQL["delete_old_minutes"], now - KEPT_MINUTES)
