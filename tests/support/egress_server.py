"""Run bare HTTP servers, and the egress client that reaches them."""

import asyncio
import datetime
import re
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from deputize.execute.egress import Egress, HostResolver

Answer = Callable[[str, str], bytes]


class Server:
    """Run a bare HTTP server: `answer(path, host)` returns the response bytes; empty bytes mean no response."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.hosts: list[str] = []
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            host = next(line[6:] for line in head.split("\r\n") if line.lower().startswith("host: "))
            self.hosts.append(host)
            self.heads.append(head)
            length = re.search(r"^content-length: (\d+)", head, re.MULTILINE | re.IGNORECASE)
            self.bodies.append(await reader.readexactly(int(length[1])) if length else b"")
            answer = self._answer(head.split(" ")[1], host)
            if not answer:
                await reader.read()
            writer.write(answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def make_ok_response(body: bytes, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), b"Connection: close", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def make_redirect(location: str) -> bytes:
    head = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    return head.encode()


@asynccontextmanager
async def run_server(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(answer)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()


def make_resolver(*addresses: str) -> HostResolver:
    async def resolver(host: str, port: int) -> Sequence[str]:
        return addresses

    return resolver


@asynccontextmanager
async def open_egress(
    *allow: str, resolver: HostResolver | None = None, tls: ssl.SSLContext | None = None, **limits: float
) -> AsyncIterator[Egress]:
    more = {} if resolver is None else {"resolver": resolver}
    egress = Egress(
        frozenset(allow),
        max_bytes=int(limits.get("max_bytes", 10_000)),
        seconds=limits.get("seconds", 60.0),
        max_connections=int(limits.get("max_connections", 100)),
        tls=tls,
        **more,
    )
    try:
        yield egress
    finally:
        await egress.aclose()


def make_certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Build a server's TLS context for `name`, and a client's that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, secret = folder / "server.pem", folder / "server.key"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem, secret)
    return server, ssl.create_default_context(cafile=str(pem))
