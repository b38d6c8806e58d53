"""Accept whatever arrives at any address, keep what it was and whom its TLS named, and answer as the listed hosts."""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from proofs.kit.name_server import NameServer
from proofs.sandbox_egress.judge import Arrival

_TCP_PORTS = (22, 53, 80, 443, 5432, 8443)
_UDP_PORTS = (123, 443)
_TLS_RECORD = 0x16
_SECONDS = 8.0
_SETTLE_SECONDS = 10.0
Site = Callable[[str, str], bytes]


class Recorder:
    """Listeners on all addresses, with `answer(host, path)` as their web site."""

    def __init__(self, tls: ssl.SSLContext, names: NameServer, answer: Site) -> None:
        self._tls = tls
        tls.sni_callback = self._note_name
        self._names = names
        self._answer = answer
        self._arrivals: list[Arrival] = []
        self._server_names: dict[int, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[socket.socket] = []
        self._datagrams: list[socket.socket] = []

    def listen(self, folder: Path, name: str) -> None:
        """Listen on all ports, and on local sockets in a folder and under a name."""
        for port in _TCP_PORTS:
            for host, family in (("0.0.0.0", socket.AF_INET), ("::", socket.AF_INET6)):
                self._add_listener(socket.create_server((host, port), family=family, backlog=500))
        places = [(host, port) for port in _UDP_PORTS for host in ("0.0.0.0", "::")]
        for host, port in (*places, ("8.8.8.8", 53)):
            datagrams = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
            if ":" in host:
                datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            datagrams.bind((host, port))
            self._add_datagrams(datagrams)
        for address, kind in (
            (str(folder / "socket"), socket.SOCK_STREAM),
            (f"\0{name}", socket.SOCK_STREAM),
            (str(folder / "socket.datagrams"), socket.SOCK_DGRAM),
        ):
            local = socket.socket(socket.AF_UNIX, kind)
            local.bind(address)
            if kind == socket.SOCK_STREAM:
                local.listen(50)
                self._add_listener(local)
            else:
                self._add_datagrams(local)
            if not address.startswith("\0"):
                Path(address).chmod(0o777)

    async def take(self) -> tuple[Arrival, ...]:
        """Take what has arrived since the last time, once every connection has ended."""
        for each in self._listeners:
            self._accept(each)
        for each in self._datagrams:
            self._receive(each)
        # What the kernel has just delivered is read first.
        await asyncio.sleep(0.02)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_SETTLE_SECONDS)
        arrivals, self._arrivals = self._arrivals, []
        return (*arrivals, *(Arrival(kind="dns", name=each) for each in self._names.take_queries()))

    def _add_listener(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._listeners.append(listener)
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _add_datagrams(self, datagrams: socket.socket) -> None:
        datagrams.setblocking(False)
        self._datagrams.append(datagrams)
        asyncio.get_running_loop().add_reader(datagrams, self._receive, datagrams)

    def _receive(self, datagrams: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                datagrams.recv(4_096)
                is_local = datagrams.family == socket.AF_UNIX
                port = 0 if is_local else datagrams.getsockname()[1]
                self._arrivals.append(Arrival(kind="unix" if is_local else "udp", port=port, has_data=True))

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                connection, _ = listener.accept()
                connection.setblocking(False)
                task = asyncio.get_running_loop().create_task(self._serve(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        if connection.family == socket.AF_UNIX:
            self._arrivals.append(Arrival(kind="unix"))
            connection.close()
            return
        address = ipaddress.ip_address(connection.getsockname()[0].partition("%")[0])
        port, name, has_data = connection.getsockname()[1], None, False
        with connection, contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_SECONDS):
                first = await asyncio.get_running_loop().sock_recv(connection, 4_096)
                has_data = bool(first)
                if first[:1] == bytes([_TLS_RECORD]):
                    name = await self._serve_tls(connection, first)
                elif first:
                    await asyncio.get_running_loop().sock_sendall(connection, b"HTTP/1.1 200 OK\r\n\r\nplain")
        self._arrivals.append(Arrival(kind="tcp", address=str(address), port=port, name=name, has_data=has_data))

    async def _serve_tls(self, connection: socket.socket, first: bytes) -> str | None:
        """Serve one request; return the name in the client's first message, as OpenSSL reads it."""
        loop, incoming, outgoing = asyncio.get_running_loop(), ssl.MemoryBIO(), ssl.MemoryBIO()
        secured = self._tls.wrap_bio(incoming, outgoing, server_side=True)
        incoming.write(first)

        async def exchange(step: Callable[[], bytes | None]) -> bytes | None:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    await loop.sock_sendall(connection, outgoing.read())
                    part = await loop.sock_recv(connection, 65_536)
                    if not part:
                        raise ConnectionError from None
                    incoming.write(part)

        with contextlib.suppress(OSError):
            await exchange(secured.do_handshake)
            head = b""
            while b"\r\n\r\n" not in head:
                head += await exchange(lambda: secured.read(65_536)) or b""
            path, host = head.split(b" ", 2)[1].decode(), self._server_names.get(id(secured), "")
            secured.write(self._answer(host, path))
            await loop.sock_sendall(connection, outgoing.read())
        return self._server_names.pop(id(secured), None)

    def _note_name(self, secured: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        if name is not None:
            self._server_names[id(secured)] = name
