"""Lending at the barrier: nobody who is revoked lends, nothing lent outlives a revocation, on any gateway."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import jwt
import orjson
import pytest
import pytest_asyncio

from deputize import ToolContext, tool
from deputize.app import open_gateway
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.caller import Caller, Capability
from deputize.core.errors import ExchangeRefused, Revoked, TokenAudience, TokenMalformed, TokenSignature
from deputize.core.events import State
from deputize.govern.identity import revocations
from deputize.govern.identity.development import mint
from deputize.govern.identity.exchange import Asked
from deputize.govern.identity.signing import SigningKey
from deputize.lifecycle.carried import Desk
from deputize.lifecycle.delegate import Issued
from tests.integration.lifecycle.lab import Lab, lab_settings, slug
from tests.integration.lifecycle.tools import TOOLS, Tag, effects_of

pytestmark = pytest.mark.requirement("GOV-1", "NEW-7")

PUBLIC_URL = "https://lab.example"
given: list[str] = []


@tool(effects="read", namespace="lab", credential="delegated", audience="https://notes.example", scopes=("lab:write",))
async def lent_look(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Look at something with a token that was minted for it."""
    assert context.credential is not None
    given.append(context.credential.reveal())
    return {"tag": tag}


@asynccontextmanager
async def _opened(dsn: str, folder: Path) -> AsyncIterator[Lab]:
    settings = lab_settings(dsn, folder)
    identity = settings.identity.model_copy(update={"public_url": PUBLIC_URL})
    settings = settings.model_copy(update={"identity": identity})
    db = await asyncpg.connect(dsn)
    try:
        tools = [*TOOLS, getattr(lent_look, ATTRIBUTE)]
        async with open_gateway(settings, tools=tools, development=True) as gateway:
            assert not gateway.refused, [problem.details for problem in gateway.refused]
            yield Lab(gateway=gateway, folder=folder, dsn=dsn, db=db)
    finally:
        await db.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, lab_folder: Path) -> AsyncIterator[Lab]:
    async with _opened(module_database, lab_folder) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def other_lab(lab: Lab) -> AsyncIterator[Lab]:
    async with _opened(lab.dsn, lab.folder) as opened:
        yield opened


def _token(lab: Lab, user: str = "ana", **more: Any) -> str:
    return mint(lab.folder, subject=user, scopes=("lab:write",), **more)


async def _lend(lab: Lab, user: str = "ana", *, token: str | None = None, agent: str = "bot", **asked: Any) -> Issued:
    held = token or _token(lab, user)
    return await lab.gateway.delegations.exchange(held.encode(), None, Asked(agent=agent, **asked))


async def _holder(lab: Lab, token: str) -> Caller:
    return await lab.gateway.caller(b"Bearer " + token.encode())


async def _grants(lab: Lab) -> int:
    return int(await lab.db.fetchval("select count(*) from deputize.grants"))


async def test_a_grant_is_durable_and_recorded_before_its_token_is_given(lab: Lab) -> None:
    issued = await _lend(lab, "mia", task="invoices", constraints=b'{"most":5}')
    row = await lab.db.fetchrow("select * from deputize.grants where id = $1", issued.grant.id)
    assert row is not None
    assert (row["grantor"], row["agents"], row["task"]) == ("mia", ["bot"], "invoices")
    assert row["not_after"].timestamp() == issued.grant.not_after
    entry = orjson.loads(
        await lab.db.fetchval("select entry from deputize.audit_entries where call_id is null order by id desc limit 1")
    )
    assert (entry["kind"], entry["command"], entry["subject"]) == ("command", "delegate", issued.grant.id)
    written = await lab.db.fetch("select entry from deputize.audit_entries")
    assert not any(issued.token.encode() in each["entry"] or b"mia" in each["entry"] for each in written)


async def test_who_is_revoked_before_the_grant_commits_lends_nothing(lab: Lab) -> None:
    token = _token(lab, "leaver")
    await _lend(lab, token=token)
    before = await _grants(lab)
    async with lab.barrier_closed() as admin:
        lending = asyncio.create_task(_lend(lab, token=token))
        await lab.until_waiting("%hold_barrier%")
        await revocations.revoke(admin, "dev", "user", "leaver", by="test")
    with pytest.raises(Revoked):
        await lending
    assert await _grants(lab) == before


@pytest.mark.parametrize(("kind", "value"), [("agent", "rogue"), ("subject", "rogue-subject")])
async def test_an_agent_that_is_revoked_is_lent_nothing(kind: revocations.Kind, value: str, lab: Lab) -> None:
    await lab.gateway.commands.revoke(await lab.admin(), kind, value)
    with pytest.raises(Revoked):
        await _lend(lab, agent=value)


async def test_an_agent_whose_own_token_is_revoked_is_lent_nothing(lab: Lab) -> None:
    actor = mint(lab.folder, subject="proven-bot")
    await lab.gateway.commands.revoke(await lab.admin(), "token", (await _holder(lab, actor)).token_id)
    with pytest.raises(Revoked):
        await lab.gateway.delegations.exchange(_token(lab).encode(), actor.encode(), Asked(agent=""))


async def test_a_mutation_whose_claim_commits_after_its_grant_was_taken_back_never_acts(lab: Lab) -> None:
    first = await _lend(lab)
    by = await _holder(lab, (await _lend(lab, token=first.token, agent="worker")).token)
    assert (await lab.call("note", "lent", by=by)).state is State.SUCCEEDED
    async with lab.barrier_closed() as admin:
        call = asyncio.create_task(lab.call("note", "taken-back", key="taken-back", by=by))
        await lab.until_waiting()
        await revocations.revoke(admin, "dev", "grant", first.grant.id.upper(), by="test")
    refused = await call
    assert (refused.state, slug(refused)) == (State.DENIED, "revoked")
    assert not effects_of("taken-back")


async def test_what_one_gateway_lends_another_takes_at_once_and_refuses_once_taken_back(
    lab: Lab, other_lab: Lab
) -> None:
    issued = await _lend(lab, "remote")
    by = await _holder(other_lab, issued.token)
    assert by.grants == (issued.grant.id,)
    assert (await other_lab.call("look", "there", by=by)).state is State.SUCCEEDED
    await lab.gateway.delegations.revoke(await lab.caller("remote"), issued.grant.id)
    assert slug(await other_lab.call("note", "gone", by=by)) == "revoked"


async def test_many_who_lend_first_at_once_agree_on_one_key(lab: Lab, other_lab: Lab) -> None:
    tokens = [_token(each, tenant="new-tenant") for each in (lab, other_lab) * 8]
    issued = await asyncio.gather(
        *(_lend(each, token=token) for each, token in zip((lab, other_lab) * 8, tokens, strict=True))
    )
    assert len({jwt.get_unverified_header(each.token)["kid"] for each in issued}) == 1
    assert await lab.db.fetchval("select count(*) from deputize.signing_keys where tenant = 'new-tenant'") == 1
    for each in issued:
        assert (await _holder(lab, each.token)).tenant == "new-tenant"


async def _own_key(lab: Lab) -> SigningKey:
    assert lab.rooms.signing is not None
    return await lab.rooms.signing.current("dev")


async def test_a_key_is_sealed_where_it_lies_and_published_without_its_secret(lab: Lab) -> None:
    key = await _own_key(lab)
    secret = key.private.private_bytes_raw()
    row = await lab.db.fetchrow("select sealed, public_jwk from deputize.signing_keys where kid = $1", key.kid)
    assert row is not None
    assert secret not in row["sealed"]
    assert set(orjson.loads(row["public_jwk"])) == {"kty", "crv", "x", "kid", "use", "alg"}


async def test_a_retired_key_signs_no_more_and_its_tokens_live_on_for_as_long_as_they_may(
    lab: Lab, other_lab: Lab
) -> None:
    issued = await _lend(lab, token=_token(lab, tenant="rotating"))
    await lab.db.execute("update deputize.signing_keys set retired_at = now() where tenant = 'rotating'")
    fresh = await _lend(other_lab, token=_token(lab, tenant="rotating"))
    kids = [jwt.get_unverified_header(each.token)["kid"] for each in (issued, fresh)]
    assert len(set(kids)) == 2
    assert (await _holder(other_lab, issued.token)).tenant == "rotating"
    await lab.db.execute(
        "update deputize.signing_keys set retired_at = now() - interval '31 days' where kid = $1", kids[0]
    )
    assert other_lab.rooms.signing is not None
    published = await other_lab.rooms.signing._look("rotating")
    assert [each["kid"] for each in published.public] == [kids[1]]


@pytest.mark.parametrize(
    "changes",
    [
        {"act": None}, {"grants": None}, {"grants": []}, {"origin": None}, {"trust": None}, {"trust": "absolute"},
        {"origin_jti": None}, {"jti": None}, {"grants": ["00000000-0000-7000-8000-000000000000"] * 2},
    ],
)  # fmt: skip
async def test_a_token_of_ours_without_its_delegation_is_none_even_if_we_signed_it(
    changes: dict[str, Any], lab: Lab
) -> None:
    issued = await _lend(lab)
    claims = {**jwt.decode(issued.token, options={"verify_signature": False}), **changes}
    forged = (await _own_key(lab)).sign({name: value for name, value in claims.items() if value is not None})
    with pytest.raises(TokenMalformed):
        await _holder(lab, forged)


async def test_a_key_of_one_tenant_signs_for_no_other(lab: Lab) -> None:
    issued = await _lend(lab)
    key = await _own_key(lab)
    claims = {
        **jwt.decode(issued.token, options={"verify_signature": False}),
        "iss": f"{PUBLIC_URL}/t/new-tenant",
    }
    crossed = jwt.encode(claims, key.private, algorithm="EdDSA", headers={"kid": key.kid, "typ": "at+jwt"})
    with pytest.raises(TokenSignature):
        await _holder(lab, crossed)


async def test_a_list_of_tools_too_long_for_a_token_is_refused_before_anything_is_lent(lab: Lab) -> None:
    before = await _grants(lab)
    tools = tuple(Capability(tool=f"lab.{'t' * 60}{number}", versions="*") for number in range(250))
    with pytest.raises(ExchangeRefused, match="longer"):
        await _lend(lab, tools=tools)
    assert await _grants(lab) == before


async def test_what_was_lent_is_seen_only_within_its_tenant(lab: Lab) -> None:
    issued = await _lend(lab, token=_token(lab, "ana", tenant="elsewhere"))
    mine = await lab.gateway.delegations.page(await lab.caller("ana"))
    assert issued.grant.id not in {each["grant_id"] for each in mine}
    everybody = await lab.gateway.delegations.page(await lab.admin(), limit=200)
    assert issued.grant.id not in {each["grant_id"] for each in everybody}


async def test_a_tool_acts_upstream_in_the_name_of_everybody_and_never_with_the_callers_token(lab: Lab) -> None:
    first = await _lend(lab, agent="planner")
    second = await _lend(lab, token=first.token, agent="worker")
    done = await lab.call("lent_look", "x", by=await _holder(lab, second.token))
    assert done.state is State.SUCCEEDED
    lent = given[-1]
    assert lent not in (first.token, second.token)
    assert lab.rooms.signing is not None
    key = (await _own_key(lab)).private.public_key()
    claims = jwt.decode(lent, key, algorithms=["EdDSA"], audience="https://notes.example")
    assert (claims["iss"], claims["sub"], claims["jti"]) == (f"{PUBLIC_URL}/t/dev", "ana", done.call_id)
    assert claims["act"] == {"sub": "worker", "act": {"sub": "planner"}}
    assert (claims["scope"], claims["exp"] - claims["iat"] <= 6) == ("lab:write", True)
    # And it is worth nothing here.
    with pytest.raises(TokenAudience):
        await _holder(lab, lent)


async def test_a_run_that_waits_ends_with_the_token_its_delegation_began_with(lab: Lab) -> None:
    token = _token(lab, "lender")
    first = await _lend(lab, token=token, agent="planner")
    second = await _lend(lab, token=first.token, agent="worker")
    waits = await lab.call("put", "waits", key="waits", by=await _holder(lab, second.token), mode="async")
    assert waits.state is State.QUEUED
    origin = jwt.decode(token, options={"verify_signature": False})["jti"]
    await lab.gateway.commands.revoke(await lab.admin(), "token", origin)
    await lab.gateway.lifecycle.resume("dev", waits.call_id, Desk(lab.rooms))
    assert await lab.state(waits.call_id) == State.DENIED
    assert effects_of("waits") == []
