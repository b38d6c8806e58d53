"""Every bad token of the proof, gathered: generated ones, real ones in the wrong place, real ones taken back."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import jwt

from deputize.interfaces.console.cookies import SESSION
from proofs.confused_deputy.bad_tokens import BadToken, TokenMaterial, generate_bad_tokens
from proofs.confused_deputy.delegated_calls import DelegatedToken
from proofs.confused_deputy.endpoints import APPROVAL_ENDPOINTS
from proofs.confused_deputy.testbed import (
    ADMIN,
    ADMIN_BESIDE,
    APPROVER,
    APPROVER_BESIDE,
    OTHER_ISSUER,
    REVOKED_USERS,
    SCOPES,
    TENANT,
    Testbed,
)
from proofs.kit.http_client import HttpConnection
from proofs.kit.jws import read_claims

_ALGORITHMS = ("RS256", "ES256", "EdDSA")
_SHORT_SECONDS = 10
_LOOK_SECONDS = 45
# Its life, the difference of clocks that is forgiven, and a little.
EXPIRY_SECONDS = _SHORT_SECONDS + 6.0
_REVOKED_APPROVERS = ("gone-user", "gone-subject")


async def collect_bad_tokens(
    testbed: Testbed, delegation: DelegatedToken, minted_tokens: Sequence[str], pages: frozenset[str]
) -> list[BadToken]:
    """What was never good here. `hand` is good; `minted` are credentials the gateway made for an upstream; `pages` are
    the interfaces that a browser's session opens.
    """
    good_tokens, plain_tokens = (
        dict(zip(_ALGORITHMS, tokens, strict=True))
        for tokens in (
            await asyncio.gather(*(testbed.sign_in_user(ADMIN, *SCOPES, algorithm=each) for each in _ALGORITHMS)),
            await asyncio.gather(
                *(testbed.sign_in_user("user-0", "proof:write", algorithm=each) for each in _ALGORITHMS)
            ),
        )
    )
    material = TokenMaterial(
        keys=testbed.idp.keys,
        good_tokens=good_tokens,
        plain_tokens=plain_tokens,
        id_token=await testbed.fetch_id_token(ADMIN),
        delegated_token=delegation.token,
        trap_url=f"{testbed.upstream}/trap",
    )
    other_audience = BadToken(
        label="aud: a real token for another service", token=await testbed.fetch_foreign_token(ADMIN)
    )
    tool_tokens = [
        BadToken(label=f"minted: for a tool's call, {number}", token=each) for number, each in enumerate(minted_tokens)
    ]
    session = BadToken(
        label="console: a browser's session", token=await testbed.create_session(APPROVER), valid_at=pages
    )
    console_tokens = await _collect_console_tokens(testbed)
    return [
        *generate_bad_tokens(material),
        other_audience,
        *tool_tokens,
        session,
        *console_tokens,
        *await _collect_foreign_tokens(testbed),
    ]


async def _collect_console_tokens(testbed: Testbed) -> list[BadToken]:
    """What is for deciding is good for nothing else, and for no one but people who got it for themselves."""
    good_token = await testbed.fetch_console_token(APPROVER)
    claims, key = read_claims(good_token), testbed.idp.get_key()
    delegation_claims: dict[str, dict[str, Any]] = {
        "in an agent's hands": {"act": {"sub": "agent-0"}}, "made for an agent": {"may_act": {"sub": "agent-0"}},
        "a delegation": {"grants": ["01890000-0000-7000-8000-000000000000"]}, "of some task": {"task": "deciding"},
        "for some tools": {"tools": [{"tool_id": "deputy.plead"}]}, "up to some effect": {"ceiling": "write"},
        "of another origin": {"origin": OTHER_ISSUER}, "a program's": {"gty": "client-credentials"},
        "an app's": {"idtyp": "app"}, "a client's own": {"sub": claims["client_id"]},
    }  # fmt: skip
    forged_tokens = {label: key.sign({**claims, **more}) for label, more in delegation_claims.items()}
    forged_tokens["an agent's"] = await testbed.fetch_agent_console_token("agent-0")
    return [
        BadToken(label="console: a token for deciding", token=good_token, valid_at=APPROVAL_ENDPOINTS),
        *(
            BadToken(label=f"handed on: a token for deciding, {label}", token=token)
            for label, token in forged_tokens.items()
        ),
    ]


async def _collect_foreign_tokens(testbed: Testbed) -> list[BadToken]:
    """Good tokens of other tenants: they may be let in there, and must learn and do nothing here."""
    now = int(time.time())
    claims: dict[str, Any] = {
        "iss": OTHER_ISSUER,
        "aud": testbed.url,
        "sub": ADMIN,
        "tenant": TENANT,
        "scope": " ".join(SCOPES),
    }
    claims |= {"iat": now, "exp": now + 3600, "jti": "other"}
    liar = jwt.encode(claims, testbed.other.key, algorithm="EdDSA", headers={"kid": "proof"})
    ghost = {**read_claims(await testbed.sign_in_user(ADMIN, *SCOPES)), "tenant": "ghost"}
    http = HttpConnection.for_url(testbed.url)
    delegation_beside = await testbed.delegate(
        http, await testbed.sign_in_user("user-beside", "proof:write"), await testbed.fetch_agent_token("agent-beside")
    )
    http.close()
    tokens = {
        "another issuer that claims our tenant": liar,
        "a tenant nobody knows": testbed.idp.get_key().sign(ghost),
        "an administrator beside": await testbed.sign_in_user(ADMIN_BESIDE, *SCOPES),
        "a delegation beside": delegation_beside,
        "an approver beside": await testbed.fetch_console_token(APPROVER_BESIDE, *SCOPES),
        "an approver's session beside": await testbed.create_session(APPROVER_BESIDE),
    }
    return [BadToken(label=f"elsewhere: {label}", token=token, is_foreign=True) for label, token in tokens.items()]


async def revoke_tokens(testbed: Testbed, agent: str) -> tuple[list[BadToken], list[str]]:
    """Good tokens, shown to be good, then revoked by everything that can be revoked. Also: those that were not good."""
    http = HttpConnection.for_url(testbed.url)
    people = {name: await testbed.sign_in_user(name, *SCOPES) for name in REVOKED_USERS}
    actors = {
        name: await testbed.fetch_agent_token(name, *SCOPES) for name in (agent, "gone-agent", "gone-subject-agent")
    }
    # Everything is lent, so that only the revocation can be what refuses it.
    all_scopes = {"scope": " ".join(SCOPES)}
    delegations = {
        name: await testbed.delegate(http, token, actors[agent], **all_scopes) for name, token in people.items()
    }
    passed_delegation = await testbed.delegate(http, delegations["gone-lender"], actors["gone-agent"], **all_scopes)
    admin_token = await testbed.sign_in_user(ADMIN, *SCOPES)
    agent_delegation = await testbed.delegate(http, admin_token, actors["gone-agent"], **all_scopes)
    subject_delegation = await testbed.delegate(http, admin_token, actors["gone-subject-agent"], **all_scopes)
    second_delegation = await testbed.delegate(http, people["gone-token"], actors[agent], **all_scopes)
    tokens = {
        "token": people["gone-token"],
        "delegated token": second_delegation,
        "user": people["gone-user"],
        "user behind an agent": delegations["gone-user"],
        "subject": people["gone-subject"],
        "subject behind an agent": delegations["gone-subject"],
        "agent": agent_delegation,
        "agent as subject": subject_delegation,
        "agent itself, as subject": actors["gone-subject-agent"],
        "grant": delegations["gone-lender"],
        "grant passed on": passed_delegation,
    }
    failures = [label for label, token in tokens.items() if not await _is_accepted(testbed, token)]
    console_tokens = {
        f"{name} for deciding": await testbed.fetch_console_token(name, *SCOPES) for name in _REVOKED_APPROVERS
    }
    sessions = {f"{name}'s session": await testbed.create_session(name) for name in _REVOKED_APPROVERS}
    failures += [
        label
        for label, token in console_tokens.items()
        if not await _is_shown(testbed, "/v1/approvals", authorization=f"Bearer {token}")
    ]
    failures += [
        label
        for label, session in sessions.items()
        if not await _is_shown(testbed, "/console/approvals", cookie=f"{SESSION}={session}")
    ]
    tokens |= console_tokens | sessions
    revocations = {
        "token": [read_claims(people["gone-token"])["jti"], read_claims(second_delegation)["jti"]],
        "user": ["gone-user"], "subject": ["gone-subject", "gone-subject-agent"], "agent": ["gone-agent"],
        "grant": read_claims(delegations["gone-lender"])["grants"][:1],
    }  # fmt: skip
    admin = HttpConnection.for_url(testbed.url, token=admin_token)
    for kind, values in revocations.items():
        for value in values:
            answer = await admin.post("/v1/revocations", {"kind": kind, "value": value})
            if answer.status not in (200, 201):
                raise RuntimeError(f"{kind} {value} was not revoked: {answer.body[:300]!r}")
    admin.close()
    http.close()
    return [BadToken(label=f"revoked: {label}", token=token) for label, token in tokens.items()], failures


async def create_short_lived(testbed: Testbed, user: str, agent: str) -> BadToken:
    """A delegation that is good now and bad when `OVER_SECONDS` have passed."""
    http = HttpConnection.for_url(testbed.url)
    token = await testbed.delegate(http, user, agent, lifetime=str(_SHORT_SECONDS))
    http.close()
    if not await _is_accepted(testbed, token):
        raise RuntimeError("a delegation of some seconds was not good while it lasted")
    return BadToken(label="ended: the grant's time is over", token=token)


async def collect_withdrawn(testbed: Testbed) -> list[BadToken]:
    """The provider changes its keys and publishes only the new ones: tokens by an old one are over once that is known.

    Anyone who comes with a new key makes the gateway look, though not more often than every half minute.
    """
    good_token = await testbed.sign_in_user(ADMIN, *SCOPES)
    if not await _is_accepted(testbed, good_token):
        raise RuntimeError("a token was not good before the provider's keys changed")
    old_claims = {**read_claims(good_token), "jti": "withdrawn"}
    await testbed.idp.rotate_keys(keep_old=False)
    new_token = await testbed.sign_in_user(ADMIN, *SCOPES)
    for _ in range(_LOOK_SECONDS):
        if await _is_accepted(testbed, new_token):
            break
        await asyncio.sleep(1.0)
    else:
        raise RuntimeError("tokens by the provider's new keys are not taken")
    return [
        BadToken(label=f"withdrawn: a key of before [{key.algorithm}]", token=key.sign(old_claims))
        for key in testbed.idp.previous_keys
    ]


async def _is_accepted(testbed: Testbed, token: str) -> bool:
    http = HttpConnection.for_url(testbed.url, token=token)
    answer = await http.post("/v1/calls", {"tool": "deputy.look", "arguments": {"word": "proper"}})
    http.close()
    return answer.status == 200


async def _is_shown(testbed: Testbed, path: str, **headers: str) -> bool:
    http = HttpConnection.for_url(testbed.url)
    answer = await http.get(path, **headers)
    http.close()
    return answer.status == 200
