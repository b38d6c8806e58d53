"""Start servers of the official SDK as processes, and build upstream pools that connect to them."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from deputize.core.settings import McpServerSettings, Settings
from deputize.execute.upstreams.server_pool import UpstreamPool

SDK_SERVER = str(Path(__file__).with_name("sdk_server.py"))
SECONDS = 60.0


@dataclass
class ServerProcess:
    port: int
    process: Popen[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"


@contextmanager
def run_server(*options: str) -> Iterator[ServerProcess]:
    process = Popen([sys.executable, SDK_SERVER, "--http", *options], stdout=PIPE, text=True)
    try:
        assert process.stdout is not None
        yield ServerProcess(port=int(process.stdout.readline()), process=process)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@asynccontextmanager
async def open_upstreams(*servers: McpServerSettings, **more: Any) -> AsyncIterator[UpstreamPool]:
    # `model_construct` uses the servers unchanged and ignores the environment.
    upstreams = UpstreamPool(Settings(servers=servers), **more)
    try:
        yield upstreams
    finally:
        await upstreams.aclose()


@dataclass
class ShopServer:
    """The server `shop` of tenant `dev`, and the requests that tests send to it."""

    upstreams: UpstreamPool

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        known = {"meta": {}, "credential": None, "seconds": SECONDS, **more}
        return await self.upstreams.call_tool("dev", "shop", tool, arguments or {}, **known)

    async def discover(self, **more: Any) -> Any:
        return await self.upstreams.discover_server("dev", "shop", more.get("credential"), more.get("seconds", SECONDS))

    def watch_changes(self) -> asyncio.Event:
        event = asyncio.Event()
        self.upstreams.add_change_listener(lambda tenant, server: event.set())
        return event


ERAS = {
    "of today": (),
    "of today, in JSON": ("--json",),
    "with sessions": ("--legacy",),
    "without sessions": ("--legacy", "--stateless"),
    "without sessions, in JSON": ("--legacy", "--stateless", "--json"),
}


@pytest.fixture(params=list(ERAS), scope="module")
def server_process(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    with run_server(*ERAS[request.param]) as found:
        yield found


@pytest.fixture
def http_server() -> Callable[..., McpServerSettings]:
    def make_settings(server: ServerProcess, **more: Any) -> McpServerSettings:
        return McpServerSettings(name="shop", url=server.url, **more)

    return make_settings
