"""Run a flow: make the calls that its definition and its records ask for, and conclude it when none is left.

A flow is a run that waits as a row. A worker begins it, which checks its approval and its limits, and puts it back.
From then on the end of each step wakes it: `advance_flow` makes the next calls and returns, so that a flow occupies no
worker while its steps run or wait for approval. Each step is a call of its own by the flow's caller, under a key that
is derived from the flow and the step. A worker that dies is therefore no reason to call twice, and two workers that
advance a flow at once make the same calls.

A flow that has failed takes back what its calls did (`flow_compensation.py`), as long as it takes.

When nothing is left, the flow is begun once more to record its outcome. That is never refused: whatever has ended its
authority meanwhile stops it from making more calls, and its outcome says so beside what was done.
"""

import asyncio
from dataclasses import replace
from typing import Any, Final

from deputize.core.call import CallOrigin, CallRequest
from deputize.core.contract.flow import Flow
from deputize.core.errors import Canceled, FlowFailed, Problem, ToolTimeout, TooManyTakeovers
from deputize.core.outcome import Outcome
from deputize.core.states import State
from deputize.lifecycle.durable.flow_compensation import (
    compensate_flow,
    is_compensated,
    restore_ending,
    save_ending,
)
from deputize.lifecycle.durable.flow_effects import NOT_NEEDED
from deputize.lifecycle.durable.flow_end import cancel_steps, name_steps
from deputize.lifecycle.durable.flow_steps import (
    FlowSteps,
    StepCall,
    build_step_key,
    get_root_flow,
    load_flow_steps,
    plan_calls,
    save_calls,
    save_joins,
    settle_plans,
    should_retry,
)
from deputize.lifecycle.durable.program_run import build_program_problem, conclude_program, evaluate_program
from deputize.lifecycle.durable.resume import PendingRun, RunNotReady, authorize_flow
from deputize.lifecycle.phases import Authorized, Claim, Executed, Validated
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.verify import verify
from deputize.runs.flow_state import FlowState, ReadyCall, evaluate_flow
from deputize.store.queries import load_statements

_SQL = load_statements("runs")
_FLOWS = load_statements("flows")
_MAX_CALLS_AT_ONCE: Final = 8
_RETRY_SECONDS: Final = 2.0


async def advance_flow(runtime: Runtime, run: PendingRun) -> bool:
    """Make the calls that are due; tell whether the flow can be concluded. Otherwise the end of a step wakes it."""
    validated = run.validated
    flow, call = _get_flow(validated), validated.call
    _, refusal = await authorize_flow(runtime, run)
    planner, retry_seconds = runtime.clock.new_id(), None
    while True:
        steps = await load_flow_steps(runtime, call.tenant, call.call_id)
        if steps.ending is not None and not steps.has_flow_ended:
            return await compensate_flow(runtime, run)
        is_stopping = run.cancel_requested or _is_over(run) or refusal is not None or steps.has_flow_ended
        if flow.program is not None:
            steps, state = await evaluate_program(runtime, run, steps, is_stopping=is_stopping)
        else:
            state = evaluate_flow(
                flow, validated.call_input, steps.records, steps.joins, await _load_estimates(runtime, validated, flow),
                is_stopping=is_stopping,
            )  # fmt: skip
        ready_paths = {each.path for each in state.ready}
        unwanted_plans = {path: tool for path, tool in steps.plans.items() if path not in ready_paths}
        if unwanted_plans and await settle_plans(runtime, call.tenant, call.call_id, unwanted_plans):
            continue
        if state.has_ended:
            if unwanted_plans:
                raise RunNotReady("another worker may be making a call of it", seconds=_RETRY_SECONDS)
            problem = _find_problem(run, steps, state, refusal)
            if problem is None or steps.has_flow_ended or not is_compensated(validated) or not steps.may_have_acted:
                return True
            if not await save_ending(runtime, run, steps, problem, state.failure):
                raise RunNotReady("another worker goes on with it", seconds=_RETRY_SECONDS)
            continue
        if state.joins:
            await save_joins(runtime, call.tenant, call.call_id, state.joins)
        elif await cancel_steps(runtime, call.caller, [steps.calls[path] for path in state.canceled]):
            continue
        elif state.ready and retry_seconds is None:
            if not steps.calls:
                # Before the first call: whatever happens to the steps, the flow ends at its deadline.
                await _wake_later(runtime, validated, _get_seconds_left(run))
            if not await plan_calls(runtime, call, run.epoch, planner, _list_tools(state.ready)):
                return False
            retry_seconds = await _make_calls(runtime, run, planner, state.ready)
        else:
            if run.was_unable:
                await _clear_unable(runtime, validated)
            if retry_seconds is not None:
                raise RunNotReady("a step could not be called yet", seconds=retry_seconds)
            return False


async def conclude_flow(
    runtime: Runtime, authorized: Authorized, claim: Claim, run: PendingRun, refusal: Problem | None
) -> Executed | None:
    """Build the execution of a flow whose calls have all ended; None if it goes on. A refusal is why it had to stop."""
    validated = authorized.validated
    steps = await load_flow_steps(runtime, validated.call.tenant, validated.call.call_id)
    problem: Problem | None
    executed = Executed(
        authorized=authorized, claim=claim, output=None, problem=None, attempts=1, seconds=run.age_seconds
    )
    if steps.ending is None:
        is_stopping = run.cancel_requested or _is_over(run) or refusal is not None
        flow = _get_flow(validated)
        if flow.program is not None:
            state = conclude_program(steps, is_stopping=is_stopping)
        else:
            state = evaluate_flow(flow, validated.call_input, steps.records, steps.joins, is_stopping=is_stopping)
        if not state.has_ended or steps.plans:
            return None
        problem, failure, report = _find_problem(run, steps, state, refusal), state.failure, None
        may_compensate = is_compensated(validated) and steps.may_have_acted
        if problem is None:
            executed = replace(executed, output=state.output)
            if may_compensate:
                # A result that breaks the contract fails the flow like any step, and before its outcome is recorded.
                problem = (await verify(runtime, executed)).problem
        if problem is None:
            return executed
        if may_compensate:
            await save_ending(runtime, run, steps, problem, failure, is_owner=True)
            return None
        if is_compensated(validated):
            report = NOT_NEEDED
    elif steps.report is None:
        return None
    else:
        report = steps.report
        problem, failure = restore_ending(steps.ending)
    return replace(executed, problem=name_steps(problem, steps, failure, report))


def _find_problem(run: PendingRun, steps: FlowSteps, state: FlowState, refusal: Problem | None) -> Problem | None:
    # Recording its result may be what kills workers.
    if state.has_succeeded and not isinstance(refusal, TooManyTakeovers):
        return None
    failure, end = state.failure, steps.program["end"]
    completed_count = sum(each.record.state is State.SUCCEEDED for each in steps.calls.values())
    if end is not None and "failure" in end and not isinstance(refusal, TooManyTakeovers):
        # Whatever came after that did not end it.
        problem = build_program_problem(end)
    elif run.cancel_requested:
        problem = Canceled(f"the flow was canceled after {completed_count} of its calls")
    elif _is_over(run):
        problem = ToolTimeout(f"the flow did not end within {_get_timeout(run.validated):g} s")
    elif refusal is not None:
        problem = refusal.replace(
            message=f"the flow was stopped after {completed_count} of its calls: {refusal.message}"
        )
    else:
        assert failure is not None
        reason = failure.reason or _explain_end(steps.calls.get(failure.path))
        problem = FlowFailed(f"the step {failure.path} failed: {reason}")
    return problem


def _explain_end(call: StepCall | None) -> str:
    if call is None:
        return "it was not called"
    return str((call.error or {}).get("message") or f"its call is {call.record.state}")


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


async def _clear_unable(runtime: Runtime, validated: Validated) -> None:
    """Forget that a worker could not go on with the flow: this one just has."""
    async with runtime.store.write_transaction() as connection:
        await connection.execute(_FLOWS["clear_unable"], validated.call.tenant, validated.call.call_id)


def _list_tools(ready: tuple[ReadyCall, ...]) -> dict[str, str]:
    return {each.path: each.call.tool for each in ready}


async def _make_calls(runtime: Runtime, run: PendingRun, planner: str, ready: tuple[ReadyCall, ...]) -> float | None:
    """Make planned calls, and record them; return after how many seconds to try those again that are not made."""
    call, slots = run.validated.call, asyncio.Semaphore(_MAX_CALLS_AT_ONCE)

    async def make_call(each: ReadyCall) -> Outcome:
        async with slots:
            return await runtime.run_call(runtime, call.caller, _build_request(run, each))

    made = await asyncio.gather(*(make_call(each) for each in ready))
    outcomes = {each.path: outcome for each, outcome in zip(ready, made, strict=True)}
    retried = {path: outcome for path, outcome in outcomes.items() if should_retry(outcome)}
    waits = [(each.retry_after_ms or 1000 * _RETRY_SECONDS) / 1000 for each in retried.values()]
    if not await save_calls(runtime, call, planner, _list_tools(ready), outcomes, retried.keys()):
        waits.append(_RETRY_SECONDS)
    return min(waits, default=None)


def _build_request(run: PendingRun, ready: ReadyCall) -> CallRequest:
    call = run.validated.call
    return CallRequest(
        tool=ready.call.tool,
        arguments=ready.arguments,
        version=ready.call.version or "latest",
        idempotency_key=build_step_key(call.call_id, ready.path),
        session=call.session,
        step=ready.path,
        traceparent=call.trail.traceparent,
        mode="async",
        origin=CallOrigin(parent_call_id=call.call_id, flow_id=get_root_flow(call)),
        max_seconds=max(_get_seconds_left(run) * ready.time_share, 0.001),
        flow_depth=call.request.flow_depth + 1,
    )
