"""Let a program in a sandbox connect to the hosts that its settings name, by HTTP CONNECT and TLS, and to no other.

The proxy resolves, checks and pins addresses as `egress.py` does for the gateway's own requests. What the program then
says in its first message must be TLS that names the same host, in the open: otherwise a listed host in front of many
others would lead to all of them. A server may ask for that message once more, and then the same holds for the second.
What is inside of TLS is not seen.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from deputize.core.errors import EgressDenied, Problem
from deputize.execute.egress import HostResolver, normalize_host, resolve_allowed_addresses, resolve_host

# In the sandbox's own network, where no other program is.
PROXY_PORT: Final = 3128
_PROXY_NAMES: Final = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
PROXY_ENVIRONMENT: Final = {
    **dict.fromkeys(_PROXY_NAMES, f"http://127.0.0.1:{PROXY_PORT}"),
    # Node.js reads the others only then.
    "NODE_USE_ENV_PROXY": "1",
}
_MAX_HEAD_BYTES: Final = 16_384
_MAX_HELLO_BYTES: Final = 32_768
_PART_BYTES: Final = 65_536
# Until a request was understood and its host connected to.
_OPEN_SECONDS: Final = 15.0
_PAUSE_SECONDS: Final = 0.2
_MOST_CONNECTIONS: Final = 64
# Of all sandboxes of a process, whose descriptors they are; beyond, each sandbox still has a few.
_MOST_IN_ALL: Final = 256
_FEW_CONNECTIONS: Final = 8
# After so long in which nothing passed; longer than clients of mail wait for news (RFC 2177).
_IDLE_SECONDS: Final = 1_800.0
_READING: Final = frozenset({"GET", "HEAD"})
_PLAIN_HEADERS: Final = frozenset({"accept", "authorization", "if-none-match", "npm-command", "range", "user-agent"})
_HANDSHAKE_RECORD: Final = 0x16
_CLIENT_HELLO: Final = 1
_SERVER_HELLO: Final = 2
_CHANGE_CIPHER_SPEC: Final = b"\x14\x03\x03\x00\x01\x01"
# The random value by which a message of a server asks for another first message (RFC 8446, 4.1.3).
_RETRY_RANDOM: Final = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
_RANDOM_START: Final = 6
_SERVER_NAME: Final = 0
_HOST_NAME: Final = 0
_ENCRYPTED_CLIENT_HELLO: Final = 0xFE0D

_served: set[asyncio.Task[None]] = set()

NoteAttempt = Callable[[str, str | None], None]
"""Told each target as `host:port`, and why it was refused, None if it was not."""


class _Refused(Exception):
    """Why a connection is not made, with the status that says so."""

    def __init__(self, target: str, reason: str, status: str = "403 Forbidden") -> None:
        super().__init__(reason)
        self.target = target
        self.reason = reason
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    """Where a program connects to. One without TLS has the head that is sent on."""

    host: str
    port: int
    plain_head: bytes | None = None


class HiddenName(ValueError):
    """The name that counts is in a part of the message that only the server can read."""


class SandboxListener:
    """Serve what connects to the port of a sandbox's proxy: a bounded number at once, and of all sandboxes together."""

    def __init__(self, serve_connection: Callable[[socket.socket], Coroutine[Any, Any, None]]) -> None:
        self._serve_connection = serve_connection
        self._tasks: set[asyncio.Task[None]] = set()
        self._accept_task: asyncio.Task[None] | None = None

    def start(self, listener: socket.socket) -> None:
        """Serve the connections that a listener accepts; the caller closes it after `aclose`."""
        self._accept_task = asyncio.get_running_loop().create_task(self._accept(listener))

    async def aclose(self) -> None:
        """Close all connections."""
        tasks = [*self._tasks, *([] if self._accept_task is None else [self._accept_task])]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop, slots = asyncio.get_running_loop(), asyncio.Semaphore(_MOST_CONNECTIONS)
        while True:
            # The others wait in the sandbox's own queue.
            await slots.acquire()
            connection = None
            if len(_served) < _MOST_IN_ALL or len(self._tasks) < _FEW_CONNECTIONS:
                # Without one, this process has no descriptor left, or the program has already gone.
                with contextlib.suppress(OSError):
                    connection, _ = await loop.sock_accept(listener)
            if connection is None:
                slots.release()
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            task = loop.create_task(self._serve_connection(connection))
            for tasks in (self._tasks, _served):
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            task.add_done_callback(lambda _: slots.release())


class EgressProxy(SandboxListener):
    """The proxy of one sandbox. `hosts` are the allowed targets, each `host:port`, at public addresses.

    Others decide to which address a name leads, so one that may be private is in `private_hosts`, never link-local or
    metadata. Of `plain_hosts`, what a program asks for without TLS is read, by GET and HEAD alone.
    """

    def __init__(
        self,
        hosts: frozenset[str],
        note_attempt: NoteAttempt,
        *,
        private_hosts: frozenset[str] = frozenset(),
        plain_hosts: frozenset[str] = frozenset(),
        resolver: HostResolver = resolve_host,
    ) -> None:
        super().__init__(self._serve)
        self._tls_targets = frozenset(split_target(each) for each in hosts | private_hosts)
        self._plain_targets = frozenset(split_target(each) for each in plain_hosts)
        self._private_targets = frozenset(split_target(each) for each in private_hosts) | self._plain_targets
        self._note_attempt = note_attempt
        self._resolve = resolver

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=_MAX_HEAD_BYTES)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(writer.close)
            is_established = False
            try:
                async with asyncio.timeout(_OPEN_SECONDS):
                    request = await _read_request(reader, accepts_plain=bool(self._plain_targets))
                    host, port = request.host, request.port
                    allowed = self._tls_targets if request.plain_head is None else self._plain_targets
                    upstream = await self._connect(host, port, allowed)
                    stack.callback(upstream[1].close)
                    if request.plain_head is None:
                        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                        is_established = True
                        await _open_tls(reader, writer, upstream, host, port)
                    else:
                        upstream[1].write(request.plain_head)
            except _Refused as refusal:
                self._note_attempt(refusal.target, refusal.reason)
                if is_established:
                    return
                body = f"{refusal.reason}\n".encode()
                head = f"HTTP/1.1 {refusal.status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + body)
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(_OPEN_SECONDS):
                        await writer.drain()
                return
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                return
            self._note_attempt(f"{host}:{port}", None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_SECONDS) as idle:
                    if request.plain_head is None:
                        await asyncio.gather(_relay(reader, upstream[1], idle), _relay(upstream[0], writer, idle))
                    else:
                        await _relay(upstream[0], writer, idle)

    async def _connect(
        self, host: str, port: int, allowed: frozenset[tuple[str, int]]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to one of the addresses that were checked, and to no other."""
        target = f"{host}:{port}"
        if (host, port) not in allowed:
            raise _Refused(target, "it is not one of the hosts that are listed for this program")
        try:
            private_names = frozenset({host} if (host, port) in self._private_targets else ())
            addresses = await resolve_allowed_addresses(host, port, private_names, self._resolve)
        except EgressDenied as denied:
            raise _Refused(target, f"{denied.message}; only one that is listed in private_hosts may") from denied
        except Problem as problem:
            raise _Refused(target, problem.message, "502 Bad Gateway") from problem
        for address in addresses:
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(address, port, limit=_PART_BYTES)
        raise _Refused(target, f"nothing answers at {host}", "502 Bad Gateway")


def split_target(target: str) -> tuple[str, int]:
    """Split `host:port` and normalize the host; raise ValueError if it is none."""
    host, separator, port = target.rpartition(":")
    name = normalize_host(host)
    if not separator or not name or not port.isdecimal() or not port.isascii() or not 0 < int(port[:6]) < 65_536:
        raise ValueError("write a host and a port, as in api.example.com:443")
    if ":" in name:
        ipaddress.IPv6Address(name)
    elif not all(each.isalnum() or each in "-._" for each in name) or not name.isascii() or len(name) > 253:
        raise ValueError("write a host and a port, as in api.example.com:443")
    return name, int(port)


async def _read_request(reader: asyncio.StreamReader, *, accepts_plain: bool) -> _Request:
    """Read the head of a CONNECT request, or of one without TLS."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise _Refused("", "the request is too large", "431 Request Header Fields Too Large") from error
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    target, _, version = rest.partition(" ")
    if any(each in line for line in (first, *lines) for each in "\r\n"):
        raise _Refused("", "the request is not one of HTTP", "400 Bad Request")
    is_plain = accepts_plain and method in _READING and target.startswith("http://")
    if not (is_plain or method == "CONNECT") or not version.startswith("HTTP/1."):
        raise _Refused("", "only https is possible here, by CONNECT", "405 Method Not Allowed")
    try:
        if not is_plain:
            host, port = split_target(target)
            return _Request(host=host, port=port)
        authority, _, path = target.removeprefix("http://").partition("/")
        host, port = split_target(authority if authority.rpartition(":")[2].isdecimal() else f"{authority}:80")
    except ValueError as error:
        raise _Refused("", str(error), "400 Bad Request") from error
    # One request on a connection, for the host that was checked, and nothing that could begin another one.
    kept = [each for each in lines if each.partition(":")[0].lower() in _PLAIN_HEADERS]
    plain_head = "\r\n".join([f"{method} /{path} HTTP/1.1", f"Host: {authority}", *kept, "Connection: close", "", ""])
    return _Request(host=host, port=port, plain_head=plain_head.encode("latin-1"))


async def _open_tls(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    host: str,
    port: int,
) -> None:
    """Pass on the first messages of TLS, once every one of the client's is known to name the host."""
    hello = await _read_hello(reader, host, port)
    upstream[1].write(hello)
    answer, is_retry = await _read_server_hello(upstream[0])
    writer.write(answer)
    if is_retry:
        upstream[1].write(await _read_hello(reader, host, port))


async def _read_server_hello(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """Read the beginning of what a server answers, as it was sent, and tell whether it asks for another hello."""
    raw, message = b"", b""
    while len(message) < _RANDOM_START + len(_RETRY_RANDOM):
        try:
            header = await reader.readexactly(5)
        except asyncio.IncompleteReadError as error:
            return raw + error.partial, False
        raw += header
        # An alert, or another protocol: nothing that asks for another hello.
        if header[0] != _HANDSHAKE_RECORD or len(raw) > _MAX_HELLO_BYTES:
            return raw, False
        body = await reader.readexactly(int.from_bytes(header[3:]))
        raw, message = raw + body, message + body
        if message[:1] != bytes([_SERVER_HELLO]):
            return raw, False
    return raw, message[_RANDOM_START:].startswith(_RETRY_RANDOM)


async def _read_hello(reader: asyncio.StreamReader, host: str, port: int) -> bytes:
    """Read a client's hello whole, as it was sent, and require that it names the host; it may be in several records."""
    target = f"{host}:{port}"
    raw, message, before = b"", b"", b""
    while len(message) < 4 or len(message) < 4 + int.from_bytes(message[1:4]):
        header = await reader.readexactly(5)
        if not raw and not before and header == _CHANGE_CIPHER_SPEC[:5]:
            # Some clients send it before their second hello.
            before = header + await reader.readexactly(1)
            continue
        length = int.from_bytes(header[3:])
        is_hello = header[0] == _HANDSHAKE_RECORD and header[1] == 3 and length > 0
        if not is_hello or len(raw) + length > _MAX_HELLO_BYTES:
            raise _Refused(target, "its first message is not one of TLS")
        body = await reader.readexactly(length)
        raw, message = raw + header + body, message + body
        if message[0] != _CLIENT_HELLO:
            raise _Refused(target, "its first message is not one of TLS")
    _require_name(raw, host, port)
    return before + raw


def _require_name(hello: bytes, host: str, port: int) -> None:
    """Require that TLS names the host of the request; an address has no name."""
    try:
        names = read_server_names(hello)
    except HiddenName as error:
        raise _Refused(f"{host}:{port}", "its TLS hides the name of its host (Encrypted Client Hello)") from error
    except (IndexError, ValueError) as error:
        raise _Refused(f"{host}:{port}", "its first message is not one of TLS") from error
    is_address = ":" in host or host.replace(".", "").isdigit()
    if names != [host] and not (is_address and not names):
        raise _Refused(f"{host}:{port}", f"its TLS names {', '.join(names)[:253] or 'no host'}")


def read_server_names(hello: bytes) -> list[str]:
    """Read the names in the first message of a TLS client, as its records have it; raise ValueError if it has none."""
    message, rest = b"", hello
    while rest:
        length = int.from_bytes(rest[3:5])
        message, rest = message + rest[5 : 5 + length], rest[5 + length :]
    parts = _Parts(message[4 : 4 + int.from_bytes(message[1:4])])
    parts.take(2 + 32)
    for width in (1, 2, 1):
        parts.take_vector(width)
    names: list[str] = []
    extensions = _Parts(parts.take_vector(2) if parts.is_left else b"")
    while extensions.is_left:
        kind, content = int.from_bytes(extensions.take(2)), extensions.take_vector(2)
        if kind == _ENCRYPTED_CLIENT_HELLO:
            raise HiddenName
        if kind == _SERVER_NAME:
            entries = _Parts(_Parts(content).take_vector(2))
            while entries.is_left:
                if entries.take(1)[0] != _HOST_NAME:
                    # Servers pass over it: for them, there would be no name.
                    raise ValueError("a name is not that of a host")
                names.append(normalize_host(entries.take_vector(2).decode("ascii")))
    return names


class _Parts:
    """The parts of a message, one after another."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    @property
    def is_left(self) -> bool:
        return self._position < len(self._content)

    def take(self, count: int) -> bytes:
        """Take so many bytes; raise ValueError if there are fewer."""
        part = self._content[self._position : self._position + count]
        if len(part) < count:
            raise ValueError("the message is too short")
        self._position += count
        return part

    def take_vector(self, width: int) -> bytes:
        """Take what follows its own length."""
        return self.take(int.from_bytes(self.take(width)))


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle: asyncio.Timeout) -> None:
    """Pass on what is read, and its end. What passes one way keeps both open."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while part := await reader.read(_PART_BYTES):
            writer.write(part)
            await writer.drain()
            idle.reschedule(loop.time() + _IDLE_SECONDS)
        writer.write_eof()
