"""Preview what a call would do, for approvers and for dry runs.

If the tool has a preview of its own, it runs with a read-only credential. Any other call, and one whose preview fails,
is described from its contract, which says what may be touched; everything else is unknown.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from pydantic import ValidationError

from deputize.core.canonical import NotCanonical, canonicalize
from deputize.core.contract.contract import PreviewRules
from deputize.core.contract.preview import MAX_PREVIEW_BYTES, Preview, ValidPreview, compute_preview_digest
from deputize.core.contract.tools import AnyTool, PythonTool, Secret, ToolContext
from deputize.core.errors import (
    CredentialInResult,
    PreconditionFailed,
    Problem,
    ResultInvalid,
    SemanticViolation,
    ToolPrecondition,
    ToolRequiresSetup,
)
from deputize.core.value_types import frozen
from deputize.evidence.redaction.free_text import FreeTextRedactor
from deputize.lifecycle.credentials.broker import derive_secret_forms, has_secret, withhold_from_problem
from deputize.lifecycle.phases import Authorized, Validated
from deputize.lifecycle.recording.redaction import get_redaction_plan, redact_problem, run_for_document
from deputize.lifecycle.runtime import Runtime

# The caller waits for it, however long the tool itself may take.
_MAX_SECONDS: Final = 30.0
_DEFAULT_RULES = PreviewRules()


@frozen
class PreviewResult:
    """A preview: `document` is for people and programs, and redacted; `guards` are for the tool alone.

    Equal digests mean that nothing relevant changed. `fresh_seconds` is None if a new preview would show the same.
    """

    document: dict[str, Any]
    digest: bytes
    previewed_at: datetime
    fresh_seconds: int | None
    guards: Mapping[str, Any]
    # Of the code that made it, which is the code that people decide about.
    code_digest: str
    # A sentence for each precondition that does not hold.
    unmet_preconditions: tuple[str, ...] = ()


async def require_preview(runtime: Runtime, authorized: Authorized) -> PreviewResult:
    """Preview the call; raise if a precondition does not hold or the tool's own check refuses the values.

    Such a call needs no decision by people. A preview that fails is reported, but is no reason to refuse.
    Check first what the call's key already has: an executed call may not be possible a second time.
    """
    result = await preview_call(runtime, authorized)
    if result.unmet_preconditions:
        raise PreconditionFailed(
            f"{authorized.validated.tool.name} would fail; not met: {result.unmet_preconditions[0]}",
            details={"preconditions": result.document["preconditions"]},
        )
    return result


async def preview_call(runtime: Runtime, authorized: Authorized) -> PreviewResult:
    """Preview the call, and report preconditions that do not hold instead of raising."""
    validated = authorized.validated
    contract, tenant = validated.contract, validated.call.tenant
    validated.deadline.require_time_left(runtime.clock.monotonic())
    keys = await runtime.keys.get(tenant)
    tool = _find_tool(runtime, validated)
    if tool is not None and tool.validate is not None:
        await runtime.driver.preflight(tool, validated.call_input, _compute_timeout(runtime, validated))
    raw_document, rules, problem = _preview_from_contract(validated), _DEFAULT_RULES, ""
    if contract.preview:
        rules = contract.preview_rules or _DEFAULT_RULES
        try:
            raw_document = await _preview_from_tool(runtime, authorized, tool)
        except SemanticViolation:
            raise
        except Problem as error:
            problem = error.message
    document, unmet = await run_for_document(
        validated.canonical + orjson.dumps(raw_document), lambda: _redact_preview(validated, raw_document)
    )
    previewed_at = datetime.fromtimestamp(runtime.clock.epoch_ms() / 1000, UTC)
    status = {
        "previewed_at": previewed_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "problem": problem or None,
    }
    return PreviewResult(
        document={**document, **status, "fresh_seconds": rules.fresh_seconds if contract.preview else None},
        digest=compute_preview_digest(keys.fingerprint_key, {**raw_document, "failed": bool(problem)}, rules.volatile),
        previewed_at=previewed_at,
        fresh_seconds=rules.fresh_seconds if contract.preview else None,
        guards=raw_document["guards"],
        code_digest=tool.code_digest if isinstance(tool, PythonTool) else "",
        unmet_preconditions=unmet,
    )


def _find_tool(runtime: Runtime, validated: Validated) -> AnyTool | None:
    """Find the tool's function; None if it is not loaded, as on a gateway whose workers execute every call."""
    try:
        return runtime.driver.find_tool(validated.contract)
    except ToolRequiresSetup:
        return None


def _compute_timeout(runtime: Runtime, validated: Validated) -> float:
    tool_seconds = validated.contract.timeout.effective_seconds
    return min(validated.deadline.remaining_seconds(runtime.clock.monotonic()), tool_seconds, _MAX_SECONDS)


def _preview_from_contract(validated: Validated) -> dict[str, Any]:
    tool = validated.tool
    writes = tool.resolve_writes(tool.fill_defaults(validated.call_input))
    return {
        "by": "contract",
        "changes": [each._asdict() for each in writes],
        "resources": [f"{each.resource}/{each.scope}" for each in writes],
        "preconditions": [],
        "impact": {},
        "guards": {},
        "unknown": ["before", "after", "count", "preconditions", "impact"] if writes else [],
    }


async def _preview_from_tool(runtime: Runtime, authorized: Authorized, tool: AnyTool | None) -> dict[str, Any]:
    """Return the tool's own preview, or raise what is wrong with it."""
    validated = authorized.validated
    if not isinstance(tool, PythonTool):
        raise ToolRequiresSetup(
            f"the preview of {validated.tool.name} is not available here: its function is not loaded"
        )
    seconds, secret = _compute_timeout(runtime, validated), None
    secret_forms: set[bytes] = set()
    try:
        if tool.previews_with_context:
            secret = await runtime.credentials.issue_for_preview(authorized, seconds)
        if secret is not None:
            secret_forms = derive_secret_forms(secret.reveal())
            seconds = _compute_timeout(runtime, validated)
        context = _build_context(validated, secret, seconds) if tool.previews_with_context else None
        raw_preview = await runtime.driver.preview(tool, dict(validated.call_input), context, seconds)
        document, canonical_bytes = _parse_preview(validated.tool.name, raw_preview)
        if has_secret(canonical_bytes, secret_forms):
            raise CredentialInResult(f"the preview of {validated.tool.name} contains its credential")
    except ToolPrecondition as error:
        clean_problem = await redact_problem(validated, withhold_from_problem(error, secret_forms))
        own_advice = "" if clean_problem.advice == error.spec.advice else f". {clean_problem.advice}"
        precondition = {"name": "precondition", "holds": False, "detail": f"{clean_problem.message}{own_advice}"[:500]}
        return {**_preview_from_contract(validated), "by": "tool", "preconditions": [precondition]}
    except Problem as problem:
        clean_problem = await redact_problem(validated, withhold_from_problem(problem, secret_forms))
        raise clean_problem from problem.__cause__
    finally:
        if secret is not None:
            secret.close()
    return {"by": "tool", **document, "unknown": []}


def _parse_preview(tool: str, raw_preview: Any) -> tuple[dict[str, Any], bytes]:
    """Parse the preview as plain JSON, and return it with its canonical bytes."""
    if not isinstance(raw_preview, Preview):
        raise ResultInvalid(f"the preview of {tool} returned {type(raw_preview).__name__} instead of a Preview")
    try:
        preview = ValidPreview.from_preview(raw_preview)
        document = preview.to_document()
        size = len(orjson.dumps(document))
        if size > MAX_PREVIEW_BYTES:
            if (unmet := next((each for each in preview.preconditions if not each.holds), None)) is not None:
                raise ToolPrecondition(f"{unmet.name}: {unmet.detail}")
            raise ResultInvalid(
                f"the preview of {tool} has {size} bytes, more than {MAX_PREVIEW_BYTES}; return counts instead of lists"
            )
        return document, canonicalize(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = "/".join(map(str, first["loc"]))
        raise ResultInvalid(f"the preview of {tool} is invalid: {where}: {first['msg']}") from None
    except (NotCanonical, ValueError, TypeError, RecursionError) as error:
        raise ResultInvalid(f"the preview of {tool} is not plain JSON") from error


def _build_context(validated: Validated, secret: Secret | None, seconds: float) -> ToolContext:
    """Build the context of a preview. It has no idempotency key: using one would be an effect."""
    call = validated.call
    return ToolContext(
        call_id=call.call_id,
        tenant=call.tenant,
        user=call.caller.user,
        agent=call.caller.agent,
        agents=call.caller.agents,
        session=call.session,
        key="",
        attempt=1,
        seconds_left=seconds,
        traceparent=call.trail.traceparent,
        credential=secret,
    )


def _redact_preview(validated: Validated, document: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Redact the document for people, and list the preconditions that do not hold.

    Field names of the document itself are never redacted, even if a sensitive argument has the same name.
    """
    redactor = FreeTextRedactor(
        get_redaction_plan(validated.tool, "input"), get_redaction_plan(validated.tool, "output"), validated.call_input
    )
    paths: list[str] = []

    def redact_parts(name: str) -> list[dict[str, Any]]:
        return [
            {field: redactor.redact(value, f"/{name}/{index}/{field}", paths) for field, value in each.items()}
            for index, each in enumerate(document[name])
        ]

    public_document = {
        "by": document["by"],
        "changes": redact_parts("changes"),
        "resources": redactor.redact(document["resources"], "/resources", paths),
        "preconditions": redact_parts("preconditions"),
        "impact": redactor.redact(document["impact"], "/impact", paths),
        "unknown": document["unknown"],
        "redactions": paths,
    }
    unmet = [
        ": ".join(filter(None, (each["name"], each["detail"])))
        for each in public_document["preconditions"]
        if not each["holds"]
    ]
    return public_document, tuple(unmet)
