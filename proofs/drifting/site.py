"""Two MCP servers whose declarations a proof changes, and a gateway in front of both, spoken to through its own API.

Above: `proofs/drift.py`. Below: `server.py`, a process per server; an unmodified gateway of the kit.
"""

import asyncio
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from proofs.drifting.goods import ARGUMENTS, INSTRUCTIONS, READING, THINGS, goods
from proofs.kit.gateway import GatewayHandle, Issuer, new_issuer, put_policies, start_gateway
from proofs.kit.serving import READY
from proofs.kit.variant import restart_as
from proofs.kit.wire import Answer, Line
from proofs.kit.world import World

_ROOT = Path(__file__).resolve().parents[2]
ERAS = {"shop": "modern", "depot": "legacy"}
TENANT = "acme"
_AT_ONCE = 6
_SERVER = """
[[servers]]
name = "{name}"
tenant = "{tenant}"
url = "{url}/mcp"
reads = [{reads}]
probe_seconds = 3600
recheck_seconds = 0
"""


class Upstream:
    """One server, told what to declare."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self.goods = goods(name)

    async def declare(self, tools: list[dict[str, Any]] | str, instructions: str | None = None) -> None:
        text = tools.encode() if isinstance(tools, str) else orjson.dumps(tools)
        told = INSTRUCTIONS[self.name] if instructions is None else instructions
        await _once(Line.to(self.url), "PUT", "/tools", text)
        await _once(Line.to(self.url), "PUT", "/instructions", told.encode())

    async def done(self) -> dict[str, int]:
        """How often each tool was called since this was asked last."""
        return dict((await _once(Line.to(self.url), "GET", "/done")).json())


@dataclass(kw_only=True)
class Site:
    world: World
    issuer: Issuer
    gateway: GatewayHandle
    upstreams: dict[str, Upstream]
    tenant: str = TENANT
    _keys: int = 0
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    @classmethod
    async def start(cls, world: World) -> "Site":
        postgres, issuer = await world.postgres(), new_issuer()
        upstreams = {name: await _start(world, name) for name in THINGS}
        for each in upstreams.values():
            await each.declare(each.goods)
        settings = "".join(_described(each, TENANT) for each in upstreams.values())
        gateway = await start_gateway(world, postgres.dsn, issuer, tools="none*.py", settings=settings)
        return cls(world=world, issuer=issuer, gateway=gateway, upstreams=upstreams)

    async def become(self, variant: str) -> None:
        """The same gateway changed on purpose, for a tenant of its own, which agreed to nothing yet."""
        settings = self.gateway.folder / "deputize.toml"
        old, self.tenant = self.tenant, variant.replace("_", "-")
        settings.write_text(settings.read_text().replace(f'tenant = "{old}"\nurl', f'tenant = "{self.tenant}"\nurl'))
        for each in self.upstreams.values():
            await each.declare(each.goods)
        await restart_as(self.gateway, variant)
        await put_policies(self.gateway.url, self._token())

    def _token(self) -> str:
        scopes = ("deputize:admin", *(f"{name}:write" for name in self.upstreams))
        return self.issuer.token("ana", tenant=self.tenant, scopes=scopes)

    async def ask(self, method: str, path: str, value: Any = None, key: str = "") -> Answer:
        body = b"" if value is None else orjson.dumps(value)
        headers = {"idempotency-key": key} if key else {}
        async with self._turns:
            return await _once(Line.to(self.gateway.url, token=self._token()), method, path, body, headers)

    async def look(self, server: str) -> dict[str, Any]:
        answer = await self.ask("POST", f"/v1/servers/{server}/test")
        if answer.status != 200:
            raise RuntimeError(f"{server} could not be looked at: {answer.status} {answer.body[:300]!r}")
        return dict(answer.json())

    async def held(self, server: str) -> dict[str, dict[str, Any]]:
        """What waits for a review, by item."""
        answer = await self.ask("GET", f"/v1/servers/{server}/changes?limit=2000")
        return {each["item"]: each for each in answer.json()["changes"]}

    async def call(self, tool: str) -> Answer:
        self._keys += 1
        asked = {"tool": tool, "arguments": ARGUMENTS}
        return await self.ask("POST", "/v1/calls", asked, key=f"{self.tenant}-{self._keys}")

    async def calls(self, tools: Iterable[str]) -> dict[str, Answer]:
        named = list(tools)
        answers = await asyncio.gather(*(self.call(tool) for tool in named))
        return dict(zip(named, answers, strict=True))


async def _once(
    line: Line, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Answer:
    """On a line of its own: between two questions, servers close lines that they take for forgotten."""
    try:
        return await line.send(method, path, headers=headers, body=body)
    finally:
        line.close()


async def _start(world: World, name: str) -> Upstream:
    argv = [sys.executable, "-m", "proofs.drifting.server", "--era", ERAS[name]]
    child = await world.start(name, argv, cwd=_ROOT, ready_line=READY)
    line = await child.line(READY, timeout=5)
    return Upstream(name, line.partition(READY)[2].strip())


def _described(upstream: Upstream, tenant: str) -> str:
    globs = ", ".join(f'"{verb}_*"' for verb in READING)
    return _SERVER.format(name=upstream.name, tenant=tenant, url=upstream.url, reads=globs)
