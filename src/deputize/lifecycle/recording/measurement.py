"""Judge how a call that reached its tool ended, as far as the tool is responsible, for the measured service levels."""

from typing import Final

from deputize.core.errors import (
    CredentialInResult,
    EgressDenied,
    ExecutionProblem,
    InputRequestRejected,
    MutationClassViolated,
    OutcomeUnknown,
    PredicateFailed,
    ResourceLimitExceeded,
    ResultInvalid,
    SemanticViolation,
    ToolConflict,
    ToolFailed,
    ToolPrecondition,
    ToolTimeout,
    UpstreamProblem,
    UpstreamTimeout,
)
from deputize.evidence.call_measurements import CallEnd
from deputize.lifecycle.phases import Verified

# A tool that reports a wrong argument, a precondition or a conflict has done its part, and so has one that was refused
# a credential, canceled or never started: such calls are not measured.
_FAILURES: Final = (
    ToolFailed, UpstreamProblem, ResourceLimitExceeded, EgressDenied, MutationClassViolated, CredentialInResult,
    InputRequestRejected,
)  # fmt: skip
# What a tool's own `verify` raises about a result.
_VERIFY_ERRORS: Final = (ToolFailed, ToolPrecondition, ToolConflict, SemanticViolation)
_TIMEOUTS: Final = (ToolTimeout, UpstreamTimeout)


def judge_end(verified: Verified) -> CallEnd | None:
    """Judge how a call ended for its tool; None if that says nothing about the tool."""
    problem = verified.problem
    if problem is None:
        # A tool that needs input first has not ended.
        return CallEnd.SUCCESS if verified.input_requests is None else None
    if isinstance(problem, ResultInvalid | PredicateFailed):
        return CallEnd.REJECTION
    if verified.executed.problem is None and isinstance(problem, _VERIFY_ERRORS):
        return CallEnd.REJECTION
    # As the tool left it: its text may have been redacted since.
    problem = verified.executed.problem or problem
    is_unknown = isinstance(problem, OutcomeUnknown)
    cause = problem.__cause__ if is_unknown else problem
    if isinstance(cause, _TIMEOUTS):
        return None if _has_shorter_deadline(verified) else CallEnd.TIMEOUT
    if is_unknown:
        # A worker that lost its lease leaves an unknown outcome, too.
        return CallEnd.UNKNOWN_OUTCOME if isinstance(cause, ExecutionProblem | UpstreamProblem) else None
    return CallEnd.FAILURE if isinstance(cause, _FAILURES) else None


def _has_shorter_deadline(verified: Verified) -> bool:
    """Tell whether the caller gave the tool less time than its contract does."""
    validated = verified.validated
    return validated.call.deadline is not None and validated.deadline is validated.call.deadline
