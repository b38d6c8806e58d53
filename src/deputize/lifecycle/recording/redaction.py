"""Hide sensitive values of calls: in arguments, in input responses, and in the errors of tools and servers.

Texts are searched for secrets and personal data only where they are shown: a salted digest shows nothing, and the
search takes as long as the rest of a call. Large documents are redacted in a thread, because each value is looked at.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from deputize.catalog.compiled_tool import CompiledTool
from deputize.core.bounded_dict import BoundedDict
from deputize.core.canonical import canonicalize
from deputize.core.errors import Problem, SecretsProblem
from deputize.core.json_values import is_large_document
from deputize.core.sensitive.known_paths import KnownPaths
from deputize.core.sensitive.marks import REDACTION_MARK
from deputize.core.sensitive.text import may_hold_sensitive_text, redact_texts
from deputize.evidence.redaction.free_text import FreeTextRedactor
from deputize.evidence.redaction.plan import RedactionPlan
from deputize.lifecycle.phases import RedactedArguments, Validated

# Searching a kilobyte in detail takes up to four milliseconds.
_MAX_SEARCHED_HERE: Final = 1_024
# A tool's own errors may be their own causes.
_MAX_CAUSES: Final = 10
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


def redact_responses(responses: Mapping[str, Any]) -> Any:
    """Redact input responses for people and entries. No schema describes them, so names and shapes decide.

    Responses that would take a long search are hidden as a whole.
    """
    canonical = canonicalize(responses)
    if is_slow_to_redact(canonical):
        return dict.fromkeys(responses, REDACTION_MARK)
    return _UNDESCRIBED.apply(dict(responses), canonical)[0]


async def redact_problem(validated: Validated, problem: Problem) -> Problem:
    """Return the problem without secrets, without sensitive values of this call and, in its message, without paths that
    its caller does not know.

    Details keep their paths: they are pointers into arguments and results. A server's own text has none there either,
    because its driver removes them.
    """

    def redact() -> Problem:
        redactor = FreeTextRedactor(
            get_redaction_plan(validated.tool, "input"),
            get_redaction_plan(validated.tool, "output"),
            validated.call_input,
        )
        if isinstance(problem, SecretsProblem):
            # It names the secret that is missing; the name is not secret.
            message = redactor.hide_values(problem.message)
            details = redact_texts(dict(problem.details), redactor.hide_values)
            is_redacted = (message, details) != (problem.message, problem.details)
            return problem.replace(message=message, details=details, is_redacted=is_redacted or _is_redacted(problem))
        paths: list[str] = []
        try:
            visible_details = redactor.redact(dict(problem.details), "", paths)
        except RecursionError:
            # They contain themselves or nest too deep to be shown anyway.
            visible_details = {}
            paths.append("")
        known_paths = problem.known_paths or KnownPaths(validated.call_input)
        message = redactor.redact_message(problem.message, known_paths)
        advice = redactor.redact(problem.advice, "", paths)
        return problem.replace(
            message=message,
            details=visible_details,
            advice=advice,
            is_redacted=bool(paths) or message != problem.message or _is_redacted(problem),
        )

    # A tool or a server chose their size.
    texts = f"{problem.message}{problem.advice}{problem.details}".encode(errors="replace")
    return await run_for_document(validated.canonical + texts, redact)


def _is_redacted(problem: Problem) -> bool:
    """Tell whether something was hidden before, by a driver: what it raised may be the cause, whose text is quoted."""
    error: BaseException | None = problem
    for _ in range(_MAX_CAUSES):
        if error is None:
            break
        if getattr(error, "is_redacted", False) is True:
            return True
        error = error.__cause__
    return False
