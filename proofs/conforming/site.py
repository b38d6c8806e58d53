"""A gateway with the fixture server behind it and a worker beside it, as the suite meets them.

Above: `conformance.py`. Below: the gateway, unmodified; `fixture.py`; `relay.py`.
"""

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from proofs.conforming.fixture import SLOW, TOOLS
from proofs.conforming.fixture_offers import PROMPTS
from proofs.conforming.relay import Relay
from proofs.kit.child import Child
from proofs.kit.gateway import GatewayHandle, new_issuer, start_gateway, start_worker
from proofs.kit.serving import READY
from proofs.kit.wire import Line
from proofs.kit.world import World

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
asks = ["elicitation", "sampling", "roots"]
"""
_WAIT_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    gateway: GatewayHandle
    token: str

    @classmethod
    async def start(cls, world: World) -> Self:
        child = await start_fixture(world)
        url = (await child.line(READY)).partition(READY)[2].strip()
        settings = _SETTINGS.format(name=NAME, url=url, slow=", ".join(f'"{each}"' for each in SLOW))
        postgres, issuer = await world.postgres(), new_issuer()
        gateway = await start_gateway(world, postgres.dsn, issuer, tools="none*.py", settings=settings)
        await start_worker(gateway)
        site = cls(gateway=gateway, token=issuer.token("ana", scopes=()))
        await served(gateway, site.token, f"{NAME}__", len(TOOLS))
        return site

    def relay(self, kind: type[Relay] = Relay) -> Relay:
        return kind(urlsplit(self.gateway.url).port or 0, self.token, f"{NAME}__", (*TOOLS, *PROMPTS))


async def start_fixture(world: World) -> Child:
    argv = [sys.executable, "-m", "proofs.conforming.fixture"]
    return await world.start("fixture", argv, cwd=_ROOT, ready_line=READY, timeout=60)


async def served(gateway: GatewayHandle, token: str, prefix: str, tools: int) -> None:
    """Waits until the gateway has looked at its server: it starts without waiting for any."""
    line = Line.to(gateway.url, token=token)
    ends = time.monotonic() + _WAIT_SECONDS
    names: list[str] = []
    while len(names) < tools:
        if time.monotonic() > ends:
            raise RuntimeError(f"of {tools} tools of the server only these are served: {names}")
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        answer = await line.post("/mcp", asked, Accept="application/json, text/event-stream")
        listed = answer.json().get("result", {}).get("tools", [])
        names = [each["name"] for each in listed if each["name"].startswith(prefix)]
        await asyncio.sleep(0.1)
    line.close()
