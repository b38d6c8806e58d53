"""Define the errors of values: arguments, results and answers that do not fit their schema (E33xx)."""

from deputize.core.errors.base import ErrorCode, ErrorSpec, Problem


class ValidationProblem(Problem):
    """The values do not match the contract of the tool."""


class SchemaViolation(ValidationProblem):
    spec = ErrorSpec(
        slug="schema-violation", code=ErrorCode.INVALID_INPUT, error_class="schema_validation_failed", number=3301,
        http=400, grpc="INVALID_ARGUMENT", jsonrpc=-32602,
        title="The arguments do not match the tool's schema",
        advice="Fix the fields listed in details.errors.",
    )  # fmt: skip


class ResultInvalid(ValidationProblem):
    spec = ErrorSpec(
        slug="result-invalid", code=ErrorCode.INTERNAL_TOOL_ERROR, error_class="execution_failed", number=3303,
        http=502, grpc="INTERNAL",
        title="The tool's result does not match its schema",
        advice="Report this to the tool's author: the call was valid. A tool that changes data may have changed it.",
    )  # fmt: skip


class SemanticViolation(ValidationProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="semantic-violation", code=ErrorCode.PRECONDITION_FAILED, error_class="invalid_arguments", number=3306,
        http=422, grpc="FAILED_PRECONDITION",
        title="The tool cannot act on these values",
        advice="Fix the value that the message names. Nothing was changed.",
    )  # fmt: skip


class PredicateFailed(ValidationProblem):
    spec = ErrorSpec(
        slug="predicate-failed", code=ErrorCode.INTERNAL_TOOL_ERROR, error_class="execution_failed", number=3307,
        http=502, grpc="INTERNAL",
        title="The tool's result fails a sanity check",
        advice="Do not rely on the result. If the tool changes data, check what it changed.",
    )  # fmt: skip


class PreconditionFailed(ValidationProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="precondition-failed", code=ErrorCode.PRECONDITION_FAILED, error_class="invalid_arguments", number=3308,
        http=412, grpc="FAILED_PRECONDITION",
        title="The preview shows that the call would fail",
        advice="Meet the preconditions in details that do not hold, then call again.",
    )  # fmt: skip


class RoundTokenRejected(ValidationProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="round-token-rejected", code=ErrorCode.INVALID_INPUT, error_class="invalid_arguments", number=3320,
        http=400, grpc="INVALID_ARGUMENT", jsonrpc=-32602,
        title="The round token is invalid or expired",
        advice="Send the round token unchanged, with the same tool and arguments, within an hour. Otherwise make a new "
        "call.",
    )  # fmt: skip


class InputResponsesInvalid(ValidationProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="input-responses-invalid", code=ErrorCode.INVALID_INPUT, error_class="schema_validation_failed",
        number=3321, http=400, grpc="INVALID_ARGUMENT", jsonrpc=-32602,
        title="An input response is invalid",
        advice="Fix the responses that details names, and send them with the same round token.",
    )  # fmt: skip
