"""Approve as someone who may not, or keep those from deciding who may."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import urlencode

import jwt

from proofs.kit.gateway import AUDIENCE, ISSUER, Issuer
from proofs.kit.http_client import HttpConnection, HttpResponse
from proofs.red_team.arena import Arena
from proofs.red_team.attack import AttackLog, Control, Finding

NAME = "approvals"
CONTROL = Control(
    variant="red_team_names_take_part",
    attempts=frozenset({"an agent takes an approver's name, and the approver cannot approve"}),
)
_CONSOLE = "proof-console"
_ADMIN = "deputize:admin"
_POLICY = """
@id("asks") @decision("ask") @approvers("oncall")
permit (principal, action, resource);
"""
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"


async def attack(arena: Arena, log: AttackLog) -> None:
    port = arena.sandbox.pick_free_port()
    gateway = await arena.start_gateway(
        tools="effects.py",
        policies=_POLICY,
        port=port,
        settings=f'human = true\nconsole_audience = "{_CONSOLE}"\n',
        env={"DEPUTIZE_IDENTITY__PUBLIC_URL": f"http://127.0.0.1:{port}"},
    )
    office = Office(url=gateway.url, issuer=arena.issuer)
    attempts: dict[str, Callable[[], Awaitable[Finding]]] = {
        "an agent takes an approver's name, and the approver cannot approve": lambda: office.take_name("approve"),
        "an agent takes an approver's name, and the approver cannot deny": lambda: office.take_name("deny"),
        "an agent with the administrator's scope approves": lambda: office.approve_with(office.exchange_admin_token),
        "the person behind the call approves it": lambda: office.approve_as("ann"),
        "a person outside the groups approves": lambda: office.approve_as("bob", groups=["sales"]),
        "a person of another tenant approves": lambda: office.approve_as("bob", tenant="other"),
        "a sign-in of yesterday approves": lambda: office.approve_as("bob", auth_time=int(time.time()) - 86_400),
        "a token for calls approves": lambda: office.approve_as("bob", aud=AUDIENCE, scope=_ADMIN),
        "a token with an actor approves": lambda: office.approve_as("bob", act={"sub": "helper"}),
        "an approval of one call serves for another": office.approve_with_other_binding,
    }

    async def approve_as_bob() -> Finding:
        return await office.approve_as("bob")

    for name, attempt in attempts.items():
        await log.attempt(name, attempt, baseline=approve_as_bob)


@dataclass(frozen=True, kw_only=True, slots=True)
class Office:
    """Ann and her agents, who ask, and Bob and others, who decide."""

    url: str
    issuer: Issuer
    _numbers: "count[int]" = field(default_factory=count)

    async def take_name(self, action: str) -> Finding:
        """Ask through an agent named like an approver; the attack succeeds if the approver is then turned away."""
        request = await self._request_approval(await self.exchange_token(agent="bob"))
        answer = await self._decide(request, action, self._sign_in("bob"))
        return Finding(succeeded=answer.status != 200, evidence=_shorten(answer))

    async def approve_as(self, user: str, **claims: Any) -> Finding:
        async def sign_in() -> str:
            return self._sign_in(user, **claims)

        return await self.approve_with(sign_in)

    async def approve_with(self, make_token: Callable[[], Awaitable[str]]) -> Finding:
        request = await self._request_approval(self.issuer.issue_token("ann"))
        answer = await self._decide(request, "approve", await make_token())
        return Finding(succeeded=answer.status == 200, evidence=_shorten(answer))

    async def approve_with_other_binding(self) -> Finding:
        token = self.issuer.issue_token("ann")
        one, other = [await self._request_approval(token) for _ in range(2)]
        binding = await self._read_binding(other)
        answer = await self._decide(one, "approve", self._sign_in("bob"), binding=binding)
        return Finding(succeeded=answer.status == 200, evidence=_shorten(answer))

    async def exchange_admin_token(self) -> str:
        return await self.exchange_token(scopes=("proof:write", _ADMIN))

    async def exchange_token(self, agent: str = "helper", scopes: tuple[str, ...] = ("proof:write",)) -> str:
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": self.issuer.issue_token("ann", scopes=scopes),
            "subject_token_type": _ACCESS_TOKEN,
            "agent": agent,
            "scope": " ".join(scopes),
        }
        answer = await self._send("POST", "/oauth/token", form=urlencode(form).encode())
        return str(answer.json()["access_token"])

    async def _request_approval(self, token: str) -> str:
        label = f"label-{next(self._numbers)}"
        body = {"tool": "effects.send", "arguments": {"label": label}}
        connection = HttpConnection.for_url(self.url, token=token)
        answer = await connection.post("/v1/calls", body, idempotency_key=label)
        connection.close()
        return str(answer.json()["approval"]["approval_id"])

    async def _read_binding(self, request: str) -> str:
        answer = await self._send("GET", f"/v1/approvals/{request}", token=self._sign_in("bob"))
        return str(answer.json()["binding"])

    async def _decide(self, request: str, action: str, token: str, *, binding: str = "") -> HttpResponse:
        body = {"reason": "an attempt", "binding": binding or await self._read_binding(request)}
        if action == "deny":
            del body["binding"]
        connection = HttpConnection.for_url(self.url, token=token)
        answer = await connection.post(f"/v1/approvals/{request}/{action}", body)
        connection.close()
        return answer

    async def _send(self, method: str, path: str, *, token: str = "", form: bytes = b"") -> HttpResponse:
        connection = HttpConnection.for_url(self.url, token=token or None)
        headers = {"content-type": "application/x-www-form-urlencoded"} if form else {}
        answer = await connection.send(method, path, headers=headers, body=form)
        connection.close()
        return answer

    def _sign_in(self, user: str, **claims: Any) -> str:
        now = int(time.time())
        token_claims = {
            "iss": ISSUER,
            "aud": _CONSOLE,
            "sub": user,
            "tenant": "acme",
            "groups": ["oncall"],
            "iat": now,
            "exp": now + 600,
            "auth_time": now,
            "jti": self.issuer.clock.new_id(),
            **claims,
        }
        return jwt.encode(token_claims, self.issuer.key, algorithm="EdDSA", headers={"kid": "proof"})


def _shorten(answer: HttpResponse) -> str:
    fields = answer.json()
    details = fields.get("error", {})
    slug = details.get("slug", fields.get("state"))
    return f"{answer.status} {slug} {details.get('details', {}).get('rule', '')}".strip()
