"""Whether a call is let in: every rule that concerns it, asked at once, and charged all or none.

Budgets are spent first, for that needs no round trip; then the counters are asked, in one. A rule whose counters are
away says what its settings say: no, by name, or yes, and then the outcome says that it was not counted.

Above: `lifecycle/limit.py`, around what follows authorization. Below: `budgets.py`, and the counters of `store/shared`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from deputize.core.caller import Caller
from deputize.core.contract import Contract
from deputize.core.errors import LimitsUnavailable, Problem
from deputize.core.frozen import frozen
from deputize.core.limit_settings import LimitRule
from deputize.govern.limits.budgets import Budget, Budgets, Lease
from deputize.govern.limits.rules import Asked, Rule, micros, read_rules
from deputize.govern.limits.tally import Tally
from deputize.store.shared.counters import (
    Ask,
    Change,
    Counters,
    CountersLost,
    Recount,
    Release,
    Slot,
    Taken,
    Window,
)

# A slot outlives its call's time by this much: results are checked and recorded while it is still held.
_SLOT_MARGIN_SECONDS: Final = 15.0
# When a slot will be free is nobody's to know.
_SLOT_RETRY_MS: Final = 1000
_LOST_RETRY_MS: Final = 1000
_MOST_KNOWN: Final = 10_000


@frozen
class Concerned:
    """The rules one tool of one tenant falls under, by how they are kept."""

    counted: tuple[Rule, ...]
    budgets: tuple[Rule, ...]


@frozen
class Admission:
    """What a call was charged, so that it can be given back, corrected, and let go of."""

    cost: int
    spent: list[Lease]
    asks: Sequence[tuple[Rule, Ask]] = ()
    at: int = 0
    uncounted: tuple[str, ...] = ()


class Limits:
    def __init__(
        self,
        rules: Sequence[LimitRule],
        counters: Counters,
        budgets: Budgets,
        *,
        refused: Callable[[str], None],
        uncounted: Callable[[str], None],
    ) -> None:
        """`refused` and `uncounted` are told the name of each rule that said no, or could not be counted."""
        self._rules = read_rules(rules)
        self._counters = counters
        self._budgets = budgets
        self._refused = refused
        self._uncounted = uncounted
        self._known: dict[tuple[str, str], Concerned | None] = {}
        self._background: set[asyncio.Future[None]] = set()
        self._tally = Tally()

    def concerning(self, tenant: str, tool: str) -> Concerned | None:
        """None for nearly all calls of most gateways, and then limits cost nothing."""
        if not self._rules:
            return None
        try:
            return self._known[tenant, tool]
        except KeyError:
            return self._find(tenant, tool)

    def admit_now(self, concerned: Concerned, asked: Asked) -> Admission | None:
        """Without waiting for anybody; None if somebody must be waited for. Raises the refusal."""
        if concerned.counted and self._counters.shared:
            return None
        cost = estimate(asked.contract)
        spent: list[Lease] = []
        for rule in concerned.budgets:
            lease = self._budgets.spend_now(_budget(rule, asked), cost)
            if lease is None:
                self._unspend(spent, cost)
                return None
            spent.append(lease)
        asks = _asks(concerned.counted, asked, cost)
        try:
            taken = self._counters.take([ask for _, ask in asks]) if asks else Taken(refused=None)
        except CountersLost as lost:
            return self._without_counters(concerned, spent, cost, lost)
        assert isinstance(taken, Taken)
        return self._admitted(asks, taken, spent, cost, ())

    async def admit(self, concerned: Concerned, asked: Asked) -> Admission:
        """As `admit_now`, waiting for slices of budgets and for shared counters."""
        cost = estimate(asked.contract)
        spent: list[Lease] = []
        uncounted: tuple[str, ...] = ()
        try:
            for rule in concerned.budgets:
                try:
                    lease = await self._budgets.spend(_budget(rule, asked), cost)
                except CountersLost as lost:
                    uncounted += self._lost((rule,), lost)
                    continue
                if not isinstance(lease, Lease):
                    self._refuse(rule, used=rule.limit, retry_after_ms=lease)
                spent.append(lease)
            asks = _asks(concerned.counted, asked, cost)
            try:
                answer = self._counters.take([ask for _, ask in asks]) if asks else Taken(refused=None)
                taken = answer if isinstance(answer, Taken) else await answer
            except CountersLost as lost:
                uncounted += self._lost(concerned.counted, lost)
                return Admission(cost=cost, spent=spent, uncounted=uncounted)
        except BaseException:
            self._unspend(spent, cost)
            raise
        return self._admitted(asks, taken, spent, cost, uncounted)

    def end(self, admission: Admission, *, replayed: bool = False, cost: int | None = None) -> None:
        """The call is over. A replay is charged nothing; `cost` is what it came to, where that is known."""
        less = admission.cost if replayed else 0 if cost is None else admission.cost - cost
        if less:
            for lease in admission.spent:
                self._budgets.correct(lease, -less)
        changes: list[Change] = []
        for rule, ask in admission.asks:
            if isinstance(ask, Slot):
                changes.append(Release(key=ask.key, holder=ask.holder))
                continue
            weight = -ask.weight if replayed else -less if rule.costs else 0
            if weight:
                changes.append(Recount(key=ask.key, seconds=ask.seconds, weight=weight, at=admission.at))
        if changes:
            self._settle(changes)

    def spent(self, caller: Caller, session: str | None) -> int:
        """What this caller's session has cost so far, in millionths, as far as this process has seen: a hint for
        policies, not a ledger. It is forgotten with the process, and other replicas keep their own."""
        return self._tally.of(caller, session)

    def note_cost(self, caller: Caller, session: str | None, cost: float) -> None:
        self._tally.add(caller, session, micros(cost))

    async def start(self) -> None:
        if any(rule.source.kind == "budget" for rule in self._rules):
            await self._budgets.start()

    async def stop(self) -> None:
        if self._background:
            await asyncio.wait(self._background, timeout=1.0)
        await self._budgets.stop()
        await self._counters.close()

    def _find(self, tenant: str, tool: str) -> Concerned | None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        rules = [rule for rule in self._rules if rule.concerns(tenant, tool)]
        found = Concerned(
            counted=tuple(rule for rule in rules if rule.source.kind != "budget"),
            budgets=tuple(rule for rule in rules if rule.source.kind == "budget"),
        )
        self._known[tenant, tool] = concerned = found if rules else None
        return concerned

    def _admitted(
        self,
        asks: Sequence[tuple[Rule, Ask]],
        taken: Taken,
        spent: list[Lease],
        cost: int,
        uncounted: tuple[str, ...],
    ) -> Admission:
        if taken.refused is None:
            return Admission(cost=cost, spent=spent, asks=asks, at=taken.at, uncounted=uncounted)
        self._unspend(spent, cost)
        rule = asks[taken.refused][0]
        wait = _SLOT_RETRY_MS if rule.source.kind == "concurrency" else taken.retry_after_ms
        self._refuse(rule, used=taken.used, retry_after_ms=wait)

    def _without_counters(self, concerned: Concerned, spent: list[Lease], cost: int, lost: CountersLost) -> Admission:
        try:
            uncounted = self._lost(concerned.counted, lost)
        except Problem:
            self._unspend(spent, cost)
            raise
        return Admission(cost=cost, spent=spent, uncounted=uncounted)

    def _lost(self, rules: Sequence[Rule], lost: CountersLost) -> tuple[str, ...]:
        """What these rules say while nobody can count for them: a refusal, or what the outcome is to say."""
        for rule in rules:
            if rule.lost_denies:
                self._refused(rule.name)
                raise LimitsUnavailable(
                    f"limit {rule.name} cannot be counted ({lost}), and then it says no",
                    details={"rule": rule.name, "kind": rule.source.kind, "when_lost": "deny", "cause": str(lost)},
                    retry_after_ms=_LOST_RETRY_MS,
                )
        for rule in rules:
            self._uncounted(rule.name)
        return tuple(f"limit {rule.name} was not counted: {lost}" for rule in rules)

    def _refuse(self, rule: Rule, *, used: int, retry_after_ms: int) -> NoReturn:
        self._refused(rule.name)
        raise rule.refusal(used=used, retry_after_ms=retry_after_ms)

    def _unspend(self, spent: Sequence[Lease], cost: int) -> None:
        for lease in spent:
            self._budgets.correct(lease, -cost)

    def _settle(self, changes: Sequence[Change]) -> None:
        """Nobody waits for this: the caller has its answer, and a slot that is not let go of expires."""
        try:
            answer = self._counters.settle(changes)
        except CountersLost:
            return
        if answer is not None:
            task = asyncio.ensure_future(answer)
            self._background.add(task)
            task.add_done_callback(self._settled)

    def _settled(self, task: "asyncio.Future[None]") -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, CountersLost):
            raise error


def estimate(contract: Contract) -> int:
    """What a call is taken to cost until it says so itself."""
    return micros(contract.observability.cost_per_call)


def _budget(rule: Rule, asked: Asked) -> Budget:
    return Budget(
        tenant=asked.caller.tenant,
        rule=rule.name,
        key=rule.digest(asked),
        limit=rule.limit,
        seconds=rule.source.seconds,
    )


def _asks(rules: Sequence[Rule], asked: Asked, cost: int) -> list[tuple[Rule, Ask]]:
    return [(rule, _ask(rule, asked, cost)) for rule in rules]


def _ask(rule: Rule, asked: Asked, cost: int) -> Ask:
    if rule.source.kind == "concurrency":
        seconds = 2 * asked.contract.timeout.effective_seconds + _SLOT_MARGIN_SECONDS
        return Slot(key=rule.key(asked), limit=rule.limit, seconds=seconds, holder=asked.call_id)
    weight = cost if rule.costs else 1
    return Window(key=rule.key(asked), limit=rule.limit, seconds=rule.source.seconds, weight=weight)
