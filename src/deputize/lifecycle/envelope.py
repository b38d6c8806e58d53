"""Build the envelope that every call ends in: rendered once, and recorded by `reply.py` before it is returned."""

from collections.abc import Iterator
from typing import Any

import orjson

from deputize.catalog.compiled_tool import CompiledTool
from deputize.core.bounded_dict import BoundedDict
from deputize.core.errors import (
    AsyncProblem,
    Canceled,
    DeadlineExceeded,
    OutcomeUnknown,
    PermissionProblem,
    Problem,
    RegistryProblem,
    SiblingCanceled,
    ToolTimeout,
    UpstreamTimeout,
    ValidationProblem,
)
from deputize.core.hooks import NO_HOOK_EFFECTS, HookEffects
from deputize.core.mcp.elicitation import InputRequests
from deputize.core.outcome import Envelope, Outcome, Result, build_failure_envelope
from deputize.core.states import State
from deputize.lifecycle.phases import CallContext, Validated, Verified


def get_refusal_state(problem: Problem) -> State:
    """Return the state of a call that was never dispatched, or that the gateway lost track of."""
    match problem:
        case OutcomeUnknown():
            return State.UNKNOWN
        case PermissionProblem():
            return State.DENIED
        case ValidationProblem():
            return State.VALIDATION_FAILED
        case RegistryProblem():
            return State.BLOCKED
        case DeadlineExceeded() | ToolTimeout():
            return State.TIMED_OUT
        case AsyncProblem():
            return State.CANCELED
        case _:
            return State.FAILED


def get_failure_state(problem: Problem) -> State:
    """Return the state of a dispatched call that failed in a known way."""
    if isinstance(problem, Canceled | SiblingCanceled):
        return State.CANCELED
    return State.TIMED_OUT if isinstance(problem, ToolTimeout | UpstreamTimeout) else State.FAILED


def build_refusal_outcome(
    call: CallContext, problem: Problem, state: State, hook_effects: HookEffects = NO_HOOK_EFFECTS
) -> Outcome:
    more = (
        {} if hook_effects is NO_HOOK_EFFECTS else {"context": hook_effects.context, "warnings": hook_effects.messages}
    )
    envelope = build_failure_envelope(
        problem, call_id=call.call_id, state=state, trace_id=call.trail.trace_id, extra_fields=more
    )
    return Outcome(
        call_id=call.call_id,
        state=state,
        envelope=envelope,
        spec=problem.spec,
        retry_after_ms=problem.retry_after_ms,
    )


def build_outcome(verified: Verified, call_id: str, state: State, problem: Problem | None, now: str) -> Outcome:
    """Build the outcome of a dispatched call, successful or not."""
    executed, result, stored_payload = verified.executed, verified.result, verified.stored_payload
    validated = executed.validated
    trace_id, more = validated.call.trail.trace_id, _build_common_fields(verified, now)
    if problem is not None:
        more["redaction_state"] = "partial" if problem.is_redacted else "none"
        failure = build_failure_envelope(problem, call_id=call_id, state=state, trace_id=trace_id, extra_fields=more)
        return Outcome(
            call_id=call_id,
            state=state,
            envelope=failure,
            spec=problem.spec,
            retry_after_ms=problem.retry_after_ms,
            deprecation=validated.deprecation,
        )
    fields = {
        "call_id": call_id,
        "state": state.value,
        "is_error": False,
        "trace_id": trace_id,
        "result": verified.payload if stored_payload is None else stored_payload.model_view,
        **(_describe_result(result) if result else _EMPTY_DESCRIPTION),
        "provenance": {
            "source": (result and result.source) or validated.tool.name,
            "retrieved_at": now,
            "data_version": result.data_version if result else None,
            **(_describe_quality(result) if result else {}),
            **({"is_cached": True} if executed.is_cached else {}),
        },
        **more,
    }
    if stored_payload is not None:
        fields["persistence"] = stored_payload.persistence
    elif verified.content:
        fields["content"] = verified.content
    # Render now: the tool may still hold the payload, and must not change what is recorded and sent.
    return Outcome(
        call_id=call_id,
        state=state,
        envelope=Envelope.from_bytes(orjson.dumps(fields)),
        deprecation=validated.deprecation,
    )


def build_input_required_outcome(
    verified: Verified, input_requests: InputRequests, call_id: str, now: str, round_token: str
) -> Outcome:
    """Build the outcome of a call whose tool requires input first: no result, but questions and a round token."""
    fields = {
        "call_id": call_id,
        "state": State.NEEDS_INPUT,
        "is_error": False,
        "trace_id": verified.call.trail.trace_id,
        "input_required": {
            "server": input_requests.server,
            "requests": input_requests.requests,
            "round_token": round_token,
        },
        **_build_common_fields(verified, now),
    }
    return Outcome(call_id=call_id, state=State.NEEDS_INPUT, envelope=Envelope.from_bytes(orjson.dumps(fields)))


def _render_costs(verified: Verified) -> Iterator[tuple[str, float]]:
    for component, cost in verified.costs.items():
        yield component.value, round(cost, 9)


def _build_common_fields(verified: Verified, now: str) -> dict[str, Any]:
    """Build the fields of every envelope of a dispatched call."""
    executed = verified.executed
    validated = executed.validated
    more: dict[str, Any] = {
        "tool": _render_tool(validated.tool),
        "decision": {"rules": executed.authorized.decision.rules},
        "execution": {
            "duration_ms": int(executed.seconds * 1_000_000) / 1000,
            "attempts": executed.attempts,
            "cost": verified.cost,
        },
        "input": _describe_input(validated) if validated.mutations else _EMPTY_INPUT,
        "context": validated.hook_effects.context + verified.hook_effects.context,
        "warnings": (
            validated.warnings + verified.warnings + validated.hook_effects.messages + verified.hook_effects.messages
        ),
        "created_at": now,
    }
    if (prices := validated.contract.observability.prices) is not None:
        more["execution"] |= {"currency": prices.currency, "costs": dict(_render_costs(verified))}
    if validated.deprecation is not None:
        more["deprecation"] = validated.deprecation.to_json()
    if executed.fallback is not None:
        more["degraded"] = {
            "from": validated.tool.name,
            "to": executed.fallback.tool,
            "reason": executed.fallback.reason,
            "attempts": [each.to_json() for each in executed.fallback.skipped],
        }
    if validated.input_round is not None:
        more["continues"] = validated.input_round.continued_call_id
    return more


_EMPTY_DESCRIPTION = {"summary": None, "search_text": None, "pagination": None}


def _describe_result(result: Result) -> dict[str, Any]:
    return {"summary": result.summary, "search_text": result.search_text, "pagination": _describe_pagination(result)}


def _describe_quality(result: Result) -> dict[str, Any]:
    """Describe how old the data is and how sure the tool is of it, where it says so."""
    quality = {"age_seconds": result.age_seconds, "confidence": result.confidence}
    return {name: value for name, value in quality.items() if value is not None}


_EMPTY_INPUT = orjson.Fragment(b'{"mutations":[]}')
_tool_fragments: BoundedDict[str, orjson.Fragment] = BoundedDict(10_000)


def _render_tool(tool: CompiledTool) -> orjson.Fragment:
    """Render the tool's fields once per version, since every envelope contains them."""
    fragment = _tool_fragments.get(tool.digest)
    if fragment is None:
        fields = {"name": tool.name, "version": tool.contract.version, "digest": tool.digest}
        fragment = _tool_fragments.put(tool.digest, orjson.Fragment(orjson.dumps(fields)))
    return fragment


def _describe_input(validated: Validated) -> dict[str, Any]:
    return {"mutations": [{"path": m.path, "source": m.source, "change": m.change} for m in validated.mutations]}


def _describe_pagination(result: Result) -> dict[str, Any] | None:
    if result.cursor is None and result.has_more is None and result.total_count is None:
        return None
    return {"cursor": result.cursor, "has_more": result.has_more, "total_count": result.total_count}
