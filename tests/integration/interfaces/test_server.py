"""The process around the interfaces: listeners, readiness, metrics, an orderly end."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from deputize.app import open_gateway
from deputize.core.config_error import ConfigError
from deputize.core.settings import Settings
from deputize.interfaces.asgi import build_api
from deputize.interfaces.server import serve
from deputize.operations.gateway import Gateway
from deputize.store import migrate
from deputize.store.local_postgres import LocalPostgres
from tests.integration.conftest import HttpGateway, gateway_settings, serve_gateway
from tests.support import shop_tools


async def test_anyone_may_ask_whether_it_lives_and_is_ready(gateway: HttpGateway) -> None:
    assert (await gateway.http.get("/healthz")).json() == {"status": "ok"}
    ready = (await gateway.http.get("/readyz")).json()
    assert ready["ready"] is True
    assert {check["name"] for check in ready["checks"]} >= {"database", "lease", "clock"}


async def test_the_page_loads_nothing_from_elsewhere(gateway: HttpGateway) -> None:
    page = await gateway.http.get("/docs")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert "/v1/calls" in page.text


@pytest.mark.requirement("OBS-2")
async def test_metrics_are_served_apart_and_name_no_tenant(gateway: HttpGateway) -> None:
    await gateway.call("shop.get_user", {"id": 1})
    async with httpx2.AsyncClient(base_url=gateway.metrics_url, timeout=60) as http:
        text = (await http.get("/metrics")).text
        assert (await http.get("/v1/tools")).status_code == 404
        assert (await http.post("/metrics")).headers["allow"] == "GET, HEAD"
    assert 'deputize_tool_invocations_total{mutation_class="read",state="succeeded",tool="shop.get_user"' in text
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert not [line for line in samples if "tenant" in line or '"dev"' in line]
    assert (await gateway.http.get("/metrics")).status_code == 404


async def test_a_port_in_use_is_one_sentence_with_the_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = gateway_settings("postgresql://nobody@127.0.0.1:1/none", tmp_path)
        settings = settings.model_copy(update={"server": settings.server.model_copy(update={"port": port})})

        def never_open() -> AbstractAsyncContextManager[Gateway]:
            raise AssertionError("nothing may be started")

        with pytest.raises(ConfigError, match=rf"Port {port} on 127\.0\.0\.1 is in use: .* port under \[server\]"):
            await serve(never_open, settings, lambda *_: None, stop=asyncio.Event())


async def test_before_the_gateway_is_open_everything_answers_503() -> None:
    @asynccontextmanager
    async def open_slowly() -> AsyncIterator[Gateway]:
        raise AssertionError("not opened here")
        yield

    transport = httpx2.ASGITransport(app=build_api(open_slowly))
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as http:
        headers = {"authorization": "Bearer x", "content-type": "application/json"}
        for answer in (
            await http.post("/v1/calls", content=b"{}", headers=headers),
            await http.post("/rpc", content=b"{}", headers=headers),
            await http.get("/v1/tools", headers=headers),
            await http.get("/readyz"),
        ):
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
        assert (await http.get("/healthz")).status_code == 200


async def test_a_stopping_gateway_finishes_what_it_began_and_ends_its_streams(
    fresh_database: str, tmp_path: Path
) -> None:
    async with serve_gateway(fresh_database, tmp_path) as gateway:
        call = asyncio.create_task(gateway.call("shop.slow_note", {"name": "drain"}, key="drain"))
        await shop_tools.start_events.setdefault("drain", asyncio.Event()).wait()
        running = (await gateway.get("/v1/calls")).json()["calls"][0]["call_id"]
        headers = {"authorization": f"Bearer {gateway.token()}"}
        async with gateway.http.stream("GET", f"/v1/calls/{running}/events", headers=headers) as stream:
            pieces = stream.aiter_text()
            assert "tool.invocation.started" in await anext(pieces)
            gateway.stop.set()
            assert "succeeded" not in "".join([text async for text in pieces])
        await gateway.wait_until_closed()
        assert not call.done()
        shop_tools.release_events["drain"].set()
        assert (await call).json()["state"] == "succeeded"


async def test_at_sigterm_it_turns_unready_and_serves_on_until_load_balancers_noticed(
    fresh_database: str, tmp_path: Path
) -> None:
    settings = gateway_settings(fresh_database, tmp_path, drain_seconds=60)
    async with _serve_until_signal(settings) as (serving, url):
        async with httpx2.AsyncClient(base_url=url, timeout=60) as http:
            assert "connection" not in (await http.get("/readyz")).headers
            os.kill(os.getpid(), signal.SIGTERM)
            answer = await _wait_for_status(http.get, "/readyz", 503)
            assert "process (stopping" in answer.json()["detail"]
            # A client that keeps its connection would otherwise send its next request to a closed one.
            assert answer.headers["connection"] == "close"
            for _ in range(3):
                assert (await http.get("/healthz")).status_code == 200
            assert not serving.done()
            os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(60):
                await serving
        with pytest.raises(httpx2.ConnectError):
            await httpx2.AsyncClient(base_url=url).get("/healthz")


async def test_an_interrupt_does_not_wait_for_load_balancers(fresh_database: str, tmp_path: Path) -> None:
    settings = gateway_settings(fresh_database, tmp_path, drain_seconds=60)
    async with _serve_until_signal(settings) as (serving, _):
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(60):
            await serving


@asynccontextmanager
async def _serve_until_signal(settings: Settings) -> AsyncIterator[tuple["asyncio.Task[None]", str]]:
    urls: asyncio.Queue[str] = asyncio.Queue()
    serving = asyncio.create_task(
        serve(
            lambda: open_gateway(settings, development=True), settings, lambda listening: urls.put_nowait(listening.api)
        )
    )
    try:
        yield serving, await urls.get()
    finally:
        serving.cancel()
        await asyncio.wait({serving})


async def test_without_its_database_it_refuses_everything_and_says_why(reachable_folder: Path, tmp_path: Path) -> None:
    with LocalPostgres(reachable_folder / "db", settings={"fsync": "off"}) as server:
        await asyncio.to_thread(migrate.upgrade, server.dsn)
        async with serve_gateway(server.dsn, tmp_path) as gateway:
            token = gateway.token()
            assert (await gateway.call("shop.get_user", {"id": 1}, token=token)).status_code == 200
            await asyncio.to_thread(server.kill)
            # Whoever is in the middle of it is told within its deadline or when the database is back, never wrongly.
            first = asyncio.create_task(gateway.call("shop.get_user", {"id": 1}, token=token))
            ready = await _wait_for_status(gateway.http.get, "/readyz", 503)
            assert "database" in ready.json()["detail"]
            for answer in (
                await gateway.call("shop.get_user", {"id": 1}, token=token),
                await gateway.call("shop.rename_user", {"id": 1, "name": "x"}, key="down", token=token),
                await gateway.get("/v1/calls", token=token),
                await gateway.get("/v1/tools", token=gateway.token("zoe")),
                await gateway.post("/v1/calls/01890000-0000-7000-8000-000000000000/cancel", token=token),
            ):
                assert answer.status_code == 503
                assert answer.json()["error"]["retryable"] is True
                assert answer.headers["retry-after"] == "1"
            await asyncio.to_thread(server.start)
            await _wait_for_status(gateway.http.get, "/readyz", 200)
            assert (await first).status_code in (200, 503)
            assert (await gateway.call("shop.get_user", {"id": 1}, token=token)).status_code == 200


async def _wait_for_status(get: Callable[[str], Awaitable[httpx2.Response]], path: str, status: int) -> httpx2.Response:
    async with asyncio.timeout(90):
        while True:
            answer = await get(path)
            if answer.status_code == status:
                return answer
            await asyncio.sleep(0.05)
