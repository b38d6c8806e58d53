"""Pages are fetched from listed hosts alone, whatever an address, a redirect or a name server says."""

import asyncio
import gzip
from collections.abc import Sequence

import pytest

from deputize.core.contract.tools import FetchedPage
from deputize.core.errors import (
    EgressDenied,
    Problem,
    ResourceLimitExceeded,
    ToolPrecondition,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from deputize.execute.page_client import PageClient
from tests.support.egress_server import make_ok_response, make_redirect, make_resolver, run_server

pytestmark = [pytest.mark.requirement("EXE-4"), pytest.mark.requirement("GOV-2")]


async def get(client: PageClient, url: str, seconds: float = 60.0) -> FetchedPage:
    return await client.get(url, {"Accept": "text/html"}, seconds)


async def test_a_listed_host_is_read_with_its_redirects() -> None:
    def answer(path: str, host: str) -> bytes:
        left = int(path[1:])
        return make_redirect(f"/{left - 1}") if left else make_ok_response(b"arrived")

    async with run_server(answer) as server:
        client, here = PageClient([], [f"localhost:{server.port}"], max_bytes=10_000), f"http://localhost:{server.port}"
        page = await get(client, f"{here}/3")
        assert (page.url, page.status, page.body) == (f"{here}/0", 200, b"arrived")
        assert all(head.startswith("GET ") and "accept: text/html" in head.lower() for head in server.heads)
        with pytest.raises(UpstreamUnavailable, match="redirects more than 3 times"):
            await get(client, f"{here}/4")


@pytest.mark.parametrize(
    "url",
    [
        "https://other.example/", "https://docs.example.com:8443/", "http://docs.example.com/", "https://example.com/",
        "https://docs.example.com.evil.example/", "https://evil-docs.example.com/", "https://wiki.example.org/",
        "https://a.wiki.internal/", "http://wiki.internal:81/", "https://169.254.169.254/", "https://127.0.0.1/",
        "https://[::1]/", "https://2130706433/", "https://user@docs.example.com/", "https://docs.example.com@evil.example/",
        "https://docs.example.com\\@evil.example/", "https://evil.example#docs.example.com/", "ftp://docs.example.com/",
        "file:///etc/passwd", "https:///x", "https://docs.example.com:99999/", "https://d\u043ecs.example.com/", "",
        "ftp://docs.example.com:443/",
    ],
)  # fmt: skip
async def test_a_host_that_is_not_listed_is_not_even_resolved(url: str) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        pytest.fail(f"{host} was resolved")

    listed = ["docs.example.com", "*.example.net", "*.wiki.example.org"]
    client = PageClient(listed, ["wiki.internal"], max_bytes=10_000, resolver=resolve)
    with pytest.raises(EgressDenied):
        await get(client, url)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.7", "169.254.169.254", "::1", "fd00:ec2::254"])
async def test_a_public_host_never_leads_to_a_private_address(address: str) -> None:
    client = PageClient(["docs.example.com", "*.example.net"], max_bytes=10_000, resolver=make_resolver(address))
    for host in ("docs.example.com", "a.b.example.net", "DOCS.example.com", "docs.example.com."):
        with pytest.raises(EgressDenied, match="resolves to"):
            await get(client, f"https://{host}/")


async def test_a_private_host_never_leads_to_a_metadata_service() -> None:
    client = PageClient([], ["wiki.internal"], max_bytes=10_000, resolver=make_resolver("169.254.169.254"))
    with pytest.raises(EgressDenied, match="never allowed"):
        await get(client, "http://wiki.internal/latest/meta-data/")


async def test_a_name_that_changes_its_address_leads_nowhere_else() -> None:
    asked = 0

    async def rebind(host: str, port: int) -> Sequence[str]:
        nonlocal asked
        asked += 1
        return ["127.0.0.1"] if asked == 1 else ["169.254.169.254"]

    async with run_server(lambda path, host: make_ok_response(b"first")) as server:
        client = PageClient([], [f"wiki.internal:{server.port}"], max_bytes=10_000, resolver=rebind)
        assert (await get(client, f"http://wiki.internal:{server.port}/")).body == b"first"
        assert asked == 1
        # Another call looks the name up again, and is refused.
        with pytest.raises(EgressDenied):
            await get(client, f"http://wiki.internal:{server.port}/")
    assert len(server.hosts) == 1


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data/", "//169.254.169.254/", "https://evil.example/?secret", "file:///etc/passwd",
        "http://localhost:1/", "https://user:secret@localhost/", "javascript:alert(1)", "gopher://localhost/", "//[",
        "https:\\\\evil.example/", "http://127.0.0.1:1/", "gopher://localhost:1/",
    ],
)  # fmt: skip
async def test_a_redirect_to_a_host_that_is_not_listed_is_refused(location: str) -> None:
    async with run_server(lambda path, host: make_redirect(location)) as server:
        client = PageClient(["docs.example.com"], [f"localhost:{server.port}"], max_bytes=10_000)
        with pytest.raises((EgressDenied, UpstreamUnavailable)):
            await get(client, f"http://localhost:{server.port}/")
        assert len(server.hosts) == 1


async def test_a_redirect_to_another_listed_host_is_a_call_of_its_own() -> None:
    target = "https://docs.example.com/page"
    async with run_server(lambda path, host: make_redirect(target)) as server:
        client = PageClient(["docs.example.com"], [f"localhost:{server.port}"], max_bytes=10_000)
        with pytest.raises(ToolPrecondition, match=r"redirects to docs\.example\.com") as refusal:
            await get(client, f"http://localhost:{server.port}/")
        assert refusal.value.details["location"] == target


async def test_pages_that_are_huge_endless_slow_or_compressed_are_cut_off() -> None:
    bomb = gzip.compress(b"\0" * 10_000_000)
    answers = {
        "/huge": (make_ok_response(b"x" * 20_000), ResourceLimitExceeded),
        "/endless": (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 20_000, ResourceLimitExceeded),
        "/chunks": (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b"x" * 1_024 + b"\r\n"
            + (b"400\r\n" + b"x" * 1_024 + b"\r\n") * 20,
            ResourceLimitExceeded,
        ),
        "/bomb": (make_ok_response(bomb, b"Content-Encoding: gzip"), UpstreamUnavailable),
        "/headers": (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000 + b"\r\n", UpstreamUnavailable),
        "/no-http": (b"SSH-2.0-OpenSSH_9\r\n\r\n", UpstreamUnavailable),
        "/silent": (b"", UpstreamTimeout),
    }  # fmt: skip
    async with run_server(lambda path, host: answers[path][0]) as server:
        client = PageClient([], [f"localhost:{server.port}"], max_bytes=10_000)
        for path, (_, expected) in answers.items():
            with pytest.raises(expected):
                await get(client, f"http://localhost:{server.port}{path}", 1.0 if path == "/silent" else 60.0)


async def test_a_page_that_comes_byte_by_byte_ends_in_time() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        client = PageClient([], [f"localhost:{port}"], max_bytes=10_000)
        with pytest.raises(Problem) as problem:
            await get(client, f"http://localhost:{port}/", 1.0)
        assert isinstance(problem.value, UpstreamTimeout)
        server.close()
