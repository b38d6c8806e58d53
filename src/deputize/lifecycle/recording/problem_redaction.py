"""Redact the error of a tool or a server, before it reaches the caller, an entry, an approver or a webhook."""

from deputize.core.errors import Problem, SecretsProblem
from deputize.core.sensitive.text import redact_texts
from deputize.evidence.redaction.free_text import FreeTextRedactor
from deputize.lifecycle.phases import Validated
from deputize.lifecycle.recording.salted_digests import get_redaction_plan, run_for_document


async def redact_problem(validated: Validated, problem: Problem) -> Problem:
    """Return the problem without secrets, without sensitive values of this call and, in its message, without paths.

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
            details = redact_texts(dict(problem.details), redactor.hide_values)
            return problem.replace(message=redactor.hide_values(problem.message), details=details)
        try:
            visible_details = redactor.redact(dict(problem.details), "", [])
        except RecursionError:
            # They contain themselves or nest too deep to be shown anyway.
            visible_details = {}
        return problem.replace(
            message=redactor.redact_message(problem.message),
            details=visible_details,
            advice=redactor.redact(problem.advice, "", []),
        )

    # A tool or a server chose their size.
    texts = f"{problem.message}{problem.advice}{problem.details}".encode(errors="replace")
    return await run_for_document(validated.canonical + texts, redact)
