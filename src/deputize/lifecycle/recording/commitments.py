"""Commit to the arguments, scopes and results of calls: redacted first, then salted and hashed.

Large documents are redacted in a thread, because each value is looked at.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from deputize.catalog.compiled_tool import CompiledTool
from deputize.core.bounded_dict import BoundedDict
from deputize.core.canonical import canonicalize, compute_commitment
from deputize.core.json_values import is_large_document
from deputize.core.value_types import frozen
from deputize.evidence.audit_entries import encode_summary
from deputize.evidence.redact import RedactionPlan
from deputize.lifecycle.phases import Authorized, RedactedArguments, Validated, Verified

SALT_BYTES: Final = 16
_RESULT_WRAPPER_BYTES: Final = len(b'{"result":}')
_SCALARS: Final = (str, int, float)
T = TypeVar("T")
_redaction_plans: BoundedDict[tuple[str, str], RedactionPlan] = BoundedDict(10_000)


def get_redaction_plan(tool: CompiledTool, side: str) -> RedactionPlan:
    """Get the redaction plan of a tool's input or output."""
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
    """The salt of an audit entry, and of a result, if there is one, the commitment without its sensitive values and
    the summary without any value.
    """

    salt: bytes
    digest: str | None
    summary: str | None = None


def commit_result(verified: Verified, salt: bytes) -> ResultCommitment:
    """Commit to a result, and summarize it."""
    if verified.problem is not None:
        return ResultCommitment(salt=salt, digest=None)
    if verified.input_requests is not None:
        return ResultCommitment(salt=salt, digest=compute_commitment(salt, verified.canonical))
    visible_bytes, redacted_count = _redact_result(verified)
    summary = encode_summary(
        verified.payload,
        size=len(verified.canonical) - _RESULT_WRAPPER_BYTES,
        redacted_count=redacted_count,
        has_more=None if verified.result is None else verified.result.has_more,
    )
    return ResultCommitment(salt=salt, digest=compute_commitment(salt, visible_bytes), summary=summary)


def _redact_result(verified: Verified) -> tuple[bytes, int]:
    plan = get_redaction_plan(verified.executed.authorized.validated.tool, "output")
    if plan.trivial:
        return verified.canonical, 0
    visible_payload, paths = plan.apply(verified.payload)
    return (canonicalize({"result": visible_payload}), len(paths)) if paths else (verified.canonical, 0)


def commit_arguments(validated: Validated, salt: bytes) -> tuple[str, tuple[str, ...]]:
    """Commit to the arguments without their sensitive values, and return the paths of those."""
    if validated.redacted_arguments is None and get_redaction_plan(validated.tool, "input").trivial:
        return compute_commitment(salt, validated.canonical), ()
    redacted_arguments = redact_arguments(validated)
    return compute_commitment(salt, redacted_arguments.canonical), redacted_arguments.paths


def commit_scopes(authorized: Authorized, salt: bytes) -> str | None:
    """Commit to the scopes that the arguments fill in, without sensitive values; None if they fill in none.

    The entry names the scopes as the contract declares them; with the salt, the ones of this call can be confirmed.
    """
    validated = authorized.validated
    tool, side_effects = validated.tool, authorized.side_effects
    if not tool.scope_arguments:
        return None
    plan = get_redaction_plan(tool, "input")
    if not plan.trivial or not side_effects:
        arguments = tool.fill_defaults(validated.call_input)
        scalars = {name: arguments[name] for name in tool.scope_arguments if isinstance(arguments.get(name), _SCALARS)}
        side_effects = tool.resolve_writes(plan.apply(scalars)[0])
    return compute_commitment(salt, "\n".join([scope for _, _, scope in side_effects]).encode())


def commit_responses(validated: Validated, salt: bytes) -> str | None:
    """Commit to the input responses, without redaction: a question for a secret is refused beforehand."""
    return (
        None
        if validated.input_round is None
        else compute_commitment(salt, canonicalize(validated.input_round.responses))
    )
