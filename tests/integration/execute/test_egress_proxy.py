"""What a program in a sandbox may connect to, judged at the hosts that it tries to reach."""

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deputize.execute import egress_proxy
from deputize.execute.egress import HostResolver
from deputize.execute.egress_proxy import EgressProxy, SandboxListener, read_server_names, split_target
from tests.support.egress_server import Server, make_certificate, make_ok_response, make_resolver, run_server

pytestmark = pytest.mark.requirement("EXE-2")
HOST = "shop.example"


@dataclass
class ProxyWorld:
    """A proxy, the host behind its listed name, one that nothing lists, and what the proxy noted."""

    shop: Server
    other: Server
    client_tls: ssl.SSLContext
    proxy_port: int = 0
    notes: list[tuple[str, str | None]] = field(default_factory=list)

    @property
    def target(self) -> str:
        return f"{HOST}:{self.shop.port}"

    async def send(self, head: str, then: bytes = b"") -> bytes:
        """Send a request, and something after its answer; return all that comes back."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy_port)
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            writer.write(head.encode() + b"\r\n\r\n")
            answer = b""
            if then:
                answer = await reader.readuntil(b"\r\n\r\n")
                writer.write(then)
            writer.write_eof()
            return answer + await asyncio.wait_for(reader.read(), 30)
        return b""

    async def fetch(self, target: str, name: str) -> bytes:
        """Connect through the proxy with TLS that names a host, and get its page."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy_port)
        with contextlib.closing(writer):
            writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in answer:
                return answer
            try:
                async with asyncio.timeout(30):
                    await writer.start_tls(self.client_tls, server_hostname=name)
                    writer.write(f"GET / HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
                    return await reader.read()
            except (ssl.SSLError, OSError):
                return b"ended"


@contextlib.asynccontextmanager
async def open_world(
    folder: Path, resolver: HostResolver | None = None, *, asks_again: bool = False, is_private: bool = True
) -> AsyncIterator[ProxyWorld]:
    server_tls, _ = make_certificate(folder, HOST)
    if asks_again:
        # No client offers a key for this curve in its first message, so the server asks for another one.
        server_tls.set_ecdh_curve("secp384r1")
    client_tls = ssl.create_default_context()
    client_tls.check_hostname, client_tls.verify_mode = False, ssl.CERT_NONE
    async with contextlib.AsyncExitStack() as stack:
        shop, other = [
            await stack.enter_async_context(run_server(lambda path, host: make_ok_response(b"hello"), server_tls))
            for _ in range(2)
        ]
        world = ProxyWorld(shop, other, client_tls)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        world.proxy_port = listener.getsockname()[1]
        listed = frozenset({world.target.upper().replace(HOST.upper(), "Shop.Example.")})
        proxy = EgressProxy(
            frozenset() if is_private else listed,
            lambda target, reason: world.notes.append((target, reason)),
            private_hosts=listed if is_private else frozenset(),
            resolver=resolver or make_resolver("127.0.0.1"),
        )
        proxy.start(listener)
        stack.push_async_callback(proxy.aclose)
        yield world


async def test_a_listed_host_is_reached_by_tls_that_names_it(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        answers = await asyncio.gather(*(world.fetch(world.target, HOST) for _ in range(100)))
        assert all(each.endswith(b"hello") for each in answers)
        assert set(world.notes) == {(world.target, None)}


@pytest.mark.parametrize("name", ["other.example", "www.shop.example", "shop.example.other.example"])
async def test_tls_that_names_another_host_passes_nothing_on(tmp_path: Path, name: str) -> None:
    async with open_world(tmp_path) as world:
        assert await world.fetch(world.target, name) == b"ended"
        assert world.notes == [(world.target, f"its TLS names {name}")]
        assert world.shop.heads == []


async def test_tls_that_names_no_host_passes_nothing_on(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        # Python names no address.
        assert await world.fetch(world.target, "127.0.0.1") == b"ended"
        assert world.notes == [(world.target, "its TLS names no host")]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("CONNECT shop.example:1 HTTP/1.1", b"403"),
        ("CONNECT {host}.other.example:{port} HTTP/1.1", b"403"),
        ("CONNECT other.example:{other} HTTP/1.1", b"403"),
        ("CONNECT 127.0.0.1:{other} HTTP/1.1", b"403"),
        ("CONNECT [::1]:{other} HTTP/1.1", b"403"),
        ("CONNECT 169.254.169.254:80 HTTP/1.1", b"403"),
        ("CONNECT {host}@other.example:{other} HTTP/1.1", b"400"),
        ("CONNECT {host}\0.other.example:{port} HTTP/1.1", b"400"),
        ("CONNECT {host}:{port}0000000000 HTTP/1.1", b"400"),
        ("CONNECT {host} HTTP/1.1", b"400"),
        ("CONNECT http://{host}:{port}/ HTTP/1.1", b"400"),
        ("GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}", b"405"),
        ("GET http://127.0.0.1:{other}/ HTTP/1.1\r\nHost: {host}", b"405"),
        ("GET / HTTP/1.1\r\nHost: 127.0.0.1:{other}", b"405"),
        ("CONNECT {host}:{port} SOCKS", b"405"),
        ("CONNECT {host}:{port} HTTP/1.1\r\nX: {fill}", b"431"),
        ("", b"405"),
    ],
)
async def test_what_is_no_listed_target_is_not_connected_to(tmp_path: Path, head: str, status: bytes) -> None:
    async with open_world(tmp_path) as world:
        values = {"host": HOST, "port": world.shop.port, "other": world.other.port, "fill": "x" * 40_000}
        answer = await world.send(head.format(**values))
        # A request that is not read to its end may end in a reset.
        assert answer.startswith(b"HTTP/1.1 " + status) or (not answer and status == b"431"), answer
        assert world.shop.heads == world.other.heads == []


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET http://127.0.0.1:{plain}/a HTTP/1.1\r\nHost: other.example\r\nX-Other: 1", b"200"),
        ("POST http://127.0.0.1:{plain}/a HTTP/1.1", b"405"),
        ("GET http://127.0.0.1:{other}/a HTTP/1.1", b"403"),
        ("GET http://127.0.0.1:{plain}/a HTTP/1.1\r\nAccept: a\nX-Other: 1", b"400"),
        ("CONNECT 127.0.0.1:{plain} HTTP/1.1", b"403"),
    ],
)
async def test_a_host_without_tls_is_read_only_where_it_is_named(request_line: str, status: bytes) -> None:
    async with contextlib.AsyncExitStack() as stack:
        plain, other = [
            await stack.enter_async_context(run_server(lambda path, host: make_ok_response(b"hello"))) for _ in range(2)
        ]
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        target = f"127.0.0.1:{plain.port}"
        proxy = EgressProxy(frozenset(), lambda *_: None, plain_hosts=frozenset({target}))
        proxy.start(listener)
        stack.push_async_callback(proxy.aclose)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
        with contextlib.closing(writer):
            writer.write(request_line.format(plain=plain.port, other=other.port).encode() + b"\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 " + status)
        assert other.heads == []
        heads = [f"GET /a HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n"]
        assert plain.heads == (heads if status == b"200" else [])


@pytest.mark.parametrize(
    "then",
    [
        b"GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\x00\x00\x00",
        b"\x16\x03\x01\x00\x06\x01\x00\x00\x02\x03\x03",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff" + b"\x16\x03\x01\xff\xff" * 20_000,
        b"\x15\x03\x01\x00\x02\x02\x28",
    ],
)
async def test_what_is_not_tls_passes_nothing_on(tmp_path: Path, then: bytes) -> None:
    async with open_world(tmp_path) as world:
        answer = await world.send(f"CONNECT {world.target} HTTP/1.1", then)
        assert answer in (b"", b"HTTP/1.1 200 Connection established\r\n\r\n")
        assert [reason for _, reason in world.notes] in (
            ["its first message is not one of TLS"],
            ["its TLS names no host"],
        )


@pytest.mark.parametrize("address", ["169.254.169.254", "fd00:ec2::254", "0.0.0.0", "224.0.0.1"])
async def test_a_listed_name_cannot_lead_to_a_metadata_service(tmp_path: Path, address: str) -> None:
    async with open_world(tmp_path, make_resolver(address)) as world:
        answer = await world.send(f"CONNECT {world.target} HTTP/1.1")
        assert answer.startswith(b"HTTP/1.1 403")
        assert "never allowed" in str(world.notes[0][1])


@pytest.mark.parametrize("address", ["127.0.0.1", "10.96.0.1", "::1", "fd00::1", "100.64.0.1"])
async def test_a_listed_name_leads_inside_only_where_that_is_listed_too(tmp_path: Path, address: str) -> None:
    async with open_world(tmp_path, make_resolver(address), is_private=False) as world:
        answer = await world.send(f"CONNECT {world.target} HTTP/1.1")
        assert answer.startswith(b"HTTP/1.1 403")
        assert str(world.notes[0][1]).endswith("only one that is listed in private_hosts may")
        assert world.shop.heads == []


def test_a_connection_ends_once_nothing_has_passed_for_long(tmp_path: Path) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while part := await reader.read(100):
            writer.write(part)
        writer.close()

    async def talk() -> None:
        server_tls, client_tls = make_certificate(tmp_path, HOST)
        shop = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=server_tls)
        target = f"{HOST}:{shop.sockets[0].getsockname()[1]}"
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        proxy = EgressProxy(
            frozenset(), lambda *_: None, private_hosts=frozenset({target}), resolver=make_resolver("127.0.0.1")
        )
        proxy.start(listener)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
        with contextlib.closing(shop), listener, contextlib.closing(writer):
            writer.write(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            await writer.start_tls(client_tls, server_hostname=HOST)
            # The clock of this loop, which no other test has.
            loop, passed = asyncio.get_running_loop(), 0.0
            real_time = loop.time
            loop.time = lambda: real_time() + passed  # type: ignore[method-assign]  # the one that a loop asks itself
            for seconds in (0.0, 1_700.0, 1_700.0):
                passed += seconds
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"
            passed += 1_900.0
            assert await reader.read() == b""
            await proxy.aclose()

    asyncio.run(talk())


async def test_connections_of_all_sandboxes_are_bounded_and_each_has_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_proxy, "_MOST_IN_ALL", 3)
    monkeypatch.setattr(egress_proxy, "_FEW_CONNECTIONS", 1)
    monkeypatch.setattr(egress_proxy, "_served", set())
    begun: dict[str, asyncio.Queue[None]] = {name: asyncio.Queue() for name in ("busy", "other")}
    ends = asyncio.Semaphore(0)

    async def serve(name: str, connection: socket.socket) -> None:
        begun[name].put_nowait(None)
        with connection:
            await ends.acquire()

    async with contextlib.AsyncExitStack() as stack:
        ports = {}
        for name in begun:
            socket_ = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            socket_.setblocking(False)
            ports[name] = socket_.getsockname()[1]
            listener = SandboxListener(functools.partial(serve, name))
            listener.start(socket_)
            stack.push_async_callback(listener.aclose)

        async def connect(name: str) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", ports[name])
            stack.callback(writer.close)

        for _ in range(4):
            await connect("busy")
        for _ in range(3):
            await begun["busy"].get()
        await connect("other")
        await begun["other"].get()
        assert begun["busy"].empty()
        for _ in range(2):
            ends.release()
        await begun["busy"].get()


def make_hello(name: str = HOST) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


async def test_a_server_may_ask_for_another_hello(tmp_path: Path) -> None:
    async with open_world(tmp_path, asks_again=True) as world:
        assert (await world.fetch(world.target, HOST)).endswith(b"hello")
        assert world.notes == [(world.target, None)]


@pytest.mark.parametrize("before", [b"", b"\x14\x03\x03\x00\x01\x01"])
async def test_a_second_hello_that_names_another_host_passes_nothing_on(tmp_path: Path, before: bytes) -> None:
    async with open_world(tmp_path, asks_again=True) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.proxy_port)
        with contextlib.closing(writer):
            writer.write(f"CONNECT {world.target} HTTP/1.1\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            writer.write(make_hello())
            # A handshake record with the server's message.
            assert (await reader.readexactly(6))[::5] == b"\x16\x02"
            writer.write(before + make_hello("secret.example"))
            await asyncio.wait_for(reader.read(), 30)
        assert world.notes == [(world.target, "its TLS names secret.example")]


async def test_a_hello_that_hides_its_name_passes_nothing_on(tmp_path: Path) -> None:
    hello = make_hello()
    # An extension of the same size that no server minds is turned into one that holds the name encrypted.
    hidden = hello.replace(b"\x00\x16\x00\x00", b"\xfe\x0d\x00\x00")
    assert hidden != hello
    async with open_world(tmp_path) as world:
        await world.send(f"CONNECT {world.target} HTTP/1.1", hidden)
        assert world.notes == [(world.target, "its TLS hides the name of its host (Encrypted Client Hello)")]


async def test_a_name_that_servers_pass_over_passes_nothing_on(tmp_path: Path) -> None:
    entry = len(HOST).to_bytes(2) + HOST.encode()
    hello = make_hello().replace(b"\0" + entry, b"\7" + entry)
    async with open_world(tmp_path) as world:
        await world.send(f"CONNECT {world.target} HTTP/1.1", hello)
        assert world.notes == [(world.target, "its first message is not one of TLS")]


def test_a_name_is_read_from_a_message_in_several_records() -> None:
    hello = make_hello()
    assert read_server_names(hello) == [HOST]
    body = hello[5:]
    parts = [body[start : start + 7] for start in range(0, len(body), 7)]
    assert read_server_names(b"".join(hello[:3] + len(each).to_bytes(2) + each for each in parts)) == [HOST]
    for length in range(1, len(body)):
        # A message that is cut anywhere is refused, or has no more names.
        cut = b"\x01" + (length).to_bytes(3) + body[4 : 4 + length]
        with contextlib.suppress(ValueError):
            assert read_server_names(hello[:3] + len(cut).to_bytes(2) + cut) in ([], [HOST])


@pytest.mark.parametrize("text", ["", ":443", "a", "a:", "a:0", "a:65536", "a:٤٤٣", "a b:443", "[::g]:443", "ä.de:443"])
def test_a_target_is_a_host_and_a_port(text: str) -> None:
    assert split_target("[::1]:443") == ("::1", 443)
    with pytest.raises(ValueError, match=r"host and a port|octet|At least|hex"):
        split_target(text)
