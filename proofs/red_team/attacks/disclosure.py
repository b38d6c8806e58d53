"""Find out about tools, calls and people that a caller may not see, from answers that differ."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt
import orjson

from proofs.kit.gateway import AUDIENCE, ISSUER
from proofs.kit.http_client import HttpConnection, HttpResponse
from proofs.red_team.arena import Arena
from proofs.red_team.attack import AttackLog, Control, Finding

NAME = "disclosure"
CONTROL = Control(
    variant="red_team_suggestions_of_all",
    attempts=frozenset({"a misspelled name is completed to a hidden tool"}),
)
_HIDDEN, _UNKNOWN = "effects.send", "effects.sent"
# What differs between any two answers: ids and traces.
_IDS = re.compile(rb"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}")


async def attack(arena: Arena, log: AttackLog) -> None:
    gateway = await arena.start_gateway(tools="effects.py")
    spy = Spy(
        # A token that names one tool: all others are hidden from its holder.
        agent=HttpConnection.for_url(gateway.url, token=_issue_narrow_token(arena)),
        owner=HttpConnection.for_url(gateway.url, token=arena.issuer.issue_token("ann")),
        stranger=HttpConnection.for_url(gateway.url, token=arena.issuer.issue_token("bob", tenant="other")),
    )
    attempts = {
        "a call of a hidden tool over REST is told from one of an unknown tool": spy.call_over_rest,
        "a call of a hidden tool over JSON-RPC is told from one of an unknown tool": spy.call_over_rpc,
        "a call of a hidden tool over MCP is told from one of an unknown tool": spy.call_over_mcp,
        "the page of a hidden tool is told from that of an unknown tool": spy.show_tool,
        "a misspelled name is completed to a hidden tool": spy.misspell_name,
        "the list of tools shows a hidden tool": spy.list_tools,
        "another tenant's call is told from one that does not exist": spy.read_other_tenants_call,
    }
    for name, attempt in attempts.items():
        await log.attempt(name, attempt)
    spy.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Spy:
    """An agent whose token names one tool, the owner of some calls, and a stranger in another tenant."""

    agent: HttpConnection
    owner: HttpConnection
    stranger: HttpConnection

    async def call_over_rest(self) -> Finding:
        bodies = [{"tool": name, "arguments": {"label": "x"}} for name in (_HIDDEN, _UNKNOWN)]
        return _compare(*[await self.agent.post("/v1/calls", body) for body in bodies])

    async def call_over_rpc(self) -> Finding:
        return _compare(*[await self.agent.post("/rpc", _build_rpc(name)) for name in (_HIDDEN, _UNKNOWN)])

    async def call_over_mcp(self) -> Finding:
        return _compare(*[await self._send_mcp_call(name) for name in (_HIDDEN, _UNKNOWN)])

    async def show_tool(self) -> Finding:
        return _compare(*[await self.agent.get(f"/v1/tools/{name}") for name in (_HIDDEN, _UNKNOWN)])

    async def misspell_name(self) -> Finding:
        answer = await self.agent.post("/v1/calls", {"tool": "effects.sned", "arguments": {"label": "x"}})
        return Finding(succeeded=_HIDDEN.encode() in answer.body, evidence=_shorten(answer))

    async def list_tools(self) -> Finding:
        answer = await self.agent.get("/v1/tools?limit=100")
        return Finding(succeeded=_HIDDEN.encode() in answer.body, evidence=f"{answer.status}, {len(answer.body)} bytes")

    async def read_other_tenants_call(self) -> Finding:
        created = await self.owner.post("/v1/calls", {"tool": "effects.look", "arguments": {"label": "x"}})
        ids = (str(created.json()["call_id"]), "01890000-0000-7000-8000-00000000dead")
        return _compare(*[await self.stranger.get(f"/v1/calls/{each}") for each in ids])

    async def _send_mcp_call(self, name: str) -> HttpResponse:
        return await self.agent.post(
            "/mcp",
            _build_mcp(name),
            accept="application/json, text/event-stream",
            mcp_protocol_version="2026-07-28",
            mcp_method="tools/call",
            mcp_name=name.replace(".", "__"),
        )

    def close(self) -> None:
        for connection in (self.agent, self.owner, self.stranger):
            connection.close()


def _issue_narrow_token(arena: Arena) -> str:
    now = arena.issuer.clock.epoch_ms() // 1000
    claims = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "ann",
        "tenant": "acme",
        "scope": "proof:write",
        "iat": now,
        "exp": now + 3600,
        "jti": arena.issuer.clock.new_id(),
        "tools": [{"tool_id": "effects.look"}],
    }
    return jwt.encode(claims, arena.issuer.key, algorithm="EdDSA", headers={"kid": "proof"})


def _build_rpc(tool: str) -> Mapping[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "calls.create", "params": {"tool": tool, "arguments": {"label": "x"}}}


def _build_mcp(tool: str) -> Mapping[str, Any]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "attacker", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": tool.replace(".", "__"), "arguments": {"label": "x"}, "_meta": meta}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


def _compare(hidden: HttpResponse, unknown: HttpResponse) -> Finding:
    """Compare two answers as their receiver could, but for ids and for the name that was asked for."""
    is_different = hidden.status != unknown.status or _strip(hidden.body) != _strip(unknown.body)
    return Finding(succeeded=is_different, evidence=f"{_shorten(hidden)} and {_shorten(unknown)}")


def _strip(body: bytes) -> bytes:
    for name in (_HIDDEN, _UNKNOWN):
        body = body.replace(name.encode(), b"NAME").replace(name.replace(".", "__").encode(), b"NAME")
    return _IDS.sub(b"ID", body)


def _shorten(answer: HttpResponse) -> str:
    try:
        slug = orjson.loads(answer.body)["error"]["slug"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        slug = answer.body[:80].decode(errors="replace")
    return f"{answer.status} {slug}"
