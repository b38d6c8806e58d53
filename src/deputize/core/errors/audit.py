"""Define the errors of the audit trail (E38xx)."""

from deputize.core.errors.base import ErrorCode, ErrorSpec, Problem


class AuditProblem(Problem):
    """Audit entries cannot be written, found or proven. A call whose entry cannot be written is not made, or its result
    is not released.
    """


class AuditBackpressure(AuditProblem):
    spec = ErrorSpec(
        slug="audit-backpressure", code=ErrorCode.RESOURCE_EXHAUSTED, error_class="dependency_unavailable", number=3803,
        http=503, grpc="RESOURCE_EXHAUSTED", retryable=True,
        title="Calls come faster than they can be recorded",
        advice="Wait retry_after_ms, then retry with the same key. Make fewer calls at once if this happens often.",
    )  # fmt: skip


class AuditUnavailable(AuditProblem):
    spec = ErrorSpec(
        slug="audit-unavailable", code=ErrorCode.UPSTREAM_FAILURE, error_class="dependency_unavailable", number=3804,
        http=503, grpc="UNAVAILABLE", retryable=True,
        title="The call could not be recorded, so its result is withheld",
        advice="Retry with the same key. /readyz shows what is missing.",
    )  # fmt: skip


class DatabaseWentBack(AuditProblem):
    spec = ErrorSpec(
        slug="database-went-back", code=ErrorCode.UPSTREAM_FAILURE, error_class="dependency_unavailable", number=3805,
        http=503, grpc="UNAVAILABLE",
        title="The database went back in time, so this gateway stopped",
        advice="Tell the operator: once they know what was lost, they run deputize recover confirm.",
    )  # fmt: skip


class AuditEntryNotFound(AuditProblem):
    spec = ErrorSpec(
        slug="audit-entry-not-found", code=ErrorCode.INVALID_INPUT, error_class="invalid_arguments", number=3806,
        http=404, grpc="NOT_FOUND",
        title="No such audit entry, or it is not yours",
        advice="Find it with GET /v1/audit or deputize audit search.",
    )  # fmt: skip


class AuditQueryTooBroad(AuditProblem):
    spec = ErrorSpec(
        slug="audit-query-too-broad", code=ErrorCode.INVALID_INPUT, error_class="invalid_arguments", number=3807,
        http=422, grpc="OUT_OF_RANGE",
        title="The search took too long",
        advice="Ask for less time (from, to), or for a caller, a tool, a session or a trace as well.",
    )  # fmt: skip


class ReceiptPending(AuditProblem):
    spec = ErrorSpec(
        slug="receipt-pending", code=ErrorCode.CONFLICT, error_class="dependency_unavailable", number=3808, http=409,
        grpc="FAILED_PRECONDITION", retryable=True,
        title="The entry is not under a signed checkpoint yet",
        advice="Request the receipt again in a second.",
    )  # fmt: skip


class LogNotFound(AuditProblem):
    spec = ErrorSpec(
        slug="log-not-found", code=ErrorCode.INVALID_INPUT, error_class="invalid_arguments", number=3809, http=404,
        grpc="NOT_FOUND",
        title="No such log, or no such part of it, or it is not yours",
        advice="Read the log's checkpoint first: it says how many entries there are.",
    )  # fmt: skip


class LegalHoldActive(AuditProblem):
    spec = ErrorSpec(
        slug="legal-hold-active", code=ErrorCode.CONFLICT, error_class="policy_blocked", number=3810, http=409,
        grpc="FAILED_PRECONDITION",
        title="A legal hold covers this data",
        advice="Nothing was erased. Ask details.placed_by; an operator ends it with deputize audit hold remove ID.",
    )  # fmt: skip


class HoldNotFound(AuditProblem):
    spec = ErrorSpec(
        slug="hold-not-found", code=ErrorCode.INVALID_INPUT, error_class="invalid_arguments", number=3811, http=404,
        grpc="NOT_FOUND",
        title="No such legal hold, or it is not yours",
        advice="List the holds with GET /v1/holds or deputize audit hold list.",
    )  # fmt: skip
