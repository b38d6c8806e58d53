"""Redact what audit entries commit to: large documents in a thread, because each value is looked at."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from deputize.catalog.compiled_tool import CompiledTool
from deputize.core.bounded_dict import BoundedDict
from deputize.core.canonical import canonicalize, compute_commitment
from deputize.core.json_values import is_large_document
from deputize.core.value_types import frozen
from deputize.evidence.redact import RedactionPlan
from deputize.lifecycle.phases import RedactedArguments, Validated, Verified

T = TypeVar("T")
_redaction_plans: BoundedDict[tuple[str, str], RedactionPlan] = BoundedDict(10_000)


def get_redaction_plan(tool: CompiledTool, side: str) -> RedactionPlan:
    plan = _redaction_plans.get((tool.digest, side))
    if plan is None:
        schema = tool.contract.input_schema if side == "input" else tool.contract.output_schema
        plan = _redaction_plans.put((tool.digest, side), RedactionPlan(schema))
    return plan


async def run_for_document(canonical: bytes, work: Callable[[], T]) -> T:
    """Run work that looks at each value of a document: here if it is small, in a thread if it is large."""
    return await asyncio.to_thread(work) if is_large_document(canonical) else work()


async def prepare_redaction(validated: Validated) -> Validated:
    """Redact large arguments in a thread, before anything commits to them; small ones are redacted when needed."""
    if not is_large_document(validated.canonical):
        return validated
    return replace(validated, redacted_arguments=await asyncio.to_thread(redact_arguments, validated))


def redact_arguments(validated: Validated) -> RedactedArguments:
    """Redact the arguments as they were sent."""
    if validated.redacted_arguments is not None:
        return validated.redacted_arguments
    visible_arguments, paths = get_redaction_plan(validated.tool, "input").apply(validated.received.request.arguments)
    return RedactedArguments(canonical=canonicalize(visible_arguments) if paths else validated.canonical, paths=paths)


@frozen
class ResultCommitment:
    """The salt of an audit entry, and the commitment to a result without its sensitive values, if there is one."""

    salt: bytes
    digest: str | None


def commit_result(verified: Verified, salt: bytes) -> ResultCommitment:
    """Commit to a result."""
    if verified.problem is not None:
        return ResultCommitment(salt=salt, digest=None)
    visible_bytes = verified.canonical if verified.input_requests is not None else _redact_result(verified)
    return ResultCommitment(salt=salt, digest=compute_commitment(salt, visible_bytes))


def _redact_result(verified: Verified) -> bytes:
    plan = get_redaction_plan(verified.executed.authorized.validated.tool, "output")
    if plan.trivial:
        return verified.canonical
    visible_payload, paths = plan.apply(verified.payload)
    return canonicalize({"result": visible_payload}) if paths else verified.canonical
