"""Define the errors of a tool while it runs: failures, timeouts and unknown outcomes (E34xx)."""

from deputize.core.errors.base import ErrorCode, ErrorSpec, Problem


class ExecutionProblem(Problem):
    """The tool started and failed, or its outcome is unknown."""


class ToolFailed(ExecutionProblem):
    spec = ErrorSpec(
        slug="tool-failed", code=ErrorCode.INTERNAL_TOOL_ERROR, error_class="execution_failed", number=3401, http=502,
        grpc="INTERNAL",
        title="The tool failed",
        advice="Read the tool's message. The same arguments will fail again.",
    )  # fmt: skip


class ToolTimeout(ExecutionProblem):
    spec = ErrorSpec(
        slug="tool-timeout", code=ErrorCode.DEADLINE_EXCEEDED, error_class="timeout", number=3402, http=504,
        grpc="DEADLINE_EXCEEDED", retryable=True,
        title="The tool timed out",
        advice="Retry with a later deadline, or request less at once.",
    )  # fmt: skip


class OutOfMemory(ExecutionProblem):
    spec = ErrorSpec(
        slug="out-of-memory", code=ErrorCode.RESOURCE_EXHAUSTED, error_class="execution_failed", number=3403, http=502,
        grpc="RESOURCE_EXHAUSTED", retryable=True,
        title="The tool's program used up its memory",
        advice="Request less at once, or have the operator raise memory_mb of its server, or limits of the tool.",
    )  # fmt: skip


class ProgramCrashed(ExecutionProblem):
    spec = ErrorSpec(
        slug="crashed", code=ErrorCode.INTERNAL_TOOL_ERROR, error_class="execution_failed", number=3404,
        http=502, grpc="INTERNAL", retryable=True,
        title="The tool's program crashed",
        advice="Retry later: it is started again. If it crashes again, report it to the operator of its server.",
    )  # fmt: skip


class SandboxFailed(ExecutionProblem):
    spec = ErrorSpec(
        slug="sandbox-failed", code=ErrorCode.UPSTREAM_FAILURE, error_class="dependency_unavailable", number=3405,
        http=503, grpc="UNAVAILABLE", retryable=True,
        title="The sandbox of the tool's program ended",
        advice="Retry later: it is started again. If it keeps failing, the operator can run deputize sandboxes check.",
    )  # fmt: skip


class EgressDenied(ExecutionProblem):
    spec = ErrorSpec(
        slug="egress-denied", code=ErrorCode.AUTHORIZATION_DENIED, error_class="sandbox_violation", number=3406,
        http=403, grpc="PERMISSION_DENIED",
        title="The tool connected to a host it may not reach",
        advice="If the host is right, add it to the tool's network policy.",
    )  # fmt: skip


class ResourceLimitExceeded(ExecutionProblem):
    spec = ErrorSpec(
        slug="resource-limit", code=ErrorCode.RESOURCE_EXHAUSTED, error_class="execution_failed", number=3407, http=429,
        grpc="RESOURCE_EXHAUSTED",
        title="The tool exceeded a resource limit",
        advice="Request less at once, or raise the tool's limits.",
    )  # fmt: skip


class OutcomeUnknown(ExecutionProblem):
    spec = ErrorSpec(
        slug="outcome-unknown", code=ErrorCode.CONFLICT, error_class="partial_failure", number=3408, http=504,
        grpc="UNKNOWN",
        title="It is unknown whether the tool acted",
        advice="Do not repeat the call. Check the target system, or wait until this call is reconciled.",
    )  # fmt: skip


class RecordingPending(ExecutionProblem):
    spec = ErrorSpec(
        slug="recording-pending", code=ErrorCode.CONFLICT, error_class="partial_failure", number=3409, http=504,
        grpc="UNKNOWN",
        title="The tool acted, but its outcome is not stored yet",
        advice="Read /v1/calls/{call_id} in a moment. Repeating the call with the same key is safe.",
    )  # fmt: skip


class ToolPrecondition(ExecutionProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="tool-precondition", code=ErrorCode.PRECONDITION_FAILED, error_class="execution_failed", number=3411,
        http=409, grpc="FAILED_PRECONDITION",
        title="A precondition of the tool is not met",
        advice="Do what the tool's message says, then call again.",
    )  # fmt: skip


class ToolConflict(ExecutionProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="tool-conflict", code=ErrorCode.CONFLICT, error_class="execution_failed", number=3412, http=409,
        grpc="ABORTED", retryable=True,
        title="The data was changed at the same time",
        advice="Read the current state, then call again with arguments that fit it.",
    )  # fmt: skip


class EffectDidNotHappen(ExecutionProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="did-not-happen", code=ErrorCode.UPSTREAM_FAILURE, error_class="execution_failed", number=3413, http=502,
        grpc="ABORTED", retryable=True,
        title="The outcome was unknown; reconciliation found no effect",
        advice="If the call is still needed, make it again. The same key can be used.",
    )  # fmt: skip


class MutationClassViolated(ExecutionProblem):
    spec = ErrorSpec(
        slug="mutation-class-violated", code=ErrorCode.INTERNAL_TOOL_ERROR, error_class="execution_failed", number=3414,
        http=502, grpc="FAILED_PRECONDITION",
        title="The tool is declared as a read, and changed something",
        advice="This version is disabled. Use another one; its author has to declare what it changes.",
    )  # fmt: skip


class SourcesDisagree(ExecutionProblem):
    spec = ErrorSpec(
        slug="sources-disagree", code=ErrorCode.CONFLICT, error_class="execution_failed", number=3415, http=409,
        grpc="FAILED_PRECONDITION",
        title="Sources disagree",
        advice="Call the other tool again: the fact may have changed since. If both still disagree, rely on neither, "
        "and ask the operator to correct the one that is wrong.",
    )  # fmt: skip


class FlowFailed(ExecutionProblem):
    spec = ErrorSpec(
        slug="composite-partial-failure", code=ErrorCode.INTERNAL_TOOL_ERROR, error_class="partial_failure",
        number=3416, http=502, grpc="ABORTED",
        title="A step of the flow failed",
        advice="Read details: failed_step says where, completed_steps what was done before, compensation what "
        "of it was taken back. Take back or keep what is left, correct the cause, and call it again with a new key.",
    )  # fmt: skip


class ChangedSince(ExecutionProblem):
    spec = ErrorSpec(
        slug="changed-since", code=ErrorCode.CONFLICT, error_class="execution_failed", number=3417, http=409,
        grpc="ABORTED",
        title="Someone changed the same thing later",
        advice="Plan the undo again: it shows the later call. Undo that one first, or leave both as they are.",
    )  # fmt: skip


class ProgramFailed(ExecutionProblem):
    spec = ErrorSpec(
        slug="program-failed", code=ErrorCode.INTERNAL_TOOL_ERROR, error_class="execution_failed", number=3423,
        http=422, grpc="ABORTED",
        title="The program failed",
        advice="Correct the program at details.line. What its calls did stays: see details.completed_steps. Leave "
        "those out when you send it again, or take them back with deputize undo.",
    )  # fmt: skip


class InputRequestNotAllowed(ExecutionProblem):
    spec = ErrorSpec(
        slug="input-not-allowed", code=ErrorCode.PRECONDITION_FAILED, error_class="policy_blocked", number=3420,
        http=409, grpc="FAILED_PRECONDITION",
        title="The tool's server may not request this input",
        advice="Ask the operator to allow it in servers.NAME.input_requests, then call again with a new key.",
    )  # fmt: skip


class ClientCapabilityMissing(ExecutionProblem):
    spec = ErrorSpec(
        slug="client-capability-missing", code=ErrorCode.PRECONDITION_FAILED, error_class="capability_gap", number=3421,
        http=409, grpc="FAILED_PRECONDITION",
        title="The tool's server requests input that this client cannot give",
        advice="Use a client with the capabilities in details. Over REST, name them in client_capabilities.",
    )  # fmt: skip


class InputRequestRejected(ExecutionProblem):
    spec = ErrorSpec(
        slug="input-request-rejected", code=ErrorCode.UPSTREAM_FAILURE, error_class="policy_blocked", number=3422,
        http=502, grpc="FAILED_PRECONDITION",
        title="The server's input request is invalid and was not passed on",
        advice="Report details to the operator of that server.",
    )  # fmt: skip
