"""Trace calls: one span per call, with a span per phase, in the trace of the caller, of the task or of the call itself.

Sampling is decided before the SDK is entered, which keeps an untraced call cheap. A sampled incoming `traceparent` is
always traced, and an incoming trace id is always propagated.
"""

import contextlib
import hashlib
import random
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, Tracer

from deputize.core.caller import Caller
from deputize.core.errors import Problem
from deputize.core.outcome import Outcome
from deputize.core.telemetry import EXECUTE_TOOL, Attribute, Span
from deputize.core.value_types import frozen

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
_NO_SPAN_SCOPE: Final[AbstractContextManager[None]] = nullcontext()


@frozen
class CallTrace:
    """The trace of one call; `tracer` is None for the many calls that are not recorded."""

    trace_id: str
    parent_id: str = _NO_SPAN
    tracer: Tracer | None = None

    def start_phase(self, name: Span) -> AbstractContextManager[None]:
        """Open the span of a phase, if the call is recorded."""
        return _NO_SPAN_SCOPE if self.tracer is None else self._record_phase(name)

    @contextlib.contextmanager
    def _record_phase(self, name: Span) -> Iterator[None]:
        assert self.tracer is not None
        # An exception's message may quote values of the call, so the span gets only its kind.
        with self.tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False) as span:
            try:
                yield
            except Problem as problem:
                span.set_attribute(Attribute.ERROR, problem.spec.slug)
                span.set_status(Status(StatusCode.ERROR, problem.spec.title))
                raise
            except Exception as error:
                span.set_attribute(Attribute.ERROR, type(error).__name__)
                span.set_status(Status(StatusCode.ERROR))
                raise

    @contextlib.contextmanager
    def start_call(self, tool: str, call_id: str, session: str | None = None) -> Iterator[trace.Span]:
        """Open the root span of a recorded call, as a child of the caller's span if it sent one."""
        assert self.tracer is not None
        parent = trace.set_span_in_context(
            NonRecordingSpan(
                SpanContext(
                    trace_id=int(self.trace_id, 16),
                    span_id=int(self.parent_id, 16) or 1,
                    is_remote=True,
                    trace_flags=TraceFlags(TraceFlags.SAMPLED),
                )
            )
        )
        attributes: dict[str, str] = {
            Attribute.OPERATION: EXECUTE_TOOL,
            Attribute.TOOL: tool,
            Attribute.TOOL_CALL: call_id,
            Attribute.CALL_ID: call_id,
        }
        if session is not None:
            attributes[Attribute.CONVERSATION] = session
        with self.tracer.start_as_current_span(
            Span.CALL, context=parent, attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            yield span

    @property
    def traceparent(self) -> str:
        """The header for requests that the tool makes."""
        current = trace.get_current_span().get_span_context()
        if self.tracer is not None and current.is_valid:
            return f"00-{self.trace_id}-{current.span_id:016x}-01"
        return f"00-{self.trace_id}-{self.trace_id[16:]}-00"


async def describe_end(span: trace.Span, outcome: Outcome) -> None:
    """Add to the span of a recorded call how it ended, what it took, what it cost and how large its envelope is."""
    span.set_attribute(Attribute.STATE, outcome.state)
    span.set_attribute(Attribute.SIZE, len(outcome.body))
    if outcome.spec is not None:
        span.set_attribute(Attribute.ERROR, outcome.spec.slug)
        span.set_status(Status(StatusCode.ERROR, outcome.spec.title))
    execution = (await outcome.envelope.load_fields()).get("execution")
    if execution is None:
        return
    span.set_attribute(Attribute.LATENCY, execution["duration_ms"])
    span.set_attribute(Attribute.COST, execution["cost"])
    if "currency" in execution:
        span.set_attribute(Attribute.CURRENCY, execution["currency"])


class Tracing:
    """Starts the traces of calls."""

    def __init__(self, *, sample: float, tracer: Tracer | None, rng: random.Random | None = None) -> None:
        self._sample = sample
        self._tracer = tracer
        self._draw = (rng or random.Random()).random

    def start_trace(self, traceparent: str | None, call_id: str, caller: Caller | None = None) -> CallTrace:
        """Continue the caller's trace, or that of the task that was delegated to it, or start one for the call.

        All calls of a task are recorded or none.
        """
        if traceparent is not None:
            match = _TRACEPARENT.fullmatch(traceparent)
            if match and match[1] != _NO_TRACE and match[2] != _NO_SPAN:
                is_sampled = int(match[3], 16) & 1
                return CallTrace(trace_id=match[1], parent_id=match[2], tracer=self._tracer if is_sampled else None)
        if caller is not None and caller.task is not None and caller.grants:
            trace_id = _derive_task_trace(caller.grants[-1], caller.task)
            is_recorded = int(trace_id[:8], 16) < self._sample * 2**32
            return CallTrace(trace_id=trace_id, tracer=self._tracer if is_recorded else None)
        is_recorded = self._tracer is not None and self._draw() < self._sample
        return CallTrace(trace_id=call_id.replace("-", ""), tracer=self._tracer if is_recorded else None)


def _derive_task_trace(first_grant: str, task: str) -> str:
    """Derive the trace of a task from the first delegation of its chain, whose id no one can guess from names."""
    return hashlib.blake2b(f"{first_grant}\0{task}".encode(), digest_size=16).hexdigest()
