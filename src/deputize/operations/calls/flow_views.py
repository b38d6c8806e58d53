"""Show a flow as it is now: the state of each step, and the calls that were made for it."""

from dataclasses import replace
from typing import Any

from deputize.core.caller import Caller
from deputize.core.contract.flow import Flow, FlowStep
from deputize.core.errors import MalformedRequest, Problem
from deputize.core.states import TERMINAL_STATES, State
from deputize.lifecycle.call_access import may_reach
from deputize.lifecycle.durable.flow_steps import FlowSteps, StepCall, load_flow_steps
from deputize.lifecycle.recording.stored_call import StoredInput
from deputize.lifecycle.runtime import Runtime
from deputize.operations.calls.queries import CallQueries, build_not_found
from deputize.runs.flow_state import StepStatus, evaluate_flow, get_step_name
from deputize.store.queries import load_statements

_SQL = load_statements("calls")


class FlowViews:
    def __init__(self, runtime: Runtime, calls: CallQueries) -> None:
        self._runtime = runtime
        self._calls = calls

    async def show_flow(self, caller: Caller, call_id: str) -> dict[str, Any]:
        """Show the flow of a call, to whoever may see the call."""
        row = await self._calls.load_row(caller, call_id)
        flow = None if row is None else await self._find_flow(caller.tenant, row["tool"], row["version"])
        if row is None:
            raise build_not_found(call_id)
        if flow is None:
            raise MalformedRequest(
                f"this is a call of {row['tool']}, which is not a flow",
                details={"call_id": str(row["id"]), "tool": row["tool"]},
                advice=f"Show it as a call: deputize calls show {row['id']}, or GET /v1/calls/{row['id']}.",
            )
        steps = await load_flow_steps(self._runtime, caller.tenant, str(row["id"]))
        if flow.program is None:
            statuses = await self._load_statuses(caller.tenant, str(row["id"]), flow, steps)
        else:
            flow = _unroll_program(steps)
            statuses = {each.name: _judge_call(steps.calls.get(each.name)) for each in flow.steps}
        steps = replace(steps, calls={path: await self._hide_error(caller, each) for path, each in steps.calls.items()})
        state = State(row["state"])
        return {
            "call_id": str(row["id"]),
            "tool": row["tool"],
            "version": row["version"],
            "state": state,
            "steps": _describe_steps(flow, steps, statuses, has_ended=state in TERMINAL_STATES),
            "compensation": _describe_compensation(steps),
            "flow": flow.model_dump(mode="json"),
        }

    async def is_flow(self, caller: Caller, tool: str, version: str) -> bool:
        """Tell whether a version of a tool is a flow, for the link to its steps."""
        return await self._find_flow(caller.tenant, tool, version) is not None

    async def _hide_error(self, caller: Caller, call: StepCall) -> StepCall:
        """Hide how a step failed whose call a token of the same person may not read."""
        if call.row is None or call.error is None or await may_reach(self._runtime, caller, call.row):
            return call
        return replace(call, error=None)

    async def _find_flow(self, tenant: str, tool: str, version: str) -> Flow | None:
        """Find the definition that a call was made with; None if the tool is no flow, or the version is removed."""
        tools = (await self._runtime.authority.load_tenant(tenant)).tools
        try:
            return (await tools.resolve_version(tool, version).load_tool()).contract.flow
        except Problem:
            return None

    async def _load_statuses(self, tenant: str, call_id: str, flow: Flow, steps: FlowSteps) -> dict[str, StepStatus]:
        keys = await self._runtime.keys.get(tenant)
        async with self._runtime.store.read_transaction(tenant) as connection:
            row = await connection.fetchrow(_SQL["load_call_to_retry"], tenant, call_id)
        # Deleted with the calls' results once they are old; the calls still tell how they ended.
        arguments = {} if row is None or row["input"] is None else StoredInput(
            keys.unseal(call_id, "input", row["input"])
        ).call_input  # fmt: skip
        return dict(evaluate_flow(flow, arguments, steps.records, steps.joins).statuses)


def _unroll_program(steps: FlowSteps) -> Flow:
    """Describe the calls that a program has made until now as the steps of a flow."""
    return Flow(steps=tuple(FlowStep(name=path, tool=each["tool"]) for path, each in steps.program["calls"].items()))


def _judge_call(call: StepCall | None) -> StepStatus:
    if call is None:
        return StepStatus.WAITING
    if call.record.is_open:
        return StepStatus.RUNNING
    return StepStatus.SUCCEEDED if call.record.state is State.SUCCEEDED else StepStatus.FAILED


def _describe_steps(
    flow: Flow, steps: FlowSteps, statuses: dict[str, StepStatus], *, has_ended: bool
) -> list[dict[str, Any]]:
    by_step: dict[str, list[dict[str, Any]]] = {}
    for path, call in steps.calls.items():
        by_step.setdefault(get_step_name(path), []).append(_describe_call(path, call))
    for name in _find_compensated(steps):
        statuses[name] = StepStatus.COMPENSATED
    return [
        {
            "name": step.name,
            "tool": step.tool,
            "status": _judge_status(statuses[step.name], has_ended=has_ended),
            "calls": by_step.get(step.name, []),
        }
        for step in flow.walk()
    ]


def _describe_compensation(steps: FlowSteps) -> dict[str, Any] | None:
    """Describe what of a failed flow was taken back and what is left; as long as that goes on, what was until now."""
    if steps.report is not None:
        return dict(steps.report)
    if steps.ending is None:
        return None
    return {"state": "compensating", "compensated": list(steps.taken_back.values()), "left": [], "task_id": None}


def _find_compensated(steps: FlowSteps) -> set[str]:
    """Find the steps of which all that was done was taken back."""
    compensation = _describe_compensation(steps)
    if compensation is None:
        return set()
    # Of a step that is a flow, the paths of its own steps follow; it counts once nothing more is tried.
    done = {each["step"] for each in compensation["compensated"]}
    if steps.report is not None:
        done = {each.partition(".")[0] for each in done}
    done -= {each["step"].partition(".")[0] for each in compensation["left"]}
    acted = {path for path, each in steps.calls.items() if each.may_have_acted}
    return {get_step_name(path) for path in done} - {get_step_name(path) for path in acted - done}


def _judge_status(status: StepStatus, *, has_ended: bool) -> StepStatus:
    """Judge a step of a flow that has ended: what did not run, or was stopped, is discarded."""
    is_left = status in (StepStatus.WAITING, StepStatus.RUNNING)
    return StepStatus.DISCARDED if has_ended and is_left else status


def _describe_call(path: str, call: StepCall) -> dict[str, Any]:
    return {
        "step": path,
        "call_id": call.call_id,
        "state": call.record.state,
        "mutation_class": None if call.row is None else call.row["mutation_class"],
        "error": call.error,
    }
