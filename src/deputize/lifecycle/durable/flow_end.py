"""End a flow: cancel the calls that have not ended, and say in its outcome what was done and what was not."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from deputize.core.caller import Caller
from deputize.core.errors import Problem
from deputize.core.states import State
from deputize.lifecycle.cancellation import cancel_open_call
from deputize.lifecycle.durable.flow_steps import FlowSteps, StepCall
from deputize.lifecycle.runtime import Runtime
from deputize.runs.flow_state import WITHHELD, FlowFailure

# So many results of steps are repeated in the error of a flow, and as much of them as fits into so many bytes; all of
# them can be read by their calls.
_MAX_PARTIAL_RESULTS: Final = 20
_MAX_PARTIAL_BYTES: Final = 64 * 1024


async def cancel_steps(runtime: Runtime, caller: Caller, calls: Iterable[StepCall]) -> bool:
    """Cancel calls that are no longer needed, each once; tell whether there was one."""
    rows = [each.row for each in calls if each.row is not None and each.record.is_open]
    open_rows = [row for row in rows if not row["cancel_requested"]]
    for row in open_rows:
        await cancel_open_call(runtime, caller, row)
    return bool(open_rows)


def name_steps(
    problem: Problem,
    steps: FlowSteps,
    failure: FlowFailure | None = None,
    compensation: Mapping[str, Any] | None = None,
) -> Problem:
    """Add to the problem of a flow what its steps did, and what of it was taken back.

    Nothing happened only if none of them can have acted: what was taken back has happened, and is not to be repeated
    unseen.
    """
    details = {**problem.details, **_describe_steps(steps, failure)}
    if compensation is not None:
        details["compensation"] = compensation
    return problem.replace(details=details, nothing_happened=not steps.may_have_acted)


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
        ] + [{"step": path, "call_id": None, "state": State.UNKNOWN} for path in steps.plans],
        "partial_results": _select_results(results),
    }  # fmt: skip


def _select_results(results: Mapping[str, Any]) -> dict[str, Any]:
    """Select results from the first one on, without those that are too long beside the others."""
    selected: dict[str, Any] = {}
    bytes_left = _MAX_PARTIAL_BYTES
    for path, result in results.items():
        size = len(orjson.dumps(result))
        if size <= bytes_left and len(selected) < _MAX_PARTIAL_RESULTS:
            selected[path] = result
            bytes_left -= size
    return selected
