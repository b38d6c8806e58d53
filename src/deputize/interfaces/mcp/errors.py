"""Map problems to MCP: to a JSON-RPC error, or to a tool result with `isError`. No other module does.

A model sees results and can act on them; JSON-RPC errors are for the client. So a problem of the call is a result, and
only a problem of the request, of the token or of the gateway is an error. An unknown tool is an error, because the
specification says so.
"""

from collections.abc import Mapping
from typing import Any, Final

from deputize.core import errors
from deputize.core.contract.names import to_outward_name
from deputize.core.errors import ErrorSpec, Problem
from deputize.core.mcp.constants import (
    CAPABILITY_MISSING,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    VERSION_UNSUPPORTED,
)
from deputize.core.outcome import build_problem_fields

# Problems that are JSON-RPC errors even as the outcome of a call.
RPC_CODES: Final[Mapping[type[Problem], int]] = {
    errors.InternalError: INTERNAL_ERROR,
    errors.MalformedRequest: INVALID_PARAMS,
    errors.ParseFailed: PARSE_ERROR,
    errors.RequestTooLarge: INVALID_REQUEST,
    errors.UnsupportedMedia: INVALID_REQUEST,
    errors.MethodNotAllowed: INVALID_REQUEST,
    errors.NoSuchRoute: METHOD_NOT_FOUND,
    errors.ToolNotFound: INVALID_PARAMS,
    errors.VersionNotFound: INVALID_PARAMS,
    errors.CallNotFound: INVALID_PARAMS,
    errors.RoundTokenRejected: INVALID_PARAMS,
}
_CODES_BY_SLUG: Final = {problem.spec.slug: code for problem, code in RPC_CODES.items()}

# The HTTP status of an error since 2026-07-28. Other codes have the status of their problem.
HTTP_STATUSES: Final[Mapping[int, int]] = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    CAPABILITY_MISSING: 400,
    VERSION_UNSUPPORTED: 400,
    METHOD_NOT_FOUND: 404,
    INTERNAL_ERROR: 500,
}

_KEY_ADVICE = (
    "Call again with an idempotency key: in the argument idempotency_key, in "
    '_meta["dev.deputize/idempotency-key"], or in the HTTP header Idempotency-Key. Use a new key for a new action, '
    "and the same key only to repeat the same call."
)
# Advice that differs in MCP from the one in the error spec.
_ADVICE: Final[Mapping[str, str]] = {
    errors.IdempotencyKeyRequired.spec.slug: _KEY_ADVICE,
    errors.CallInFlight.spec.slug: (
        "Wait, then call calls_get with the call_id in details, or repeat the call with its key."
    ),
    errors.ToolNotFound.spec.slug: "List the tools again: tools/list shows what you can call.",
    errors.MalformedRequest.spec.slug: "Compare the request with the MCP specification of your protocol version.",
    errors.CallNotFound.spec.slug: "Check the call_id; you see only calls you made.",
}


class RpcError(Exception):
    """A JSON-RPC error. `http` is its HTTP status if the code does not imply one."""

    def __init__(self, code: int, message: str, data: Any = None, *, http: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.http = http or HTTP_STATUSES.get(code, 200)

    def to_json(self) -> dict[str, Any]:
        """Return the error object."""
        body = {"code": self.code, "message": self.message}
        return body if self.data is None else {**body, "data": self.data}


def is_protocol_error(spec: ErrorSpec) -> bool:
    """Tell whether a call with this outcome is answered with an error. A 401 is one, so that clients sign in again."""
    return spec.slug in _CODES_BY_SLUG or spec.http == 401


def get_rpc_code(spec: ErrorSpec) -> int:
    """Return the JSON-RPC error code of an error spec."""
    return _CODES_BY_SLUG.get(spec.slug, spec.jsonrpc_code)


def get_advice(slug: str, default: str) -> str:
    """Return the advice for MCP clients, or the default."""
    return _ADVICE.get(slug, default)


def build_error(problem: Problem, trace_id: str) -> RpcError:
    """Build the error of a problem that is not the outcome of a call."""
    data = build_problem_fields(problem, trace_id=trace_id)
    data["error"]["advice"] = get_advice(problem.spec.slug, problem.advice)
    code = get_rpc_code(problem.spec)
    return RpcError(code, problem.message, data, http=problem.spec.http if code == problem.spec.jsonrpc_code else None)


def build_call_error(envelope: Mapping[str, Any], spec: ErrorSpec) -> RpcError:
    """Build the error of a call's outcome. Its whole envelope is the data, as over JSON-RPC, with names and advice for
    this protocol.
    """
    code = get_rpc_code(spec)
    http = 401 if spec.http == 401 else HTTP_STATUSES.get(code)
    message, error = str(envelope["detail"]), envelope["error"]
    if error["advice"] == spec.advice:
        error = {**error, "advice": get_advice(spec.slug, spec.advice)}
    if names := error["details"].get("did_you_mean"):
        outward_names = [to_outward_name(each) for each in names]
        message = message.replace(f"did you mean {names[0]}?", f"did you mean {outward_names[0]}?")
        error = {**error, "message": message, "details": {**error["details"], "did_you_mean": outward_names}}
    return RpcError(code, message, {**envelope, "detail": message, "error": error}, http=http)
