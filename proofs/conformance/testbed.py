"""A gateway with the fixture server behind it and a worker beside it, as the suite meets them."""

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from proofs.conformance.fixture_resources import PROMPTS
from proofs.conformance.fixture_server import SLOW_TOOLS, TOOLS
from proofs.conformance.relay import Relay
from proofs.kit.asgi_server import READY
from proofs.kit.child_process import ChildProcess
from proofs.kit.gateway import GatewayHandle, create_issuer, start_gateway, start_worker
from proofs.kit.http_client import HttpConnection
from proofs.kit.sandbox import Sandbox

NAME = "fixture"
_ROOT = Path(__file__).resolve().parents[2]
_SETTINGS = """
[[servers]]
name = "{name}"
url = "{url}"
reads = ["*"]
resources = ["*"]
prompts = ["*"]
slow = [{slow}]
input_requests = ["elicitation", "sampling", "roots"]
"""
_WAIT_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Testbed:
    gateway: GatewayHandle
    token: str

    @classmethod
    async def start(cls, sandbox: Sandbox) -> Self:
        child = await start_fixture(sandbox)
        url = (await child.wait_for_line(READY)).partition(READY)[2].strip()
        settings = _SETTINGS.format(name=NAME, url=url, slow=", ".join(f'"{each}"' for each in SLOW_TOOLS))
        postgres, issuer = await sandbox.start_postgres(), create_issuer()
        gateway = await start_gateway(sandbox, postgres.dsn, issuer, tools="none*.py", settings=settings)
        await start_worker(gateway)
        testbed = cls(gateway=gateway, token=issuer.issue_token("ana", scopes=()))
        await wait_for_tools(gateway, testbed.token, f"{NAME}__", len(TOOLS))
        return testbed

    def create_relay(self, relay_class: type[Relay] = Relay) -> Relay:
        return relay_class(urlsplit(self.gateway.url).port or 0, self.token, f"{NAME}__", (*TOOLS, *PROMPTS))


async def start_fixture(sandbox: Sandbox) -> ChildProcess:
    argv = [sys.executable, "-m", "proofs.conformance.fixture_server"]
    return await sandbox.start_process("fixture", argv, cwd=_ROOT, ready_line=READY)


async def wait_for_tools(gateway: GatewayHandle, token: str, prefix: str, tool_count: int) -> None:
    """Waits until the gateway has looked at its server: it starts without waiting for any."""
    http = HttpConnection.for_url(gateway.url, token=token)
    deadline = time.monotonic() + _WAIT_SECONDS
    names: list[str] = []
    while len(names) < tool_count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"of {tool_count} tools of the server only these are served: {names}")
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        answer = await http.post("/mcp", request, Accept="application/json, text/event-stream")
        tool_list = answer.json().get("result", {}).get("tools", [])
        names = [each["name"] for each in tool_list if each["name"].startswith(prefix)]
        await asyncio.sleep(0.1)
    http.close()
