"""Phase five: check the result against the contract before it is returned.

A mutation whose result fails here has acted all the same: it is reported as failed, and its key is not released.
"""

import asyncio
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import orjson

from deputize.catalog.schemas import measure_depth
from deputize.catalog.validation_job import JobRunner
from deputize.core.canonical import NotCanonical, canonicalize, describe_unrepresentable
from deputize.core.content import render_content
from deputize.core.errors import (
    InputRequestRejected,
    PredicateFailed,
    Problem,
    ResultInvalid,
    SemanticViolation,
    ToolConflict,
    ToolFailed,
    ToolPrecondition,
)
from deputize.core.json_values import run_for_value
from deputize.core.mcp.elicitation import InputRequests
from deputize.core.outcome import Result
from deputize.execute.driver import Drivers
from deputize.execute.drivers.python import ThreadOverrun
from deputize.lifecycle.cached_reads import keep_read
from deputize.lifecycle.consistency import compare_sources
from deputize.lifecycle.elicitation.request_sanitizer import sanitize_requests
from deputize.lifecycle.phases import Executed, Validated, Verified
from deputize.lifecycle.recording.redaction import redact_problem
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.state_check import check_state_change, describe_unchanged_state, list_state_values
from deputize.lifecycle.undo_effect import roll_back

# The serializer cannot encode results that nest deeper than this.
_MAX_DEPTH = 100
_RESULT_START = b'{"result":'
# What tools raise themselves, with a message and details of their own.
_TOOL_ERRORS = (ToolFailed, ToolPrecondition, ToolConflict, SemanticViolation)


async def verify(runtime: Runtime, executed: Executed) -> Verified:
    """Verify the result. A late result of a mutation comes here again; until then its secrets stay remembered."""
    authorized = executed.authorized
    if authorized.contract.auth.credential == "none":
        verified = await _check_output(runtime, executed)
    else:
        try:
            verified = runtime.credentials.withhold_secrets(await _check_output(runtime, executed))
        finally:
            if executed.claim is None or executed.late_result is None:
                runtime.credentials.forget_call(authorized)
    if executed.pending_read is not None:
        keep_read(runtime, verified)
    return verified


async def _check_output(runtime: Runtime, executed: Executed) -> Verified:
    if executed.state_change is not None and (violation := await _check_effects(runtime, executed)) is not None:
        return Verified(executed=executed, problem=violation)
    if executed.problem is not None:
        problem = await _check_error(runtime, executed.validated, executed.problem)
        return Verified(executed=executed, problem=await redact_problem(executed.validated, problem))
    output = executed.output
    if isinstance(output, InputRequests):
        return _check_input_requests(runtime, executed, output)
    result = output if isinstance(output, Result) else None
    payload = output if result is None else result.payload
    try:
        if result is not None:
            _check_result_fields(result)
        canonical_result, warnings = await _check_contract(runtime, executed, payload)
        content: tuple[dict[str, Any], ...] = ()
        if result is not None and result.content:
            content, canonical_result = await asyncio.to_thread(_check_content, result, canonical_result)
        if executed.state_change is not None or (executed.contract.reads_state and not executed.is_cached):
            warnings += describe_unchanged_state(executed)
        if executed.contract.verifies:
            await _confirm_with_tool(executed, payload, runtime.driver)
        if executed.validated.tool.name in runtime.source_rules:
            warnings += await compare_sources(runtime, executed, payload)
    except Problem as problem:
        # Whatever the check reports, it ran after the effect.
        return await _reject_result(runtime, executed, problem.replace(nothing_happened=False))
    return Verified(
        executed=executed,
        problem=None,
        payload=payload,
        canonical=canonical_result,
        result=result,
        warnings=warnings,
        content=content,
    )


async def _reject_result(runtime: Runtime, executed: Executed, problem: Problem) -> Verified:
    """Reject a result that breaks its contract, and have the tool take its effect back where it can."""
    validated, is_rolled_back = executed.validated, None
    if validated.contract.rolls_back:
        failure = await roll_back(runtime, executed)
        is_rolled_back = failure is None
        addition = "its effect was rolled back" if is_rolled_back else f"its effect was not rolled back: {failure}"
        details = {**problem.details, "rolled_back": is_rolled_back}
        problem = problem.replace(message=f"{problem.message}; {addition}", details=details)
    clean_problem = await redact_problem(validated, problem)
    return Verified(executed=executed, problem=clean_problem, is_rolled_back=is_rolled_back)


async def _check_effects(runtime: Runtime, executed: Executed) -> Problem | None:
    try:
        return await check_state_change(runtime, executed)
    except Problem as problem:
        # A read whose effects cannot be judged is not released.
        return problem


async def _check_error(runtime: Runtime, validated: Validated, problem: Problem) -> Problem:
    """Check a tool's own error against the contract's error schema.

    One that does not match stays the same kind of problem, because that says what happened, without its text. A service
    is not bound by its document: what it answered is passed on, and the violation is named beside it.
    """
    tool, violation = validated.tool, "does not match"
    if tool.error is None or not isinstance(problem, _TOOL_ERRORS):
        return problem
    run_job = partial(runtime.jobs.run_job, validated.call.tenant)
    try:
        encoded_error = orjson.dumps({"message": problem.message, "details": dict(problem.details)})
    except TypeError:
        errors = [{"path": "/details", "message": "is not plain JSON", "rule": "type"}]
    else:
        error = orjson.loads(encoded_error)
        is_valid = await tool.error.check(error, encoded_error, run_job)
        if is_valid:
            return problem
        if is_valid is None:
            violation, errors = "takes too long to check against", []
        else:
            errors = await tool.error.describe_errors(error, run_job)
    runtime.metrics.record_schema_violation(tool.contract, "error")
    if tool.contract.handler.driver == "http":
        return problem.replace(details={**problem.details, "violates": "error_schema"})
    return problem.replace(
        message=f"{tool.name} failed with an error that {violation} its error schema",
        details={"violates": "error_schema", "errors": errors},
    )


def _check_input_requests(runtime: Runtime, executed: Executed, input_requests: InputRequests) -> Verified:
    """Check the server's input requests; there is no result yet to check against the contract."""
    try:
        clean_requests = sanitize_requests(
            input_requests, urlsplit(runtime.settings.identity.public_url or "").hostname
        )
    except InputRequestRejected as problem:
        return Verified(executed=executed, problem=problem)
    canonical_bytes = canonicalize({"requests": clean_requests.requests, "state": clean_requests.request_state})
    return Verified(executed=executed, problem=None, canonical=canonical_bytes, input_requests=clean_requests)


def _check_result_fields(result: Result) -> None:
    """Check the types of the tool's own description of its result, which becomes part of the envelope."""
    texts = (result.summary, result.search_text, result.cursor, result.source, result.data_version)
    numbers = (result.cost, result.total_count, result.age_seconds, result.confidence)
    quantities = (result.tokens, result.storage_bytes, result.network_bytes)
    is_valid = (
        all(text is None or isinstance(text, str) for text in texts)
        and all(number is None or isinstance(number, int | float) for number in numbers)
        and all(each is None or type(each) is int for each in quantities)
        and (result.has_more is None or isinstance(result.has_more, bool))
    )
    if not is_valid or not 0 <= (result.confidence or 0) <= 1 or not (result.age_seconds or 0) >= 0:
        raise ResultInvalid("the tool's Result has fields of the wrong types, or numbers outside of their range")
    try:
        canonicalize({"texts": texts, "numbers": numbers, "quantities": quantities})
    except NotCanonical as error:
        raise ResultInvalid(f"the tool's Result has fields that JSON cannot represent: {error}") from error


def _check_content(result: Result, canonical_result: bytes) -> tuple[tuple[dict[str, Any], ...], bytes]:
    """Return the content as JSON, and the canonical bytes of content and payload together."""
    try:
        content = render_content(result.content)
        content_bytes = canonicalize({"content": list(content)})
    except (NotCanonical, ValueError, TypeError) as error:
        raise ResultInvalid(f"the tool's Result has content that cannot be given: {error}") from error
    return content, content_bytes[:-1] + b"," + canonical_result[1:]


async def _check_contract(runtime: Runtime, executed: Executed, payload: Any) -> tuple[bytes, tuple[str, ...]]:
    """Return the result's canonical bytes and its warnings, once schema and critical predicates hold."""
    validated = executed.validated
    tool = validated.tool
    run_job = partial(runtime.jobs.run_job, validated.call.tenant)
    # Before the validator, which accepts only JSON values.
    canonical_result = await run_for_value(payload, _canonicalize_result, tool.name, payload)
    is_valid = await tool.output.check(payload, canonical_result[len(_RESULT_START) : -1], run_job)
    if is_valid is None:
        raise ResultInvalid(f"the result of {tool.name} takes too long to check against its schema")
    if not is_valid:
        runtime.metrics.record_schema_violation(tool.contract, "output")
        errors = await tool.output.describe_errors(payload, run_job)
        raise ResultInvalid(f"{tool.name} returned a value that does not match its schema", details={"errors": errors})
    return canonical_result, await _check_predicates(executed, payload, run_job)


def _canonicalize_result(tool_name: str, payload: Any) -> bytes:
    try:
        canonical_result = canonicalize({"result": payload})
    except NotCanonical as error:
        raise ResultInvalid(
            f"{tool_name} returned a value that JSON cannot represent: {describe_unrepresentable(payload) or error}"
        ) from error
    if canonical_result.count(b"{") + canonical_result.count(b"[") > _MAX_DEPTH and measure_depth(payload) > _MAX_DEPTH:
        raise ResultInvalid(f"{tool_name} returned a value that nests deeper than {_MAX_DEPTH} levels")
    return canonical_result


async def _check_predicates(executed: Executed, payload: Any, run_job: JobRunner) -> tuple[str, ...]:
    """Return the warnings of the predicates that fail; raise the problem of critical ones."""
    validated = executed.validated
    tool = validated.tool
    if tool.predicates is None:
        return ()
    state = None if executed.state_change is None else list_state_values(executed.state_change)
    all_failures = await tool.predicates.find_failed(validated.call_input, payload, state, run_job)
    if all_failures is None:
        raise ResultInvalid(f"the result of {tool.name} takes too long to check against its predicates")
    failures = [each for each in all_failures if each.severity == "critical"]
    if failures:
        raise PredicateFailed(
            f"the result of {tool.name} fails the check {failures[0].name}",
            details={"predicates": [{"name": p.name, "description": p.description} for p in failures]},
        )
    return tuple(
        f"the result fails the check {each.name}: {each.description or 'see the contract'}" for each in all_failures
    )


async def _confirm_with_tool(executed: Executed, payload: Any, driver: Drivers) -> None:
    """Run the tool's own check of its effect."""
    validated = executed.validated
    tool = driver.find_tool(validated.contract)
    try:
        await driver.confirm(tool, validated.call_input, payload, validated.contract.timeout.effective_seconds)
    except (ThreadOverrun, TimeoutError) as error:
        raise PredicateFailed(f"{validated.tool.name} did not confirm its own result in time") from error
    except Problem:
        raise
    except Exception as error:
        raise PredicateFailed(
            f"{validated.tool.name} does not confirm its own result: {type(error).__name__}"
        ) from error
