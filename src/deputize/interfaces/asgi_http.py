"""Share between HTTP interfaces: the ASGI types, reading headers and limited bodies, and sending problems."""

import os
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import orjson
import structlog

from deputize.core.errors import (
    ErrorSpec,
    InternalError,
    MalformedRequest,
    Problem,
    RequestTooLarge,
    TokenMissing,
    UnsupportedMedia,
)
from deputize.core.outcome import build_problem_fields
from deputize.operations.gateway import translate_error

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]
Headers = Mapping[bytes, bytes]

JSON: Header = (b"content-type", b"application/json")
PROBLEM: Header = (b"content-type", b"application/problem+json")
PROBLEM_MEDIA = "application/problem+json"
_SINGLE_HEADERS = (
    b"authorization", b"idempotency-key", b"content-type", b"traceparent", b"deputize-code", b"deputize-confirmation",
)  # fmt: skip
_HEX = frozenset("0123456789abcdef")

log = structlog.get_logger("deputize.interfaces")


class ClientDisconnect(Exception):
    """The client disconnected before its request was complete, so no response can be sent."""


def parse_headers(scope: Scope) -> Headers:
    """Read the headers by name. Refuse a repeated security header: proxies differ on which value counts."""
    raw_headers = scope["headers"]
    by_name: dict[bytes, bytes] = dict(raw_headers)
    if len(by_name) != len(raw_headers):
        names = [name for name, _ in raw_headers]
        for name in _SINGLE_HEADERS:
            if names.count(name) > 1:
                raise MalformedRequest(f"the header {name.decode()} was sent more than once")
    return by_name


def require_json(headers: Headers) -> None:
    """Refuse a body that is not declared as JSON."""
    media = headers.get(b"content-type")
    if media == b"application/json":
        return
    if media is None or media.partition(b";")[0].strip().lower() != b"application/json":
        media_text = "nothing" if media is None else media[:64].decode("latin-1")
        raise UnsupportedMedia(f"the body is declared as {media_text}")


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes:
    """Read a request's body, up to a limit in bytes."""
    content_length = headers.get(b"content-length", b"0")
    if len(content_length) > 12 or (content_length.isdigit() and int(content_length) > limit):
        raise RequestTooLarge(f"the body is larger than {limit} bytes")
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False) and len(body) <= limit:
        return body
    return await _read_remaining_body(receive, bytearray(body), limit)


async def _read_remaining_body(receive: Receive, body: bytearray, limit: int) -> bytes:
    while len(body) <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if not message.get("more_body", False) and len(body) <= limit:
            return bytes(body)
    raise RequestTooLarge(f"the body is larger than {limit} bytes")


def read_trace_id(scope: Scope) -> str:
    """Read the caller's trace id, or make a new one, so that every refusal can be found in the log."""
    traceparent: bytes = dict(scope["headers"]).get(b"traceparent", b"")
    parts = traceparent.decode("latin-1").split("-")
    if len(parts) == 4 and len(parts[1]) == 32 and _HEX.issuperset(parts[1]) and parts[1].strip("0"):
        return parts[1]
    return os.urandom(16).hex()


def make_retry_after_header(milliseconds: int) -> Header:
    """Make a Retry-After header, which is in whole seconds: round up."""
    return b"retry-after", str(-(-milliseconds // 1000)).encode()


def make_challenge_header(spec: ErrorSpec, metadata: str | None) -> Header:
    """Make the WWW-Authenticate header of a 401 (RFC 6750), with the URL of the resource metadata (RFC 9728)."""
    value = 'Bearer realm="deputize"'
    if spec is not TokenMissing.spec:
        value += ', error="invalid_token"'
    if metadata is not None:
        value += f', resource_metadata="{metadata}"'
    return b"www-authenticate", value.encode("ascii", "replace")


def build_problem_headers(spec: ErrorSpec, retry_after_ms: int | None, metadata: str | None = None) -> list[Header]:
    """Build the headers of a problem response."""
    headers = [PROBLEM]
    if spec.http == 401:
        headers.append(make_challenge_header(spec, metadata))
    if retry_after_ms is not None:
        headers.append(make_retry_after_header(retry_after_ms))
    return headers


def render_problem(problem: Problem, trace_id: str) -> bytes:
    """Render a problem as JSON (RFC 9457)."""
    return orjson.dumps(build_problem_fields(problem, trace_id=trace_id))


def hide_internal_error(error: Exception, trace_id: str) -> Problem:
    """Log an unexpected error; return the Problem for the caller, which shows nothing of it but the trace id."""
    problem = translate_error(error)
    if problem is not None:
        log.warning("refused", reason=repr(error), trace_id=trace_id)
        return problem
    # Formatted here, because a log renderer that shows local variables would show tokens and arguments.
    traceback_text = "".join(traceback.format_exception(error))
    log.error("unexpected", trace_id=trace_id, exception=traceback_text)
    return InternalError("something went wrong inside the gateway")


async def send_response(send: Send, status: int, headers: list[Header], body: bytes) -> None:
    """Send a complete response."""
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_problem(
    send: Send, problem: Problem, trace_id: str, extra_headers: tuple[Header, ...] = (), *, metadata: str | None = None
) -> None:
    """Send a problem response."""
    headers = [*build_problem_headers(problem.spec, problem.retry_after_ms, metadata), *extra_headers]
    await send_response(send, problem.spec.http, headers, render_problem(problem, trace_id))
