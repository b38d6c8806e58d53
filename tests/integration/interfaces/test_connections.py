"""Hostile clients before a caller is known: raw sockets against a running gateway."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio

from deputize.interfaces import connections
from tests.integration.conftest import HttpGateway, serve_gateway
from tests.support import shop_tools

MEGABYTE = 1 << 20
PROXY, CLIENT = "127.0.0.1", "127.0.0.2"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpGateway]:
    """A gateway of few places, whose times are so long that no connection ends while a test needs it."""
    async with serve_gateway(
        module_database,
        tmp_path_factory.mktemp("gateway"),
        header_timeout_seconds=300,
        body_timeout_seconds=300,
        idle_timeout_seconds=300,
        max_connections=60,
        max_connections_per_address=20,
        max_requests=8,
        reverse_proxies=(PROXY,),
    ) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hasty_gateway(
    make_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[HttpGateway]:
    """A gateway that soon ends connections whose client lets it wait."""
    async with serve_gateway(
        make_database(),
        tmp_path_factory.mktemp("hasty"),
        header_timeout_seconds=1,
        body_timeout_seconds=1.5,
        idle_timeout_seconds=1,
    ) as gateway:
        yield gateway


async def connect(gateway: HttpGateway, address: str = PROXY) -> Connection:
    host, _, port = gateway.url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port), local_addr=(address, 0))


async def send(connection: Connection, data: bytes) -> bytes:
    """Send, then read until the gateway closes; empty if it reset the connection first."""
    reader, writer = connection
    try:
        writer.write(data)
        await writer.drain()
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def flood(connection: Connection, start: bytes, piece: bytes, limit: int = 200 * MEGABYTE) -> tuple[int, bytes]:
    """Send pieces until the gateway ends the connection; return how many bytes it let through, and its answer."""
    reader, writer = connection
    sent = 0
    try:
        writer.write(start)
        while sent < limit and not reader.at_eof():
            writer.write(piece)
            sent += len(piece)
            await writer.drain()
        return sent, await reader.read()
    except ConnectionError:
        return sent, b""
    finally:
        writer.close()


async def wait_until(is_done: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_done():  # noqa: ASYNC110 -- what another end of a socket sees has no event
            await asyncio.sleep(0.05)


async def call_until(gateway: HttpGateway, status: int) -> httpx2.Response:
    """Call until the gateway has noticed what other connections began or ended."""
    async with asyncio.timeout(60):
        while (answer := await gateway.call("shop.get_user", {"id": 1})).status_code != status:  # noqa: ASYNC110 -- over HTTP
            await asyncio.sleep(0.05)
    return answer


def count_connections(gateway: HttpGateway) -> int:
    """Count the gateway's ends of connections that still have a descriptor."""
    port = f":{int(gateway.url.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(port) and row[3] != "0A" and row[9] != "0" for row in rows)


@pytest.mark.parametrize(
    ("start", "piece", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\n", (b"x-a: " + b"b" * 8000 + b"\r\n") * 8, b"431"),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-a: ", b"b" * 65_536, b"431"),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\n", b"a:\r\n" * 16_384, b"431"),
        (b"GET /", b"a" * 65_536, b"414"),
        (b"", b"\r\n" * 32_768, b"431"),
        (b"POST /v1/calls HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 9000, b"401"),
        (b"POST /v1/calls HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\na:", b"b" * 65_536, b"401"),
    ],
    ids=["headers", "one-header", "small-headers", "url", "empty-lines", "trailers", "one-trailer"],
)
async def test_an_endless_request_is_refused_before_it_costs_memory(
    gateway: HttpGateway, start: bytes, piece: bytes, status: bytes
) -> None:
    sent, answer = await flood(await connect(gateway), start, piece)
    # What the gateway did not read is in the buffers of the two sockets.
    assert sent < 16 * MEGABYTE
    assert answer in (b"",) or status in answer.split(b"\r\n")[0]


async def test_a_head_below_the_limit_passes_and_one_above_is_refused(gateway: HttpGateway) -> None:
    def build_request(header_bytes: int) -> bytes:
        lines = b"".join(b"x-%02d: %s\r\n" % (number, b"a" * (header_bytes // 50)) for number in range(50))
        return b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + lines + b"\r\n"

    assert (await send(await connect(gateway), build_request(60_000))).startswith(b"HTTP/1.1 200")
    assert (await send(await connect(gateway), build_request(70_000))).startswith(b"HTTP/1.1 431")
    many = b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 300 + b"\r\n"
    assert (await send(await connect(gateway), many)).startswith(b"HTTP/1.1 431")
    assert (await send(await connect(gateway), b"GET /%s HTTP/1.1\r\n\r\n" % (b"a" * 9000))).startswith(b"HTTP/1.1 414")


async def test_trailers_are_no_headers(gateway: HttpGateway) -> None:
    body = b'{"tool":"shop.get_user","arguments":{"id":1}}'
    authorization = b"authorization: Bearer %s\r\n" % gateway.token().encode()

    async def call(headers: bytes, trailers: bytes) -> bytes:
        head = b"POST /v1/calls HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
        chunks = b"%x\r\n%s\r\n0\r\n" % (len(body), body)
        request = head + b"transfer-encoding: chunked\r\n" + headers + b"\r\n" + chunks + trailers + b"\r\n"
        return (await send(await connect(gateway), request)).split(b"\r\n")[0]

    assert b"401" in await call(b"", authorization)
    assert b"200" in await call(authorization, b"authorization: Bearer x\r\nexpect: 100-continue\r\n")


async def hold(connection: Connection, start: bytes, trickle: bytes) -> tuple[float, bytes]:
    """Send the start, then the trickle every 0.3 s, until the gateway ends it; return for how long, and its answer."""
    reader, writer = connection
    began = time.monotonic()
    answer = b""
    try:
        writer.write(start)
        while time.monotonic() - began < 90:
            try:
                part = await asyncio.wait_for(reader.read(4096), 0.3)
            except TimeoutError:
                writer.write(trickle)
                continue
            answer += part
            if not part:
                break
    except ConnectionError:
        pass
    finally:
        writer.close()
    return time.monotonic() - began, answer


@pytest.mark.parametrize(
    ("start", "trickle"),
    [
        (b"", b""),
        (b"POST /v1/calls HTTP/1.1\r\nhost: x\r\n", b""),
        (b"POST /v1/calls HTTP/1.1\r\nhost: x\r\n", b"a: b\r\n"),
        (b"", b"\r\n"),
    ],
    ids=["silent", "half-open", "trickled-headers", "trickled-empty-lines"],
)
async def test_an_unfinished_head_is_ended_and_its_descriptor_freed(
    hasty_gateway: HttpGateway, start: bytes, trickle: bytes
) -> None:
    before = count_connections(hasty_gateway)
    opened = [await connect(hasty_gateway) for _ in range(40)]
    ended = await asyncio.gather(*(hold(each, start, trickle) for each in opened))
    assert max(seconds for seconds, _ in ended) < 60
    await wait_until(lambda: count_connections(hasty_gateway) <= before)


async def test_a_slow_body_is_ended(hasty_gateway: HttpGateway) -> None:
    head = (
        b"POST /v1/calls HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 4000\r\n"
        b"authorization: Bearer %s\r\n\r\n" % hasty_gateway.token().encode()
    )
    seconds, answer = await hold(await connect(hasty_gateway), head, b"{")
    assert seconds < 60
    assert answer.startswith(b"HTTP/1.1 408") or not answer


async def test_an_idle_connection_is_closed(hasty_gateway: HttpGateway) -> None:
    # Until the gateway closes it, which a patient one does after minutes.
    answer = await send(await connect(hasty_gateway), b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")


async def test_a_request_answered_before_its_body_ends_soon(gateway: HttpGateway) -> None:
    head = b"POST /v1/calls HTTP/1.1\r\nhost: x\r\ncontent-length: 900000\r\n\r\n"
    # Until the gateway closes it, though it would wait for minutes for a body that it wants.
    assert (await send(await connect(gateway), head)).startswith(b"HTTP/1.1 401")


async def test_pipelined_requests_are_few(hasty_gateway: HttpGateway) -> None:
    answer = await send(await connect(hasty_gateway), b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n" * 5000)
    assert answer.count(b"HTTP/1.1 200") <= 20


async def test_one_address_cannot_take_every_connection(gateway: HttpGateway) -> None:
    before = count_connections(gateway)
    held = [await connect(gateway, CLIENT) for _ in range(20)]
    assert (await send(await connect(gateway, CLIENT), b"")).startswith(b"HTTP/1.1 503")
    ask = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    assert (await send(await connect(gateway, "127.0.0.3"), ask)).startswith(b"HTTP/1.1 200")
    for _, writer in held:
        writer.close()
        await writer.wait_closed()
    await wait_until(lambda: count_connections(gateway) <= before)
    assert (await send(await connect(gateway, CLIENT), ask)).startswith(b"HTTP/1.1 200")


async def test_health_is_answered_while_the_api_is_flooded(gateway: HttpGateway) -> None:
    before = count_connections(gateway)
    held = [await connect(gateway) for _ in range(60)]
    try:
        assert (await send(await connect(gateway), b"")).startswith(b"HTTP/1.1 503")
        async with httpx2.AsyncClient(base_url=gateway.metrics_url, timeout=60) as http:
            assert (await http.get("/healthz")).json() == {"status": "ok"}
            assert (await http.get("/readyz")).json()["ready"] is True
            metrics = (await http.get("/metrics")).text
        assert 'deputize_connection_refusals_total{reason="connections"}' in metrics
    finally:
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
    await wait_until(lambda: count_connections(gateway) <= before)


async def test_requests_in_progress_are_limited_and_health_is_not(gateway: HttpGateway) -> None:
    # Their caller is in the body, so that nobody knows whose they are.
    head = b"POST /oauth/token HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-www-form-urlencoded\r\n"
    held = [await connect(gateway) for _ in range(8)]
    for _, writer in held:
        writer.write(head + b"content-length: 1000\r\n\r\nagent=")
        await writer.drain()
    refused = await call_until(gateway, 503)
    assert refused.json()["error"]["slug"] == "unavailable"
    assert refused.headers["retry-after"] == "1"
    assert (await gateway.http.get("/healthz")).status_code == 200
    full = count_connections(gateway)
    for _, writer in held:
        writer.close()
    await wait_until(lambda: count_connections(gateway) <= full - len(held))
    await call_until(gateway, 200)


async def test_slow_requests_of_one_tenant_leave_room_for_another(gateway: HttpGateway) -> None:
    names = [f"many-{number}" for number in range(4)]
    calls = [
        asyncio.create_task(gateway.call("shop.slow_note", {"name": name}, key=name, token=gateway.token(name)))
        for name in names
    ]
    for name in names:
        await shop_tools.start_events.setdefault(name, asyncio.Event()).wait()
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools.list", "params": {}}
    mcp_headers = {
        "authorization": f"Bearer {gateway.token('late')}", "accept": "application/json, text/event-stream"
    }  # fmt: skip
    try:
        for answer in (
            await gateway.call("shop.get_user", {"id": 1}, token=gateway.token("late")),
            await gateway.get("/v1/tools", token=gateway.token("late")),
            await gateway.get("/v1/approvals", token=gateway.token("late")),
            await gateway.post("/rpc", request, token=gateway.token("late")),
            await gateway.http.post("/mcp", json={**request, "method": "ping"}, headers=mcp_headers),
            await gateway.post_exchange(gateway.token("late")),
        ):
            assert answer.status_code == 429, answer.text
            assert answer.headers["retry-after"] == "1"
            assert "default:requests-per-tenant" in answer.text
        others = [await gateway.get("/v1/tools", token=gateway.other_token()) for _ in range(6)]
        assert {each.status_code for each in others} == {200}
    finally:
        for name in names:
            shop_tools.release_events[name].set()
    assert {(await call).json()["state"] for call in calls} == {"succeeded"}
    assert (await gateway.call("shop.get_user", {"id": 1}, token=gateway.token("late"))).status_code == 200
    async with httpx2.AsyncClient(base_url=gateway.metrics_url, timeout=60) as http:
        assert 'deputize_limit_refusals_total{rule="default:requests-per-tenant"}' in (await http.get("/metrics")).text


async def test_a_client_that_never_reads_is_ended(gateway: HttpGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_WRITE_SECONDS", 1.0)
    host, _, port = gateway.url.removeprefix("http://").rpartition(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        before = count_connections(gateway)
        await asyncio.to_thread(client.connect, (host, int(port)))
        client.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 16)
        await wait_until(lambda: count_connections(gateway) > before)
        await wait_until(lambda: count_connections(gateway) <= before)
