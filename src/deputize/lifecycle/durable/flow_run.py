"""Run a flow: make the calls that its definition and its records ask for, and conclude it when none is left.

A flow is a run that waits as a row. A worker begins it, which checks its approval and its limits, and puts it back.
From then on the end of each step wakes it: `advance_flow` makes the next calls and returns, so that a flow occupies no
worker while its steps run or wait for approval. Each step is a call of its own by the flow's caller, under a key that
is derived from the flow and the step. A worker that dies is therefore no reason to call twice, and two workers that
advance a flow at once make the same calls. When nothing is left, the flow is begun once more to record its outcome.
"""

import asyncio
from typing import Any, Final

from deputize.core.call import CallOrigin, CallRequest
from deputize.core.contract.flow import MAX_FLOW_DEPTH, Flow
from deputize.core.errors import Canceled, FlowFailed, Problem, ToolTimeout, Unavailable
from deputize.core.outcome import Outcome
from deputize.core.states import State
from deputize.lifecycle.authorize import authorize
from deputize.lifecycle.cancellation import cancel_open_call
from deputize.lifecycle.durable.flow_steps import FlowSteps, StepCall, load_flow_steps, save_flow_steps
from deputize.lifecycle.durable.resume import PendingRun, RunNotReady
from deputize.lifecycle.phases import Authorized, CallContext, Claim, Executed, Validated
from deputize.lifecycle.runtime import Runtime
from deputize.runs.flow_state import WITHHELD, FlowFailure, FlowState, ReadyCall, evaluate_flow
from deputize.store.queries import load_statements

_SQL = load_statements("runs")
_MAX_CALLS_AT_ONCE: Final = 8
_RETRY_SECONDS: Final = 2.0
# So many results of steps are repeated in the error of a flow; all of them can be read by their calls.
_MAX_PARTIAL_RESULTS: Final = 20


async def advance_flow(runtime: Runtime, run: PendingRun) -> bool:
    """Make the calls that are due; tell whether the flow can be concluded. Otherwise the end of a step wakes it."""
    validated = run.validated
    flow, call = _get_flow(validated), validated.call
    is_stopping = run.cancel_requested or run.is_expired or _is_over(run) or not await _is_authorized(runtime, run)
    retry_seconds: float | None = None
    while True:
        steps = await load_flow_steps(runtime, call.tenant, call.call_id)
        state = evaluate_flow(
            flow, validated.call_input, steps.records, steps.joins, await _load_estimates(runtime, validated, flow),
            is_stopping=is_stopping,
        )  # fmt: skip
        if state.has_ended:
            return True
        if state.joins:
            await save_flow_steps(runtime, call.tenant, call.call_id, {}, state.joins)
        elif await _cancel_steps(runtime, validated, steps, state):
            continue
        elif state.ready and retry_seconds is None:
            if not steps.calls:
                # Before the first call: whatever happens to the steps, the flow ends at its deadline.
                await _wake_later(runtime, validated, _get_seconds_left(run))
            retry_seconds = await _make_calls(runtime, run, state.ready)
        elif retry_seconds is not None:
            raise RunNotReady("a step could not be called yet", seconds=retry_seconds)
        else:
            return False


async def conclude_flow(runtime: Runtime, authorized: Authorized, claim: Claim, run: PendingRun) -> Executed | None:
    """Build the execution of a flow whose calls have all ended; None if it goes on."""
    validated = authorized.validated
    steps = await load_flow_steps(runtime, validated.call.tenant, validated.call.call_id)
    flow = _get_flow(validated)
    state = evaluate_flow(flow, validated.call_input, steps.records, steps.joins)
    problem = _find_problem(run, steps, state)
    if problem is None and not state.has_ended:
        return None
    return Executed(
        authorized=authorized,
        claim=claim,
        output=state.output if problem is None else None,
        problem=problem,
        attempts=1,
        seconds=run.age_seconds,
    )


def _find_problem(run: PendingRun, steps: FlowSteps, state: FlowState) -> Problem | None:
    has_succeeded = state.has_ended and state.failure is None
    details = _describe_steps(steps, state.failure)
    # Nothing was done if every call was refused, or is known to have had no effect.
    nothing_happened = not any(_may_have_acted(each) for each in steps.calls.values())
    if has_succeeded:
        return None
    if run.cancel_requested:
        return Canceled(
            f"the flow was canceled after {len(details['completed_steps'])} of its calls",
            details=details, nothing_happened=nothing_happened,
        )  # fmt: skip
    if _is_over(run):
        message = f"the flow did not end within {_get_timeout(run.validated):g} s"
        return ToolTimeout(message, details=details, nothing_happened=nothing_happened)
    if run.validated.call.request.flow_depth > MAX_FLOW_DEPTH:
        message = f"flows call flows more than {MAX_FLOW_DEPTH} levels deep; one of them may call itself"
        return FlowFailed(message, details=details, nothing_happened=True)
    if state.failure is None or not state.has_ended:
        return None
    failed_call = steps.calls.get(state.failure.path)
    reason = state.failure.reason or _explain_end(failed_call)
    message = f"the step {state.failure.path} failed: {reason}"
    return FlowFailed(message, details=details, nothing_happened=nothing_happened)


def _explain_end(call: StepCall | None) -> str:
    if call is None:
        return "it was not called"
    return str((call.error or {}).get("message") or f"its call is {call.record.state}")


def _describe_steps(steps: FlowSteps, failure: FlowFailure | None) -> dict[str, Any]:
    """Describe what was done: the failed step, completed ones, and what they returned."""
    completed = {path: each for path, each in steps.calls.items() if each.record.state is State.SUCCEEDED}
    results = {path: each.record.result for path, each in completed.items() if each.record.result is not WITHHELD}
    failed_call = None if failure is None else steps.calls.get(failure.path)
    return {
        "failed_step": None if failure is None else failure.path,
        "error": None if failed_call is None else failed_call.error,
        "completed_steps": [{"step": path, "call_id": each.call_id} for path, each in completed.items()],
        "open_ends": [
            {"step": path, "call_id": each.call_id, "state": each.record.state}
            for path, each in steps.calls.items()
            if each.record.state is not State.SUCCEEDED
        ],
        "partial_results": dict(list(results.items())[:_MAX_PARTIAL_RESULTS]),
    }


def _may_have_acted(call: StepCall) -> bool:
    return call.row is not None and call.row["mutation_class"] != "read" and not call.row["nothing_happened"]


def _get_flow(validated: Validated) -> Flow:
    flow = validated.contract.flow
    assert flow is not None
    return flow


def _get_timeout(validated: Validated) -> float:
    seconds = validated.contract.timeout.effective_seconds
    max_seconds = validated.call.request.max_seconds
    return seconds if max_seconds is None else min(seconds, max_seconds)


def _get_seconds_left(run: PendingRun) -> float:
    return _get_timeout(run.validated) - run.age_seconds


def _is_over(run: PendingRun) -> bool:
    return _get_seconds_left(run) <= 0


async def _is_authorized(runtime: Runtime, run: PendingRun) -> bool:
    """Tell whether the caller may still call the flow; what ended that is found again when the flow is concluded."""
    authority = await runtime.authority.load_tenant(run.validated.call.tenant)
    try:
        await authorize(runtime, run.validated, authority, may_ask=run.has_approval_request)
    except Problem as problem:
        if problem.spec.retryable:
            raise RunNotReady(problem.message, seconds=_RETRY_SECONDS) from problem
        return False
    return run.validated.call.request.flow_depth <= MAX_FLOW_DEPTH


async def _load_estimates(runtime: Runtime, validated: Validated, flow: Flow) -> Any:
    """Load how long each tool may take; of one that is not found, nothing is known, and its call says why."""
    tools = (await runtime.authority.load_tenant(validated.call.tenant)).tools
    seconds: dict[str, float] = {}
    for name in {call.tool for step in flow.walk() for call in step.calls}:
        contract = tools.find_contract(name)
        seconds[name] = 1.0 if contract is None else contract.timeout.effective_seconds
    return seconds.__getitem__


async def _wake_later(runtime: Runtime, validated: Validated, seconds: float) -> None:
    async with runtime.store.write_transaction() as connection:
        call = validated.call
        await connection.execute(_SQL["return_run_to_queue"], call.tenant, call.call_id, seconds, False)


async def _cancel_steps(runtime: Runtime, validated: Validated, steps: FlowSteps, state: FlowState) -> bool:
    """Cancel calls that are no longer needed, each once; tell whether there was one."""
    rows = [steps.calls[path].row for path in state.canceled]
    open_rows = [row for row in rows if row is not None and not row["cancel_requested"]]
    for row in open_rows:
        await cancel_open_call(runtime, validated.call.caller, row)
    return bool(open_rows)


async def _make_calls(runtime: Runtime, run: PendingRun, ready: tuple[ReadyCall, ...]) -> float | None:
    """Make calls, and record them; return after how many seconds to try again those that could not be made now."""
    call, slots = run.validated.call, asyncio.Semaphore(_MAX_CALLS_AT_ONCE)

    async def make_call(each: ReadyCall) -> Outcome:
        async with slots:
            return await runtime.run_call(runtime, call.caller, _build_request(run, each))

    made = await asyncio.gather(*(make_call(each) for each in ready))
    outcomes: dict[str, Outcome] = {}
    waits: list[float] = []
    for each, outcome in zip(ready, made, strict=True):
        is_made = outcome.is_accepted or outcome.is_replay
        if not is_made and outcome.spec is not None and (outcome.spec.retryable or outcome.spec is Unavailable.spec):
            waits.append((outcome.retry_after_ms or 1000 * _RETRY_SECONDS) / 1000)
        else:
            outcomes[each.path] = outcome
    await save_flow_steps(runtime, call.tenant, call.call_id, outcomes, {})
    return min(waits, default=None)


def _get_root_flow(call: CallContext) -> str:
    """Return the flow that a person or an agent called: steps of flows within it are taken back with it."""
    origin = call.request.origin
    if call.request.flow_depth == 0 or origin is None or origin.flow_id is None:
        return call.call_id
    return origin.flow_id


def _build_request(run: PendingRun, ready: ReadyCall) -> CallRequest:
    call = run.validated.call
    return CallRequest(
        tool=ready.call.tool,
        arguments=ready.arguments,
        version=ready.call.version or "latest",
        # The same for every worker that makes this call, so that it is made once.
        idempotency_key=f"flow:{call.call_id}:{ready.path}",
        session=call.session,
        step=ready.path,
        traceparent=call.trail.traceparent,
        mode="async",
        origin=CallOrigin(parent_call_id=call.call_id, flow_id=_get_root_flow(call)),
        max_seconds=max(_get_seconds_left(run) * ready.time_share, 0.001),
        flow_depth=call.request.flow_depth + 1,
    )
