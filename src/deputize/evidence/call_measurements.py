"""Measure how calls end, how long they take and what they cost: counted in memory, stored every few seconds.

A call adds a line to a list in memory here, and causes no statement. A process that is killed loses the counts of its
last seconds; one whose commit was not confirmed may count them twice.
"""

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any, Final

from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract
from deputize.store.pool import Connection, Store
from deputize.store.queries import load_statements

_SQL = load_statements("measurements")
# Calls of more versions between two writes are not measured; one tenant leaves room for the others.
_MAX_VERSIONS: Final = 20_000
_MAX_TENANT_VERSIONS: Final = 5_000
# How many versions one statement stores.
_MAX_ROWS: Final = 1000
# Eight buckets for each doubling of a latency, so that a quantile is at most 9% off; the last one is over a day.
_BUCKETS_PER_DOUBLING: Final = 8
_MAX_BUCKET: Final = 300
_MAX_COST: Final = 2**62
# Reports show at most so many days, and older ones are deleted.
KEPT_DAYS: Final = 30
MICROSECONDS: Final = 1_000_000

# Calls are counted so many at a time, which takes a fraction of counting each in the middle of its own work.
_MAX_UNCOUNTED: Final = 500

# Tenant, tool and version.
_Key = tuple[str, str, str]


class CallEnd(StrEnum):
    """How a call that reached its tool ended, as far as the tool is responsible."""

    SUCCESS = "successes"
    # The tool returned a result that fails its schema, a critical predicate or its own `verify`.
    REJECTION = "rejections"
    FAILURE = "failures"
    # The tool's time was over; of a mutation, it may be unknown whether it acted.
    TIMEOUT = "timeouts"
    # The connection was lost, so that it is unknown whether the tool acted.
    UNKNOWN_OUTCOME = "unknown_outcomes"

    # Not that of members of an enumeration, which is a function of Python, called for each key of a dictionary.
    __hash__ = str.__hash__


# Ends whose latency counts: tools that fail at once would look fast.
_TIMED_ENDS: Final = frozenset({CallEnd.SUCCESS, CallEnd.REJECTION, CallEnd.TIMEOUT})


def find_bucket(microseconds: int) -> int:
    """Find the bucket of a latency."""
    return min(int(math.log2(microseconds) * _BUCKETS_PER_DOUBLING), _MAX_BUCKET) if microseconds > 1 else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What was measured of one version in a number of days."""

    version: str
    ends: dict[CallEnd, int]
    # Calls that took longer than the contract's objective for the p99.
    slow_calls: int = 0
    max_latency_us: int = 0
    cost_micros: float = 0
    max_cost_micros: int = 0
    # Calls by latency: (bucket, calls), the quickest first.
    latencies: Sequence[tuple[int, int]] = ()

    @property
    def calls(self) -> int:
        """How many calls were measured."""
        return sum(self.ends.values())

    @property
    def timed_calls(self) -> int:
        """How many calls have a latency that counts."""
        return sum(calls for _, calls in self.latencies)

    def get_calls(self, end: CallEnd) -> int:
        """Return how many calls ended so."""
        return self.ends.get(end, 0)

    def compute_quantile(self, share: float) -> float | None:
        """Compute the seconds that this share of calls kept, or None without calls."""
        rank = math.ceil(round(share * self.timed_calls, 6))
        count_before = 0
        for bucket, calls in self.latencies:
            if count_before + calls >= rank:
                lower, upper = (2 ** (each / _BUCKETS_PER_DOUBLING) for each in (bucket, bucket + 1))
                latency_us = lower + (upper - lower) * (rank - count_before) / calls
                return min(latency_us, self.max_latency_us) / MICROSECONDS
            count_before += calls
        return None


class _VersionCounts:
    """The counts of one version that are not stored yet."""

    __slots__ = ("buckets", "cost_micros", "ends", "max_cost_micros", "max_latency_us", "slow_calls")

    def __init__(self) -> None:
        self.ends: dict[CallEnd, int] = {}
        self.buckets: dict[int, int] = {}
        self.slow_calls = self.max_latency_us = self.cost_micros = self.max_cost_micros = 0

    def add(self, other: "_VersionCounts") -> None:
        for end, calls in other.ends.items():
            self.ends[end] = self.ends.get(end, 0) + calls
        for bucket, calls in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + calls
        self.slow_calls += other.slow_calls
        self.max_latency_us = max(self.max_latency_us, other.max_latency_us)
        self.cost_micros += other.cost_micros
        self.max_cost_micros = max(self.max_cost_micros, other.max_cost_micros)

    def list_columns(self) -> tuple[Any, ...]:
        """List what `add_measurements` takes, in its order."""
        buckets = sorted(self.buckets.items())
        return (
            *(self.ends.get(end, 0) for end in CallEnd),
            self.slow_calls,
            self.max_latency_us,
            min(self.cost_micros, _MAX_COST),
            min(self.max_cost_micros, _MAX_COST),
            _format_array([bucket for bucket, _ in buckets]),
            _format_array([calls for _, calls in buckets]),
        )


def _format_array(numbers: Sequence[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


class CallMeasurements:
    """The measurements of this process that are not stored yet."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._uncounted_calls: list[tuple[str, Contract, CallEnd, float, int]] = []
        self._counts_by_version: dict[_Key, _VersionCounts] = {}
        self._versions_by_tenant: Counter[str] = Counter()
        self._store_lock = asyncio.Lock()

    def record_call(self, tenant: str, contract: Contract, end: CallEnd, seconds: float, cost_micros: int) -> None:
        """Record a call that reached its tool."""
        self._uncounted_calls.append((tenant, contract, end, seconds, cost_micros))
        if len(self._uncounted_calls) >= _MAX_UNCOUNTED:
            self._count_calls()

    def _count_calls(self) -> None:
        calls, self._uncounted_calls = self._uncounted_calls, []
        for call in calls:
            self._count_call(*call)

    def _count_call(self, tenant: str, contract: Contract, end: CallEnd, seconds: float, cost_micros: int) -> None:
        key = (tenant, contract.full_name, contract.version)
        counts = self._counts_by_version.get(key)
        if counts is None:
            counts = _VersionCounts()
            if not self._keep_counts(key, counts):
                return
        counts.ends[end] = counts.ends.get(end, 0) + 1
        if cost_micros:
            counts.cost_micros += cost_micros
            counts.max_cost_micros = max(counts.max_cost_micros, cost_micros)
        if end not in _TIMED_ENDS:
            return
        latency_us = int(seconds * MICROSECONDS)
        bucket = find_bucket(latency_us)
        counts.buckets[bucket] = counts.buckets.get(bucket, 0) + 1
        if latency_us > counts.max_latency_us:
            counts.max_latency_us = latency_us
        objectives = contract.objectives
        if objectives is not None and objectives.p99_seconds is not None:
            counts.slow_calls += seconds > objectives.p99_seconds or end is CallEnd.TIMEOUT

    async def store_measurements(self, store: Store) -> None:
        """Store what was recorded since the last time, under this day and this minute; keep it if that fails.

        Once this returns, everything that was recorded before is stored, also what another task was storing.
        """
        async with self._store_lock:
            await self._store_counts(store)

    async def _store_counts(self, store: Store) -> None:
        self._count_calls()
        counts_by_version, self._counts_by_version = self._counts_by_version, {}
        self._versions_by_tenant.clear()
        # In one order, so that two processes cannot wait for each other.
        keys = sorted(counts_by_version)
        try:
            for start in range(0, len(keys), _MAX_ROWS):
                chunk = keys[start : start + _MAX_ROWS]
                rows = [(*key, *counts_by_version[key].list_columns()) for key in chunk]
                columns = [list(column) for column in zip(*rows, strict=True)]
                async with store.write_transaction() as connection:
                    now = self._clock.now()
                    await connection.execute(_SQL["add_measurements"], now.date(), *columns)
                    minute = now.replace(second=0, microsecond=0)
                    await connection.execute(_SQL["add_recent_measurements"], minute, *columns)
                for key in chunk:
                    del counts_by_version[key]
        except BaseException:
            for key, counts in counts_by_version.items():
                self._keep_counts(key, counts)
            raise

    def _keep_counts(self, key: _Key, counts: _VersionCounts) -> bool:
        """Keep the counts of a version, beside newer ones if there are some; return whether there is room for them."""
        newer_counts = self._counts_by_version.get(key)
        if newer_counts is not None:
            newer_counts.add(counts)
            return True
        tenant = key[0]
        has_room = self._versions_by_tenant[tenant] < _MAX_TENANT_VERSIONS
        if not has_room or len(self._counts_by_version) >= _MAX_VERSIONS:
            return False
        self._versions_by_tenant[tenant] += 1
        self._counts_by_version[key] = counts
        return True


async def load_measurements(
    connection: Connection, tenant: str, name: str, since: date, *, version: str | None = None, limit: int
) -> list[Measurement]:
    """Load what was measured of a tool's versions since a day, those with most calls first."""
    rows = await connection.fetch(_SQL["list_measurements"], tenant, name, since, version, limit)
    versions = [row["version"] for row in rows]
    latencies: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in await connection.fetch(_SQL["list_latencies"], tenant, name, since, versions):
        latencies[row["version"]].append((row["bucket"], row["calls"]))
    return [
        Measurement(
            version=row["version"],
            ends={end: row[end.value] for end in CallEnd},
            slow_calls=row["slow_calls"],
            max_latency_us=row["max_latency_us"],
            cost_micros=row["cost_micros"],
            max_cost_micros=row["max_cost_micros"],
            latencies=latencies[row["version"]],
        )
        for row in rows
    ]


async def delete_old_measurements(connection: Connection, first_day: date) -> None:
    """Delete what was measured before a day."""
    await connection.execute(_SQL["delete_old_measurements"], first_day)
