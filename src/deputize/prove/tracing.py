"""One trace per call with a span per phase. Whether to trace is decided before the SDK is entered: that is what keeps
an untraced call cheap. An incoming sampled `traceparent` is always honoured, and its trace id is always carried on.
"""

import contextlib
import random
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, Tracer

from deputize.core.errors import Problem
from deputize.core.frozen import frozen
from deputize.core.telemetry import Attribute, Span

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
_SILENT: Final[AbstractContextManager[None]] = nullcontext()


@frozen
class Trail:
    """The trace one call belongs to; `tracer` is None for the many that are not recorded."""

    trace_id: str
    parent_id: str = _NO_SPAN
    tracer: Tracer | None = None

    def phase(self, name: Span) -> AbstractContextManager[None]:
        return _SILENT if self.tracer is None else self._recorded(name)

    @contextlib.contextmanager
    def _recorded(self, name: Span) -> Iterator[None]:
        assert self.tracer is not None
        # What an exception says may quote the values it failed on; a span names its kind only.
        with self.tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False) as span:
            try:
                yield
            except Problem as problem:
                span.set_attribute(Attribute.ERROR, problem.face.slug)
                span.set_status(Status(StatusCode.ERROR, problem.face.title))
                raise
            except Exception as error:
                span.set_attribute(Attribute.ERROR, type(error).__name__)
                span.set_status(Status(StatusCode.ERROR))
                raise

    @contextlib.contextmanager
    def call(self, tool: str, call_id: str) -> Iterator[None]:
        """The root span of a recorded call, child of the caller's own span where it sent one."""
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
        attributes: dict[str, str] = {Attribute.TOOL: tool, Attribute.CALL_ID: call_id}
        with self.tracer.start_as_current_span(
            Span.CALL, context=parent, attributes=attributes, record_exception=False, set_status_on_exception=False
        ):
            yield

    @property
    def traceparent(self) -> str:
        """What is sent on to whatever the tool calls."""
        current = trace.get_current_span().get_span_context()
        if self.tracer is not None and current.is_valid:
            return f"00-{self.trace_id}-{current.span_id:016x}-01"
        return f"00-{self.trace_id}-{self.trace_id[16:]}-00"


class Tracing:
    def __init__(self, *, sample: float, tracer: Tracer | None, coin: random.Random | None = None) -> None:
        self._sample = sample
        self._tracer = tracer
        self._coin = (coin or random.Random()).random

    def trail(self, traceparent: str | None, call_id: str) -> Trail:
        """A call without a trace of its own gets one named after it."""
        if traceparent is not None:
            match = _TRACEPARENT.fullmatch(traceparent)
            if match and match[1] != _NO_TRACE and match[2] != _NO_SPAN:
                sampled = int(match[3], 16) & 1
                return Trail(trace_id=match[1], parent_id=match[2], tracer=self._tracer if sampled else None)
        recorded = self._tracer is not None and self._coin() < self._sample
        return Trail(trace_id=call_id.replace("-", ""), tracer=self._tracer if recorded else None)
