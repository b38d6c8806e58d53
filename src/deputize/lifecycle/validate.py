"""Phase two: resolve the tool and its version for this caller, and check the arguments against its schema.

The tool's own semantic checks come later, after authorization and before any effect: run here, they would reveal what
exists to callers without permission, and refuse to replay a deletion because its target is gone.
"""

import asyncio
from dataclasses import replace
from typing import Any

from deputize.catalog.compiled_tool import CompiledTool
from deputize.catalog.validation_job import JobRunner
from deputize.core.call import Mutation
from deputize.core.canonical import NotCanonical, canonicalize_sorted, write_sorted
from deputize.core.clock import Deadline
from deputize.core.contract.deprecation import DeprecationNotice
from deputize.core.contract.unenforced_fields import describe_missing_setup
from deputize.core.errors import ParseFailed, SchemaViolation, ToolRequiresSetup
from deputize.core.injection.suspicions import Suspicion, find_suspicions
from deputize.core.json_values import is_large_document
from deputize.evidence.metrics import Metrics
from deputize.govern.token_authorization import is_tool_visible, list_version_ranges
from deputize.lifecycle.phases import CallContext, Validated
from deputize.lifecycle.recording.redaction import get_redaction_plan, redact_arguments
from deputize.lifecycle.tenant_snapshot import TenantAuthority


class _TooLarge(Exception):
    """The arguments, or the tool's schemas, are too large to look at each part of them on the event loop."""


class _CostlyArguments(Exception):
    """The schema makes these arguments too costly to validate here."""

    def __init__(self, tool: CompiledTool, canonical: bytes) -> None:
        self.tool = tool
        self.canonical = canonical


class _InvalidArguments(Exception):
    """The arguments do not match the tool's schema."""

    def __init__(self, tool: CompiledTool) -> None:
        self.tool = tool


async def validate_call(
    call: CallContext, authority: TenantAuthority, metrics: Metrics, run_job: JobRunner
) -> Validated:
    """Validate a call: large arguments in a thread, and those that the schema makes costly in another process."""
    try:
        try:
            return await _validate_here_or_off_loop(call, authority, metrics)
        except _CostlyArguments as costly:
            return await _validate_costly_arguments(call, authority, metrics, run_job, costly)
    except _InvalidArguments as invalid:
        tool = invalid.tool
    metrics.record_schema_violation(tool.contract, "input")
    errors = await tool.input.describe_errors(call.request.arguments, run_job)
    raise SchemaViolation(
        f"the arguments of {tool.name} do not match its schema{_describe_first_error(errors)}",
        details={"errors": errors, "example": tool.example},
        nothing_happened=True,
    )


async def _validate_here_or_off_loop(call: CallContext, authority: TenantAuthority, metrics: Metrics) -> Validated:
    try:
        return validate(call, authority, metrics)
    except _TooLarge:
        return await asyncio.to_thread(_validate_off_loop, call, authority, metrics)


def _validate_off_loop(
    call: CallContext, authority: TenantAuthority, metrics: Metrics, *, is_valid: bool | None = None
) -> Validated:
    """Validate and redact in a thread, and build what later phases need of large schemas."""
    validated = validate(call, authority, metrics, is_valid=is_valid, is_off_loop=True)
    get_redaction_plan(validated.tool, "output")
    # Policies and limits identify the contract by it.
    _ = validated.contract.digest
    return replace(validated, redacted_arguments=redact_arguments(validated))


async def _validate_costly_arguments(
    call: CallContext, authority: TenantAuthority, metrics: Metrics, run_job: JobRunner, costly: _CostlyArguments
) -> Validated:
    is_valid = await costly.tool.input.check_off_loop(costly.canonical, run_job)
    if is_valid is None:
        raise SchemaViolation(
            f"the arguments of {costly.tool.name} take too long to check against its schema; send less",
            nothing_happened=True,
        )
    return await asyncio.to_thread(_validate_off_loop, call, authority, metrics, is_valid=is_valid)


def validate(
    call: CallContext,
    authority: TenantAuthority,
    metrics: Metrics,
    *,
    is_valid: bool | None = None,
    is_off_loop: bool = False,
) -> Validated:
    """Validate a call here, in a thread if `is_off_loop`. `is_valid` is the result from another process."""
    caller, request = call.caller, call.request
    # Before anything is said about any tool: a revoked caller must not learn which tools exist.
    authority.revocations.check(caller)
    version = authority.tools.resolve_version(
        request.tool,
        request.version,
        visible=lambda name: is_tool_visible(caller, name),
        list_ranges=lambda name: list_version_ranges(caller, name),
    )
    if version.is_large and not is_off_loop:
        raise _TooLarge
    tool = version.tool
    if tool.unenforced_fields:
        raise _build_setup_error(tool)
    arguments = request.arguments
    # Writing them takes a few milliseconds at most, because a request is limited; every other step takes longer.
    sorted_json = write_sorted(arguments)
    if not is_off_loop and (sorted_json is None or is_large_document(sorted_json)):
        raise _TooLarge
    try:
        canonical_arguments = canonicalize_sorted(arguments, sorted_json)
    except NotCanonical as error:
        raise ParseFailed(f"the arguments have no canonical form: {error}") from error
    call_input: dict[str, Any] = arguments
    mutations: tuple[Mutation, ...] = ()
    if is_valid is None:
        if tool.input.is_costly(canonical_arguments):
            raise _CostlyArguments(tool, canonical_arguments)
        is_valid = tool.is_valid_input(arguments)
    elif not is_valid:
        raise _InvalidArguments(tool)
    if not is_valid:
        call_input, mutations = tool.coerce_arguments(arguments)
        if not mutations:
            raise _InvalidArguments(tool)
    return Validated(
        call=call,
        tool=tool,
        deadline=_compute_deadline(call, tool.contract.timeout.effective_seconds),
        canonical=canonical_arguments,
        call_input=call_input,
        mutations=mutations,
        warnings=_build_warnings(version.deprecation, tool),
        deprecation=version.deprecation,
        suspicions=_find_suspicions(arguments, canonical_arguments, metrics),
    )


def _find_suspicions(arguments: dict[str, Any], canonical: bytes, metrics: Metrics) -> tuple[Suspicion, ...]:
    suspicions = find_suspicions(arguments, canonical)
    if suspicions:
        metrics.record_suspicions("arguments", suspicions)
    return suspicions


def _build_setup_error(tool: CompiledTool) -> ToolRequiresSetup:
    has_handler = "/handler" not in tool.unenforced_fields
    return ToolRequiresSetup(
        f"{tool.name} {tool.contract.version} {describe_missing_setup(tool.unenforced_fields)}",
        details={"tool": tool.name, "fields": list(tool.unenforced_fields)},
        advice="Ask the tool's author for a version without these fields, or use a release that enforces them."
        if has_handler
        else "Ask the tool's author for a version whose handler names a function.",
        nothing_happened=True,
    )


def _describe_first_error(errors: list[dict[str, Any]]) -> str:
    if not errors:
        return ""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f": {errors[0]['path'] or '/'} {errors[0]['message']}{more}"


def _compute_deadline(call: CallContext, seconds: float) -> Deadline:
    """Return the earlier of the tool's deadline and the caller's."""
    tool_deadline = Deadline(at=call.started_at + seconds)
    return tool_deadline if call.deadline is None or tool_deadline.at <= call.deadline.at else call.deadline


def _build_warnings(notice: DeprecationNotice | None, tool: CompiledTool) -> tuple[str, ...]:
    return () if notice is None else (notice.describe(f"{tool.name} {tool.contract.version}"),)
