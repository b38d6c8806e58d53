"""Reach with a narrow token what belongs to its user, or with a chosen name what is permitted to an agent."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from proofs.kit.http_client import HttpResponse
from proofs.red_team.arena import Arena
from proofs.red_team.attack import AttackLog, Control, Finding
from proofs.red_team.token_holder import TokenHolder

NAME = "reach"
_READS = "a token for one tool reads a call of another"
CONTROL = Control(variant="red_team_any_reach", attempts=frozenset({_READS}))
_PERMITTED_AGENT = "billing-bot"
_POLICY = f"""
@id("reads") permit (principal, action, resource) when {{ resource.effects == "read" }};
@id("people") permit (principal, action, resource) unless {{ context.delegated }};
@id("billing") permit (principal, action, resource)
when {{ context has agent && context.agent == Agent::"{_PERMITTED_AGENT}" }};
"""
_SECRET = "ann-buys-a-yacht"


async def attack(arena: Arena, log: AttackLog) -> None:
    port = arena.sandbox.pick_free_port()
    gateway = await arena.start_gateway(
        tools="jobs.py",
        policies=_POLICY,
        port=port,
        env={"DEPUTIZE_IDENTITY__PUBLIC_URL": f"http://127.0.0.1:{port}"},
    )
    holder = TokenHolder(url=gateway.url, issuer=arena.issuer)
    ann = holder.sign("ann")
    made = await holder.call(ann, "jobs.mark", {"label": _SECRET})
    grant = await holder.exchange(ann, {"agent": "helper"})
    if made.get("state") != "succeeded" or grant.status != 200:
        raise RuntimeError(f"there is nothing to reach: {made} {grant.status}")
    owner = Reader(holder=holder, token=ann, call_id=made["call_id"], grant_id=grant.json()["grant_id"])
    only_rest = '[{"tool_id":"jobs.rest"}]'
    readers = {
        "a token for one tool": owner.with_token(holder.sign("ann", tools=[{"tool_id": "jobs.rest"}])),
        "a token that only reads": owner.with_token(holder.sign("ann", ceiling="read")),
        "a token without the scope": owner.with_token(holder.sign("ann", scope="")),
        "a narrow delegation": owner.with_token(await holder.delegate(ann, agent="helper", tools=only_rest)),
    }
    for name, reader in readers.items():
        await log.attempt(f"{name} reads a call of another", reader.read_call, baseline=owner.read_call)
        await log.attempt(f"{name} lists a call of another", reader.list_calls, baseline=owner.list_calls)
        await log.attempt(f"{name} searches entries of another", reader.search_audit, baseline=owner.search_audit)
        if name != "a token without the scope":
            # A token without limits is the user's own, whatever it may call.
            await log.attempt(f"{name} revokes a delegation", reader.revoke_grant, baseline=owner.read_grant)
    await _attack_names(holder, log)


async def _attack_names(holder: TokenHolder, log: AttackLog) -> None:
    async def mark_as(claims: dict[str, Any], renamed: str | None = None) -> Finding:
        token = holder.sign("ann", **claims)
        if renamed is not None:
            token = await holder.delegate(token, agent=renamed)
        answer = await holder.call(token, "jobs.mark", {"label": "forged"})
        return Finding(succeeded=answer.get("state") == "succeeded", evidence=str(answer)[:160])

    permitted: Callable[[], Awaitable[Finding]] = partial(mark_as, {"act": {"sub": _PERMITTED_AGENT}})
    helper = {"act": {"sub": "helper"}}
    await log.attempt(
        "an agent takes a name that is permitted", partial(mark_as, helper, _PERMITTED_AGENT), baseline=permitted
    )
    await log.attempt(
        "a user gives an agent a name that is permitted", partial(mark_as, {}, _PERMITTED_AGENT), baseline=permitted
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """A token, and what its user has."""

    holder: TokenHolder
    token: str
    call_id: str
    grant_id: str

    def with_token(self, token: str) -> "Reader":
        return Reader(holder=self.holder, token=token, call_id=self.call_id, grant_id=self.grant_id)

    async def read_call(self) -> Finding:
        tails = ("", "/events", "/decision", "/export")
        return _find_statuses([await self._send("GET", f"/v1/calls/{self.call_id}{each}") for each in tails])

    async def list_calls(self) -> Finding:
        return self._find_call(await self._send("GET", "/v1/calls"))

    async def search_audit(self) -> Finding:
        return self._find_call(await self._send("GET", "/v1/audit"))

    async def read_grant(self) -> Finding:
        return _find_statuses([await self._send("GET", f"/v1/grants/{self.grant_id}")])

    async def revoke_grant(self) -> Finding:
        return _find_statuses([await self._send(each, f"/v1/grants/{self.grant_id}") for each in ("GET", "DELETE")])

    async def _send(self, method: str, path: str) -> HttpResponse:
        return await self.holder.send(method, path, token=self.token)

    def _find_call(self, answer: HttpResponse) -> Finding:
        evidence = f"{answer.status} {answer.body[:120].decode(errors='replace')}"
        return Finding(succeeded=self.call_id.encode() in answer.body, evidence=evidence)


def _find_statuses(answers: list[HttpResponse]) -> Finding:
    statuses = " ".join(str(each.status) for each in answers)
    return Finding(succeeded=any(each.status < 400 for each in answers), evidence=statuses)
