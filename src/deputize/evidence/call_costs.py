"""Add up what calls cost by component, tool, caller and task: counted in memory, stored every few seconds.

A call adds a line to a list in memory here, and causes no statement. A process that is killed loses the costs of its
last seconds; one whose commit was not confirmed may count them twice. Callers are stored by their pseudonyms, so that
the costs of an erased person stay, without a name.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, Literal, NamedTuple

import structlog

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract
from deputize.core.contract.prices import CallUsage, CostComponent, compute_costs, limit_amount
from deputize.store.pool import Connection, Store
from deputize.store.queries import load_statements

CostDimension = Literal["tool", "version", "caller", "task", "day"]
# Reports show at most so many days, and older ones are deleted: a quarter.
KEPT_COST_DAYS: Final = 92
_SQL = load_statements("costs")
# Calls are counted so many at a time, which takes a fraction of counting each in the middle of its own work.
_MAX_UNCOUNTED: Final = 500
# The rows of one tenant and of all that this process makes in a day. Costs of further callers and tasks are counted
# for the tool alone, because callers choose the names of tasks and agents.
_MAX_TENANT_ROWS: Final = 5_000
_MAX_ROWS: Final = 50_000
# How many rows one statement stores.
_CHUNK_ROWS: Final = 1000
_COMPONENTS: Final = tuple(CostComponent)
log = structlog.get_logger(__name__)


class CostKey(NamedTuple):
    """What costs are added up for. `caller` has the pseudonyms of the user and the agents."""

    tenant: str
    tool: str
    version: str
    caller: tuple[str, ...]
    task: str
    currency: str

    def drop_caller(self) -> "CostKey":
        return self._replace(caller=(), task="")

    def list_columns(self) -> tuple[str, ...]:
        """List what `add_costs` takes, in its order: arrays of arrays would have to be rectangular."""
        return self.tenant, self.tool, self.version, ",".join(self.caller), self.task, self.currency


class _CostTotals:
    """The costs of one key that are not stored yet."""

    __slots__ = ("calls", "costs", "network_bytes", "review_seconds", "reviews", "seconds", "storage_bytes", "tokens")

    def __init__(self) -> None:
        self.calls = self.reviews = 0
        self.seconds = self.storage_bytes = self.network_bytes = self.tokens = self.review_seconds = 0.0
        self.costs = dict.fromkeys(_COMPONENTS, 0.0)

    def add(self, other: "_CostTotals") -> None:
        for name in self.__slots__:
            if name != "costs":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        for component, cost in other.costs.items():
            self.costs[component] += cost

    def list_columns(self) -> tuple[Any, ...]:
        """List what `add_costs` takes, in its order."""
        return (
            self.calls, self.seconds, self.storage_bytes, self.network_bytes, self.tokens, self.reviews,
            self.review_seconds, *(self.costs[component] for component in _COMPONENTS),
        )  # fmt: skip


class CallCosts:
    """The costs of this process that are not stored yet."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._uncounted_calls: list[tuple[Caller, Contract, CallUsage]] = []
        self._totals_by_key: dict[CostKey, _CostTotals] = {}
        # The rows that this process made on this day.
        self._day = clock.now().date()
        self._known_keys: set[CostKey] = set()
        self._rows_by_tenant: Counter[str] = Counter()
        # A report that stores and then reads waits for what another task stores.
        self._store_lock = asyncio.Lock()

    def record_call(self, caller: Caller, contract: Contract, usage: CallUsage) -> None:
        """Record a call that ended."""
        self._uncounted_calls.append((caller, contract, usage))
        if len(self._uncounted_calls) >= _MAX_UNCOUNTED:
            self._count_calls()

    def record_review(self, caller: Caller, contract: Contract, seconds: float) -> float:
        """Record a person's decision on a call of this caller, which waited for so long; return what it costs."""
        prices = contract.observability.prices
        cost = 0.0 if prices is None else prices.per_review or 0.0
        totals = self._find_totals(_build_key(caller, contract))
        if totals is not None:
            totals.reviews += 1
            totals.review_seconds += limit_amount(seconds)
            totals.costs[CostComponent.HUMAN_REVIEW] += cost
        return cost

    def _count_calls(self) -> None:
        calls, self._uncounted_calls = self._uncounted_calls, []
        # Most calls of a moment are of a few callers and tools, and the objects live as long as the list.
        totals_by_objects: dict[tuple[int, int], _CostTotals | None] = {}
        for caller, contract, usage in calls:
            objects = id(caller), id(contract)
            if objects not in totals_by_objects:
                totals_by_objects[objects] = self._find_totals(_build_key(caller, contract))
            totals = totals_by_objects[objects]
            if totals is not None:
                _count_call(totals, contract, usage)

    def _find_totals(self, key: CostKey) -> _CostTotals | None:
        """Find the totals of a key, or of its tool if this tenant has too many rows; None if it has far too many."""
        totals = self._totals_by_key.get(key)
        if totals is not None:
            return totals
        if not self._has_room(key, _MAX_TENANT_ROWS, _MAX_ROWS):
            key = key.drop_caller()
            if not self._has_room(key, 2 * _MAX_TENANT_ROWS, 2 * _MAX_ROWS):
                log.error("costs_not_counted", tenant=key.tenant, tool=key.tool)
                return None
        if key not in self._known_keys:
            self._known_keys.add(key)
            self._rows_by_tenant[key.tenant] += 1
        return self._totals_by_key.setdefault(key, _CostTotals())

    def _has_room(self, key: CostKey, max_tenant_rows: int, max_rows: int) -> bool:
        is_known = key in self._known_keys
        return is_known or (self._rows_by_tenant[key.tenant] < max_tenant_rows and len(self._known_keys) < max_rows)

    async def store_costs(self, store: Store) -> None:
        """Store what was recorded since the last time, under this day; keep it if that fails."""
        async with self._store_lock:
            await self._store_totals(store)

    async def _store_totals(self, store: Store) -> None:
        self._count_calls()
        totals_by_key, self._totals_by_key = self._totals_by_key, {}
        self._start_day(self._clock.now().date())
        # In one order, so that two processes cannot wait for each other.
        keys = sorted(totals_by_key)
        try:
            for start in range(0, len(keys), _CHUNK_ROWS):
                chunk = keys[start : start + _CHUNK_ROWS]
                rows = [(*key.list_columns(), *totals_by_key[key].list_columns()) for key in chunk]
                columns = [list(column) for column in zip(*rows, strict=True)]
                async with store.write_transaction() as connection:
                    await connection.execute(_SQL["add_costs"], self._clock.now().date(), *columns)
                for key in chunk:
                    del totals_by_key[key]
        except BaseException:
            for key, totals in totals_by_key.items():
                newer_totals = self._totals_by_key.get(key)
                if newer_totals is None:
                    self._totals_by_key[key] = totals
                else:
                    newer_totals.add(totals)
            raise

    def _start_day(self, day: date) -> None:
        if day != self._day:
            self._day = day
            self._known_keys.clear()
            self._rows_by_tenant.clear()


def _build_key(caller: Caller, contract: Contract) -> CostKey:
    currency = contract.observability.currency
    return CostKey(caller.tenant, contract.full_name, contract.version, caller.pseudonyms, caller.task or "", currency)


def _count_call(totals: _CostTotals, contract: Contract, usage: CallUsage) -> None:
    fixed_cost, seconds, storage_bytes, network_bytes, tokens = usage
    totals.calls += 1
    totals.seconds += seconds
    if storage_bytes or tokens:
        totals.storage_bytes += limit_amount(storage_bytes)
        totals.tokens += limit_amount(tokens)
    if network_bytes:
        totals.network_bytes += limit_amount(network_bytes)
    observability = contract.observability
    if not fixed_cost and observability.prices is None:
        return
    for component, cost in compute_costs(observability.cost_category, observability.prices, usage).items():
        totals.costs[component] += limit_amount(cost)


@dataclass(frozen=True, kw_only=True, slots=True)
class CostSum:
    """What a group of calls used and cost, in one currency; `group` is None in the sum of all."""

    group: str | None
    currency: str
    calls: int
    compute_seconds: float
    storage_bytes: float
    network_bytes: float
    tokens: float
    reviews: int
    review_seconds: float
    costs: dict[CostComponent, float]

    @property
    def total(self) -> float:
        return sum(self.costs.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class CostFilter:
    """Whose costs are read: None for all; of a user, or of exactly one chain of agents, by pseudonyms. And of which
    tools.
    """

    user: str | None = None
    chain: Sequence[str] | None = None
    tools: Sequence[str] | None = None


async def load_costs(
    connection: Connection, tenant: str, since: date, by: CostDimension, whose: CostFilter, *, limit: int
) -> list[CostSum]:
    """Load the costs since a day: of each currency the sum of all first, then the groups that cost most."""
    chain = None if whose.chain is None else list(whose.chain)
    rows = await connection.fetch(_SQL["list_costs"], tenant, since, whose.user, chain, by, limit, whose.tools)
    return [
        CostSum(
            group=row["group_name"],
            currency=row["currency"],
            calls=row["calls"],
            compute_seconds=row["compute_seconds"],
            storage_bytes=row["storage_bytes"],
            network_bytes=row["network_bytes"],
            tokens=row["tokens"],
            reviews=row["reviews"],
            review_seconds=row["review_seconds"],
            costs={component: row[f"{component}_cost"] for component in CostComponent},
        )
        for row in rows
    ]


async def delete_old_costs(connection: Connection, first_day: date) -> None:
    """Delete the costs from before a day."""
    await connection.execute(_SQL["delete_old_costs"], first_day)
