"""A proxy before PostgreSQL that strikes at one exact commit: before forwarding or before acknowledging it.

TLS is declined, so that the proxy can read along; SCRAM and all else pass through untouched.
"""

import asyncio
import struct
from collections import Counter
from collections.abc import Callable
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from proofs.kit.fault_trigger import Action, FaultTrigger
from proofs.kit.postgres_protocol import (
    CANCEL_REQUEST,
    GSSENC_REQUEST,
    SSL_REQUEST,
    Framer,
    Message,
    Transactions,
    read_ready_status,
)

PgPoint = Literal["before_forward", "after_commit_before_ack"]
Commit = tuple[str, ...]
CommitTrigger = FaultTrigger[Commit, PgPoint]


class PgProxy:
    """`async with PgProxy(dsn) as proxy:` listens on loopback until the block ends."""

    def __init__(self, upstream_dsn: str) -> None:
        self.commits: Counter[str] = Counter()
        """Acknowledged commits by their SQL, statements of one transaction joined with '; '."""
        self._upstream_dsn = upstream_dsn
        self._trigger: CommitTrigger | None = None
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "PgProxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        await self._cancel_tasks(list(self._connections))

    @property
    def port(self) -> int:
        if self._server is None:
            raise RuntimeError("the proxy listens only inside `async with PgProxy(dsn)`")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def dsn(self) -> str:
        """The upstream's DSN with the proxy's address in it: what the gateway is given."""
        return replace_address(self._upstream_dsn, "127.0.0.1", self.port)

    def arm(self, match: Callable[[str], bool], nth: int, point: PgPoint, action: Action) -> CommitTrigger:
        """Strike once, at the nth commit (from now, over all connections) with a statement that matches.

        `before_forward`: PostgreSQL never sees the commit. `after_commit_before_ack`: PostgreSQL committed
        and said so, the gateway did not hear it. A commit that fails is passed on and not counted. Nothing
        else moves through the proxy until the action's first await, so kill -9 first. Then both sides of the
        connection are closed. What a killed gateway had already sent on other connections still arrives, as
        it would over any network.
        """
        self._trigger = FaultTrigger(lambda commit: any(map(match, commit)), nth, point, action)
        return self._trigger

    def disarm(self) -> None:
        self._trigger = None

    async def close_connections(self) -> None:
        """Close every connection that passes through, as a broken network would; may serve as an action."""
        await self._cancel_tasks([task for task, connection in self._connections.items() if not connection.is_firing])

    async def _cancel_tasks(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def open_upstream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = parse_address(self._upstream_dsn)
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    def claim_trigger(self, commit: Commit) -> CommitTrigger | None:
        """The armed fault, if this commit is the one it strikes at."""
        trigger = self._trigger
        return trigger if trigger is not None and trigger.try_claim(commit) else None

    def discount_commit(self, commit: Commit) -> None:
        """Do not count a commit that failed, such as a batch that is sent again without a tenant's rows."""
        if self._trigger is not None:
            self._trigger.discount(commit)

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self, reader, writer)
        task = asyncio.create_task(connection.run())
        self._connections[task] = connection
        task.add_done_callback(self._remove_task)

    def _remove_task(self, task: asyncio.Task[None]) -> None:
        del self._connections[task]
        failure = None if task.cancelled() else task.exception()
        # One side going away is what the proxy is for; anything else is a fault of the proxy itself.
        if failure is not None and not isinstance(failure, (OSError, asyncio.IncompleteReadError)):
            raise failure


class _Connection:
    """One connection: two pumps over shared knowledge of where its transactions stand."""

    def __init__(self, proxy: PgProxy, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._to_client = to_client
        self._transactions = Transactions()
        self._buffer = bytearray()
        # One entry per ReadyForQuery still to come: the commit it acknowledges, the fault that waits for it.
        self._pending: list[tuple[Commit, CommitTrigger | None]] = []
        self._withheld_bytes = bytearray()
        self._is_rolled_back = False
        self._firing_task: asyncio.Task[None] | None = None

    @property
    def is_firing(self) -> bool:
        return self._firing_task is not None

    async def run(self) -> None:
        try:
            server, to_server = await self._proxy.open_upstream()
        except OSError:
            self._to_client.close()
            raise
        pumps: list[asyncio.Task[None]] = []
        try:
            if not await self._forward_startup(to_server):
                return
            pumps = [
                asyncio.create_task(self._pump_client(to_server)),
                asyncio.create_task(self._pump_server(server)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if self._firing_task is not None:
                # The gateway just killed hangs up before the action that killed it has returned.
                await asyncio.wait([self._firing_task])
        finally:
            for pump in pumps:
                pump.cancel()
            results = await asyncio.gather(*pumps, return_exceptions=True)
            for _, fault in self._pending:
                if fault is not None:
                    fault.release()
            to_server.close()
            self._to_client.close()
        for outcome in results:
            if isinstance(outcome, Exception):
                raise outcome

    async def _forward_startup(self, to_server: asyncio.StreamWriter) -> bool:
        """Pass the startup packet on, declining encryption before it; false for a cancel request."""
        while True:
            head = await self._client.readexactly(8)
            length, code = struct.unpack("!II", head)
            if code in (SSL_REQUEST, GSSENC_REQUEST):
                self._to_client.write(b"N")
                continue
            to_server.write(head + await self._client.readexactly(length - 8))
            await to_server.drain()
            return bool(code != CANCEL_REQUEST)

    async def _pump_client(self, to_server: asyncio.StreamWriter) -> None:
        framer = Framer()
        while data := await self._client.read(65536):
            for message in framer.feed(data):
                if not await self._forward(message, to_server):
                    return
            await to_server.drain()

    async def _forward(self, message: Message, to_server: asyncio.StreamWriter) -> bool:
        """Hold an extended group until its Sync (or Flush) shows what it is; false ends the connection."""
        self._buffer += message.raw
        if message.kind in b"PBEDC":
            self._transactions.record_message(message)
            return True
        if message.kind in b"QS":
            commit = self._transactions.close_group(message if message.kind == b"Q" else None)
            fault = self._proxy.claim_trigger(commit) if commit else None
            if fault is not None and fault.point == "before_forward":
                return await self._fire(fault)
            self._pending.append((commit, fault))
        to_server.write(bytes(self._buffer))
        self._buffer.clear()
        return True

    async def _pump_server(self, server: asyncio.StreamReader) -> None:
        framer = Framer()
        while data := await server.read(65536):
            for message in framer.feed(data):
                if message.kind == b"Z" and self._pending:
                    if not await self._acknowledge(message):
                        return
                    continue
                self._is_rolled_back = self._is_rolled_back or _is_rollback(message)
                if self._pending and self._pending[0][1] is not None:
                    self._withheld_bytes += message.raw
                else:
                    self._to_client.write(message.raw)
            await self._to_client.drain()

    async def _acknowledge(self, ready: Message) -> bool:
        """The oldest group is answered in full: strike, or pass the answer on; false ends the connection."""
        commit, fault = self._pending.pop(0)
        status = read_ready_status(ready)
        is_committed = bool(commit) and status == "idle" and not self._is_rolled_back
        self._is_rolled_back = False
        if not self._pending:
            self._transactions.set_status(status)
        if is_committed:
            self._proxy.commits["; ".join(commit)] += 1
        if fault is not None and is_committed:
            return await self._fire(fault)
        if fault is not None:
            fault.release()
        elif commit and not is_committed:
            self._proxy.discount_commit(commit)
        self._to_client.write(bytes(self._withheld_bytes) + ready.raw)
        self._withheld_bytes.clear()
        return True

    async def _fire(self, fault: CommitTrigger) -> Literal[False]:
        self._firing_task = asyncio.current_task()
        await fault.fire()
        return False


def _is_rollback(message: Message) -> bool:
    """An error, or a COMMIT that PostgreSQL turned into a ROLLBACK."""
    return message.kind == b"E" or (message.kind == b"C" and message.body.startswith(b"ROLLBACK"))


def parse_address(dsn: str) -> tuple[str, int]:
    """Host (or socket folder) and port of a postgresql:// DSN."""
    parts = urlsplit(dsn)
    query = dict(parse_qsl(parts.query))
    host_port = parts.netloc.rpartition("@")[2]
    host, _, port = host_port.rpartition(":") if ":" in host_port else (host_port, "", "")
    return query.get("host") or unquote(host) or "127.0.0.1", int(query.get("port") or port or 5432)


def replace_address(dsn: str, host: str, port: int) -> str:
    """The same DSN with another address; user, password, database and options stay."""
    parts = urlsplit(dsn)
    user, at, _ = parts.netloc.rpartition("@")
    query = [(key, value) for key, value in parse_qsl(parts.query) if key not in ("host", "port")]
    return urlunsplit(parts._replace(netloc=f"{user}{at}{host}:{port}", query=urlencode(query)))
