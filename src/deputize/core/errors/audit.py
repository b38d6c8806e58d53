"""Define the errors of the audit trail (E38xx)."""

from deputize.core.errors.base import ErrorCode, ErrorSpec, Problem


class AuditProblem(Problem):
    """The audit entry of a call cannot be written, so the call is not made or its result is not released."""


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
