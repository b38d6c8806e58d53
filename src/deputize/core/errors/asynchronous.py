"""Define the errors of calls that outlive their request: runs, tasks and deliveries (E37xx)."""

from deputize.core.errors.base import ErrorCode, ErrorSpec, Problem


class AsyncProblem(Problem):
    """A call, run, task or delivery that outlives its request cannot be found or continued."""


class QueueFull(AsyncProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="queue-full", code=ErrorCode.RESOURCE_EXHAUSTED, error_class="rate_limited", number=3701, http=503,
        grpc="RESOURCE_EXHAUSTED", retryable=True,
        title="Too many calls of this tenant are queued",
        advice="Wait retry_after_ms, then retry with the same key, or cancel queued calls that are no longer needed.",
    )  # fmt: skip


class CallNotFound(AsyncProblem):
    spec = ErrorSpec(
        slug="call-not-found", code=ErrorCode.TOOL_NOT_FOUND, error_class="unknown_tool", number=3702, http=404,
        grpc="NOT_FOUND",
        title="Call not found",
        advice="Check the id. You can see only your own calls.",
    )  # fmt: skip


class Canceled(AsyncProblem):
    spec = ErrorSpec(
        slug="canceled", code=ErrorCode.CONFLICT, error_class="canceled", number=3703, http=409, grpc="CANCELLED",
        title="The call was canceled",
        advice="If the call is still needed, make it again.",
    )  # fmt: skip


class NotCancelable(AsyncProblem):
    spec = ErrorSpec(
        slug="not-cancelable", code=ErrorCode.CONFLICT, error_class="capability_gap", number=3705, http=409,
        grpc="FAILED_PRECONDITION",
        title="This call can no longer be canceled",
        advice="Wait for the outcome. The request to cancel is recorded.",
    )  # fmt: skip


class TooManyTakeovers(AsyncProblem):
    spec = ErrorSpec(
        slug="given-up", code=ErrorCode.INTERNAL_TOOL_ERROR, error_class="execution_failed", number=3706, http=500,
        grpc="ABORTED",
        title="Too many workers died during this call",
        advice="Check what the tool does to its process before you call it again. details has the number of attempts.",
    )  # fmt: skip


class NotRetryable(AsyncProblem):
    spec = ErrorSpec(
        slug="not-retryable", code=ErrorCode.CONFLICT, error_class="capability_gap", number=3707, http=409,
        grpc="FAILED_PRECONDITION",
        title="This call cannot be retried",
        advice="Read the reason in details. If the call is still needed, make a new one.",
    )  # fmt: skip


class DeliveryNotFound(AsyncProblem):
    spec = ErrorSpec(
        slug="delivery-not-found", code=ErrorCode.TOOL_NOT_FOUND, error_class="unknown_tool", number=3708, http=404,
        grpc="NOT_FOUND",
        title="Dead letter not found",
        advice="List the dead letters: deputize webhooks deadletters, or GET /v1/webhooks/deadletters.",
    )  # fmt: skip


class RunOwnershipLost(AsyncProblem):
    spec = ErrorSpec(
        slug="taken-over", code=ErrorCode.CONFLICT, error_class="canceled", number=3711, http=409, grpc="ABORTED",
        title="Another worker took over this call",
        advice="Nothing to do: the other worker reports the outcome.",
    )  # fmt: skip


class CheckpointNotFound(AsyncProblem):
    spec = ErrorSpec(
        slug="checkpoint-not-found", code=ErrorCode.TOOL_NOT_FOUND, error_class="unknown_tool", number=3712, http=404,
        grpc="NOT_FOUND",
        title="Checkpoint not found",
        advice="Use one of the checkpoints in details.",
    )  # fmt: skip


class HumanTaskNotFound(AsyncProblem):
    spec = ErrorSpec(
        slug="human-task-not-found", code=ErrorCode.TOOL_NOT_FOUND, error_class="unknown_tool", number=3713, http=404,
        grpc="NOT_FOUND",
        title="Approval request or human task not found",
        advice="List the open ones: deputize approvals list and deputize tasks list.",
    )  # fmt: skip


class HumanTaskClosed(AsyncProblem):
    spec = ErrorSpec(
        slug="human-task-closed", code=ErrorCode.CONFLICT, error_class="execution_failed", number=3714, http=409,
        grpc="FAILED_PRECONDITION",
        title="This request or task is already closed",
        advice="Look at its call to see how it ended.",
    )  # fmt: skip


class SiblingCanceled(AsyncProblem):
    spec = ErrorSpec(
        slug="sibling-canceled", code=ErrorCode.CONFLICT, error_class="canceled", number=3715, http=409,
        grpc="CANCELLED",
        title="The call was canceled because of another call of its batch",
        advice="Look at the result of the call at position details.sibling. If this is still needed, call it again.",
    )  # fmt: skip


class UndoTooBroad(AsyncProblem):
    spec = ErrorSpec(
        slug="undo-too-broad", code=ErrorCode.INVALID_INPUT, error_class="invalid_arguments", number=3720, http=422,
        grpc="OUT_OF_RANGE",
        title="The undo took too long to plan",
        advice="Undo less at once: one call, or only the calls since a later time.",
    )  # fmt: skip


class UndoPlanChanged(AsyncProblem):
    spec = ErrorSpec(
        slug="undo-plan-changed", code=ErrorCode.CONFLICT, error_class="execution_failed", number=3719, http=409,
        grpc="ABORTED",
        title="The undo plan changed",
        advice="Plan again, look at what is different, and undo with the new digest.",
    )  # fmt: skip
