"""Judge what an attempt says about the health of its service."""

from typing import Final

from deputize.core.errors import (
    OutcomeUnknown,
    OutOfMemory,
    Problem,
    ProgramCrashed,
    ResourceLimitExceeded,
    ResultInvalid,
    SandboxFailed,
    ToolConflict,
    ToolFailed,
    ToolPrecondition,
    ToolTimeout,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from deputize.execute.retry import find_http_status
from deputize.execute.upstreams.faults import UnreadableAnswer, UpstreamNotAtFault

_SERVER_ERROR: Final = 500
# A timeout counts against the service if the attempt had about the time that its contract gives it.
_FULL_TIME_SHARE: Final = 0.9
_PROGRAM_ENDS: Final = (OutOfMemory, ProgramCrashed, SandboxFailed)
_ANSWERS: Final = (ToolFailed, ToolPrecondition, ToolConflict, ResultInvalid, ResourceLimitExceeded)


def judge_attempt(problem: Problem, *, is_remote: bool, seconds: float, full_seconds: float) -> bool | None:
    """Tell whether the service of a failed attempt works: False if it failed, None if the attempt does not say.

    `is_remote` is True for a tool of a server, whose every answer is one of the service. `seconds` are those that the
    tool had: a caller with a short deadline must not pause the calls of others.
    """
    status = find_http_status(problem)
    if isinstance(problem, OutcomeUnknown) and isinstance(problem.__cause__, ResourceLimitExceeded):
        # The service answered more than fits.
        problem = problem.__cause__
    if isinstance(problem, UpstreamNotAtFault):
        return None
    if isinstance(problem, UpstreamTimeout | ToolTimeout):
        return False if seconds >= full_seconds * _FULL_TIME_SHARE else None
    if status is not None and isinstance(problem, UpstreamUnavailable | ToolFailed | OutcomeUnknown):
        # A redirect or a status of the 400s is an answer to this request, not a failure of the service.
        return status < _SERVER_ERROR
    if isinstance(problem, (UpstreamUnavailable, OutcomeUnknown, UnreadableAnswer, *_PROGRAM_ENDS)):
        return False
    return True if is_remote and isinstance(problem, _ANSWERS) else None
