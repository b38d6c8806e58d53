"""Let the browser of a sandbox reach the listed hosts, by GET and HEAD alone unless a call that writes is open.

The network of the sandbox leads here and nowhere else, so this holds for whatever a page does: forms, scripts, workers,
beacons and sockets of all kinds. The proxy ends TLS with a key of its own, the only one that the browser was told to
accept, and so sees each request. The egress client sends it on, and checks addresses and certificates.
"""

import asyncio
import base64
import contextlib
import datetime
import hashlib
import os
import socket
import ssl
from collections.abc import Iterator
from typing import Any, Final

import h11
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from deputize.core.errors import EgressDenied, Problem
from deputize.execute.egress import MAX_URL_LENGTH, Egress, HostResolver, HttpAnswer, resolve_host
from deputize.execute.egress_proxy import SandboxListener
from deputize.execute.page_client import ListedHosts, read_target

MAX_ANSWER_BYTES: Final = 8_388_608
_MAX_BODY_BYTES: Final = 1_048_576
_MAX_HEAD_BYTES: Final = 65_536
_PART_BYTES: Final = 65_536
_OPEN_SECONDS: Final = 15.0
# How long a request that comes between two calls waits for the next one.
_HOLD_SECONDS: Final = 120.0
REFUSAL_SECONDS: Final = 0.2
# Answers are held in memory.
_MOST_REQUESTS: Final = 8
_MOST_ATTEMPTS: Final = 50
_READING: Final = frozenset({"GET", "HEAD"})
_PLAIN: Final = [("content-type", "text/plain")]
# Of this connection alone, or the egress client's own; and headers that make another method of GET.
_DROPPED_FROM_REQUESTS: Final = frozenset(
    {
        "accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization",
        "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "x-http-method", "x-http-method-override",
        "x-method-override",
    }
)  # fmt: skip
_DROPPED_FROM_ANSWERS: Final = frozenset(
    {
        "alt-svc", "connection", "content-length", "keep-alive", "nel", "proxy-authenticate", "report-to",
        "reporting-endpoints", "set-cookie", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip


class _Refused(Exception):
    """Why a request is not sent on."""


class PageProxy(SandboxListener):
    """The proxy of one browser. `public_key_digest` is what the browser knows its certificates by."""

    def __init__(
        self,
        listed: ListedHosts,
        *,
        seconds: float,
        resolver: HostResolver = resolve_host,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(self._serve)
        self._listed = listed
        # By whether a host may be private: one that is listed twice is not, at the port at which it is public.
        self._egress = {
            is_private: Egress(
                listed.private_names if is_private else frozenset(),
                max_bytes=MAX_ANSWER_BYTES,
                seconds=seconds,
                resolver=resolver,
                tls=tls,
            )
            for is_private in (False, True)
        }
        self._seconds = seconds
        self._tls, self.public_key_digest = _make_certificate()
        self._slots = asyncio.Semaphore(_MOST_REQUESTS)
        self._is_open = asyncio.Event()
        self._writable: tuple[str, str, int] | None = None
        self._attempts: dict[tuple[str, str | None], bool] = {}
        self._running = 0
        self._last_end = 0.0

    @contextlib.contextmanager
    def open_call(self) -> Iterator[dict[tuple[str, str | None], bool]]:
        """Let requests pass while a call lasts.

        Yields what was connected to, as `host:port` with the reason if it was not; true if that was refused.
        """
        self._attempts = {}
        self._is_open.set()
        try:
            yield self._attempts
        finally:
            self._writable = None
            self._is_open.clear()

    def allow_writes(self, url: str) -> None:
        """Let requests pass that write to the origin of a URL, until the call ends."""
        self._writable = read_target(url)

    def is_quiet(self, seconds: float) -> bool:
        """Tell whether nothing was sent or answered for so long."""
        return not self._running and asyncio.get_running_loop().time() - self._last_end >= seconds

    async def aclose(self) -> None:
        await super().aclose()
        for each in self._egress.values():
            await each.aclose()

    async def _serve(self, connection: socket.socket) -> None:
        """Serve one request. Without a second one, the browser never sends anything again by itself."""
        peer = await _Peer.open(connection)
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                request = await peer.receive_request()
                origin = None
                if request is not None and request.method == b"CONNECT":
                    origin = await self._open_tunnel(peer, request)
                    request = None if origin is None else await peer.receive_request()
            if request is not None:
                await self._answer(peer, request, origin)
        except (OSError, TimeoutError, h11.ProtocolError):
            pass
        finally:
            peer.close()

    async def _open_tunnel(self, peer: "_Peer", request: h11.Request) -> str | None:
        """Begin TLS with the browser, and return the origin that it is for; None if that is refused."""
        origin = f"https://{request.target.decode('latin-1')}"
        try:
            self._listed.require(f"{origin}/")
        except EgressDenied as denied:
            self._note(origin, denied.message, is_refused=True)
            await self._refuse(peer, denied.message)
            return None
        await peer.begin_tls(self._tls)
        return origin

    async def _answer(self, peer: "_Peer", request: h11.Request, origin: str | None) -> None:
        method, target = request.method.decode("latin-1"), request.target.decode("latin-1")
        url = target if origin is None else f"{origin}{target}"
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        try:
            # No browser sends a body in chunks over HTTP/1.1, and chunks of one byte would be parsed for seconds.
            is_plain = "upgrade" not in headers and "transfer-encoding" not in headers
            if not is_plain or (target[:1] != "/" if origin else target[:7].lower() != "http://"):
                raise _Refused("only requests of http are possible here")
            if len(url) > MAX_URL_LENGTH:
                raise _Refused("its address is too long")
            self._require_allowed(method, url, headers)
            answer = await self._forward(peer, method, url, headers)
        except (_Refused, Problem, TimeoutError) as problem:
            reason = str(problem.message if isinstance(problem, Problem) else problem) or "it took too long"
            is_refused = isinstance(problem, _Refused | EgressDenied)
            self._note(url, reason, is_refused=is_refused)
            if is_refused:
                await self._refuse(peer, reason)
            else:
                await peer.send(502, _PLAIN, reason.encode())
            return
        kept = [each for each in answer.headers.items() if each[0] not in _DROPPED_FROM_ANSWERS]
        status = 502 if answer.status == 407 else answer.status
        await peer.send(status, [*kept, *(("set-cookie", each) for each in answer.cookies)], answer.body)

    async def _refuse(self, peer: "_Peer", reason: str) -> None:
        # A script that tries again and again would keep this process busy.
        await asyncio.sleep(REFUSAL_SECONDS)
        await peer.send(403, _PLAIN, reason.encode())

    async def _forward(self, peer: "_Peer", method: str, url: str, headers: dict[str, str]) -> HttpAnswer:
        """Send a request on, in a call: one that comes between two calls waits."""
        egress = self._egress[self._listed.require(url)[1]]
        body = await peer.receive_body()
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(_HOLD_SECONDS):
                await stack.enter_async_context(self._slots)
                if method in _READING:
                    await self._is_open.wait()
            # The call that it was allowed by may have ended meanwhile.
            self._require_allowed(method, url, headers)
            self._running += 1
            stack.callback(self._note_end)
            answer = await egress.exchange(
                method,
                url,
                body=None if method in _READING else body,
                headers={name: value for name, value in headers.items() if name not in _DROPPED_FROM_REQUESTS},
                seconds=self._seconds,
                max_bytes=MAX_ANSWER_BYTES,
            )
            self._note(url, None)
            return answer

    def _note_end(self) -> None:
        self._running -= 1
        self._last_end = asyncio.get_running_loop().time()

    def _require_allowed(self, method: str, url: str, headers: dict[str, str]) -> None:
        if method not in _READING and not self._may_write(url, headers):
            raise _Refused(f"{method} is possible only while a call acts on a page of this origin")

    def _may_write(self, url: str, headers: dict[str, str]) -> bool:
        """Tell whether a call acts at the origin of a URL, and the request comes from a page of that origin.

        A page elsewhere could wait for the moment at which a call acts here.
        """
        if self._writable is None or read_target(url) != self._writable:
            return False
        sender = headers.get("origin", "null")
        if sender == "null":
            return headers.get("sec-fetch-site") == "same-origin"
        with contextlib.suppress(EgressDenied):
            return read_target(sender) == self._writable
        return False

    def _note(self, url: str, reason: str | None, *, is_refused: bool = False) -> None:
        try:
            _, host, port = read_target(url)
            target = f"{host}:{port}"
        except EgressDenied:
            target = url[:100]
        if len(self._attempts) < _MOST_ATTEMPTS:
            self._attempts[target, reason] = is_refused


class _Peer:
    """The browser's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self.close = writer.close

    @classmethod
    async def open(cls, connection: socket.socket) -> "_Peer":
        """Open the streams of an accepted connection, at whose end TLS may begin as a server."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[asyncio.StreamWriter] = loop.create_future()
        reader = asyncio.StreamReader(limit=_PART_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader, lambda _, writer: opened.set_result(writer))
        await loop.connect_accepted_socket(lambda: protocol, connection)
        return cls(reader, await opened)

    async def begin_tls(self, tls: ssl.SSLContext) -> None:
        self._writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await self._writer.start_tls(tls)
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)

    async def receive_request(self) -> h11.Request | None:
        event = await self._receive()
        return event if isinstance(event, h11.Request) else None

    async def receive_body(self) -> bytes:
        body = bytearray()
        while isinstance(event := await self._receive(), h11.Data):
            body += event.data
            if len(body) > _MAX_BODY_BYTES:
                raise _Refused("it sends more than is possible here")
        return bytes(body)

    async def send(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Send an answer, and say that the connection ends with it."""
        encoded = [(name.encode(), value.encode(errors="surrogateescape")) for name, value in headers]
        framing = [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        if status in (204, 304):
            framing, body = framing[1:], b""
        response = h11.Response(status_code=status, headers=[*encoded, *framing])
        parts: list[Any] = [response, h11.Data(data=body), h11.EndOfMessage()]
        try:
            content = b"".join(self._http.send(each) or b"" for each in parts)
        except h11.LocalProtocolError:
            # A header that cannot be passed on. Without any answer, the browser might send the request again.
            content = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        self._writer.write(content)
        await self._writer.drain()

    async def _receive(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(_PART_BYTES))
        return event


def _make_certificate() -> tuple[ssl.SSLContext, str]:
    """Make a key that only this process has, and a certificate without a name; return the digest of its public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "browser proxy")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding
    secret = key.private_bytes(encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # It is read from a path, and never on a disk.
    memory = os.memfd_create("deputize", os.MFD_CLOEXEC)
    with open(memory, "wb", buffering=0) as file:
        file.write(certificate.public_bytes(encoding.PEM) + secret)
        tls.load_cert_chain(f"/proc/self/fd/{memory}")
    public = key.public_key().public_bytes(encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return tls, base64.b64encode(hashlib.sha256(public).digest()).decode()
