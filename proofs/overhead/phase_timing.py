"""Where a call's CPU goes: one call after another through a gateway in this process, timed phase by phase."""

import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from deputize.core.call import CallRequest
from deputize.core.caller import Caller
from deputize.core.states import State
from deputize.core.telemetry import Span
from deputize.evidence.tracing import CallTrace, Tracing
from deputize.lifecycle.run import Lifecycle
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_internals import get_runtime


@dataclass(kw_only=True, slots=True)
class PhaseTimes:
    """Microseconds of CPU by phase, one figure per call."""

    by_phase: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @contextlib.contextmanager
    def time_phase(self, phase: str) -> Iterator[None]:
        began = time.process_time_ns()
        try:
            yield
        finally:
            self.by_phase[phase].append((time.process_time_ns() - began) / 1000)

    def compute_medians(self) -> dict[str, float]:
        return {phase: round(statistics.median(times), 1) for phase, times in self.by_phase.items()}


class _TimedTrail(CallTrace):
    __slots__ = ("times",)
    times: PhaseTimes

    def start_phase(self, name: Span) -> AbstractContextManager[None]:
        return self.times.time_phase(name.removeprefix("deputize."))


class _TimedTracing(Tracing):
    def __init__(self, times: PhaseTimes) -> None:
        super().__init__(sample=0, tracer=None)
        self._times = times

    def start_trace(self, traceparent: str | None, call_id: str, caller: Caller | None = None) -> CallTrace:
        trail = _TimedTrail(trace_id=call_id.replace("-", ""))
        trail.times = self._times
        return trail


async def measure_phase_times(gateway: Gateway, caller: Caller, requests: Iterator[CallRequest]) -> dict[str, float]:
    """The median CPU of each phase over these calls, in microseconds; `call` is the whole way."""
    times = PhaseTimes()
    lifecycle = Lifecycle(replace(get_runtime(gateway), tracing=_TimedTracing(times)))
    for request in requests:
        began = time.process_time_ns()
        outcome = await lifecycle.run(caller, request)
        if outcome.state is not State.SUCCEEDED:
            raise RuntimeError(f"a call to be timed ended as {outcome.state}: {outcome.body[:300]!r}")
        times.by_phase["call"].append((time.process_time_ns() - began) / 1000)
    return times.compute_medians()
