"""Phase six: the envelope every call ends in, rendered once and recorded before anyone sees it."""

from typing import Any

import orjson

from deputize.catalog.compiled import CompiledTool
from deputize.core.errors import (
    Asynchronous,
    Canceled,
    DeadlineExceeded,
    OutcomeUnknown,
    Permission,
    Problem,
    Registry,
    ToolTimeout,
    UpstreamTimeout,
    Validation,
)
from deputize.core.events import State
from deputize.core.hooks import NOTHING_SAID, Hooked
from deputize.core.outcome import Outcome, Result, failure_body
from deputize.core.questions import Asks
from deputize.lifecycle.phases import Received, Validated, Verified


def state_of_refusal(problem: Problem) -> State:
    """Where a call stands that was never dispatched, or that the gateway lost track of."""
    match problem:
        case OutcomeUnknown():
            return State.UNKNOWN
        case Permission():
            return State.DENIED
        case Validation():
            return State.VALIDATION_FAILED
        case Registry():
            return State.BLOCKED
        case DeadlineExceeded() | ToolTimeout():
            return State.TIMED_OUT
        case Asynchronous():
            return State.CANCELED
        case _:
            return State.FAILED


def state_of_failure(problem: Problem) -> State:
    """Where a dispatched call stands that failed in a known way."""
    if isinstance(problem, Canceled):
        return State.CANCELED
    return State.TIMED_OUT if isinstance(problem, ToolTimeout | UpstreamTimeout) else State.FAILED


def refused(received: Received, problem: Problem, state: State, hooked: Hooked = NOTHING_SAID) -> Outcome:
    more = {} if hooked is NOTHING_SAID else {"context": hooked.context, "warnings": hooked.messages}
    body = failure_body(problem, call_id=received.call_id, state=state, trace_id=received.trail.trace_id, more=more)
    return Outcome(
        call_id=received.call_id,
        state=state,
        body=body,
        face=problem.face,
        retry_after_ms=problem.retry_after_ms,
    )


def rendered(verified: Verified, call_id: str, state: State, problem: Problem | None, now: str) -> Outcome:
    """The envelope of a call that was dispatched, good or bad."""
    executed, said = verified.executed, verified.said
    validated = executed.authorized.validated
    trace_id, more = validated.received.trail.trace_id, _more(verified, now)
    if problem is not None:
        body = failure_body(problem, call_id=call_id, state=state, trace_id=trace_id, more=more)
        return Outcome(
            call_id=call_id, state=state, body=body, face=problem.face, retry_after_ms=problem.retry_after_ms
        )
    envelope = {
        "call_id": call_id,
        "state": state.value,
        "is_error": False,
        "trace_id": trace_id,
        "result": verified.payload,
        **(_described(said) if said else _UNDESCRIBED),
        "provenance": {
            "source": (said and said.source) or validated.tool.name,
            "retrieved_at": now,
            "data_version": said.data_version if said else None,
        },
        **more,
    }
    return Outcome(call_id=call_id, state=state, body=orjson.dumps(envelope))


def asked_back(verified: Verified, asks: Asks, call_id: str, now: str, round_text: str) -> Outcome:
    """The envelope of a call whose tool asks first: no result, and what an answer refers to."""
    envelope = {
        "call_id": call_id,
        "state": State.NEEDS_INPUT,
        "is_error": False,
        "trace_id": verified.executed.authorized.validated.received.trail.trace_id,
        "asks": {"server": asks.server, "questions": asks.questions, "round": round_text},
        **_more(verified, now),
    }
    return Outcome(call_id=call_id, state=State.NEEDS_INPUT, body=orjson.dumps(envelope))


def _more(verified: Verified, now: str) -> dict[str, Any]:
    """What every envelope of a dispatched call says."""
    executed, said = verified.executed, verified.said
    validated = executed.authorized.validated
    more: dict[str, Any] = {
        "tool": _tool(validated.tool),
        "decision": {"rules": executed.authorized.decision.rules},
        "execution": {
            "duration_ms": int(executed.seconds * 1_000_000) / 1000,
            "attempts": executed.attempts,
            "cost": said.cost if said else None,
        },
        "input": _input(validated) if validated.mutations else _UNCHANGED,
        "context": validated.hooked.context + verified.hooked.context,
        "warnings": validated.warnings + validated.hooked.messages + verified.hooked.messages,
        "created_at": now,
    }
    if validated.round is not None:
        more["continues"] = validated.round.continues
    return more


_UNDESCRIBED = {"summary": None, "search_text": None, "pagination": None}


def _described(said: Result) -> dict[str, Any]:
    return {"summary": said.summary, "search_text": said.search_text, "pagination": _pagination(said)}


_UNCHANGED = orjson.Fragment(b'{"mutations":[]}')
_tools: dict[str, orjson.Fragment] = {}


def _tool(tool: CompiledTool) -> orjson.Fragment:
    """Rendered once per version: it stands in every envelope."""
    known = _tools.get(tool.digest)
    if known is None:
        fields = {"name": tool.name, "version": tool.contract.version, "digest": tool.digest}
        known = _tools[tool.digest] = orjson.Fragment(orjson.dumps(fields))
    return known


def _input(validated: Validated) -> dict[str, Any]:
    return {"mutations": [{"path": m.path, "source": m.source, "change": m.change} for m in validated.mutations]}


def _pagination(result: Result) -> dict[str, Any] | None:
    if result.cursor is None and result.has_more is None and result.total_count is None:
        return None
    return {"cursor": result.cursor, "has_more": result.has_more, "total_count": result.total_count}
