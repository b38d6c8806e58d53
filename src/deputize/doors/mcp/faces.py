"""What a problem looks like to an MCP client, in one place: an error of the protocol, or a result that says `isError`.

A model sees results and can act on them; errors of the protocol are for the client. So whatever concerns the call is a
result, and only what is wrong with the request itself, with the token, or with us, is an error. A tool that is not
there is an error, because the specification says so.

Above: every module of this door. Below: `core/errors.py`, whose faces are translated here and nowhere else.
"""

from collections.abc import Mapping
from typing import Any, Final

from deputize.core import errors
from deputize.core.errors import Face, Problem
from deputize.core.mcp import (
    CAPABILITY_MISSING,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    VERSION_UNSUPPORTED,
)
from deputize.core.outcome import problem_fields

# Problems that are errors of the protocol even where they are what became of a call.
CODES: Final[Mapping[type[Problem], int]] = {
    errors.Internal: INTERNAL_ERROR,
    errors.Malformed: INVALID_PARAMS,
    errors.ParseFailed: PARSE_ERROR,
    errors.TooLarge: INVALID_REQUEST,
    errors.UnsupportedMedia: INVALID_REQUEST,
    errors.MethodNotAllowed: INVALID_REQUEST,
    errors.NoSuchRoute: METHOD_NOT_FOUND,
    errors.ToolNotFound: INVALID_PARAMS,
    errors.VersionNotFound: INVALID_PARAMS,
    errors.CallNotFound: INVALID_PARAMS,
    errors.RoundRefused: INVALID_PARAMS,
}
_BY_SLUG: Final = {problem.face.slug: code for problem, code in CODES.items()}

# The HTTP status of an error since 2026-07-28. Codes of our own keep the status of their problem.
STATUSES: Final[Mapping[int, int]] = {
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
    '_meta["dev.deputize/idempotency-key"], or in the HTTP header Idempotency-Key. Use a new one for a new action, '
    "and the same one only to repeat the very same call."
)
# What to do next is said in the words of a door; a few problems have other ones here.
_ADVICE: Final[Mapping[str, str]] = {
    errors.KeyRequired.face.slug: _KEY_ADVICE,
    errors.InFlight.face.slug: "Wait, then ask calls_get for the call_id in details, or repeat the call with its key.",
    errors.ToolNotFound.face.slug: "List the tools again: tools/list shows what you can call.",
    errors.Malformed.face.slug: "Compare the request with the MCP specification of the version you speak.",
    errors.CallNotFound.face.slug: "Check the call_id; you see only calls you made.",
}


class RpcError(Exception):
    """An error of the protocol, as JSON-RPC says it. `http` is its status where that is not told by its code."""

    def __init__(self, code: int, message: str, data: Any = None, *, http: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.http = http or STATUSES.get(code, 200)

    def to_json(self) -> dict[str, Any]:
        told = {"code": self.code, "message": self.message}
        return told if self.data is None else {**told, "data": self.data}


def is_protocol_error(face: Face) -> bool:
    """Whether a call that came to this is answered with an error. A token that is not good any more is one, so that
    clients sign in again.
    """
    return face.slug in _BY_SLUG or face.http == 401


def code_of(face: Face) -> int:
    return _BY_SLUG.get(face.slug, face.jsonrpc_code)


def advice_of(slug: str, otherwise: str) -> str:
    return _ADVICE.get(slug, otherwise)


def error_of(problem: Problem, trace_id: str) -> RpcError:
    """A problem that is no call's outcome: whatever was asked for, it could not be answered."""
    data = problem_fields(problem, trace_id=trace_id)
    data["error"]["advice"] = advice_of(problem.face.slug, problem.advice)
    code = code_of(problem.face)
    return RpcError(code, problem.message, data, http=problem.face.http if code == problem.face.jsonrpc_code else None)


def error_in(envelope: Mapping[str, Any], face: Face) -> RpcError:
    """The same, of a call that came to it: its whole envelope is the data, as through JSON-RPC."""
    code = code_of(face)
    http = 401 if face.http == 401 else STATUSES.get(code)
    return RpcError(code, str(envelope["detail"]), dict(envelope), http=http)
