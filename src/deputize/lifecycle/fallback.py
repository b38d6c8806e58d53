"""Answer a read with an alternative tool, or ask a person, where its own is not available and its contract says so.

Each alternative is a call of its own, by the same caller, through all phases: it is authorized, limited and audited for
itself, as part of the call that it answers. None of them asks a person, outlives the request or falls back further.

If none answers, a task for a person opens where the contract has one. The call fails all the same, and names the task.
"""

from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import UUID, uuid5

import structlog

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
from deputize.evidence.audit_entries import encode_entry
from deputize.execute.upstreams.faults import UnreadableAnswer
from deputize.govern.token_authorization import is_tool_visible, list_version_ranges
from deputize.lifecycle.phases import Authorized, Executed, FallbackAnswer, SkippedTool
from deputize.lifecycle.recording.audit import build_context
from deputize.lifecycle.recording.human_tasks import open_human_task
from deputize.lifecycle.runtime import Runtime
from deputize.store.queries import load_statements

_UNAVAILABLE: Final = (
    CircuitOpen, ServiceBusy, UpstreamRateLimited, UpstreamUnavailable, UpstreamTimeout, ToolTimeout, UnreadableAnswer,
)  # fmt: skip
# Tasks are about a tool, not about one of the many calls that an outage fails: under this id, one is open at a time.
_TOOL_TASKS: Final = UUID("6f0a5d3e-3c1b-4f57-9a86-0d1f6c2b7e94")
_RUNS = load_statements("runs")
log = structlog.get_logger(__name__)


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
        if skipped:
            failure = _add_skipped_tools(failure, skipped)
        failure = await _ask_person(runtime, authorized, failure, skipped)
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


async def _ask_person(
    runtime: Runtime, authorized: Authorized, failure: Problem, skipped: list[SkippedTool]
) -> Problem:
    """Open the task that the contract has for a person, unless it is open already, and name it in the failure.

    Its question has no arguments: a read leaves no row with which retention and erasure could delete them.
    """
    call, contract = authorized.call, authorized.contract
    is_over = call.deadline is not None and call.deadline.remaining_seconds(runtime.clock.monotonic()) <= 0
    # A caller who left too little time may find a tool that answers others.
    if contract.fallback_task is None or is_over:
        return failure
    question = {
        "asked": contract.fallback_task,
        "why": f"{contract.full_name} is not available ({failure.spec.slug}), and no alternative answered",
        "tool": {"name": contract.full_name, "version": contract.version},
        "call_id": call.call_id,
        "trace": call.trail.trace_id,
        "alternatives": [each.to_json() for each in skipped],
    }
    about = str(uuid5(_TOOL_TASKS, contract.full_name))
    async with runtime.store.write_transaction() as connection:
        task = await open_human_task(runtime, connection, call.tenant, "fallback", about, question)
        if task.is_new:
            entry_id = runtime.clock.new_id()
            entry = encode_entry(
                build_context(authorized),
                id=entry_id,
                kind="decision",
                time=runtime.stamps.now(),
                decision=authorized.decision,
                error=failure.spec.e_number,
                command="ask_a_person",
                subject=task.id,
            )
            await connection.execute(_RUNS["insert_audit_entry"], call.tenant, entry_id, call.call_id, entry, None)
            log.warning("human_task_opened", call_id=call.call_id, task_id=task.id)
    details = {**failure.details, "task_id": task.id}
    return failure.replace(message=f"{failure.message}; a person is asked in task {task.id}", details=details)
