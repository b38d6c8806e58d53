"""Every bad token of the proof, gathered: generated ones, real ones in the wrong place, real ones taken back.

Above: `proofs.confused_deputy`. Below: `kit/bad_tokens`, `site`.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import jwt

from proofs.deputy.pairs import Hand
from proofs.deputy.site import ADMIN, ADMIN_BESIDE, GONE, HERE, OTHER_ISSUER, SCOPES, Site
from proofs.kit.bad_tokens import Bad, Material, bad_tokens
from proofs.kit.jws import claims_of
from proofs.kit.wire import Line

_ALGORITHMS = ("RS256", "ES256", "EdDSA")
_SHORT_SECONDS = 1


async def gather(site: Site, hand: Hand, minted: Sequence[str]) -> list[Bad]:
    """What was never good here. `hand` is good; `minted` are credentials the gateway made for an upstream."""
    good, plain = (
        dict(zip(_ALGORITHMS, tokens, strict=True))
        for tokens in (
            await asyncio.gather(*(site.person(ADMIN, *SCOPES, algorithm=each) for each in _ALGORITHMS)),
            await asyncio.gather(*(site.person("user-0", "proof:write", algorithm=each) for each in _ALGORITHMS)),
        )
    )
    material = Material(
        keys=site.idp.keys,
        good=good,
        plain=plain,
        id_token=await site.id_token(ADMIN),
        delegated=hand.token,
        trap=f"{site.upstream}/trap",
    )
    for_others = Bad(label="aud: a real token for another service", token=await site.token_for_others(ADMIN))
    made_for_tools = [
        Bad(label=f"minted: for a tool's call, {number}", token=each) for number, each in enumerate(minted)
    ]
    return [*bad_tokens(material), for_others, *made_for_tools, *await _elsewhere(site)]


async def _elsewhere(site: Site) -> list[Bad]:
    """Good tokens of other tenants: they may be let in there, and must learn and do nothing here."""
    now = int(time.time())
    claims: dict[str, Any] = {
        "iss": OTHER_ISSUER,
        "aud": site.url,
        "sub": ADMIN,
        "tenant": HERE,
        "scope": " ".join(SCOPES),
    }
    claims |= {"iat": now, "exp": now + 3600, "jti": "other"}
    liar = jwt.encode(claims, site.other.key, algorithm="EdDSA", headers={"kid": "proof"})
    ghost = {**claims_of(await site.person(ADMIN, *SCOPES)), "tenant": "ghost"}
    line = Line.to(site.url)
    lent_beside = await site.lend(
        line, await site.person("user-beside", "proof:write"), await site.agent("agent-beside")
    )
    line.close()
    tokens = {
        "another issuer that claims our tenant": liar,
        "a tenant nobody knows": site.idp.key().sign(ghost),
        "an administrator beside": await site.person(ADMIN_BESIDE, *SCOPES),
        "a delegation beside": lent_beside,
    }
    return [Bad(label=f"elsewhere: {label}", token=token, elsewhere=True) for label, token in tokens.items()]


async def take_back(site: Site, agent: str) -> tuple[list[Bad], list[str]]:
    """Good tokens, shown to be good, then revoked by everything that can be revoked. Also: those that were not good."""
    line = Line.to(site.url)
    people = {name: await site.person(name, "proof:write") for name in GONE}
    actors = {name: await site.agent(name) for name in (agent, "gone-agent", "gone-subject-agent")}
    lent = {name: await site.lend(line, token, actors[agent]) for name, token in people.items()}
    passed_on = await site.lend(line, lent["gone-lender"], actors["gone-agent"])
    by_agent = await site.lend(line, await site.person("user-0", "proof:write"), actors["gone-agent"])
    by_subject = await site.lend(line, await site.person("user-0", "proof:write"), actors["gone-subject-agent"])
    short = await site.lend(
        line, await site.person("user-0", "proof:write"), actors[agent], expires_in=str(_SHORT_SECONDS)
    )
    another = await site.lend(line, people["gone-token"], actors[agent])
    tokens = {
        "token": people["gone-token"], "delegated token": another, "user": people["gone-user"],
        "user behind an agent": lent["gone-user"], "subject": people["gone-subject"],
        "subject behind an agent": lent["gone-subject"], "agent": by_agent, "agent as subject": by_subject,
        "agent itself": actors["gone-agent"], "grant": lent["gone-lender"], "grant passed on": passed_on,
    }  # fmt: skip
    shut = [label for label, token in {**tokens, "ended": short}.items() if not await _is_good(site, token)]
    revoked = {
        "token": [claims_of(people["gone-token"])["jti"], claims_of(another)["jti"]],
        "user": ["gone-user"], "subject": ["gone-subject", "gone-subject-agent"], "agent": ["gone-agent"],
        "grant": claims_of(lent["gone-lender"])["grants"][:1],
    }  # fmt: skip
    admin = Line.to(site.url, token=await site.person(ADMIN, *SCOPES))
    for kind, values in revoked.items():
        for value in values:
            answer = await admin.post("/v1/revocations", {"kind": kind, "value": value})
            if answer.status not in (200, 201):
                raise RuntimeError(f"{kind} {value} was not revoked: {answer.body[:300]!r}")
    admin.close()
    line.close()
    bad = [Bad(label=f"revoked: {label}", token=token) for label, token in tokens.items()]
    return [*bad, Bad(label="ended: the grant's time is over", token=short)], shut


async def _is_good(site: Site, token: str) -> bool:
    line = Line.to(site.url, token=token)
    answer = await line.post("/v1/calls", {"tool": "deputy.look", "arguments": {"word": "proper"}})
    line.close()
    return answer.status == 200
