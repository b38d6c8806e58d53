"""Define the errors of the services a tool depends on (E35xx)."""

from deputize.core.errors.base import ErrorCode, ErrorSpec, Problem


class UpstreamProblem(Problem):
    """A service that the tool depends on failed."""


class CircuitOpen(UpstreamProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="circuit-open", code=ErrorCode.UPSTREAM_FAILURE, error_class="dependency_unavailable", number=3501,
        http=503, grpc="UNAVAILABLE", retryable=True,
        title="Calls to the tool's service are paused",
        advice="Wait retry_after_ms, then retry with the same key, or use another tool.",
    )  # fmt: skip


class UpstreamUnavailable(UpstreamProblem):
    spec = ErrorSpec(
        slug="upstream-unavailable", code=ErrorCode.UPSTREAM_FAILURE, error_class="dependency_unavailable", number=3502,
        http=503, grpc="UNAVAILABLE", retryable=True,
        title="The tool's service is unavailable",
        advice="Retry later with the same key.",
    )  # fmt: skip


class UpstreamTimeout(UpstreamProblem):
    spec = ErrorSpec(
        slug="upstream-timeout", code=ErrorCode.UPSTREAM_FAILURE, error_class="timeout", number=3503, http=504,
        grpc="DEADLINE_EXCEEDED", retryable=True,
        title="The tool's service timed out",
        advice="Retry later with the same key.",
    )  # fmt: skip


class UpstreamRateLimited(UpstreamProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="upstream-rate-limited", code=ErrorCode.RATE_LIMITED, error_class="rate_limited", number=3504, http=429,
        grpc="RESOURCE_EXHAUSTED", retryable=True,
        title="The tool's service limits the rate of calls",
        advice="Wait retry_after_ms, then retry.",
    )  # fmt: skip


class ServiceBusy(UpstreamProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="service-busy", code=ErrorCode.RESOURCE_EXHAUSTED, error_class="dependency_unavailable", number=3505,
        http=503, grpc="RESOURCE_EXHAUSTED", retryable=True,
        title="Too many calls to the tool's service are in progress",
        advice="Wait retry_after_ms, then retry with the same key, or make the call asynchronously: it then waits in "
        "the queue.",
    )  # fmt: skip
