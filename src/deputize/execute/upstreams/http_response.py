"""Read the result of a request from an HTTP response, either JSON or a stream of server-sent events."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from deputize.core.errors import (
    CredentialExpired,
    CredentialMissing,
    Problem,
    UpstreamRateLimited,
    UpstreamUnavailable,
)
from deputize.core.mcp.constants import INVALID_REQUEST, JSON_MEDIA_TYPE, SESSION_HEADER, SSE_MEDIA_TYPE
from deputize.core.mcp.sse import SseParser
from deputize.execute.upstreams.http_connections import HttpConnection
from deputize.execute.upstreams.jsonrpc import (
    LARGEST_ANSWER,
    RELAY_ERROR_CODES,
    UpstreamRequest,
    UpstreamRpcError,
    build_reply,
    extract_result,
    parse_message_off_loop,
)

_SESSION_ID: Final = re.compile(r"[\x21-\x7e]{1,512}")
_LARGEST_REFUSAL: Final = 65_536
# As much of a stream as takes less than 3 ms to parse, whatever it contains.
_STREAM_SLICE: Final = 4_096
_SESSION_ERROR_CODES: Final = RELAY_ERROR_CODES | {INVALID_REQUEST}
# Statuses that mean that the request was rejected without being processed.
_REJECTION_STATUSES: Final = frozenset({400, 404, 405, 406, 410, 411, 413, 414, 415, 421, 426, 431})


class SessionLost(Exception):
    """The server does not know the session or the URL; it did not process the request."""


class HttpStatusError(Exception):
    """An HTTP error status without an MCP message."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status

    def to_problem(self, server: str) -> Problem:
        """Convert the status to a Problem."""
        return UpstreamUnavailable(
            f"the server {server} answered with HTTP {self.status}", nothing_happened=self.status in _REJECTION_STATUSES
        )


@dataclass(kw_only=True, slots=True)
class ExchangeState:
    """What a response says besides its result: the session id, and where an interrupted stream can be resumed."""

    session_id: str | None = None
    last_event_id: str | None = None
    pause_ms: int | None = None


# Handle a message that is not the result, with the reply to send if it is a request.
MessageHandler = Callable[[dict[str, Any], bytes | None], None]


async def read_answer(
    connection: HttpConnection, number: int, request: UpstreamRequest, state: ExchangeState, on_message: MessageHandler
) -> dict[str, Any] | None:
    """Read the result of a request; None if a stream ended without it."""
    status = await connection.wait_for_status()
    if status != 200:
        raise await interpret_status(connection, request.secret is not None)
    session_id = connection.headers.get(SESSION_HEADER)
    if session_id is not None and _SESSION_ID.fullmatch(session_id):
        state.session_id = session_id
    kind = connection.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == JSON_MEDIA_TYPE:
        message = await parse_message_off_loop(await connection.read_body(LARGEST_ANSWER))
        if not _is_answer(message, number):
            raise UpstreamUnavailable("the server sent a message with the wrong request id")
        return extract_result(message)
    if kind != SSE_MEDIA_TYPE:
        raise UpstreamUnavailable("the server sent neither JSON nor server-sent events")
    return await _read_stream(connection, number, state, on_message)


async def _read_stream(
    connection: HttpConnection, number: int, state: ExchangeState, on_message: MessageHandler
) -> dict[str, Any] | None:
    events = SseParser(LARGEST_ANSWER)
    try:
        while data := await connection.read_part():
            for start in range(0, len(data), _STREAM_SLICE):
                for event in events.parse_chunk(data[start : start + _STREAM_SLICE]):
                    message = await parse_message_off_loop(event.data)
                    if "method" in message:
                        on_message(message, build_reply(message))
                    elif _is_answer(message, number):
                        return extract_result(message)
                # Let the event loop do other things before the next slice: reading what is there already does not.
                await asyncio.sleep(0)
    except UpstreamUnavailable:
        # A lost connection ends the stream; with an event id it can be resumed.
        if events.last_id is None:
            raise
    finally:
        state.last_event_id = events.last_id or state.last_event_id
        state.pause_ms = state.pause_ms if events.pause_ms is None else events.pause_ms
    return None


def _is_answer(message: dict[str, Any], number: int) -> bool:
    """Tell whether a message answers this request: it has the request's id, or is an error without an id."""
    identity = message.get("id")
    return (type(identity) is int and identity == number) or (identity is None and "error" in message)


async def interpret_status(connection: HttpConnection, had_credential: bool) -> Exception:
    """Interpret a status other than 200 as the exception to raise."""
    status = connection.status
    if status in (401, 403):
        return _build_credential_problem(connection, had_credential)
    if status == 429:
        after = connection.headers.get("retry-after", "")
        pause = min(int(after[:6]), 3_600) * 1000 if after.isascii() and after.isdigit() else None
        return UpstreamRateLimited("the server limits the rate of calls (HTTP 429)", retry_after_ms=pause)
    message = await _read_json_body(connection) if 400 <= status < 500 else {}
    anonymous = message.get("id") is None
    if status == 404 and anonymous and not _is_method_unknown(message):
        return SessionLost()
    if status == 400 and anonymous and _is_session_error(message):
        return SessionLost()
    if isinstance(message.get("error"), dict):
        try:
            extract_result(message)
        except UpstreamRpcError as rpc_error:
            return rpc_error
    return HttpStatusError(status)


def _build_credential_problem(connection: HttpConnection, had_credential: bool) -> Problem:
    challenge, is_unknown = connection.headers.get("www-authenticate", ""), connection.status == 401
    if had_credential:
        return CredentialExpired(
            "the server rejected the credential", nothing_happened=True, challenge=challenge, is_unknown=is_unknown
        )
    return CredentialMissing(
        "the server requires a credential",
        advice="Set credential for this server under [[servers]] in the settings.",
        nothing_happened=True,
        challenge=challenge,
        is_unknown=is_unknown,
    )


async def _read_json_body(connection: HttpConnection) -> dict[str, Any]:
    """Read the JSON object of an error response; empty if there is none."""
    try:
        message = orjson.loads(await connection.read_body(_LARGEST_REFUSAL))
    except (orjson.JSONDecodeError, Problem):
        return {}
    return message if isinstance(message, dict) else {}


def _is_session_error(message: dict[str, Any]) -> bool:
    """Tell whether an error means that the session is unknown.

    Servers say so only in the message, with codes for unprocessed requests. With any other code a tool may mean a
    session of its own, after it has acted.
    """
    error = message.get("error")
    if not isinstance(error, dict) or error.get("code") not in _SESSION_ERROR_CODES:
        return False
    return "session" in str(error.get("message")).lower()


def _is_method_unknown(message: dict[str, Any]) -> bool:
    error = message.get("error")
    return isinstance(error, dict) and error.get("code") == -32601
