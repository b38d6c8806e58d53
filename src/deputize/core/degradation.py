"""Define how a call can be degraded: answered, but with less than was promised."""

from enum import StrEnum


class Degradation(StrEnum):
    """A mark in the audit entry of a call that was answered with less than was promised."""

    LIMITS_NOT_COUNTED = "limits_not_counted"
    HOOK_FAILED = "hook_failed"
    TAKEN_OVER = "taken_over"
    LATE_RESULT = "late_result"
    NOT_STOPPED = "not_stopped"
    ROLLED_BACK = "rolled_back"
    NOT_ROLLED_BACK = "not_rolled_back"
    FALLBACK = "fallback"


DEGRADATION_MEANINGS: dict[Degradation, str] = {
    Degradation.LIMITS_NOT_COUNTED: "a limit could not be counted, and its rule lets calls pass then",
    Degradation.HOOK_FAILED: "a hook after the tool failed, so the reply lacks what it would have added",
    Degradation.TAKEN_OVER: "an earlier owner of the call may have acted before this one",
    Degradation.LATE_RESULT: "the tool ended after the call had been answered as unknown",
    Degradation.NOT_STOPPED: "cancellation was requested, and the tool did not stop",
    Degradation.ROLLED_BACK: "the result broke the contract, and the tool took its effect back",
    Degradation.NOT_ROLLED_BACK: "the result broke the contract, and the tool could not take its effect back",
    Degradation.FALLBACK: "the tool was not available, and an alternative that its contract names answered",
}
