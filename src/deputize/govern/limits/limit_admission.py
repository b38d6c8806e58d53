"""Admit calls under limit rules: check all applicable rules at once, and charge all of them or none.

Budgets are spent first, because that needs no round trip; then all counters are updated in one. If the counters are
unavailable, the rule's settings decide: deny, or admit with a warning that the call was not counted.
`lifecycle/limits.py` calls this after authorization: for a call inside its request when it is made, and for a run when
a worker begins it. What is only stored to begin later is counted as a submission.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NoReturn

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.errors import ConcurrencyLimitReached, LimitsUnavailable, Problem
from deputize.core.settings.limits import LimitRule
from deputize.core.value_types import frozen
from deputize.govern.limits.budgets import Budget, BudgetLease, Budgets
from deputize.govern.limits.cost_estimates import CostEstimates, get_declared_cost
from deputize.govern.limits.hold_delays import HoldDelays
from deputize.govern.limits.rules import CompiledLimit, MeteredCall, compile_limits, to_micros
from deputize.govern.limits.session_costs import SessionCosts
from deputize.store.counters.port import (
    CounterRequest,
    Counters,
    CountersUnavailable,
    CounterUpdate,
    Slot,
    SlotRelease,
    TakeResult,
    WeightCorrection,
    Window,
)

# A slot outlasts its call's timeout by this much, because results are verified and recorded while it is held.
_SLOT_MARGIN_SECONDS: Final = 15.0
# A fixed interval, because it is unknown when a slot becomes free.
_SLOT_RETRY_MS: Final = 1000
_UNAVAILABLE_RETRY_MS: Final = 1000
_MAX_CACHED_TOOLS: Final = 10_000


@frozen
class ApplicableLimits:
    """The limits that apply to one tool of one tenant, by where they are counted."""

    counter_limits: tuple[CompiledLimit, ...]
    budget_limits: tuple[CompiledLimit, ...]


@frozen
class Admission:
    """What a call was charged, to refund, correct and release it later.

    `cost` is what windows were charged, `reservations` what budgets were. `call` is None for a submission.
    """

    call: MeteredCall | None
    cost: int
    reservations: "Reservations"
    counter_requests: Sequence[tuple[CompiledLimit, CounterRequest]] = ()
    at: int = 0
    warnings: tuple[str, ...] = ()


Reservations = list[tuple[BudgetLease, int]]


class LimitEnforcer:
    """Applies all limit rules to calls."""

    def __init__(
        self,
        rules: Sequence[LimitRule],
        counters: Counters,
        budgets: Budgets,
        *,
        clock: Clock,
        on_refusal: Callable[[str], None],
        on_uncounted: Callable[[str], None],
    ) -> None:
        """Compile the rules. The callbacks get the name of each rule that refused a call, or was not counted."""
        self._rules = compile_limits(rules)
        self._counters = counters
        self._budgets = budgets
        self._on_refusal = on_refusal
        self._on_uncounted = on_uncounted
        self._applicable: dict[tuple[str, str], ApplicableLimits | None] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        self._session_costs = SessionCosts(clock)
        self._estimates = CostEstimates(clock)
        self._execution_ids: set[str] = set()
        self.hold_delays = HoldDelays(clock)

    def find_applicable(self, tenant: str, tool: str) -> ApplicableLimits | None:
        """Return the limits of a tool, or None if there are none, so that most calls cost nothing."""
        if not self._rules:
            return None
        try:
            return self._applicable[tenant, tool]
        except KeyError:
            return self._select_limits(tenant, tool)

    def admit_now(self, applicable: ApplicableLimits, call: MeteredCall) -> Admission | None:
        """Admit a call without waiting, or return None if it must wait. Raises the refusal."""
        if applicable.counter_limits and self._counters.is_shared:
            return None
        reservations: Reservations = []
        amount = self._estimates.estimate(call.caller.tenant, call.contract) if applicable.budget_limits else 0
        for rule in applicable.budget_limits:
            lease = self._budgets.spend_now(_build_budget(rule, call), amount)
            if lease is None:
                self._refund(reservations)
                return None
            reservations.append((lease, amount))
        counter_requests = _build_counter_requests(applicable.counter_limits, call)
        try:
            result = (
                self._counters.take([counter_request for _, counter_request in counter_requests])
                if counter_requests
                else TakeResult(refused_index=None)
            )
        except CountersUnavailable as error:
            return self._admit_without_counters(applicable, call, reservations, error)
        assert isinstance(result, TakeResult)
        return self._complete_admission(call, counter_requests, result, reservations, ())

    async def admit(self, applicable: ApplicableLimits, call: MeteredCall) -> Admission:
        """Admit a call as `admit_now` does, waiting for budget leases and shared counters."""
        return await self._admit(applicable, call, _build_counter_requests(applicable.counter_limits, call))

    async def admit_run(
        self, applicable: ApplicableLimits, call: MeteredCall, previous_execution_id: str | None
    ) -> Admission:
        """Admit an execution of a run, which may have been begun by a worker that died: its slots are released.

        Raises what holds the run, or `BudgetExhausted`.
        """
        assert call.execution_id is not None
        if call.execution_id in self._execution_ids or (
            applicable.budget_limits and self._estimates.should_wait_for_first(call.caller.tenant, call.contract)
        ):
            raise ConcurrencyLimitReached(
                f"{call.contract.full_name} declares no cost, so its first run must end before others begin",
                retry_after_ms=_SLOT_RETRY_MS,
                nothing_happened=True,
            )
        if previous_execution_id is not None:
            self.release_slots(applicable, call, previous_execution_id)
        # Only while it is admitted and executed: the same run may be handed to this process twice.
        self._execution_ids.add(call.execution_id)
        try:
            return await self.admit(applicable, call)
        except BaseException:
            self._execution_ids.discard(call.execution_id)
            raise

    async def admit_submission(self, applicable: ApplicableLimits, call: MeteredCall) -> Admission:
        """Count the submission of a call that begins later, when `admit_run` counts it again as an execution.

        Submissions have windows of their own. A submission is refused while the windows of executions are full or a
        budget is exhausted. Slots and costs are left to the execution.
        """
        admission = await self._admit(applicable, call, _build_submission_requests(applicable.counter_limits, call))
        self._refund(admission.reservations)
        self._end_estimate(call, None)
        return replace(admission, call=None, cost=0, reservations=[])

    def release_slots(self, applicable: ApplicableLimits, call: MeteredCall, holder: str) -> None:
        """Release the slots that another execution of a run holds, if it still does."""
        releases = [
            SlotRelease(key=rule.build_key(call), holder=holder)
            for rule in applicable.counter_limits
            if rule.source.kind == "concurrency"
        ]
        if releases:
            self._apply_changes(releases)

    def finish_call(
        self, admission: Admission, *, is_replay: bool = False, cost: int | None = None, is_measured: bool = False
    ) -> None:
        """Settle the charges of a finished call. A replay costs nothing; `cost` is the real cost, if known.

        `is_measured` says that the call's result shows what calls of its tool cost.
        """
        if (call := admission.call) is not None:
            self._end_estimate(call, (cost or 0) if is_measured and not is_replay else None)
            if call.execution_id is not None:
                self._execution_ids.discard(call.execution_id)
        real_cost = 0 if is_replay else admission.cost if cost is None else cost
        for lease, amount in admission.reservations:
            if amount != real_cost:
                self._budgets.adjust_lease(lease, real_cost - amount)
        changes: list[CounterUpdate] = []
        for rule, counter_request in admission.counter_requests:
            if isinstance(counter_request, Slot):
                changes.append(SlotRelease(key=counter_request.key, holder=counter_request.holder))
                continue
            refund = admission.cost - real_cost if rule.is_cost_limit else 0
            weight = -counter_request.weight if is_replay else -refund
            if weight:
                changes.append(
                    WeightCorrection(
                        key=counter_request.key, seconds=counter_request.seconds, weight=weight, at=admission.at
                    )
                )
        if changes:
            self._apply_changes(changes)

    def get_session_cost(self, caller: Caller, session: str | None) -> int:
        """Return the cost of a caller's session so far, in millionths: an input for policies, not a ledger.

        Each process counts only its own calls, and starts at zero. A limit that must hold is a budget.
        """
        return self._session_costs.get_cost(caller, session)

    def add_session_cost(self, caller: Caller, session: str | None, cost: float) -> None:
        self._session_costs.add_cost(caller, session, to_micros(cost))

    async def start(self) -> None:
        if any(rule.source.kind == "budget" for rule in self._rules):
            await self._budgets.start()

    async def stop(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        await self._budgets.stop()
        await self._counters.close()

    def _select_limits(self, tenant: str, tool: str) -> ApplicableLimits | None:
        if len(self._applicable) >= _MAX_CACHED_TOOLS:
            self._applicable.clear()
        rules = [rule for rule in self._rules if rule.is_applicable(tenant, tool)]
        limits = ApplicableLimits(
            counter_limits=tuple(rule for rule in rules if rule.source.kind != "budget"),
            budget_limits=tuple(rule for rule in rules if rule.source.kind == "budget"),
        )
        self._applicable[tenant, tool] = applicable = limits if rules else None
        return applicable

    async def _admit(
        self,
        applicable: ApplicableLimits,
        call: MeteredCall,
        counter_requests: Sequence[tuple[CompiledLimit, CounterRequest]],
    ) -> Admission:
        reservations: Reservations = []
        warnings: tuple[str, ...] = ()
        try:
            for rule in applicable.budget_limits:
                try:
                    reservations.append(await self._reserve_budget(rule, call))
                except CountersUnavailable as error:
                    warnings += self._handle_lost_counters((rule,), error)
            try:
                answer = (
                    self._counters.take([counter_request for _, counter_request in counter_requests])
                    if counter_requests
                    else TakeResult(refused_index=None)
                )
                result = answer if isinstance(answer, TakeResult) else await answer
            except CountersUnavailable as error:
                warnings += self._handle_lost_counters(applicable.counter_limits, error)
                return self._build_admission(call, reservations, warnings)
        except BaseException:
            self._refund(reservations)
            raise
        return self._complete_admission(call, counter_requests, result, reservations, warnings)

    async def _reserve_budget(self, rule: CompiledLimit, call: MeteredCall) -> tuple[BudgetLease, int]:
        """Reserve the call's probable cost. An estimate that does not fit stops only calls at once, not one alone."""
        budget, amount = _build_budget(rule, call), self._estimates.estimate(call.caller.tenant, call.contract)
        lease = await self._budgets.spend(budget, amount)
        is_declared = amount == get_declared_cost(call.contract)
        if (
            not isinstance(lease, BudgetLease)
            and not is_declared
            and not self._estimates.is_active(call.caller.tenant, call.contract)
        ):
            amount = 0
            lease = await self._budgets.spend(budget, amount)
        if not isinstance(lease, BudgetLease):
            self._refuse(rule, usage=rule.limit, retry_after_ms=lease)
        return lease, amount

    def _end_estimate(self, call: MeteredCall, reported_cost: int | None) -> None:
        self._estimates.end_call(call.caller.tenant, call.contract, reported_cost)

    def _build_admission(
        self, call: MeteredCall, reservations: Reservations, warnings: tuple[str, ...] = ()
    ) -> Admission:
        self._estimates.begin_call(call.caller.tenant, call.contract)
        return Admission(call=call, cost=get_declared_cost(call.contract), reservations=reservations, warnings=warnings)

    def _complete_admission(
        self,
        call: MeteredCall,
        counter_requests: Sequence[tuple[CompiledLimit, CounterRequest]],
        result: TakeResult,
        reservations: Reservations,
        warnings: tuple[str, ...],
    ) -> Admission:
        if result.refused_index is None:
            admission = self._build_admission(call, reservations, warnings)
            return replace(admission, counter_requests=counter_requests, at=result.at)
        self._refund(reservations)
        rule = counter_requests[result.refused_index][0]
        retry_after_ms = _SLOT_RETRY_MS if rule.source.kind == "concurrency" else result.retry_after_ms
        self._refuse(rule, usage=result.usage, retry_after_ms=retry_after_ms, is_held=call.is_run)

    def _admit_without_counters(
        self, applicable: ApplicableLimits, call: MeteredCall, reservations: Reservations, error: CountersUnavailable
    ) -> Admission:
        try:
            warnings = self._handle_lost_counters(applicable.counter_limits, error)
        except Problem:
            self._refund(reservations)
            raise
        return self._build_admission(call, reservations, warnings)

    def _handle_lost_counters(self, rules: Sequence[CompiledLimit], error: CountersUnavailable) -> tuple[str, ...]:
        """Handle rules whose counters are unavailable: raise the refusal, or return warnings for the outcome."""
        for rule in rules:
            if rule.should_deny_when_lost:
                self._on_refusal(rule.name)
                raise LimitsUnavailable(
                    f"limit {rule.name} cannot be counted ({error}), and is set to deny calls then",
                    details={"rule": rule.name, "kind": rule.source.kind, "when_lost": "deny", "cause": str(error)},
                    retry_after_ms=_UNAVAILABLE_RETRY_MS,
                )
        for rule in rules:
            self._on_uncounted(rule.name)
        return tuple(f"limit {rule.name} was not counted: {error}" for rule in rules)

    def _refuse(self, rule: CompiledLimit, *, usage: int, retry_after_ms: int, is_held: bool = False) -> NoReturn:
        """Raise the refusal. A run that is held until the limit allows it is not counted as refused."""
        if not is_held:
            self._on_refusal(rule.name)
        raise rule.build_refusal(usage=usage, retry_after_ms=retry_after_ms)

    def _refund(self, reservations: Reservations) -> None:
        for lease, amount in reservations:
            self._budgets.adjust_lease(lease, -amount)

    def _apply_changes(self, changes: Sequence[CounterUpdate]) -> None:
        """Update counters in the background: the caller already has its result, and an unreleased slot expires."""
        try:
            answer = self._counters.apply_updates(changes)
        except CountersUnavailable:
            return
        if answer is not None:
            task = asyncio.ensure_future(answer)
            self._tasks.add(task)
            task.add_done_callback(self._discard_task)

    def _discard_task(self, task: "asyncio.Future[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, CountersUnavailable):
            raise error


def _build_budget(rule: CompiledLimit, call: MeteredCall) -> Budget:
    return Budget(
        tenant=call.caller.tenant,
        rule=rule.name,
        key=rule.compute_digest(call),
        limit=rule.limit,
        seconds=rule.source.seconds,
    )


def _build_counter_requests(
    rules: Sequence[CompiledLimit], call: MeteredCall
) -> list[tuple[CompiledLimit, CounterRequest]]:
    return [(rule, _build_counter_request(rule, call)) for rule in rules]


def _build_counter_request(rule: CompiledLimit, call: MeteredCall) -> CounterRequest:
    if rule.source.kind == "concurrency":
        seconds = 2 * call.contract.timeout.effective_seconds + _SLOT_MARGIN_SECONDS
        return Slot(key=rule.build_key(call), limit=rule.limit, seconds=seconds, holder=call.slot_holder)
    weight = get_declared_cost(call.contract) if rule.is_cost_limit else 1
    return Window(key=rule.build_key(call), limit=rule.limit, seconds=rule.source.seconds, weight=weight)


def _build_submission_requests(
    rules: Sequence[CompiledLimit], call: MeteredCall
) -> list[tuple[CompiledLimit, CounterRequest]]:
    """Count the submission in a window of its own, and require that the window of executions is not full."""
    requests: list[tuple[CompiledLimit, CounterRequest]] = []
    for rule in rules:
        if rule.source.kind == "concurrency":
            continue
        key, seconds = rule.build_key(call), rule.source.seconds
        requests.append((rule, Window(key=key, limit=rule.limit, seconds=seconds, weight=0)))
        if not rule.is_cost_limit:
            requests.append((rule, Window(key=f"{key}:submitted", limit=rule.limit, seconds=seconds)))
    return requests
