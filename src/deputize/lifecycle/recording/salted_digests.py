"""Commit to the arguments, scopes and results of calls: salted and hashed, without what the contract marks sensitive.

Texts are searched for secrets and personal data only where they are shown: a salted hash shows nothing, and the search
takes as long as the rest of a call. Large documents are redacted in a thread, because each value is looked at.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from deputize.catalog.compiled_tool import CompiledTool
from deputize.core.bounded_dict import BoundedDict
from deputize.core.canonical import canonicalize, compute_commitment
from deputize.core.injection.suspicions import Suspicion, find_suspicions
from deputize.core.json_values import is_large_document
from deputize.core.sensitive.marks import REDACTION_MARK
from deputize.core.sensitive.text import may_hold_sensitive_text
from deputize.core.value_types import frozen
from deputize.evidence.audit_entries import encode_summary
from deputize.evidence.redaction.plan import RedactionPlan
from deputize.lifecycle.phases import Authorized, RedactedArguments, Validated, Verified

SALT_BYTES: Final = 16
_RESULT_WRAPPER_BYTES: Final = len(b'{"result":}')
_SCALARS: Final = (str, int, float)
# Searching a kilobyte in detail takes up to four milliseconds.
_MAX_SEARCHED_HERE: Final = 1_024
_UNDESCRIBED: Final = RedactionPlan(True)
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
    """Run work that redacts a document: here if it is small, in a thread if it is large or takes a long search."""
    return await asyncio.to_thread(work) if is_slow_to_redact(canonical) else work()


def is_slow_to_redact(canonical: bytes) -> bool:
    """Tell whether redacting a document would hold the event loop for more than a few milliseconds."""
    return is_large_document(canonical) or (len(canonical) > _MAX_SEARCHED_HERE and may_hold_sensitive_text(canonical))


async def prepare_redaction(validated: Validated) -> Validated:
    """Redact large arguments in a thread, before anything commits to them; small ones are redacted when needed."""
    if not is_large_document(validated.canonical):
        return validated
    return replace(validated, redacted_arguments=await asyncio.to_thread(redact_arguments, validated))


def redact_arguments(validated: Validated) -> RedactedArguments:
    """Redact the arguments as they were sent."""
    if validated.redacted_arguments is not None:
        return validated.redacted_arguments
    plan, canonical = get_redaction_plan(validated.tool, "input"), validated.canonical
    visible_arguments, paths = plan.apply_marks(validated.call.request.arguments)
    return RedactedArguments(canonical=canonicalize(visible_arguments) if paths else canonical, paths=paths)


@frozen
class ResultCommitment:
    """The salt of an audit entry, and of a result, if there is one, the commitment without its sensitive values and
    the summary without any value.
    """

    salt: bytes
    digest: str | None
    summary: str | None = None
    # What looks like an injection attempt in the result.
    suspicions: tuple[Suspicion, ...] = ()


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
    return ResultCommitment(
        salt=salt,
        digest=compute_commitment(salt, visible_bytes),
        summary=summary,
        suspicions=find_suspicions(_join_content(verified), verified.canonical),
    )


def _join_content(verified: Verified) -> Any:
    """Return the payload, or a document of it and the texts that the tool returned beside it."""
    texts = [each["text"] for each in verified.content if "text" in each]
    return {"result": verified.payload, "content": texts} if texts else verified.payload


def _redact_result(verified: Verified) -> tuple[bytes, int]:
    plan = get_redaction_plan(verified.validated.tool, "output")
    if plan.trivial:
        return verified.canonical, 0
    visible_payload, paths = plan.apply_marks(verified.payload)
    if not paths:
        return verified.canonical, 0
    content = {"content": list(verified.content)} if verified.content else {}
    return canonicalize({**content, "result": visible_payload}), len(paths)


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
        side_effects = tool.resolve_writes(plan.apply_marks(scalars)[0])
    return compute_commitment(salt, _join_scopes(side_effects).encode())


def _join_scopes(side_effects: Iterable[tuple[str, str, str]]) -> str:
    return "\n".join([scope for _, _, scope in side_effects])


def commit_responses(validated: Validated, salt: bytes) -> str | None:
    """Commit to the input responses, without secrets and personal data."""
    if validated.input_round is None:
        return None
    return compute_commitment(salt, canonicalize(redact_responses(validated.input_round.responses)))


def redact_responses(responses: Mapping[str, Any]) -> Any:
    """Redact input responses for people and entries. No schema describes them, so names and shapes decide.

    Responses that would take a long search are hidden as a whole.
    """
    canonical = canonicalize(responses)
    if is_slow_to_redact(canonical):
        return dict.fromkeys(responses, REDACTION_MARK)
    return _UNDESCRIBED.apply(dict(responses), canonical)[0]
