"""Trace calls: one span per call, with a span per phase, in the trace of the caller, of the task or of the call itself.

Sampling is decided before the SDK is entered, which keeps an untraced call cheap, and once for a call: a worker that
takes it up later continues the trace from what is stored with the call. A sampled incoming `traceparent` is always
traced, and an incoming trace id is always propagated.
"""

import contextlib
import hashlib
import random
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags, Tracer

from deputize.core.caller import Caller
from deputize.core.contract.handler import PYTHON_DRIVER, Handler
from deputize.core.errors import Problem
from deputize.core.mcp.servers import CALL_TOOL
from deputize.core.outcome import Outcome
from deputize.core.telemetry import EXECUTE_TOOL, GRPC_SYSTEM, Attribute, Span
from deputize.core.value_types import frozen

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
_NO_SPAN_SCOPE: Final[AbstractContextManager[None]] = nullcontext()
_root_trace: ContextVar[int | None] = ContextVar("root_trace", default=None)


class CallTraceIds(RandomIdGenerator):
    """Gives a span without a parent the trace id of its call, so that the trace has a root."""

    def generate_trace_id(self) -> int:
        return _root_trace.get() or super().generate_trace_id()


@frozen
class CallTrace:
    """The trace of one call; `tracer` is None for the many calls that are not recorded here.

    `is_sampled` says whether others record it: a gateway without a tracer passes on what the caller decided.
    """

    trace_id: str
    parent_id: str = _NO_SPAN
    tracer: Tracer | None = None
    is_sampled: bool = False

    def start_phase(self, name: Span) -> AbstractContextManager[None]:
        """Open the span of a phase, if the call is recorded."""
        return _NO_SPAN_SCOPE if self.tracer is None else self._record_step(name, {})

    def start_attempt(self, call_id: str, number: int, handler: Handler) -> AbstractContextManager[None]:
        """Open the span of an attempt, if the call is recorded: what the tool requests is part of it."""
        if self.tracer is None:
            return _NO_SPAN_SCOPE
        attributes: dict[str, str | int] = {
            Attribute.CALL_ID: call_id,
            Attribute.ATTEMPT: number,
            Attribute.TARGET: handler.target,
            **_describe_protocol(handler),
        }
        is_local = handler.driver == PYTHON_DRIVER
        return self._record_step(Span.ATTEMPT, attributes, SpanKind.INTERNAL if is_local else SpanKind.CLIENT)

    @contextlib.contextmanager
    def _record_step(
        self, name: Span, attributes: dict[str, str | int], kind: SpanKind = SpanKind.INTERNAL
    ) -> Iterator[None]:
        assert self.tracer is not None
        # An exception's message may quote values of the call, so the span gets only its kind.
        with self.tracer.start_as_current_span(
            name, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
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
    def start_call(
        self, tool: str, call_id: str, session: str | None = None, name: Span = Span.CALL
    ) -> Iterator[trace.Span]:
        """Open the span of a recorded call, or of a worker that resumes it, in the span that led to it, if any did."""
        assert self.tracer is not None
        attributes: dict[str, str] = {
            Attribute.OPERATION: EXECUTE_TOOL,
            Attribute.TOOL: tool,
            Attribute.TOOL_CALL: call_id,
            Attribute.CALL_ID: call_id,
        }
        if session is not None:
            attributes[Attribute.CONVERSATION] = session
        root_trace = _root_trace.set(int(self.trace_id, 16))
        try:
            scope = self.tracer.start_as_current_span(
                name,
                context=self._build_parent_context(),
                attributes=attributes,
                record_exception=False,
                set_status_on_exception=False,
            )
            with scope as span:
                yield span
        finally:
            _root_trace.reset(root_trace)

    def _build_parent_context(self) -> Context:
        """Build the context of the parent; an empty one if there is none, so that the span becomes the root."""
        if self.parent_id == _NO_SPAN:
            return Context()
        parent = SpanContext(
            trace_id=int(self.trace_id, 16),
            span_id=int(self.parent_id, 16),
            is_remote=True,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )
        return trace.set_span_in_context(NonRecordingSpan(parent), Context())

    @property
    def traceparent(self) -> str:
        """The header for requests that the tool makes, and for the worker that resumes the call."""
        current = trace.get_current_span().get_span_context()
        if self.tracer is not None and current.is_valid:
            return f"00-{self.trace_id}-{current.span_id:016x}-01"
        parent_id = self.trace_id[16:] if self.parent_id == _NO_SPAN else self.parent_id
        return f"00-{self.trace_id}-{parent_id}-{self.is_sampled:02x}"


def _describe_protocol(handler: Handler) -> dict[str, str | int]:
    """Describe the request of an attempt by the conventions of its protocol, without a value of the call."""
    match handler.driver:
        case "mcp":
            return {Attribute.MCP_METHOD: CALL_TOOL}
        case "http" if handler.request is not None:
            return {Attribute.HTTP_METHOD: handler.request.method, Attribute.URL_TEMPLATE: handler.request.path}
        case "grpc":
            return {Attribute.RPC_SYSTEM: GRPC_SYSTEM}
        case _:
            return {}


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
                is_sampled = bool(int(match[3], 16) & 1)
                return self._make_trace(match[1], match[2], is_sampled=is_sampled)
        if caller is not None and caller.task is not None and caller.grants:
            trace_id = _derive_task_trace(caller.grants[-1], caller.task)
            is_sampled = self._tracer is not None and int(trace_id[:8], 16) < self._sample * 2**32
            return self._make_trace(trace_id, _NO_SPAN, is_sampled=is_sampled)
        is_sampled = self._tracer is not None and self._draw() < self._sample
        return self._make_trace(call_id.replace("-", ""), _NO_SPAN, is_sampled=is_sampled)

    def _make_trace(self, trace_id: str, parent_id: str, *, is_sampled: bool) -> CallTrace:
        tracer = self._tracer if is_sampled else None
        return CallTrace(trace_id=trace_id, parent_id=parent_id, tracer=tracer, is_sampled=is_sampled)


def _derive_task_trace(first_grant: str, task: str) -> str:
    """Derive the trace of a task from the first delegation of its chain, whose id no one can guess from names."""
    return hashlib.blake2b(f"{first_grant}\0{task}".encode(), digest_size=16).hexdigest()
