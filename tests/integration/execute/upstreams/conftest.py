"""Servers of the official SDK as processes of their own, and the upstreams of a gateway that reach them."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from deputize.core.settings import McpServer, Settings
from deputize.execute.upstreams.servers import Upstreams

FIXTURE = str(Path(__file__).with_name("fixture_server.py"))
SECONDS = 60.0


@dataclass
class Running:
    port: int
    process: Popen[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"


@contextmanager
def running(*options: str) -> Iterator[Running]:
    process = Popen([sys.executable, FIXTURE, "--http", *options], stdout=PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Running(port=int(process.stdout.readline()), process=process)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@asynccontextmanager
async def reaching(*servers: McpServer, **more: Any) -> AsyncIterator[Upstreams]:
    # `model_construct` takes the servers as they are and nothing from the environment.
    upstreams = Upstreams(Settings(servers=servers), **more)
    try:
        yield upstreams
    finally:
        await upstreams.aclose()


@dataclass
class Shop:
    """One server named `shop`, of tenant `dev`, and what the tests ask of it."""

    upstreams: Upstreams

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        known = {"meta": {}, "credential": None, "seconds": SECONDS, **more}
        return await self.upstreams.call("dev", "shop", tool, arguments or {}, **known)

    async def discover(self, **more: Any) -> Any:
        return await self.upstreams.discover("dev", "shop", more.get("credential"), more.get("seconds", SECONDS))

    def changed(self) -> asyncio.Event:
        event = asyncio.Event()
        self.upstreams.watch(lambda tenant, server: event.set())
        return event


ERAS = {
    "of today": (),
    "of today, in JSON": ("--json",),
    "with sessions": ("--legacy",),
    "without sessions": ("--legacy", "--stateless"),
    "without sessions, in JSON": ("--legacy", "--stateless", "--json"),
}


@pytest.fixture(params=list(ERAS), scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(*ERAS[request.param]) as found:
        yield found


@pytest.fixture
def over_http() -> Callable[..., McpServer]:
    def named(server: Running, **more: Any) -> McpServer:
        return McpServer(name="shop", url=server.url, **more)

    return named
