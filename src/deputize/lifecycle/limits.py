"""Run a call inside its limits: admit it, and settle what it used however it ends.

A call inside its request is admitted before its claim, so that a refusal consumes no idempotency key; a replay, which
only the claim can detect, gets its charge back. A call that is stored to begin later, because it is asynchronous or
needs approval, is counted as a submission, and admitted when a worker begins it (`durable/resume.py`). Over a rate or a
concurrency limit it is held then; over a budget it fails.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import TracebackType
from typing import Final

from deputize.core.contract.tools import AnyTool
from deputize.core.degradation import Degradation
from deputize.core.errors import (
    CircuitOpen,
    ConcurrencyLimitReached,
    LimitsUnavailable,
    OutcomeUnknown,
    Problem,
    RateLimited,
    RunawayLoop,
    ServiceBusy,
    UpstreamRateLimited,
)
from deputize.core.outcome import Outcome
from deputize.execute.service_gate import ServicePermit
from deputize.govern.limits.limit_admission import Admission
from deputize.govern.limits.rules import MeteredCall, to_micros
from deputize.lifecycle.phases import Authorized, CallProgress
from deputize.lifecycle.runtime import Runtime

Act = Callable[[Authorized, CallProgress], Awaitable[Outcome]]
# What holds a run back until its limit allows it, or its service has room or is tried again.
_HOLDING_PROBLEMS: Final = (
    RateLimited, ConcurrencyLimitReached, RunawayLoop, LimitsUnavailable, CircuitOpen, ServiceBusy,
    UpstreamRateLimited,
)  # fmt: skip


async def run_within_limits(runtime: Runtime, authorized: Authorized, act: Act) -> Outcome:
    """Admit the call, run `act`, and settle the admission."""
    validated, progress = authorized.validated, CallProgress()
    rules = runtime.limits.find_applicable(validated.call.tenant, validated.tool.name)
    if rules is None:
        return await act(authorized, progress)
    metered_call = _meter_call(authorized)
    if _begins_later(authorized):
        admission = await runtime.limits.admit_submission(rules, metered_call)
    else:
        # Nearly all calls are admitted without waiting; shared counters and budget slices need a round trip.
        admission = runtime.limits.admit_now(rules, metered_call) or await runtime.limits.admit(rules, metered_call)
    charge = Charge(runtime, authorized, admission, progress)
    with charge:
        return await act(charge.authorized, progress)


class Charge:
    """What one execution of a call was admitted with. It is settled once, however the execution ends."""

    __slots__ = ("_admission", "_runtime", "authorized", "permit", "progress")

    def __init__(
        self,
        runtime: Runtime,
        authorized: Authorized,
        admission: Admission | None,
        progress: CallProgress | None = None,
        permit: ServicePermit | None = None,
    ) -> None:
        """Keep the admission, or None if no limit applies. The call gets the warning of a rule that was not counted.

        `permit` is that of a run that calls an external service.
        """
        self._runtime, self._admission, self.permit = runtime, admission, permit
        self.authorized = authorized if admission is None else _add_warnings(authorized, admission)
        self.progress = CallProgress() if progress is None else progress

    def __enter__(self) -> "Charge":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        # A coroutine that is dropped with its event loop can settle nothing any more, and its slots expire.
        if not isinstance(error, GeneratorExit):
            self.settle(error)

    def settle(self, error: BaseException | None = None) -> None:
        """Correct the charge to the real cost, and release its slots."""
        self._release_permit()
        admission, self._admission = self._admission, None
        if admission is None:
            return
        verified = self.progress.verified
        self._runtime.limits.finish_call(
            admission,
            is_replay=self.progress.is_replay,
            cost=_compute_cost(self.authorized, self.progress, error),
            is_measured=verified is not None and verified.problem is None,
        )

    def refund(self) -> None:
        """Take the whole charge back, because the execution did not begin."""
        self._release_permit()
        admission, self._admission = self._admission, None
        if admission is not None:
            self._runtime.limits.finish_call(admission, is_replay=True)

    def _release_permit(self) -> None:
        if self.permit is not None:
            self.permit.release()


async def admit_run(
    runtime: Runtime, authorized: Authorized, tool: AnyTool, epoch: int, previous_owner: str | None
) -> Charge:
    """Admit the execution of a run that this worker is about to begin after `epoch`; raise what holds or ends it."""
    validated, permit = authorized.validated, None
    call = validated.call
    if (contract := validated.contract).external_service is not None:
        permit = await runtime.service_gate.admit_run(call.tenant, tool, contract)
    try:
        admission = await _admit_execution(runtime, authorized, epoch, previous_owner)
    except BaseException:
        if permit is not None:
            permit.release()
        raise
    return Charge(runtime, authorized, admission, permit=permit)


async def _admit_execution(
    runtime: Runtime, authorized: Authorized, epoch: int, previous_owner: str | None
) -> Admission | None:
    call = authorized.call
    rules = runtime.limits.find_applicable(call.tenant, authorized.validated.tool.name)
    if rules is None:
        return None
    execution_id = _build_execution_id(call.call_id, epoch + 1, runtime.lease.boot_id)
    previous_id = None if previous_owner is None else _build_execution_id(call.call_id, epoch, previous_owner)
    metered_call = replace(_meter_call(authorized), execution_id=execution_id)
    return await runtime.limits.admit_run(rules, metered_call, previous_id)


def release_lost_execution(runtime: Runtime, authorized: Authorized, epoch: int, owner: str | None) -> None:
    """Release the slots of a run whose worker died, where the run is not executed again."""
    validated = authorized.validated
    rules = runtime.limits.find_applicable(validated.call.tenant, validated.tool.name)
    if rules is not None and owner is not None:
        holder = _build_execution_id(validated.call.call_id, epoch, owner)
        runtime.limits.release_slots(rules, _meter_call(authorized), holder)


def compute_hold_seconds(runtime: Runtime, tenant: str, problem: Problem) -> float | None:
    """Compute for how long a limit holds a run back; None if the problem is not one that a run waits for."""
    if not isinstance(problem, _HOLDING_PROBLEMS):
        return None
    rule = str(problem.details.get("rule") or problem.details.get("service", ""))
    return runtime.limits.hold_delays.compute_seconds(tenant, rule, problem.retry_after_ms)


def _build_execution_id(call_id: str, epoch: int, owner: str) -> str:
    return f"{call_id}:{epoch}:{owner}"


def _begins_later(authorized: Authorized) -> bool:
    """Tell whether the call is stored now and begun by a worker, after an approval or because it is asynchronous."""
    validated = authorized.validated
    return not validated.call.request.dry_run and (authorized.needs_people or validated.outlives_request)


def _add_warnings(authorized: Authorized, admission: Admission) -> Authorized:
    """Add the warning that a rule could not be counted, so that the outcome carries it."""
    if not admission.warnings:
        return authorized
    validated = authorized.validated
    degraded_call = replace(
        validated,
        warnings=validated.warnings + admission.warnings,
        degradations=(*validated.degradations, Degradation.LIMITS_NOT_COUNTED),
    )
    return replace(authorized, validated=degraded_call)


def _compute_cost(authorized: Authorized, progress: CallProgress, error: BaseException | None) -> int | None:
    """Compute what the call cost in micros; None leaves the cost that its contract declares."""
    if progress.verified is not None:
        return to_micros(progress.verified.cost)
    # A refusal before dispatch costs nothing; a call that the gateway lost track of may have cost all of it.
    is_refusal = isinstance(error, Problem) and not isinstance(error, OutcomeUnknown)
    return 0 if is_refusal or authorized.call.request.dry_run else None


def _meter_call(authorized: Authorized) -> MeteredCall:
    validated = authorized.validated
    call = validated.call
    return MeteredCall(
        call_id=call.call_id,
        caller=call.caller,
        contract=validated.contract,
        session=call.session,
        canonical_arguments=validated.request_bytes,
    )
