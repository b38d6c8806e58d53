"""Every bad token of the proof, gathered: generated ones, real ones in the wrong place, real ones taken back.

Above: `proofs.confused_deputy`. Below: `kit/bad_tokens`, `site`.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import jwt

from deputize.doors.console.cookies import SESSION
from proofs.deputy.doors import DECIDING
from proofs.deputy.pairs import Hand
from proofs.deputy.site import (
    ADMIN,
    ADMIN_BESIDE,
    APPROVER,
    APPROVER_BESIDE,
    GONE,
    HERE,
    OTHER_ISSUER,
    SCOPES,
    Site,
)
from proofs.kit.bad_tokens import Bad, Material, bad_tokens
from proofs.kit.jws import claims_of
from proofs.kit.wire import Line

_ALGORITHMS = ("RS256", "ES256", "EdDSA")
_SHORT_SECONDS = 2
_LOOK_SECONDS = 45
# Its life, the difference of clocks that is forgiven, and a little.
OVER_SECONDS = _SHORT_SECONDS + 6.0
_GONE_DECIDING = ("gone-user", "gone-subject")


async def gather(site: Site, hand: Hand, minted: Sequence[str], pages: frozenset[str]) -> list[Bad]:
    """What was never good here. `hand` is good; `minted` are credentials the gateway made for an upstream; `pages` are
    the doors that a browser's session opens.
    """
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
    session = Bad(label="console: a browser's session", token=await site.session(APPROVER), good_at=pages)
    deciding = await _deciding(site)
    return [*bad_tokens(material), for_others, *made_for_tools, session, *deciding, *await _elsewhere(site)]


async def _deciding(site: Site) -> list[Bad]:
    """What is for deciding is good for nothing else, and for nobody but people who got it for themselves."""
    good = await site.for_deciding(APPROVER)
    claims, key = claims_of(good), site.idp.key()
    handed_on: dict[str, dict[str, Any]] = {
        "in an agent's hands": {"act": {"sub": "agent-0"}}, "made for an agent": {"may_act": {"sub": "agent-0"}},
        "a delegation": {"grants": ["01890000-0000-7000-8000-000000000000"]}, "of some task": {"task": "deciding"},
        "for some tools": {"tools": [{"tool_id": "deputy.plead"}]}, "up to some effect": {"ceiling": "write"},
        "of another origin": {"origin": OTHER_ISSUER}, "a program's": {"gty": "client-credentials"},
        "an app's": {"idtyp": "app"}, "a client's own": {"sub": claims["client_id"]},
    }  # fmt: skip
    never = {label: key.sign({**claims, **more}) for label, more in handed_on.items()}
    never["an agent's"] = await site.agent_for_deciding("agent-0")
    return [
        Bad(label="console: a token for deciding", token=good, good_at=DECIDING),
        *(Bad(label=f"handed on: a token for deciding, {label}", token=token) for label, token in never.items()),
    ]


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
        "an approver beside": await site.for_deciding(APPROVER_BESIDE, *SCOPES),
        "an approver's session beside": await site.session(APPROVER_BESIDE),
    }
    return [Bad(label=f"elsewhere: {label}", token=token, elsewhere=True) for label, token in tokens.items()]


async def take_back(site: Site, agent: str) -> tuple[list[Bad], list[str]]:
    """Good tokens, shown to be good, then revoked by everything that can be revoked. Also: those that were not good."""
    line = Line.to(site.url)
    people = {name: await site.person(name, *SCOPES) for name in GONE}
    actors = {name: await site.agent(name, *SCOPES) for name in (agent, "gone-agent", "gone-subject-agent")}
    # Everything is lent, so that only the revocation can be what refuses it.
    everything = {"scope": " ".join(SCOPES)}
    lent = {name: await site.lend(line, token, actors[agent], **everything) for name, token in people.items()}
    passed_on = await site.lend(line, lent["gone-lender"], actors["gone-agent"], **everything)
    admin_token = await site.person(ADMIN, *SCOPES)
    by_agent = await site.lend(line, admin_token, actors["gone-agent"], **everything)
    by_subject = await site.lend(line, admin_token, actors["gone-subject-agent"], **everything)
    another = await site.lend(line, people["gone-token"], actors[agent], **everything)
    tokens = {
        "token": people["gone-token"], "delegated token": another, "user": people["gone-user"],
        "user behind an agent": lent["gone-user"], "subject": people["gone-subject"],
        "subject behind an agent": lent["gone-subject"], "agent": by_agent, "agent as subject": by_subject,
        "agent itself, as subject": actors["gone-subject-agent"], "grant": lent["gone-lender"],
        "grant passed on": passed_on,
    }  # fmt: skip
    shut = [label for label, token in tokens.items() if not await _is_good(site, token)]
    deciding = {f"{name} for deciding": await site.for_deciding(name, *SCOPES) for name in _GONE_DECIDING}
    sessions = {f"{name}'s session": await site.session(name) for name in _GONE_DECIDING}
    shut += [
        label
        for label, token in deciding.items()
        if not await _shows(site, "/v1/approvals", authorization=f"Bearer {token}")
    ]
    shut += [
        label
        for label, kept in sessions.items()
        if not await _shows(site, "/console/tickets", cookie=f"{SESSION}={kept}")
    ]
    tokens |= deciding | sessions
    revoked = {
        "token": [claims_of(people["gone-token"])["jti"], claims_of(another)["jti"]],
        "user": ["gone-user"], "subject": ["gone-subject", "gone-subject-agent"], "agent": ["gone-agent"],
        "grant": claims_of(lent["gone-lender"])["grants"][:1],
    }  # fmt: skip
    admin = Line.to(site.url, token=admin_token)
    for kind, values in revoked.items():
        for value in values:
            answer = await admin.post("/v1/revocations", {"kind": kind, "value": value})
            if answer.status not in (200, 201):
                raise RuntimeError(f"{kind} {value} was not revoked: {answer.body[:300]!r}")
    admin.close()
    line.close()
    return [Bad(label=f"revoked: {label}", token=token) for label, token in tokens.items()], shut


async def short_lived(site: Site, user: str, agent: str) -> Bad:
    """A delegation that is good now and bad when `OVER_SECONDS` have passed."""
    line = Line.to(site.url)
    token = await site.lend(line, user, agent, lifetime=str(_SHORT_SECONDS))
    line.close()
    if not await _is_good(site, token):
        raise RuntimeError("a delegation of a second was not good while it lasted")
    return Bad(label="ended: the grant's time is over", token=token)


async def withdrawn(site: Site) -> list[Bad]:
    """The provider changes its keys and publishes only the new ones: tokens by an old one are over once that is known.

    Whoever comes with a new key makes the gateway look, though not more often than every half minute.
    """
    good = await site.person(ADMIN, *SCOPES)
    if not await _is_good(site, good):
        raise RuntimeError("a token was not good before the provider's keys changed")
    before = {**claims_of(good), "jti": "withdrawn"}
    await site.idp.rotate(keep_old=False)
    new = await site.person(ADMIN, *SCOPES)
    for _ in range(_LOOK_SECONDS):
        if await _is_good(site, new):
            break
        await asyncio.sleep(1.0)
    else:
        raise RuntimeError("tokens by the provider's new keys are not taken")
    return [
        Bad(label=f"withdrawn: a key of before [{key.algorithm}]", token=key.sign(before)) for key in site.idp.older
    ]


async def _is_good(site: Site, token: str) -> bool:
    line = Line.to(site.url, token=token)
    answer = await line.post("/v1/calls", {"tool": "deputy.look", "arguments": {"word": "proper"}})
    line.close()
    return answer.status == 200


async def _shows(site: Site, path: str, **headers: str) -> bool:
    line = Line.to(site.url)
    answer = await line.get(path, **headers)
    line.close()
    return answer.status == 200
