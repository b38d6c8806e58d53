"""Give authority with a token that has the administrator's scope but is not an operator's."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import jwt
import orjson

from proofs.kit.gateway import AUDIENCE, ISSUER
from proofs.kit.http_client import HttpConnection, HttpResponse
from proofs.red_team.arena import Arena
from proofs.red_team.attack import AttackLog, Control, Finding

NAME = "operator"
_STALE, _AGENT = "policies are put with a stale sign-in", "policies are put by an agent with the administrator's scope"
CONTROL = Control(variant="red_team_no_operator", attempts=frozenset({_STALE, _AGENT}))
_STALE_SECONDS = 301
_AGENT_NAME = "crawler"


async def attack(arena: Arena, log: AttackLog) -> None:
    # Delegated tokens need the gateway's own address.
    gateway = await arena.start_gateway(
        tools="effects.py", env={"DEPUTIZE_IDENTITY__PUBLIC_URL": "http://gateway.proof"}
    )
    intruder = Intruder(arena=arena, url=gateway.url)
    await intruder.switch_agent_off()
    attempts: dict[str, Callable[[], Awaitable[Finding]]] = {
        _STALE: lambda: intruder.put_policies(auth_time=intruder.now - _STALE_SECONDS),
        _AGENT: lambda: intruder.put_policies(act={"sub": "bot"}),
        "policies are put without any sign-in": lambda: intruder.put_policies(auth_time=None),
        "policies are put with a sign-in in the future": lambda: intruder.put_policies(auth_time=intruder.now + 3600),
        "policies are put with a limited token": lambda: intruder.put_policies(tools=[{"tool_id": "effects.look"}]),
        "policies are put by a program for itself": lambda: intruder.put_policies(client_id="root"),
        "an agent exchanges its way to the administrator's scope": intruder.exchange_token,
    }
    put_policies = partial(intruder.put_policies)
    for name, attempt in attempts.items():
        await log.attempt(name, attempt, baseline=put_policies)
    stale = {"auth_time": intruder.now - _STALE_SECONDS}
    acts: dict[str, Callable[..., Awaitable[Finding]]] = {
        "a tool is registered with a stale sign-in": intruder.register_tool,
        "a switch is turned on with a stale sign-in": intruder.turn_switch_on,
        "a secret is replaced with a stale sign-in": intruder.put_secret,
        "a version is released again with a stale sign-in": intruder.release_version,
        "the key that signs webhooks is read with a stale sign-in": intruder.read_webhook_key,
    }
    for name, act in acts.items():
        await log.attempt(name, partial(act, **stale), baseline=act)


@dataclass(frozen=True, kw_only=True, slots=True)
class Intruder:
    """An administrator's token in the wrong hands: everything is right about it but who holds it, or since when."""

    arena: Arena
    url: str
    _numbers: "count[int]" = field(default_factory=count)

    @property
    def now(self) -> int:
        return self.arena.issuer.clock.epoch_ms() // 1000

    async def put_policies(self, **claims: Any) -> Finding:
        return _judge(await self._send("PUT", "/v1/policies", self._build_policies(), claims))

    async def register_tool(self, **claims: Any) -> Finding:
        shown = await self._send("GET", "/v1/tools/effects.send", None, claims)
        contract = {**shown.json()["contract"], "name": "emit", "handler": {"target": "tools.effects:send"}}
        return _judge(await self._send("POST", "/v1/tools", contract, claims))

    async def switch_agent_off(self) -> None:
        """Taking authority away needs no operator, so the attempts have something to give back."""
        stale = {"auth_time": self.now - _STALE_SECONDS}
        body = {"kind": "agent", "value": _AGENT_NAME, "off": True, "unknown": True}
        answer = await self._send("POST", "/v1/switches", body, stale)
        state = await self._send("POST", "/v1/tools/effects.look/versions/0.1.0/state", {"state": "disabled"}, stale)
        if (answer.status, state.status) != (200, 200):
            raise RuntimeError(f"nothing was taken away: {answer.status} {state.status} {state.body!r}")

    async def turn_switch_on(self, **claims: Any) -> Finding:
        body = {"kind": "agent", "value": _AGENT_NAME, "off": False}
        return _judge(await self._send("POST", "/v1/switches", body, claims))

    async def put_secret(self, **claims: Any) -> Finding:
        body = {"name": "crm/key", "value": "an attacker's own"}
        return _judge(await self._send("POST", "/v1/secrets", body, claims))

    async def release_version(self, **claims: Any) -> Finding:
        path = "/v1/tools/effects.look/versions/0.1.0/state"
        return _judge(await self._send("POST", path, {"state": "available"}, claims))

    async def read_webhook_key(self, **claims: Any) -> Finding:
        answer = await self._send("GET", "/v1/webhooks/key?name=billing&host=billing.example.com", None, claims)
        return Finding(succeeded=answer.status == 200, evidence=f"{answer.status} {answer.body[:40]!r}")

    async def exchange_token(self) -> Finding:
        """Exchange an operator's fresh token for one of an agent, which keeps the scope but not the person."""
        fields = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": self._sign({}),
            "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "agent": "bot",
            "scope": "deputize:admin",
        }
        http = HttpConnection.for_url(self.url)
        try:
            form = "&".join(f"{name}={value.replace(':', '%3A')}" for name, value in fields.items())
            kind = {"content-type": "application/x-www-form-urlencoded"}
            exchanged = await http.send("POST", "/oauth/token", headers=kind, body=form.encode())
        finally:
            http.close()
        if exchanged.status != 200:
            raise RuntimeError(f"the token was not exchanged: {exchanged.status} {exchanged.body[:200]!r}")
        token = exchanged.json()["access_token"]
        return _judge(await self._send_with(token, "PUT", "/v1/policies", self._build_policies()))

    def _build_policies(self) -> dict[str, Any]:
        """Permit everything, in other words each time: what is in force already needs no operator."""
        rule = f'@id("open-{next(self._numbers)}") permit (principal, action, resource);'
        return {"files": [{"path": "open.cedar", "text": rule}]}

    def _sign(self, claims: dict[str, Any]) -> str:
        issuer = self.arena.issuer
        everything = {
            "iss": ISSUER, "aud": AUDIENCE, "sub": "root", "tenant": "acme", "scope": "deputize:admin",
            "iat": self.now, "exp": self.now + 3600, "auth_time": self.now, "jti": issuer.clock.new_id(), **claims,
        }  # fmt: skip
        kept = {name: value for name, value in everything.items() if value is not None}
        return jwt.encode(kept, issuer.key, algorithm="EdDSA", headers={"kid": "proof"})

    async def _send(self, method: str, path: str, value: Any, claims: dict[str, Any]) -> HttpResponse:
        return await self._send_with(self._sign(claims), method, path, value)

    async def _send_with(self, token: str, method: str, path: str, value: Any) -> HttpResponse:
        http = HttpConnection.for_url(self.url, token=token)
        try:
            body = b"" if value is None else orjson.dumps(value)
            return await http.send(method, path, body=body)
        finally:
            http.close()


def _judge(answer: HttpResponse) -> Finding:
    return Finding(
        succeeded=answer.status < 400, evidence=f"{answer.status} {answer.body[:200].decode(errors='replace')}"
    )
