"""Answer a read with an alternative tool, where its own is not available and its contract names others.

Each alternative is a call of its own, by the same caller, through all phases: it is authorized, limited and audited for
itself, as part of the call that it answers. None of them asks a person, outlives the request or falls back further.
"""

from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final

from deputize.catalog.schemas import get_properties
from deputize.core.call import CallOrigin, CallRequest
from deputize.core.contract.contract import Contract, MutationClass, TimeoutClass
from deputize.core.degradation import Degradation
from deputize.core.errors import (
    CircuitOpen,
    DeadlineExceeded,
    Problem,
    ServiceBusy,
    ToolTimeout,
    UpstreamRateLimited,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from deputize.core.outcome import Outcome, Result
from deputize.core.states import State
from deputize.execute.upstreams.faults import UnreadableAnswer
from deputize.govern.token_authorization import is_tool_visible, list_version_ranges
from deputize.lifecycle.phases import Authorized, Executed, FallbackAnswer, SkippedTool
from deputize.lifecycle.runtime import Runtime

_UNAVAILABLE: Final = (
    CircuitOpen, ServiceBusy, UpstreamRateLimited, UpstreamUnavailable, UpstreamTimeout, ToolTimeout, UnreadableAnswer,
)  # fmt: skip


async def execute_with_fallback(
    runtime: Runtime, authorized: Authorized, execution: Coroutine[Any, Any, Executed | Outcome]
) -> Executed | Outcome:
    """Execute the tool, and its alternatives in their order if it is not available."""
    started_at = runtime.clock.monotonic()
    executed: Executed | None = None
    try:
        ended = await execution
        if isinstance(ended, Outcome) or ended.problem is None:
            return ended
        executed, failure = ended, ended.problem
    except Problem as problem:
        # Its service is paused or busy, so that the tool was not started.
        failure = problem
    skipped: list[SkippedTool] = []
    if isinstance(failure, _UNAVAILABLE) and authorized.call.request.fallback_of is None:
        for name in authorized.contract.fallback:
            answer = await _call_alternative(runtime, authorized, name)
            if not isinstance(answer, str):
                attempts = 0 if executed is None else executed.attempts
                fallback = FallbackAnswer(tool=name, reason=failure.spec.slug, skipped=tuple(skipped))
                runtime.metrics.record_fallback(authorized.contract)
                seconds = runtime.clock.monotonic() - started_at
                return _build_execution(authorized, answer, fallback, attempts=attempts, seconds=seconds)
            skipped.append(SkippedTool(tool=name, reason=answer))
        failure = _add_skipped_tools(failure, skipped)
    if executed is None:
        raise failure
    return replace(executed, problem=failure)


async def _call_alternative(runtime: Runtime, authorized: Authorized, name: str) -> Mapping[str, Any] | str:
    """Call an alternative; return the fields of its envelope, or the reason why it has no answer."""
    call, arguments = authorized.call, authorized.validated.call_input
    origin = call.request.origin
    try:
        alternative = await _find_contract(runtime, authorized, name)
    except Problem as problem:
        return problem.spec.slug
    if alternative.mutation_class is not MutationClass.READ or alternative.timeout.timeout_class is TimeoutClass.ASYNC:
        return "not-a-synchronous-read"
    if not arguments.keys() <= get_properties(alternative.input_schema).keys():
        return "arguments-not-taken"
    deadline_ms = None
    if call.deadline is not None:
        deadline_ms = int(call.deadline.remaining_seconds(runtime.clock.monotonic()) * 1000)
        if deadline_ms < 1:
            return DeadlineExceeded.spec.slug
    request = CallRequest(
        tool=name,
        arguments=arguments,
        session=call.request.session,
        deadline_ms=deadline_ms,
        traceparent=call.trail.traceparent,
        mode="sync",
        max_age_seconds=call.request.max_age_seconds,
        origin=CallOrigin(parent_call_id=call.call_id, flow_id=None if origin is None else origin.flow_id),
        fallback_of=call.call_id,
    )
    outcome = await runtime.run_call(runtime, call.caller, request)
    if outcome.state is not State.SUCCEEDED:
        return outcome.state if outcome.spec is None else outcome.spec.slug
    fields = await outcome.envelope.load_fields()
    # What is given instead of a stored result is a part of it.
    return "result-stored" if "persistence" in fields else fields


async def _find_contract(runtime: Runtime, authorized: Authorized, name: str) -> Contract:
    """Find the contract that a call of the alternative by this caller would have."""
    caller = authorized.call.caller
    authority = await runtime.authority.load_tenant(caller.tenant)
    version = authority.tools.resolve_version(
        name,
        "latest",
        visible=lambda each: is_tool_visible(caller, each),
        list_ranges=lambda each: list_version_ranges(caller, each),
    )
    await version.load_tool()
    return version.tool.contract


def _build_execution(
    authorized: Authorized, fields: Mapping[str, Any], fallback: FallbackAnswer, *, attempts: int, seconds: float
) -> Executed:
    """Build the execution that the alternative's answer is the output of. Its cost is that of its own call."""
    validated, provenance = authorized.validated, fields["provenance"]
    warning = f"answered by {fallback.tool}, because {validated.tool.name} was not available ({fallback.reason})"
    result = Result(
        payload=fields["result"],
        summary=fields["summary"],
        search_text=fields["search_text"],
        source=provenance["source"],
        data_version=provenance["data_version"],
        age_seconds=provenance.get("age_seconds"),
        confidence=provenance.get("confidence"),
        **(fields["pagination"] or {}),
        cost=0.0, tokens=0, storage_bytes=0, network_bytes=0,
    )  # fmt: skip
    marked = replace(
        validated,
        warnings=(*validated.warnings, warning),
        degradations=(*validated.degradations, Degradation.FALLBACK),
    )
    return Executed(
        authorized=replace(authorized, validated=marked),
        claim=None,
        output=result,
        problem=None,
        attempts=attempts,
        seconds=seconds,
        fallback=fallback,
    )


def _add_skipped_tools(failure: Problem, skipped: list[SkippedTool]) -> Problem:
    reasons = "; ".join(f"{each.tool}: {each.reason}" for each in skipped)
    details = {**failure.details, "fallback": [each.to_json() for each in skipped]}
    return failure.replace(message=f"{failure.message}; no alternative answered ({reasons})", details=details)
