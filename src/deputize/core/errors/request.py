"""Define the errors of the request itself: form, size, keys, deadlines, limits and the service (E30xx)."""

from deputize.core.errors.base import ErrorCode, ErrorSpec, Problem


class RequestProblem(Problem):
    """The request cannot be accepted: its form, size, key, deadline or limits, or the gateway is unavailable."""


class InternalError(RequestProblem):
    spec = ErrorSpec(
        slug="internal", code=ErrorCode.INTERNAL_TOOL_ERROR, error_class="execution_failed", number=3000, http=500,
        grpc="INTERNAL", jsonrpc=-32603, retryable=True,
        title="Internal error",
        advice="Try again. If the error persists, give the trace id to the operator of this gateway.",
    )  # fmt: skip


class Unavailable(RequestProblem):
    spec = ErrorSpec(
        slug="unavailable", code=ErrorCode.UPSTREAM_FAILURE, error_class="dependency_unavailable", number=3001,
        http=503, grpc="UNAVAILABLE", retryable=True,
        title="Service unavailable",
        advice="Wait, then retry with the same idempotency key. /readyz shows what is missing.",
    )  # fmt: skip


class DeadlineExceeded(RequestProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="deadline-exceeded", code=ErrorCode.DEADLINE_EXCEEDED, error_class="timeout", number=3002, http=504,
        grpc="DEADLINE_EXCEEDED", retryable=True,
        title="The deadline passed before the tool started",
        advice="Give the call more time (deadline_ms), or retry when the gateway is less busy.",
    )  # fmt: skip


class RateLimited(RequestProblem):
    spec = ErrorSpec(
        slug="rate-limited", code=ErrorCode.RATE_LIMITED, error_class="rate_limited", number=3003, http=429,
        grpc="RESOURCE_EXHAUSTED", retryable=True,
        title="Too many calls",
        advice="Wait retry_after_ms, then retry.",
    )  # fmt: skip


class MalformedRequest(RequestProblem):
    spec = ErrorSpec(
        slug="malformed", code=ErrorCode.INVALID_INPUT, error_class="invalid_arguments", number=3004, http=400,
        grpc="INVALID_ARGUMENT", jsonrpc=-32600,
        title="Invalid request",
        advice="Compare the request with the API document at /docs.",
    )  # fmt: skip


class RequestTooLarge(RequestProblem):
    spec = ErrorSpec(
        slug="too-large", code=ErrorCode.INVALID_INPUT, error_class="invalid_arguments", number=3005, http=413,
        grpc="INVALID_ARGUMENT",
        title="Request too large",
        advice="Send less data, or pass a reference to it.",
    )  # fmt: skip


class IdempotencyKeyRequired(RequestProblem):
    spec = ErrorSpec(
        slug="key-required", code=ErrorCode.PRECONDITION_FAILED, error_class="invalid_arguments", number=3006, http=400,
        grpc="FAILED_PRECONDITION",
        title="Idempotency key required",
        advice="Send an Idempotency-Key header (JSON-RPC: idempotency_key). The SDK and the CLI do it for you.",
    )  # fmt: skip


class IdempotencyKeyReused(RequestProblem):
    spec = ErrorSpec(
        slug="key-reused", code=ErrorCode.INVALID_INPUT, error_class="invalid_arguments", number=3007, http=422,
        grpc="INVALID_ARGUMENT",
        title="Idempotency key was used for another request",
        advice="Use a new key for a new request. Reuse a key only to repeat exactly the same request.",
    )  # fmt: skip


class CallInFlight(RequestProblem):
    spec = ErrorSpec(
        slug="in-flight", code=ErrorCode.CONFLICT, error_class="execution_failed", number=3008, http=409,
        grpc="ABORTED", retryable=True,
        title="This call is still running",
        advice="Wait, then repeat it with the same key, or read /v1/calls/{call_id}.",
    )  # fmt: skip


class NoSuchRoute(RequestProblem):
    spec = ErrorSpec(
        slug="no-such-route", code=ErrorCode.INVALID_INPUT, error_class="invalid_arguments", number=3009, http=404,
        grpc="UNIMPLEMENTED", jsonrpc=-32601,
        title="No such route",
        advice="See /docs for the routes of this gateway.",
    )  # fmt: skip


class MethodNotAllowed(RequestProblem):
    spec = ErrorSpec(
        slug="method-not-allowed", code=ErrorCode.INVALID_INPUT, error_class="invalid_arguments", number=3010, http=405,
        grpc="UNIMPLEMENTED",
        title="Method not allowed",
        advice="Use a method from the Allow header.",
    )  # fmt: skip


class UnsupportedMedia(RequestProblem):
    spec = ErrorSpec(
        slug="unsupported-media", code=ErrorCode.INVALID_INPUT, error_class="invalid_arguments", number=3011, http=415,
        grpc="INVALID_ARGUMENT",
        title="Only JSON is accepted",
        advice="Send the body as application/json.",
    )  # fmt: skip


class ParseFailed(RequestProblem):
    spec = ErrorSpec(
        slug="parse-failed", code=ErrorCode.INVALID_INPUT, error_class="invalid_arguments", number=3012, http=400,
        grpc="INVALID_ARGUMENT", jsonrpc=-32700,
        title="The body is not valid JSON",
        advice="Send one JSON value in UTF-8, without NUL characters, lone surrogates or integers beyond 2^53.",
    )  # fmt: skip


class BudgetExhausted(RequestProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="budget-spent", code=ErrorCode.RATE_LIMITED, error_class="rate_limited", number=3013, http=429,
        grpc="RESOURCE_EXHAUSTED",
        title="Budget exhausted",
        advice="Wait until the budget in details is renewed, or ask its owner to raise it.",
    )  # fmt: skip


class ConcurrencyLimitReached(RequestProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="too-many-at-once", code=ErrorCode.RATE_LIMITED, error_class="rate_limited", number=3014, http=429,
        grpc="RESOURCE_EXHAUSTED", retryable=True,
        title="Too many concurrent calls",
        advice="Wait for one of them to finish, then retry.",
    )  # fmt: skip


class RunawayLoop(RequestProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="runaway", code=ErrorCode.RATE_LIMITED, error_class="rate_limited", number=3015, http=429,
        grpc="RESOURCE_EXHAUSTED",
        title="Stopped a possible runaway loop",
        advice="Stop the agent and check what it does: it repeated the same call, or its costs rise steeply.",
    )  # fmt: skip


class LimitsUnavailable(RequestProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="limits-unavailable", code=ErrorCode.UPSTREAM_FAILURE, error_class="dependency_unavailable", number=3016,
        http=503, grpc="UNAVAILABLE", retryable=True,
        title="Limits cannot be checked, so the call is denied",
        advice="Retry. The rule in details says what happens while its counters are unreachable.",
    )  # fmt: skip


class RestoredSince(RequestProblem):
    spec = ErrorSpec(
        slug="restored", code=ErrorCode.CONFLICT, error_class="execution_failed", number=3017, http=409,
        grpc="ABORTED",
        title="The database was restored, so it is unknown whether this call already happened",
        advice="Check whether its effect exists. If it does not, repeat the call with did_not_happen: true (MCP: "
        '_meta["dev.deputize/did-not-happen"]).',
    )  # fmt: skip
