"""What every HTTP door shares: ASGI's three words, bodies with a limit, and problems as they go out.

Above: the REST, JSON-RPC and metrics doors. Below: `core/outcome.py`, which knows what a problem says.
"""

import os
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import orjson
import structlog

from deputize.core.errors import Face, Internal, Malformed, Problem, TokenMissing, TooLarge, UnsupportedMedia
from deputize.core.outcome import problem_fields
from deputize.lifecycle.gateway import problem_of

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
_MUST_BE_SINGLE = (b"authorization", b"idempotency-key", b"content-type", b"traceparent", b"deputize-code")
_HEX = frozenset("0123456789abcdef")

log = structlog.get_logger("deputize.doors")


class ClientGone(Exception):
    """The client went away before its request was whole; there is nobody to answer."""


def headers_of(scope: Scope) -> Headers:
    """The headers by name. One that decides something may not come twice, for readers differ on which counts."""
    sent = scope["headers"]
    by_name: dict[bytes, bytes] = dict(sent)
    if len(by_name) != len(sent):
        names = [name for name, _ in sent]
        for name in _MUST_BE_SINGLE:
            if names.count(name) > 1:
                raise Malformed(f"the header {name.decode()} was sent more than once")
    return by_name


def require_json(headers: Headers) -> None:
    media = headers.get(b"content-type")
    if media == b"application/json":
        return
    if media is None or media.partition(b";")[0].strip().lower() != b"application/json":
        shown = "nothing" if media is None else media[:64].decode("latin-1")
        raise UnsupportedMedia(f"the body is declared as {shown}")


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes:
    declared = headers.get(b"content-length", b"0")
    if len(declared) > 12 or (declared.isdigit() and int(declared) > limit):
        raise TooLarge(f"the body is larger than {limit} bytes")
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False) and len(body) <= limit:
        return body
    return await _read_on(receive, bytearray(body), limit)


async def _read_on(receive: Receive, body: bytearray, limit: int) -> bytes:
    while len(body) <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if not message.get("more_body", False) and len(body) <= limit:
            return bytes(body)
    raise TooLarge(f"the body is larger than {limit} bytes")


def trace_id_of(scope: Scope) -> str:
    """The caller's trace where it sent one, else a new one: whoever is refused can still be helped."""
    sent: bytes = dict(scope["headers"]).get(b"traceparent", b"")
    parts = sent.decode("latin-1").split("-")
    if len(parts) == 4 and len(parts[1]) == 32 and _HEX.issuperset(parts[1]) and parts[1].strip("0"):
        return parts[1]
    return os.urandom(16).hex()


def retry_after(milliseconds: int) -> Header:
    """HTTP counts in whole seconds, and early is worse than late."""
    return b"retry-after", str(-(-milliseconds // 1000)).encode()


def challenge(face: Face, metadata: str | None) -> Header:
    """What a 401 says in HTTP's own words (RFC 6750), and where to learn whose token to get (RFC 9728)."""
    said = 'Bearer realm="deputize"'
    if face is not TokenMissing.face:
        said += ', error="invalid_token"'
    if metadata is not None:
        said += f', resource_metadata="{metadata}"'
    return b"www-authenticate", said.encode("ascii", "replace")


def problem_headers(face: Face, retry_after_ms: int | None, metadata: str | None = None) -> list[Header]:
    headers = [PROBLEM]
    if face.http == 401:
        headers.append(challenge(face, metadata))
    if retry_after_ms is not None:
        headers.append(retry_after(retry_after_ms))
    return headers


def problem_body(problem: Problem, trace_id: str) -> bytes:
    return orjson.dumps(problem_fields(problem, trace_id=trace_id))


def hide(error: Exception, trace_id: str) -> Problem:
    """What a caller sees of a fault of ours: nothing but the trace id that finds it in the log."""
    problem = problem_of(error)
    if problem is not None:
        log.warning("refused", reason=repr(error), trace_id=trace_id)
        return problem
    # Rendered here, because a renderer that shows local variables would show tokens and arguments.
    shown = "".join(traceback.format_exception(error))
    log.error("unexpected", trace_id=trace_id, exception=shown)
    return Internal("something went wrong inside the gateway")


async def answer(send: Send, status: int, headers: list[Header], body: bytes) -> None:
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def answer_problem(
    send: Send, problem: Problem, trace_id: str, more: tuple[Header, ...] = (), *, metadata: str | None = None
) -> None:
    headers = [*problem_headers(problem.face, problem.retry_after_ms, metadata), *more]
    await answer(send, problem.face.http, headers, problem_body(problem, trace_id))
