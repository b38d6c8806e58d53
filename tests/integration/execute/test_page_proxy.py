"""What the browser of a sandbox may send, judged at the hosts that it tries to reach."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deputize.execute.browser import page_proxy
from deputize.execute.browser.page_proxy import PageProxy
from deputize.execute.egress import HostResolver
from deputize.execute.page_client import ListedHosts
from tests.support.egress_server import Server, make_certificate, make_ok_response, make_resolver, run_server

pytestmark = [pytest.mark.requirement("EXE-2"), pytest.mark.requirement("EXE-4")]
HOST = "shop.example"


@dataclass
class PageWorld:
    """A proxy, and a listed host behind it with TLS and without."""

    proxy: PageProxy
    secure: Server
    plain: Server
    port: int

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.secure.port}/"

    @property
    def plain_url(self) -> str:
        return f"http://{HOST}:{self.plain.port}/"

    async def send(
        self, head: str, body: bytes = b"", *, tunnel: str | None = None, hold: asyncio.Event | None = None
    ) -> bytes:
        """Send a request, in TLS through a tunnel to a target if there is one; return all that comes back.

        Its body is held back until `hold` is set.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            async with asyncio.timeout(30):
                if tunnel is not None:
                    writer.write(f"CONNECT {tunnel} HTTP/1.1\r\nHost: {tunnel}\r\n\r\n".encode())
                    answer = await reader.readuntil(b"\r\n\r\n")
                    if b" 200 " not in answer:
                        return answer
                    tls = ssl.create_default_context()
                    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
                    await writer.start_tls(tls, server_hostname=HOST)
                writer.write(head.encode() + b"\r\n\r\n")
                if hold is not None:
                    await hold.wait()
                writer.write(body)
                return await reader.read()
        return b""

    async def request(self, method: str, *headers: str, body: bytes = b"", hold: asyncio.Event | None = None) -> bytes:
        lines = (f"{method} /page HTTP/1.1", f"Host: {HOST}", f"Content-Length: {len(body)}", *headers)
        return await self.send("\r\n".join(lines), body, tunnel=f"{HOST}:{self.secure.port}", hold=hold)


@contextlib.asynccontextmanager
async def open_world(folder: Path, resolver: HostResolver | None = None) -> AsyncIterator[PageWorld]:
    server_tls, client_tls = make_certificate(folder, HOST)
    cookies = (b"Set-Cookie: a=1", b"Set-Cookie: b=2", b"Alt-Svc: h3", b"Content-Type: text/html")
    async with contextlib.AsyncExitStack() as stack:
        secure, plain = [
            await stack.enter_async_context(run_server(lambda path, host: make_ok_response(b"hello", *cookies), tls))
            for tls in (server_tls, None)
        ]
        listed = ListedHosts("[builtin.browser]", (), (f"{HOST}:{secure.port}", f"{HOST}:{plain.port}"))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        proxy = PageProxy(listed, seconds=20, resolver=resolver or make_resolver("127.0.0.1"), tls=client_tls)
        stack.push_async_callback(proxy.aclose)
        proxy.start(listener)
        yield PageWorld(proxy, secure, plain, listener.getsockname()[1])


async def test_a_body_in_chunks_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        with world.proxy.open_call():
            request = f"POST {world.plain_url}x HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked"
            assert b" 403 " in await world.send(request, b"1\r\n \r\n" * 3)
        assert world.plain.heads == []


async def test_a_page_is_read_and_noted(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        with world.proxy.open_call() as attempts:
            answer = await world.request("GET", "Cookie: c=3", "X-HTTP-Method-Override: DELETE", body=b"hidden")
            head = await world.request("HEAD")
            plain = await world.send(f"GET {world.plain_url}x HTTP/1.1\r\nHost: other.example")
        assert answer.endswith(b"hello")
        assert b"set-cookie: a=1\r\nset-cookie: b=2" in answer.lower()
        assert b"alt-svc" not in answer.lower()
        assert head.endswith(b"\r\n\r\n")
        assert plain.endswith(b"hello")
        assert attempts == dict.fromkeys(((f"{HOST}:{each.port}", None) for each in (world.secure, world.plain)), False)
        sent = world.secure.heads[0].lower()
        assert "cookie: c=3" in sent
        assert "override" not in sent
        assert world.secure.bodies == [b"", b""]
        assert world.plain.hosts == [f"{HOST}:{world.plain.port}"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get", "FOO"])
async def test_nothing_but_get_and_head_is_sent_while_reading(tmp_path: Path, method: str) -> None:
    async with open_world(tmp_path) as world:
        with world.proxy.open_call() as attempts:
            origin = f"Origin: https://{HOST}:{world.secure.port}"
            assert (await world.request(method, origin, body=b"x")).startswith(b"HTTP/1.1 403")
        assert f"{method} is possible only while" in str([reason for _, reason in attempts])
        assert world.secure.heads == []


async def test_a_call_that_writes_opens_one_origin_to_pages_of_it(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        own, other = f"Origin: {world.url[:-1]}", f"Origin: {world.plain_url[:-1]}"
        foreign = [
            (other,),
            ("Origin: https://evil.example",),
            ("Origin: null",),
            (),
            ("Origin: null", "Sec-Fetch-Site: cross-site"),
        ]
        with world.proxy.open_call():
            world.proxy.allow_writes(world.url)
            for headers in foreign:
                assert (await world.request("POST", *headers, body=b"x")).startswith(b"HTTP/1.1 403")
            # Another origin of the same name.
            plain = await world.send(f"POST {world.plain_url} HTTP/1.1\r\nHost: {HOST}\r\n{other}\r\nContent-Length: 0")
            assert plain.startswith(b"HTTP/1.1 403")
            assert world.secure.heads == world.plain.heads == []
            assert (await world.request("POST", own, body=b"a=1")).endswith(b"hello")
            assert (await world.request("PUT", "Origin: null", "Sec-Fetch-Site: same-origin")).endswith(b"hello")
        assert world.secure.bodies == [b"a=1", b""]
        assert (await world.request("POST", own, body=b"late")).startswith(b"HTTP/1.1 403")
        assert len(world.secure.heads) == 2


async def test_a_write_that_is_complete_only_after_its_call_is_not_sent(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        hold = asyncio.Event()
        with world.proxy.open_call():
            world.proxy.allow_writes(world.url)
            late = asyncio.ensure_future(world.request("POST", f"Origin: {world.url[:-1]}", body=b"late", hold=hold))
            # By then the proxy has read the head of the other one, too.
            await world.request("GET")
        hold.set()
        assert (await late).startswith(b"HTTP/1.1 403")
        assert len(world.secure.heads) == 1


@pytest.mark.parametrize(
    ("head", "tunnel"),
    [
        ("GET / HTTP/1.1", "other.example:443"),
        ("GET / HTTP/1.1", "127.0.0.1:{port}"),
        ("GET / HTTP/1.1", "169.254.169.254:80"),
        ("GET / HTTP/1.1", "user@{host}:{port}"),
        ("GET / HTTP/1.1", "{host}:1"),
        ("GET / HTTP/1.1", "{host}"),
        ("GET http://169.254.169.254/ HTTP/1.1", None),
        ("GET http://127.0.0.1:{plain}/ HTTP/1.1", None),
        ("GET http://{host}:{port}@evil.example/ HTTP/1.1", None),
        ("GET / HTTP/1.1", None),
        ("GET ftp://{host}:{plain}/ HTTP/1.1", None),
        ("GET https://{host}:{port}/ HTTP/1.1", None),
        ("GET http://{host}:{plain}/ HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket", None),
        ("GET /ws HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket", "{host}:{port}"),
        ("GET @evil.example/ HTTP/1.1", "{host}:{port}"),
        ("GET http://evil.example/ HTTP/1.1", "{host}:{port}"),
        ("GET http://{host}:{plain}/{fill} HTTP/1.1", None),
    ],
)
async def test_what_is_no_page_of_a_listed_host_is_not_sent(tmp_path: Path, head: str, tunnel: str | None) -> None:
    async with open_world(tmp_path) as world:
        values = {"host": HOST, "port": world.secure.port, "plain": world.plain.port, "fill": "x" * 3_000}
        with world.proxy.open_call() as attempts:
            answer = await world.send(
                f"{head}\r\nHost: {HOST}".format(**values), tunnel=tunnel and tunnel.format(**values)
            )
        assert answer.startswith(b"HTTP/1.1 403"), answer
        assert all(reason for _, reason in attempts)
        assert len(attempts) == 1
        assert world.secure.heads == world.plain.heads == []


@pytest.mark.parametrize("head", ["CONNECT other.example:443 HTTP/1.1", "GET http://other.example/ HTTP/1.1"])
async def test_who_asks_in_vain_waits_for_each_refusal(
    tmp_path: Path, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def note_wait(seconds: float) -> None:
        waits.append(seconds)

    async with open_world(tmp_path) as world:
        with monkeypatch.context() as patch:
            patch.setattr("deputize.execute.browser.page_proxy.asyncio.sleep", note_wait)
            assert (await world.send(f"{head}\r\nHost: x")).startswith(b"HTTP/1.1 403")
        assert waits == [page_proxy.REFUSAL_SECONDS]


@pytest.mark.parametrize("address", ["169.254.169.254", "fd00:ec2::254", "0.0.0.0"])
async def test_a_listed_name_cannot_lead_to_a_metadata_service(tmp_path: Path, address: str) -> None:
    async with open_world(tmp_path, make_resolver(address)) as world:
        with world.proxy.open_call() as attempts:
            assert (await world.request("GET")).startswith(b"HTTP/1.1 403")
        [(_, reason)] = attempts
        assert reason is not None
        assert "never allowed" in reason


async def test_a_certificate_that_is_not_trusted_ends_it(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        listed = ListedHosts("[builtin.browser]", (), (f"{HOST}:{world.secure.port}",))
        proxy = PageProxy(listed, seconds=20, resolver=make_resolver("127.0.0.1"))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            proxy.start(listener)
            world.port = listener.getsockname()[1]
            with proxy.open_call():
                assert (await world.request("GET")).startswith(b"HTTP/1.1 502")
            await proxy.aclose()
        assert world.secure.heads == []


async def test_between_two_calls_a_request_waits_for_the_next_one(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        waiting = asyncio.ensure_future(world.request("GET"))
        # Connected, and read by the proxy.
        await world.send("GET / HTTP/1.1\r\nHost: x")
        assert world.secure.heads == []
        with world.proxy.open_call() as attempts:
            assert (await waiting).endswith(b"hello")
        assert list(attempts) == [(f"{HOST}:{world.secure.port}", None)]


async def test_what_waited_for_others_is_not_sent_between_two_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_proxy, "_MOST_REQUESTS", 1)
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def resolve(host: str, port: int) -> list[str]:
        is_asked.set()
        await may_answer.wait()
        return ["127.0.0.1"]

    async with open_world(tmp_path, resolve) as world:
        with world.proxy.open_call():
            first = asyncio.ensure_future(world.request("GET"))
            await is_asked.wait()
            second = asyncio.ensure_future(world.send(f"GET {world.plain_url} HTTP/1.1\r\nHost: x"))
            # By then the proxy has read that one, too.
            await world.send("GET / HTTP/1.1\r\nHost: x")
        may_answer.set()
        assert (await first).endswith(b"hello")
        await world.send("GET / HTTP/1.1\r\nHost: x")
        assert world.plain.heads == []
        with world.proxy.open_call():
            assert (await second).endswith(b"hello")
