"""Evaluate a flow: from its definition and what is recorded of its calls, find what to call next, or how it ended.

The evaluation is pure, and starts from the beginning each time: whoever evaluates the same records finds the same. What
depends on the order of events, which parallel steps won, is decided once and recorded before it counts.

A call has a path: the name of its step, with the number of its round or element (`send/3`) and of its fallback
(`send/3~1`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any, Final

from deputize.core.comparisons import parse_comparison
from deputize.core.contract.flow import EstimateSeconds, Flow, FlowCall, FlowStep, measure_steps
from deputize.core.json_pointer import MISSING, find_value, parse_pointer
from deputize.core.states import TERMINAL_STATES, State
from deputize.core.value_types import frozen

_ROOTS: Final = ("input", "steps", "item", "index", "round")
# The result of a call that is stored by reference, and not given whole.
WITHHELD: Final = object()


class StepStatus(StrEnum):
    """How far a step is."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    SKIPPED = "skipped"
    FAILED = "failed"
    DISCARDED = "discarded"
    # All that its calls did was taken back.
    COMPENSATED = "compensated"


@frozen
class StepRecord:
    """What is recorded of one call of a flow. `may_fall_back` is True if the call is known to have changed nothing."""

    state: State
    result: Any = None
    may_fall_back: bool = False

    @property
    def is_open(self) -> bool:
        return self.state not in TERMINAL_STATES


@frozen
class ReadyCall:
    """A call to make now. `time_share` is the part of the flow's remaining time that it may take."""

    path: str
    step: str
    call: FlowCall
    arguments: dict[str, Any]
    time_share: float


@frozen
class FlowFailure:
    """Where a flow failed: the path of the call, or of what could not be called, and why if there is no such call."""

    path: str
    reason: str = ""


@frozen
class FlowState:
    """What follows from the records of a flow: calls to make and to cancel, joins to record, or its end."""

    ready: tuple[ReadyCall, ...] = ()
    # Calls that are no longer needed, and have not ended.
    canceled: tuple[str, ...] = ()
    # By the name of the step, the parallel steps that count.
    joins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    statuses: Mapping[str, StepStatus] = field(default_factory=dict)
    has_ended: bool = False
    output: Any = None
    failure: FlowFailure | None = None
    # True if the steps came to a result, and no call is open any more.
    has_succeeded: bool = False


def evaluate_flow(
    flow: Flow,
    arguments: Mapping[str, Any],
    records: Mapping[str, StepRecord],
    joins: Mapping[str, Sequence[str]],
    estimate: EstimateSeconds = lambda _: 1.0,
    *,
    is_stopping: bool = False,
) -> FlowState:
    """Evaluate a flow. It ends only after all of its calls have; one that is stopping makes no more of them."""
    return _Evaluation(arguments, records, joins, estimate).run(flow, is_stopping=is_stopping)


class _Running(Exception):
    """The steps cannot be evaluated further, because a call has not ended."""


class _Failed(Exception):
    """A step failed."""

    def __init__(self, path: str, reason: str = "") -> None:
        super().__init__(path)
        self.failure = FlowFailure(path=path, reason=reason)


# The result of a step that did not run.
_SKIPPED: Final = object()


class _Evaluation:
    def __init__(
        self,
        arguments: Mapping[str, Any],
        records: Mapping[str, StepRecord],
        joins: Mapping[str, Sequence[str]],
        estimate: EstimateSeconds,
    ) -> None:
        self._records, self._joins, self._estimate = records, joins, estimate
        self._results: dict[str, Any] = {}
        self._document: dict[str, Any] = {"input": arguments, "steps": self._results}
        self._ready: list[ReadyCall] = []
        self._canceled: dict[str, None] = {}
        self._new_joins: dict[str, tuple[str, ...]] = {}
        self._statuses: dict[str, StepStatus] = {}

    def run(self, flow: Flow, *, is_stopping: bool) -> FlowState:
        self._statuses = dict.fromkeys((each.name for each in flow.walk()), StepStatus.WAITING)
        failure, output, has_result = None, None, False
        try:
            self._run_steps(flow.steps, 0.0)
            output, has_result = self._build_output(flow), True
        except _Running:
            pass
        except _Failed as failed:
            failure = failed.failure
        is_ending = is_stopping or failure is not None or has_result
        if is_ending:
            self._ready.clear()
            self._new_joins.clear()
            self._canceled.update(dict.fromkeys(path for path, each in self._records.items() if each.is_open))
        has_open_calls = any(each.is_open for each in self._records.values())
        return FlowState(
            ready=tuple(self._ready),
            canceled=tuple(self._canceled),
            joins=self._new_joins,
            statuses=self._statuses,
            has_ended=is_ending and not has_open_calls,
            output=output,
            failure=failure,
            has_succeeded=has_result and not has_open_calls,
        )

    def _run_steps(self, steps: Sequence[FlowStep], seconds_after: float) -> Any:
        """Evaluate steps that run one after another; return the last result."""
        result: Any = _SKIPPED
        for place, step in enumerate(steps):
            rest = measure_steps(tuple(steps[place + 1 :]), self._estimate)
            result = self._run_step(step, seconds_after + rest)
        return result

    def _run_step(self, step: FlowStep, seconds_after: float) -> Any:
        if step.when is not None and not parse_comparison(step.when, _ROOTS).holds(self._document):
            self._statuses[step.name] = StepStatus.SKIPPED
            for each in (child for part in (step.parallel, step.steps) for child in part or ()):
                self._mark(each, StepStatus.SKIPPED)
            result = self._run_steps(step.otherwise, seconds_after) if step.otherwise else _SKIPPED
            return self._keep_result(step, result)
        for each in step.otherwise or ():
            self._mark(each, StepStatus.SKIPPED)
        self._statuses[step.name] = StepStatus.RUNNING
        try:
            if step.parallel is not None:
                result = self._run_parallel(step, step.parallel, seconds_after)
            elif step.steps is not None:
                result = self._run_steps(step.steps, seconds_after)
            else:
                result = self._run_calls(step, seconds_after)
        except _Failed:
            self._statuses[step.name] = StepStatus.FAILED
            raise
        self._statuses[step.name] = StepStatus.SUCCEEDED
        return self._keep_result(step, result)

    def _keep_result(self, step: FlowStep, result: Any) -> Any:
        if result is not _SKIPPED:
            self._results[step.name] = result
        return result

    def _run_parallel(self, step: FlowStep, branches: Sequence[FlowStep], seconds_after: float) -> Any:
        winners = self._joins.get(step.name)
        if winners is not None:
            for branch in (each for each in branches if each.name not in winners):
                self._discard(branch)
            results = [self._run_step(each, seconds_after) for each in branches if each.name in winners]
            return results[0] if step.join == "first" else results
        ready_count = len(self._ready)
        results, succeeded, failures = [], [], []
        for branch in branches:
            try:
                result = self._run_step(branch, seconds_after)
                results.append(None if result is _SKIPPED else result)
                # A step that did not run is no success, unless all that run are wanted.
                if result is not _SKIPPED or step.join in (None, "all"):
                    succeeded.append(branch)
                else:
                    failures.append(_Failed(branch.name, "it did not run"))
            except _Running:
                pass
            except _Failed as failed:
                failures.append(failed)
        needed = count_needed(step, len(branches))
        if len(succeeded) >= needed:
            if step.join in (None, "all"):
                return results
            # Recorded before it counts: another one may end in the meantime.
            del self._ready[ready_count:]
            chosen = succeeded[:1] if step.join == "first" else succeeded
            self._new_joins[step.name] = tuple(each.name for each in chosen)
            raise _Running
        if len(branches) - len(failures) < needed:
            del self._ready[ready_count:]
            for branch in branches:
                if self._statuses[branch.name] is not StepStatus.FAILED:
                    self._discard(branch)
            raise self._choose_cause(failures)
        raise _Running

    def _choose_cause(self, failures: Sequence[_Failed]) -> _Failed:
        """Choose the failure to name: not one that was canceled because of another."""

        def is_canceled(failed: _Failed) -> bool:
            record = self._records.get(failed.failure.path)
            return record is not None and record.state is State.CANCELED

        return min(failures, key=is_canceled)

    def _run_calls(self, step: FlowStep, seconds_after: float) -> Any:
        if step.map is not None:
            return self._run_map(step, seconds_after)
        if step.loop is None:
            return self._run_call(step, step.name, {}, seconds_after)
        seconds = sum(self._estimate(each.tool) for each in step.calls)
        for number in range(1, step.loop.max_rounds + 1):
            after = seconds_after + seconds * (step.loop.max_rounds - number)
            result = self._run_call(step, f"{step.name}/{number}", {"round": number}, after)
            self._results[step.name] = result
            if parse_comparison(step.loop.until, _ROOTS).holds({**self._document, "round": number}):
                return result
        reason = f"{step.loop.until} did not hold after {step.loop.max_rounds} rounds"
        raise _Failed(step.name, reason)

    def _run_map(self, step: FlowStep, seconds_after: float) -> list[Any]:
        assert step.map is not None
        items = self._find(step.name, step.map.over, {})
        if not isinstance(items, list):
            raise _Failed(step.name, f"{step.map.over} is not a list")
        if len(items) > step.map.max_items:
            raise _Failed(step.name, f"{step.map.over} has {len(items)} elements; max_items is {step.map.max_items}")
        ready_count, is_running, results = len(self._ready), False, []
        failures: list[_Failed] = []
        for index, item in enumerate(items):
            try:
                values = {"item": item, "index": index}
                results.append(self._run_call(step, f"{step.name}/{index}", values, seconds_after))
            except _Running:
                is_running = True
            except _Failed as failed:
                failures.append(failed)
        if failures:
            del self._ready[ready_count:]
            self._discard(step)
            raise self._choose_cause(failures)
        if is_running:
            raise _Running
        return results

    def _run_call(self, step: FlowStep, path: str, values: Mapping[str, Any], seconds_after: float) -> Any:
        """Return the result of a call or of the first of its fallbacks that succeeded."""
        calls = step.calls
        for place, call in enumerate(calls):
            call_path = path if place == 0 else f"{path}~{place}"
            record = self._records.get(call_path)
            if record is None:
                seconds = sum(self._estimate(each.tool) for each in calls[place:])
                own_seconds = self._estimate(call.tool)
                self._ready.append(
                    ReadyCall(
                        path=call_path,
                        step=step.name,
                        call=call,
                        arguments=self._bind(call_path, call, values),
                        time_share=own_seconds / (seconds + seconds_after) if own_seconds else 1.0,
                    )
                )
                raise _Running
            if record.is_open:
                raise _Running
            if record.state is State.SUCCEEDED:
                return record.result
            if not record.may_fall_back or place == len(calls) - 1:
                raise _Failed(call_path)
        raise AssertionError("a step has at least one call")

    def _bind(self, path: str, call: FlowCall, values: Mapping[str, Any]) -> dict[str, Any]:
        bound = {name: self._find(path, source, values) for name, source in (call.bind or {}).items()}
        return {**(call.constants or {}), **{name: value for name, value in bound.items() if value is not MISSING}}

    def _find(self, path: str, source: str, values: Mapping[str, Any]) -> Any:
        steps = parse_pointer(source)
        if steps[0] == "steps" and len(steps) > 1 and self._results.get(steps[1]) is WITHHELD:
            raise _Failed(path, f"{source} is stored by reference, and cannot be passed on")
        return find_value({**self._document, **values}, steps)

    def _build_output(self, flow: Flow) -> Any:
        output = flow.output
        if output is None:
            output = f"/steps/{flow.steps[-1].name}"
        if isinstance(output, str):
            value = self._find("output", output, {})
            if value is MISSING:
                raise _Failed("output", f"{output} is missing")
            return value
        found = {name: self._find("output", source, {}) for name, source in output.items()}
        return {name: value for name, value in found.items() if value is not MISSING}

    def _discard(self, step: FlowStep) -> None:
        """Cancel what is open of a step that no longer counts."""
        for each in step.walk():
            for path, record in self._records.items():
                if record.is_open and get_step_name(path) == each.name:
                    self._canceled[path] = None
            if self._statuses[each.name] in (StepStatus.WAITING, StepStatus.RUNNING):
                self._statuses[each.name] = StepStatus.DISCARDED

    def _mark(self, step: FlowStep, status: StepStatus) -> None:
        for each in step.walk():
            self._statuses[each.name] = status


def count_needed(step: FlowStep, branch_count: int) -> int:
    """Count how many of the parallel steps must succeed."""
    if step.join == "first":
        return 1
    return branch_count if step.quorum is None else math.ceil(step.quorum * branch_count)


def get_step_name(path: str) -> str:
    """Return the name of the step that a call belongs to."""
    return path.partition("~")[0].partition("/")[0]
