"""Two MCP servers whose declarations a proof changes, and a gateway in front of both, spoken to through its own API."""

import asyncio
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from proofs.drift.tool_definitions import ARGUMENTS, INSTRUCTIONS, NOUNS_BY_SERVER, READ_VERBS, build_tools
from proofs.kit.asgi_server import READY
from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer, put_policies, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.http_client import HttpConnection, HttpResponse
from proofs.kit.sandbox import Sandbox

_ROOT = Path(__file__).resolve().parents[2]
ERA_BY_SERVER = {"shop": "modern", "depot": "legacy"}
TENANT = "acme"
_CONCURRENCY = 6
_SERVER = """
[[servers]]
name = "{name}"
tenant = "{tenant}"
url = "{url}/mcp"
reads = [{reads}]
probe_seconds = 3600
recheck_seconds = 0
"""


class DriftServer:
    """One server, told what to declare."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self.tools = build_tools(name)

    async def declare_tools(self, tools: list[dict[str, Any]] | str, instructions: str | None = None) -> None:
        text = tools.encode() if isinstance(tools, str) else orjson.dumps(tools)
        server_instructions = INSTRUCTIONS[self.name] if instructions is None else instructions
        await _send_once(HttpConnection.for_url(self.url), "PUT", "/tools", text)
        await _send_once(HttpConnection.for_url(self.url), "PUT", "/instructions", server_instructions.encode())

    async def fetch_call_counts(self) -> dict[str, int]:
        """How often each tool was called since this was asked last."""
        return dict((await _send_once(HttpConnection.for_url(self.url), "GET", "/done")).json())


@dataclass(kw_only=True)
class Testbed:
    sandbox: Sandbox
    issuer: Issuer
    gateway: GatewayHandle
    upstreams: dict[str, DriftServer]
    tenant: str = TENANT
    _key_count: int = 0
    _request_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONCURRENCY))

    @classmethod
    async def start(cls, sandbox: Sandbox) -> "Testbed":
        postgres, issuer = await sandbox.start_postgres(), create_issuer()
        upstreams = {name: await _start_server(sandbox, name) for name in NOUNS_BY_SERVER}
        for each in upstreams.values():
            await each.declare_tools(each.tools)
        settings = "".join(_render_settings(each, TENANT) for each in upstreams.values())
        gateway = await start_gateway(sandbox, postgres.dsn, issuer, tools="none*.py", settings=settings)
        return cls(sandbox=sandbox, issuer=issuer, gateway=gateway, upstreams=upstreams)

    async def switch_to_variant(self, variant: str) -> None:
        """The same gateway changed on purpose, for a tenant of its own, which agreed to nothing yet."""
        settings = self.gateway.folder / "deputize.toml"
        old, self.tenant = self.tenant, variant.replace("_", "-")
        settings.write_text(settings.read_text().replace(f'tenant = "{old}"\nurl', f'tenant = "{self.tenant}"\nurl'))
        for each in self.upstreams.values():
            await each.declare_tools(each.tools)
        await restart_as_variant(self.gateway, variant)
        await put_policies(self.gateway.url, self._issue_token())

    def _issue_token(self) -> str:
        scopes = ("deputize:admin", *(f"{name}:write" for name in self.upstreams))
        return self.issuer.issue_token("ana", tenant=self.tenant, scopes=scopes)

    async def send_request(self, method: str, path: str, value: Any = None, key: str = "") -> HttpResponse:
        body = b"" if value is None else orjson.dumps(value)
        headers = {"idempotency-key": key} if key else {}
        async with self._request_slots:
            return await _send_once(
                HttpConnection.for_url(self.gateway.url, token=self._issue_token()), method, path, body, headers
            )

    async def probe_server(self, server: str) -> dict[str, Any]:
        answer = await self.send_request("POST", f"/v1/servers/{server}/test")
        if answer.status != 200:
            raise RuntimeError(f"{server} could not be looked at: {answer.status} {answer.body[:300]!r}")
        return dict(answer.json())

    async def list_changes(self, server: str) -> dict[str, dict[str, Any]]:
        """What waits for a review, by item."""
        answer = await self.send_request("GET", f"/v1/servers/{server}/changes?limit=2000")
        return {each["item"]: each for each in answer.json()["changes"]}

    async def call_tool(self, tool: str) -> HttpResponse:
        self._key_count += 1
        request = {"tool": tool, "arguments": ARGUMENTS}
        return await self.send_request("POST", "/v1/calls", request, key=f"{self.tenant}-{self._key_count}")

    async def call_tools(self, tools: Iterable[str]) -> dict[str, HttpResponse]:
        names = list(tools)
        answers = await asyncio.gather(*(self.call_tool(tool) for tool in names))
        return dict(zip(names, answers, strict=True))


async def _send_once(
    http: HttpConnection, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> HttpResponse:
    """On a line of its own: between two questions, servers close lines that they take for forgotten."""
    try:
        return await http.send(method, path, headers=headers, body=body)
    finally:
        http.close()


async def _start_server(sandbox: Sandbox, name: str) -> DriftServer:
    argv = [sys.executable, "-m", "proofs.drift.mcp_server", "--era", ERA_BY_SERVER[name]]
    child = await sandbox.start_process(name, argv, cwd=_ROOT, ready_line=READY)
    ready_line = await child.wait_for_line(READY, timeout=5)
    return DriftServer(name, ready_line.partition(READY)[2].strip())


def _render_settings(upstream: DriftServer, tenant: str) -> str:
    globs = ", ".join(f'"{verb}_*"' for verb in READ_VERBS)
    return _SERVER.format(name=upstream.name, tenant=tenant, url=upstream.url, reads=globs)
