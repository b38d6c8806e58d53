"""Take the gateway's processor: documents, patterns, schemas and rules of one tenant that make another's calls wait."""

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from proofs.kit.asgi_server import READY
from proofs.kit.gateway import GatewayHandle, Issuer, put_policies
from proofs.kit.http_client import HttpConnection, HttpResponse
from proofs.red_team.arena import Arena
from proofs.red_team.attack import AttackLog, Control, Finding
from proofs.stalls import corpus

NAME = "cpu"
_QUANTIFIERS = "names of a result against nested quantifiers"
CONTROL = Control(variant="red_team_old_matcher", attempts=frozenset({_QUANTIFIERS}))
_ROOT = Path(__file__).resolve().parents[3]
_VICTIM, _HOSTILE = "acme", "gamma"
_SCOPES = ("proof:write", "deputize:admin")
_AT_ONCE = 3
_MAX_WAIT_SECONDS = 1.5
"""What a call may take beside an attack on a machine that does other things, too; the attacks of 0.1.0 took 6 s up."""
_PAUSE_SECONDS = 0.02
_SERVER = """
[[servers]]
name = "{name}"
tenant = "gamma"
url = "{url}/{name}"
reads = ["*"]
probe_seconds = 3600
recheck_seconds = 3600
"""
_SCHEMAS = {
    "fetch": {"type": "object"},
    "scan": {"type": "object", "patternProperties": {"^(a+)+$": {"type": "string"}}},
    "tree": {
        "type": "object",
        "properties": {"q": {"$ref": "#/$defs/node"}},
        "$defs": {
            "node": {
                "type": ["array", "integer"],
                "items": {"anyOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/node"}]},
            }
        },
    },
}
_DEFINITIONS = ("hundred encoded descriptions", "references to many alternatives", "many costly patterns")
_VICTIMS_CALL = orjson.dumps({"tool": "stalls.echo", "arguments": {"value": 1}})
_TREE_DEPTH = 18
_STREAMS, _STREAM_SECONDS = 400, 5.0
_PERMIT = "permit (principal, action, resource)"


async def attack(arena: Arena, log: AttackLog) -> None:
    bully = await Bully.start(arena)
    attempts: dict[str, Callable[[], Awaitable[Finding]]] = {
        _QUANTIFIERS: bully.match_names,
        "a quarter of a megabyte of base64 in descriptions": lambda: bully.declare_tools(_DEFINITIONS[0]),
        "references times alternatives in a server's schema": lambda: bully.declare_tools(_DEFINITIONS[1]),
        "thousands of patterns in a server's schemas": lambda: bully.declare_tools(_DEFINITIONS[2]),
        "rules with long like patterns": bully.evaluate_rules,
        "rules that are too many to be admitted": bully.put_many_rules,
        "a backtest of a draft with long like patterns": bully.backtest_rules,
        "an explanation under rules with long like patterns": bully.explain_rules,
        "90,000 content blocks": lambda: bully.send_result("90,000 content blocks", expected=(429,)),
        "a result of sensitive names": lambda: bully.send_result("sensitive names"),
        "a result of floats": lambda: bully.send_result("floats"),
        "an event stream of empty lines": lambda: bully.send_stream("empty events"),
        "a third of a million objects as arguments": lambda: bully.send_arguments("many objects"),
        "long floats as arguments": lambda: bully.send_arguments("long floats"),
        "arguments that are wrong at the depth of a recursive type": bully.send_wrong_tree,
        "a result that is wrong at the depth of a recursive type": bully.return_wrong_tree,
        "a negotiation with costly patterns": bully.negotiate,
        "backtests hold what large calls wait for": bully.hold_threads,
        "event streams hold what reads wait for": bully.hold_streams,
        "a manifest of 18,000 properties": lambda: bully.register_schema("small properties"),
        "a manifest of costly patterns": lambda: bully.register_schema("many costly patterns"),
    }
    for name, attempt in attempts.items():
        await log.attempt(name, attempt)


@dataclass(kw_only=True, slots=True)
class Bully:
    """The administrator of one tenant, who also runs its MCP servers, beside a caller of another tenant."""

    gateway: GatewayHandle
    server_url: str
    victim: str
    issuer: Issuer
    contract: dict[str, Any] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    @classmethod
    async def start(cls, arena: Arena) -> "Bully":
        argv = [sys.executable, "-m", "proofs.stalls.hostile_server"]
        name = "hostile" if arena.variant is None else "hostile-control"
        child = await arena.sandbox.start_process(name, argv, cwd=_ROOT, ready_line=READY)
        server_url = (await child.wait_for_line(READY, timeout=5)).partition(READY)[2].strip()
        servers = (*_SCHEMAS, *(f"defs{number}" for number in range(len(_DEFINITIONS))))
        settings = "".join(_SERVER.format(name=each, url=server_url) for each in servers)
        gateway = await arena.start_gateway(tools="stalls.py", settings=settings)
        victim = arena.issuer.issue_token("ann", tenant=_VICTIM, scopes=_SCOPES)
        bully = cls(gateway=gateway, server_url=server_url, victim=victim, issuer=arena.issuer)
        await bully._prepare()
        return bully

    @property
    def admin(self) -> str:
        """Someone who has just signed in: who did so minutes ago may put no policies."""
        return self.issuer.issue_token("mallory", tenant=_HOSTILE, scopes=_SCOPES)

    async def _prepare(self) -> None:
        """Give the hostile tenant its policies, a tool whose argument rules can compare, and two servers' tools."""
        await put_policies(self.gateway.url, self.admin)
        shown = (await self._send("GET", "/v1/tools/stalls.greet", token=self.victim)).json()["contract"]
        self.contract = {**shown, "handler": {"target": "tools.stalls:greet"}}
        answers = [await self._send("POST", "/v1/tools", orjson.dumps(self.contract))]
        for name, schema in _SCHEMAS.items():
            tool = {"name": f"{name}_all", "description": f"Say what {name} found in the archive."}
            schemas = {"inputSchema": {"type": "object"}, "outputSchema": schema}
            await self._declare(name, "tools", orjson.dumps([{**tool, **schemas}]))
            answers.append(await self._send("POST", f"/v1/servers/{name}/test"))
        for _ in range(5):
            await self._call_as_victim()
        if any(each.status // 100 != 2 for each in answers):
            raise RuntimeError(f"the hostile tenant has no tools: {[each.body[:300] for each in answers]}")

    async def match_names(self) -> Finding:
        result = {"resultType": "complete", "content": [], "structuredContent": {"a" * 24 + "!": "x"}}
        await self._declare("scan", "result", orjson.dumps(result))
        return await self._watch(lambda: self._call("scan.scan_all", {}))

    async def declare_tools(self, name: str) -> Finding:
        server = f"defs{_DEFINITIONS.index(name)}"
        await self._declare(server, "tools", corpus.build_definitions()[name])
        return await self._watch(lambda: self._send("POST", f"/v1/servers/{server}/test"), at_once=1)

    async def send_result(self, name: str, *, expected: tuple[int, ...] = (200,)) -> Finding:
        await self._declare("fetch", "result", corpus.build_results()[name])
        return await self._watch(lambda: self._call("fetch.fetch_all", {}), expected=expected)

    async def send_stream(self, name: str) -> Finding:
        await self._declare("fetch", "stream", corpus.build_streams()[name])
        return await self._watch(lambda: self._call("fetch.fetch_all", {}), expected=(502, 504))

    async def send_arguments(self, name: str) -> Finding:
        body = b'{"tool":"stalls.greet","arguments":{"name":' + corpus.build_arguments()[name] + b"}}"
        return await self._watch(lambda: self._send("POST", "/v1/calls", body), expected=(400,))

    async def register_schema(self, name: str) -> Finding:
        manifest = {**self.contract, "version": f"{next(self._numbers) + 2}.0.0"}
        manifest["input_schema"] = corpus.build_schemas()[name]
        return await self._watch(lambda: self._send("POST", "/v1/tools", orjson.dumps(manifest)), expected=(422,))

    async def send_wrong_tree(self) -> Finding:
        """Nest a wrong value in a type of two branches: each level doubles the errors that could be listed."""
        value: Any = "no number"
        for _ in range(_TREE_DEPTH):
            value = {"left": value}
        return await self._watch(
            lambda: self._call("stalls.compute", {"expression": value}, token=self.victim), expected=(400,)
        )

    async def return_wrong_tree(self) -> Finding:
        value: Any = "no number"
        for _ in range(_TREE_DEPTH):
            value = [value]
        result = {"resultType": "complete", "content": [], "structuredContent": {"q": value}}
        await self._declare("tree", "result", orjson.dumps(result))
        return await self._watch(lambda: self._call("tree.tree_all", {}), expected=(502,))

    async def negotiate(self) -> Finding:
        properties = {f"p{each}": {"pattern": rf"[\w\pL]{{{150 + each}}}"} for each in range(55)}
        body = orjson.dumps({"input": {"schema": {"properties": properties}}})
        path = "/v1/tools/stalls.greet/negotiation"
        return await self._watch(lambda: self._send("POST", path, body), expected=(200, 400, 422, 429))

    async def hold_threads(self) -> Finding:
        """Backtest costly drafts as several tenants; the victim sends what is too large for the event loop."""
        admins = [self.admin]
        for tenant in ("delta", "epsilon"):
            admins.append(self.issuer.issue_token("mallory", tenant=tenant, scopes=_SCOPES))
            await put_policies(self.gateway.url, admins[-1])
            await self._send("POST", "/v1/tools", orjson.dumps(self.contract), token=admins[-1])
        for admin in admins:
            for number in range(40):
                await self._call("stalls.greet", {"name": f"{number}" + "a" * 8_000}, token=admin)
        body, turns = self._build_files(9), itertools.cycle(admins)
        large = orjson.dumps({"tool": "stalls.echo", "arguments": {"value": "x" * 300_000}})
        return await self._watch(
            lambda: self._send("POST", "/v1/policies/backtest", body, token=next(turns)),
            at_once=6, expected=(200, 429), victim=large,
        )  # fmt: skip

    async def hold_streams(self) -> Finding:
        """Follow one waiting call with as many streams as are admitted, while the victim calls."""
        rule = f'@id("asks") @decision("ask") @approvers("oncall") {_PERMIT};'
        await put_policies(self.gateway.url, self.admin, rule)
        call = (await self._call("stalls.greet", {"name": "waiting"})).json()
        connections = [HttpConnection.for_url(self.gateway.url, token=self.admin) for _ in range(_STREAMS)]
        path = f"/v1/calls/{call['call_id']}/events"
        streams = [asyncio.create_task(each.send("GET", path)) for each in connections]

        async def read_later() -> HttpResponse:
            await asyncio.sleep(_STREAM_SECONDS)
            return await self._send("GET", f"/v1/calls/{call['call_id']}")

        try:
            finding = await self._watch(read_later)
        finally:
            for each in streams:
                each.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
            for connection in connections:
                connection.close()
        if call.get("state") != "awaiting_approval":
            raise RuntimeError(f"there was nothing to follow: {call}")
        return finding

    async def evaluate_rules(self) -> Finding:
        """Put the costliest rules that are admitted, and call under them."""
        await self._require_rules()
        return await self._watch(lambda: self._call("stalls.greet", {"name": f"{next(self._numbers)}" + "a" * 8_000}))

    async def put_many_rules(self) -> Finding:
        return await self._watch(lambda: self._put_rules(150), at_once=1, expected=(422,))

    async def backtest_rules(self) -> Finding:
        body = self._build_files(10)
        return await self._watch(lambda: self._send("POST", "/v1/policies/backtest", body), at_once=1)

    async def explain_rules(self) -> Finding:
        await self._require_rules()
        call = (await self._call("stalls.greet", {"name": "b" + "a" * 8_000})).json()
        return await self._watch(lambda: self._send("GET", f"/v1/calls/{call['call_id']}/decision"))

    async def _require_rules(self) -> None:
        answer = await self._put_rules(10)
        if answer.status != 200:
            raise RuntimeError(f"the rules were not put: {answer.status} {answer.body[:300]!r}")

    async def _put_rules(self, count: int) -> HttpResponse:
        return await self._send("PUT", "/v1/policies", self._build_files(count))

    def _build_files(self, count: int) -> bytes:
        pattern = "*" + "a" * 4_000 + "b"
        condition = 'context.facts has name && context.facts.name like "{pattern}{each}"'
        rules = "\n".join(
            f'@id("r{each}") {_PERMIT} when {{ {condition.format(pattern=pattern, each=each)} }};'
            for each in range(count)
        )
        return orjson.dumps({"files": [{"path": "rules.cedar", "text": f'@id("open") {_PERMIT};\n{rules}'}]})

    async def _watch(
        self,
        act: Callable[[], Awaitable[HttpResponse]],
        *,
        at_once: int = _AT_ONCE,
        expected: tuple[int, ...] = (200,),
        victim: bytes = _VICTIMS_CALL,
    ) -> Finding:
        """Attack several times at once, and time the victim's calls until all attacks are answered.

        `expected` is the answer of the rule or the code that is attacked; any other shows that it was not reached,
        unless the victim waited: a stalled gateway may answer its attackers in any way.
        """
        attacks = asyncio.gather(*(act() for _ in range(at_once)))
        longest, count = 0.0, 0
        while not attacks.done() or count < 3:
            began = time.monotonic()
            await self._call_as_victim(victim)
            longest, count = max(longest, time.monotonic() - began), count + 1
            await asyncio.sleep(_PAUSE_SECONDS)
        statuses = sorted({each.status for each in await attacks})
        succeeded = longest > _MAX_WAIT_SECONDS
        if not succeeded and not set(statuses) <= set(expected):
            raise RuntimeError(f"answered {statuses} instead of {expected}: what is attacked was not reached")
        evidence = f"answered {statuses}; the longest of {count} calls of another tenant took {longest * 1000:.0f} ms"
        return Finding(succeeded=succeeded, evidence=evidence)

    async def _call_as_victim(self, body: bytes = _VICTIMS_CALL) -> None:
        answer = await self._send("POST", "/v1/calls", body, token=self.victim)
        if answer.status != 200:
            raise RuntimeError(f"the victim cannot call: {answer.status} {answer.body[:200]!r}")

    async def _call(self, tool: str, arguments: dict[str, Any], *, token: str | None = None) -> HttpResponse:
        body = orjson.dumps({"tool": tool, "arguments": arguments})
        return await self._send("POST", "/v1/calls", body, token=token)

    async def _declare(self, server: str, what: str, body: bytes) -> None:
        connection = HttpConnection.for_url(self.server_url)
        await connection.send("PUT", f"/{server}/{what}", body=body)
        connection.close()

    async def _send(self, method: str, path: str, body: bytes = b"", *, token: str | None = None) -> HttpResponse:
        connection = HttpConnection.for_url(self.gateway.url, token=token or self.admin)
        try:
            return await connection.send(method, path, body=body)
        finally:
            connection.close()
