"""A server that is reached over HTTP, in whichever era it speaks.

Which era it is, is found out once and again when the server says otherwise. Before 2026-07-28 there are sessions, one
per credential, and a session that the server forgot is made anew: it says so without having done what was asked.

Above: `servers.py`. Below: `connections.py`, which carries bytes, and `exchange.py`, which understands answers.
"""

import asyncio
import contextlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, Final
from urllib.parse import urlsplit

from deputize.core.errors import Problem, UpstreamUnavailable
from deputize.core.frozen import frozen
from deputize.core.mcp import (
    EVENTS,
    JSON,
    METHOD_HEADER,
    MODERN,
    NAME_HEADER,
    SESSION_HEADER,
    VERSION_HEADER,
    VERSION_UNSUPPORTED,
)
from deputize.core.servers import CALL_TOOL, GET_PROMPT, READ_RESOURCE
from deputize.core.settings import McpServer
from deputize.execute.egress import Egress
from deputize.execute.upstreams.connections import Connection, Connections
from deputize.execute.upstreams.exchange import Declined, Heard, SessionLost, answer
from deputize.execute.upstreams.headers import carried, credential
from deputize.execute.upstreams.messages import (
    CHANGED,
    NEWS,
    Ask,
    Introduction,
    Refused,
    canceled,
    discovered,
    initialize,
    notification,
    only_speaks_others,
    shaken,
    speaks_ours,
)

MOST_SESSIONS: Final = 1_000
# How long what nobody waits for may take: to say that a call is no longer wanted, or that a session has ended.
_ASIDE_SECONDS: Final = 5.0
_MOST_ASIDES: Final = 32
# A stream of news that ends sooner was no use; one that ends later is worth a look at the server.
_USEFUL_SECONDS: Final = 5.0
_MOST_RETURNS: Final = 20
# By method, the parameter that is repeated in the header for names.
_NAMED: Final = {CALL_TOOL: "name", GET_PROMPT: "name", READ_RESOURCE: "uri"}


@frozen
class Session:
    """What a handshake made. A server that keeps no sessions gives no id."""

    id: str | None
    introduction: Introduction


class HttpLine:
    def __init__(self, server: McpServer, egress: Egress, *, key: bytes, changed: Callable[[], None]) -> None:
        assert server.url is not None
        url = server.url
        self._server = server
        self._key = key
        self._changed = changed
        self._connections = Connections(lambda protocol: egress.dial(url, protocol))
        self._numbers = count(1)
        self._modern: bool | None = None
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._shaking: dict[bytes, asyncio.Lock] = {}
        self._asides: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Task[None] | None = None
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host = parts.netloc.rpartition("@")[2]
        self._target = f"{path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: deputize\r\naccept-encoding: identity\r\n"
        self._post = f"POST {self._target}accept: {JSON}, {EVENTS}\r\ncontent-type: {JSON}\r\n"

    async def introduce(self, secret: str | None) -> Introduction:
        """What the server says of itself now; finds out its era on the way."""
        if self._modern is not False:
            found = await self._discover(secret)
            if found is not None:
                self._modern = True
                return found
            self._modern = False
        known = self._sessions.get(self._session_key(secret))
        if known is not None and known.id is None:
            # Without a session there is nothing that would tell us of another server behind the same address.
            self._forget(secret, known)
        return (await self._session(secret)).introduction

    async def ask(self, ask: Ask) -> dict[str, Any]:
        """The result of a request, `Refused` by the server, or the Problem that says what is known."""
        for _ in range(3):
            if self._modern is None:
                await self.introduce(ask.secret)
            session = None if self._modern else await self._session(ask.secret)
            try:
                return await self._exchange(ask, session)
            except SessionLost:
                ask.sent = False
                # Another server may stand there by now, of another era.
                self._forget(ask.secret, session)
                self._modern = None
            except Refused as refused:
                if refused.code != VERSION_UNSUPPORTED or not self._modern:
                    raise
                ask.sent = False
                self._modern = None
            except Declined as declined:
                raise declined.problem(self._server.name) from declined
        raise UpstreamUnavailable(f"the server {self._server.name} forgets its sessions at once", nothing_happened=True)

    async def _discover(self, secret: str | None) -> Introduction | None:
        for _ in range(2):
            try:
                return discovered(await self._exchange(Ask(method="server/discover", secret=secret), None))
            except Refused as refused:
                if only_speaks_others(refused):
                    raise UpstreamUnavailable(
                        f"the server {self._server.name} speaks no version of MCP that is spoken here",
                        nothing_happened=True,
                    ) from refused
                if not speaks_ours(refused):
                    break
            except (Declined, SessionLost):
                break
        return None

    # Sessions.

    async def _session(self, secret: str | None) -> Session:
        key = self._session_key(secret)
        known = self._sessions.get(key)
        if known is not None:
            self._sessions.move_to_end(key)
            return known
        lock = self._shaking.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                return self._sessions.get(key) or await self._shake(key, secret)
        finally:
            if not lock.locked():
                self._shaking.pop(key, None)

    async def _shake(self, key: bytes, secret: str | None) -> Session:
        heard = Heard()
        asking = Ask(method="initialize", params=initialize(), secret=secret)
        try:
            introduction = shaken(await self._exchange(asking, None, legacy=True, heard=heard))
        except (Refused, Declined) as refused:
            problem = refused.problem(self._server.name)
            raise UpstreamUnavailable(problem.message, nothing_happened=True) from refused
        except SessionLost as lost:
            raise UpstreamUnavailable(
                f"there is no MCP server at the address of {self._server.name}", nothing_happened=True
            ) from lost
        session = Session(id=heard.session, introduction=introduction)
        self._sessions[key] = session
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        await self._tell(notification("notifications/initialized"), session, secret)
        return session

    def _forget(self, secret: str | None, session: Session | None) -> None:
        key = self._session_key(secret)
        if self._sessions.get(key) is session:
            self._sessions.pop(key, None)

    def _session_key(self, secret: str | None) -> bytes:
        """Names a credential without keeping it."""
        return b"" if secret is None else hmac.digest(self._key, secret.encode(), "sha256")

    # One exchange.

    async def _exchange(
        self, ask: Ask, session: Session | None, *, legacy: bool = False, heard: Heard | None = None
    ) -> dict[str, Any]:
        number = next(self._numbers)
        modern = session is None and not legacy
        body = ask.body(number, modern)
        head = self._head(ask, session, modern, len(body))
        heard = heard or Heard()
        try:
            found = await self._answered(await self._connected(), head + body, number, ask, session, heard)
            return found if found is not None else await self._come_back(number, ask, session, heard)
        except asyncio.CancelledError:
            if ask.sent and not modern and ask.method != "initialize":
                self._aside(self._tell(canceled(number), session, ask.secret))
            raise

    async def _answered(
        self, connection: Connection, data: bytes, number: int, ask: Ask, session: Session | None, heard: Heard
    ) -> dict[str, Any] | None:
        """What comes of sending this; None for a stream that ended before. The connection is given back, whatever."""
        try:
            ask.sent = True
            connection.send(data)
            return await answer(connection, number, ask, heard, self._heard(ask, session))
        except (Refused, Declined, SessionLost):
            raise
        except BaseException:
            connection.abort()
            raise
        finally:
            self._connections.give_back(connection)

    async def _connected(self) -> Connection:
        try:
            return await self._connections.get()
        except Problem as problem:
            problem.nothing_happened = True
            raise

    async def _come_back(self, number: int, ask: Ask, session: Session | None, heard: Heard) -> dict[str, Any]:
        """A stream that ended without its answer and said where to go on is gone on with; any other is lost."""
        for _ in range(_MOST_RETURNS):
            if session is None or session.id is None or heard.last_id is None:
                break
            await asyncio.sleep((1_000 if heard.pause_ms is None else heard.pause_ms) / 1000)
            connection = await self._connections.get()
            asking = self._get_head(session, ask.secret, heard.last_id)
            try:
                found = await self._answered(connection, asking, number, ask, session, heard)
            except (Declined, SessionLost):
                break
            if found is not None:
                return found
        raise UpstreamUnavailable(f"the server {self._server.name} ended its answer before it had answered")

    def _head(self, ask: Ask, session: Session | None, modern: bool, size: int) -> bytes:
        lines = [self._post]
        if modern:
            lines.append(f"{VERSION_HEADER}: {MODERN}\r\n{METHOD_HEADER}: {ask.method}\r\n")
            if ask.method in _NAMED:
                lines.append(f"{NAME_HEADER}: {carried(ask.params[_NAMED[ask.method]])}\r\n")
            lines += [f"{name}: {value}\r\n" for name, value in ask.headers.items()]
        lines.append(self._who(session, ask.secret))
        lines.append(f"content-length: {size}\r\n\r\n")
        return "".join(lines).encode("latin-1")

    def _get_head(self, session: Session | None, secret: str | None, last_id: str | None) -> bytes:
        last = "" if last_id is None else f"last-event-id: {carried(last_id)}\r\n"
        return f"GET {self._target}accept: {EVENTS}\r\n{self._who(session, secret)}{last}\r\n".encode("latin-1")

    def _who(self, session: Session | None, secret: str | None) -> str:
        lines = ""
        if session is not None:
            lines = f"{VERSION_HEADER}: {session.introduction.protocol}\r\n"
            if session.id is not None:
                lines += f"{SESSION_HEADER}: {session.id}\r\n"
        if secret is not None:
            lines += "{}: {}\r\n".format(*credential(self._server.header, secret))
        return lines

    # What servers say without being asked, and what they are told.

    def _heard(self, ask: Ask, session: Session | None) -> Callable[[dict[str, Any], bytes | None], None]:
        def heard(message: dict[str, Any], reply: bytes | None) -> None:
            if reply is not None:
                self._aside(self._tell(reply, session, ask.secret))
            elif message.get("method") in CHANGED:
                self._changed()
            else:
                ask.heard(str(message.get("method")), message.get("params"))

        return heard

    async def _tell(self, body: bytes, session: Session | None, secret: str | None) -> None:
        """Sends what has no answer."""
        head = f"{self._post}{self._who(session, secret)}content-length: {len(body)}\r\n\r\n".encode("latin-1")
        connection = await self._connected()
        try:
            connection.send(head + body)
            await connection.answered()
        except BaseException:
            connection.abort()
            raise
        finally:
            self._connections.give_back(connection)

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Does what nobody waits for, for a moment and without a word. A server that wants more of it at once than any
        does in earnest is not heard.
        """
        if len(self._asides) >= _MOST_ASIDES:
            work.close()
            return

        async def quietly() -> None:
            with contextlib.suppress(Problem, TimeoutError):
                async with asyncio.timeout(_ASIDE_SECONDS):
                    await work

        task = asyncio.get_running_loop().create_task(quietly())
        self._asides.add(task)
        task.add_done_callback(self._asides.discard)

    def listen(self, secret: str | None) -> None:
        """Hears of changes from now on, if the server tells of any and nobody listens already."""
        if self._listening is not None and not self._listening.done():
            return
        self._listening = asyncio.get_running_loop().create_task(self._listen(secret))

    async def _listen(self, secret: str | None) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        session = None if self._modern else self._sessions.get(self._session_key(secret))
        number = next(self._numbers)
        asking = Ask(method="subscriptions/listen", secret=secret)
        if self._modern:
            asking.params = {"notifications": NEWS}
            body = asking.body(number, True)
            data = self._head(asking, None, True, len(body)) + body
        elif session is not None and session.id is not None:
            data = self._get_head(session, secret, None)
        else:
            return
        del secret
        try:
            connection = await self._connections.get()
        except Problem:
            return
        try:
            connection.send(data)
            await answer(connection, number, asking, Heard(), self._heard(asking, session))
        except (Problem, Refused, Declined, SessionLost):
            pass
        finally:
            connection.abort()
            self._connections.give_back(connection)
        if loop.time() - began >= _USEFUL_SECONDS:
            self._changed()

    async def aclose(self) -> None:
        open_without_credential = self._sessions.pop(b"", None)
        tasks = [*self._asides, *([self._listening] if self._listening else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if open_without_credential is not None and open_without_credential.id is not None:
            with contextlib.suppress(Problem, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._end(open_without_credential)
        await self._connections.aclose()

    async def _end(self, session: Session) -> None:
        """Tells the server that its session is over, which it need not be told."""
        connection = await self._connections.get()
        try:
            connection.send(f"DELETE {self._target}{self._who(session, None)}content-length: 0\r\n\r\n".encode())
            await connection.answered()
        finally:
            connection.abort()
            self._connections.give_back(connection)
