"""An HTTP answer, understood: the one message that was asked for, out of JSON or a stream of events.

Above: `http.py`. Below: `connections.py` for the bytes, `events.py` for streams, `messages.py` for what they say.
"""

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
from deputize.core.mcp import EVENTS, INVALID_REQUEST, JSON, SESSION_HEADER
from deputize.execute.upstreams.connections import Connection
from deputize.execute.upstreams.events import Events
from deputize.execute.upstreams.messages import (
    LARGEST_ANSWER,
    RELAYS_LOSS,
    Ask,
    Refused,
    answer_to,
    parsed,
    result_of,
)

_SESSION_ID: Final = re.compile(r"[\x21-\x7e]{1,512}")
_LARGEST_REFUSAL: Final = 65_536
_WITHOUT_SESSION: Final = RELAYS_LOSS | {INVALID_REQUEST}
# What says that a request was turned away at the door.
_TURNED_AWAY: Final = frozenset({400, 404, 405, 406, 410, 411, 413, 414, 415, 421, 426, 431})


class SessionLost(Exception):
    """The server does not know the session, or the address; it did nothing of what was asked."""


class Declined(Exception):
    """An HTTP status that refuses, without a word of MCP."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status

    def problem(self, server: str) -> Problem:
        return UpstreamUnavailable(
            f"the server {server} answers with HTTP {self.status}", nothing_happened=self.status in _TURNED_AWAY
        )


@dataclass(kw_only=True, slots=True)
class Heard:
    """What an exchange leaves behind beside its answer: a session's id, and where a broken stream can be gone on."""

    session: str | None = None
    last_id: str | None = None
    pause_ms: int | None = None


# A message that is not the answer, and what it is to be told, if it asks something.
Aside = Callable[[dict[str, Any], bytes | None], None]


async def answer(connection: Connection, number: int, ask: Ask, heard: Heard, aside: Aside) -> dict[str, Any] | None:
    """The result that was asked for; None if a stream ended without it."""
    status = await connection.answered()
    if status != 200:
        raise await refusal(connection, ask.secret is not None)
    session = connection.headers.get(SESSION_HEADER)
    if session is not None and _SESSION_ID.fullmatch(session):
        heard.session = session
    kind = connection.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == JSON:
        message = parsed(await connection.body(LARGEST_ANSWER))
        if not _is_answer(message, number):
            raise UpstreamUnavailable("the server answers something that was not asked")
        return result_of(message)
    if kind != EVENTS:
        raise UpstreamUnavailable("the server answers with neither JSON nor events")
    return await _streamed(connection, number, heard, aside)


async def _streamed(connection: Connection, number: int, heard: Heard, aside: Aside) -> dict[str, Any] | None:
    events = Events(LARGEST_ANSWER)
    try:
        while data := await connection.part():
            for event in events.feed(data):
                message = parsed(event.data)
                if "method" in message:
                    aside(message, answer_to(message))
                elif _is_answer(message, number):
                    return result_of(message)
    except UpstreamUnavailable:
        # A connection that broke is a stream that ended, where it can be gone on.
        if events.last_id is None:
            raise
    finally:
        heard.last_id = events.last_id or heard.last_id
        heard.pause_ms = heard.pause_ms if events.pause_ms is None else events.pause_ms
    return None


def _is_answer(message: dict[str, Any], number: int) -> bool:
    """Whether it says which request it answers, or is an error that could not say: another's error is nobody's verdict
    on what was asked here.
    """
    identity = message.get("id")
    return (type(identity) is int and identity == number) or (identity is None and "error" in message)


async def refusal(connection: Connection, had_credential: bool) -> Exception:
    """What a status other than 200 means."""
    status = connection.status
    if status in (401, 403):
        return _unwelcome(connection, had_credential)
    if status == 429:
        after = connection.headers.get("retry-after", "")
        pause = min(int(after[:6]), 3_600) * 1000 if after.isascii() and after.isdigit() else None
        return UpstreamRateLimited("the server asks for fewer calls", retry_after_ms=pause)
    message = await _said(connection) if 400 <= status < 500 else {}
    anonymous = message.get("id") is None
    if status == 404 and anonymous and not _is_method_unknown(message):
        return SessionLost()
    if status == 400 and anonymous and _speaks_of_session(message):
        return SessionLost()
    if isinstance(message.get("error"), dict):
        try:
            result_of(message)
        except Refused as refused:
            return refused
    return Declined(status)


def _unwelcome(connection: Connection, had_credential: bool) -> Problem:
    problem: CredentialExpired | CredentialMissing
    if had_credential:
        problem = CredentialExpired("the server refuses the credential", nothing_happened=True)
    else:
        problem = CredentialMissing(
            "the server asks for a credential",
            advice="Say in the settings of this server which credential calls carry.",
            nothing_happened=True,
        )
    problem.challenge = connection.headers.get("www-authenticate", "")
    problem.unknown = connection.status == 401
    return problem


async def _said(connection: Connection) -> dict[str, Any]:
    """The JSON a refusal came with, if it is any."""
    try:
        message = orjson.loads(await connection.body(_LARGEST_REFUSAL))
    except (orjson.JSONDecodeError, Problem):
        return {}
    return message if isinstance(message, dict) else {}


def _speaks_of_session(message: dict[str, Any]) -> bool:
    """Servers say in words that a session is missing, under codes for what was not begun. Under any other code a tool
    may be speaking of a session of its own, after it did something.
    """
    error = message.get("error")
    if not isinstance(error, dict) or error.get("code") not in _WITHOUT_SESSION:
        return False
    return "session" in str(error.get("message")).lower()


def _is_method_unknown(message: dict[str, Any]) -> bool:
    error = message.get("error")
    return isinstance(error, dict) and error.get("code") == -32601
