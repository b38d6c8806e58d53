"""Lending at the barrier: no one who is revoked lends, nothing lent outlives a revocation, on any gateway."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
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
from deputize.core.delegation import DelegationRequest
from deputize.core.errors import (
    AuthorityRevoked,
    ExchangeRefused,
    TokenAudienceMismatch,
    TokenMalformed,
    TokenSignatureInvalid,
    VersionNotInCapability,
)
from deputize.core.states import State
from deputize.govern.identity import revocations
from deputize.govern.identity.dev_issuer import mint_dev_token
from deputize.govern.identity.signing_keys import SigningKey
from deputize.lifecycle.durable.active_runs import ActiveRuns
from deputize.lifecycle.durable.resume import claim_run, load_pending_run
from deputize.operations.admin.delegations import IssuedToken
from tests.support.gateway_internals import get_lifecycle
from tests.support.gateway_lab import GatewayLab, error_slug, lab_settings, parse_body
from tests.support.scripted_tools import TOOLS, Tag, list_effects

pytestmark = pytest.mark.requirement("GOV-1", "NEW-7")

PUBLIC_URL = "https://lab.example"
contexts: list[str] = []


@tool(effects="read", namespace="lab", credential="delegated", audience="https://notes.example", scopes=("lab:write",))
async def lent_look(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Look at something with a token that was minted for it."""
    assert context.credential is not None
    contexts.append(context.credential.reveal())
    return {"tag": tag}


@asynccontextmanager
async def _open_delegation_lab(dsn: str, folder: Path) -> AsyncIterator[GatewayLab]:
    settings = lab_settings(dsn, folder)
    identity = settings.identity.model_copy(update={"public_url": PUBLIC_URL})
    settings = settings.model_copy(update={"identity": identity})
    db = await asyncpg.connect(dsn)
    try:
        tools = [*TOOLS, getattr(lent_look, ATTRIBUTE)]
        async with open_gateway(settings, tools=tools, development=True) as gateway:
            assert not gateway.startup_problems, [problem.details for problem in gateway.startup_problems]
            yield GatewayLab(gateway=gateway, folder=folder, dsn=dsn, db=db)
    finally:
        await db.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, lab_folder: Path) -> AsyncIterator[GatewayLab]:
    async with _open_delegation_lab(module_database, lab_folder) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def other_lab(lab: GatewayLab) -> AsyncIterator[GatewayLab]:
    async with _open_delegation_lab(lab.dsn, lab.folder) as opened:
        yield opened


def _mint_token(lab: GatewayLab, user: str = "ana", **more: Any) -> str:
    return mint_dev_token(lab.folder, subject=user, scopes=("lab:write",), **more)


async def _exchange_token(
    lab: GatewayLab, user: str = "ana", *, token: str | None = None, agent: str = "bot", **fields: Any
) -> IssuedToken:
    held = token or _mint_token(lab, user)
    return await lab.gateway.delegations.exchange_token(held.encode(), None, DelegationRequest(agent=agent, **fields))


async def _verify_token(lab: GatewayLab, token: str) -> Caller:
    return await lab.gateway.authenticate(b"Bearer " + token.encode())


async def _count_grants(lab: GatewayLab) -> int:
    return int(await lab.db.fetchval("select count(*) from deputize.grants"))


async def test_a_grant_is_durable_and_recorded_before_its_token_is_given(lab: GatewayLab) -> None:
    issued = await _exchange_token(lab, "mia", task="invoices", constraints=b'{"environments":["development"]}')
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


async def test_who_is_revoked_before_the_grant_commits_lends_nothing(lab: GatewayLab) -> None:
    token = _mint_token(lab, "leaver")
    await _exchange_token(lab, token=token)
    before = await _count_grants(lab)
    async with lab.hold_barrier() as admin:
        lending = asyncio.create_task(_exchange_token(lab, token=token))
        await lab.wait_for_blocked_query("%acquire_barrier_shared%")
        await revocations.revoke(admin, "dev", "user", "leaver", by="test")
    with pytest.raises(AuthorityRevoked):
        await lending
    assert await _count_grants(lab) == before


@pytest.mark.parametrize(("kind", "value"), [("agent", "rogue"), ("subject", "rogue-subject")])
async def test_an_agent_that_is_revoked_is_lent_nothing(
    kind: revocations.RevocationKind, value: str, lab: GatewayLab
) -> None:
    await lab.gateway.commands.revoke(await lab.make_admin(), kind, value)
    with pytest.raises(AuthorityRevoked):
        await _exchange_token(lab, agent=value)


async def test_an_agent_whose_own_token_is_revoked_is_lent_nothing(lab: GatewayLab) -> None:
    actor = mint_dev_token(lab.folder, subject="proven-bot")
    await lab.gateway.commands.revoke(await lab.make_admin(), "token", (await _verify_token(lab, actor)).token_id)
    with pytest.raises(AuthorityRevoked):
        await lab.gateway.delegations.exchange_token(
            _mint_token(lab).encode(), actor.encode(), DelegationRequest(agent="")
        )


async def test_a_mutation_whose_claim_commits_after_its_grant_was_taken_back_never_acts(lab: GatewayLab) -> None:
    first = await _exchange_token(lab)
    by = await _verify_token(lab, (await _exchange_token(lab, token=first.token, agent="worker")).token)
    assert (await lab.call("note", "lent", by=by)).state is State.SUCCEEDED
    async with lab.hold_barrier() as admin:
        call = asyncio.create_task(lab.call("note", "taken-back", key="taken-back", by=by))
        await lab.wait_for_blocked_query()
        await revocations.revoke(admin, "dev", "grant", first.grant.id.upper(), by="test")
    refused = await call
    assert (refused.state, error_slug(refused)) == (State.DENIED, "revoked")
    assert not list_effects("taken-back")


async def test_what_one_gateway_lends_another_takes_at_once_and_refuses_once_taken_back(
    lab: GatewayLab, other_lab: GatewayLab
) -> None:
    issued = await _exchange_token(lab, "remote")
    by = await _verify_token(other_lab, issued.token)
    assert by.grants == (issued.grant.id,)
    assert (await other_lab.call("look", "there", by=by)).state is State.SUCCEEDED
    await lab.gateway.delegations.revoke_grant(await lab.make_caller("remote"), issued.grant.id)
    assert error_slug(await other_lab.call("note", "gone", by=by)) == "revoked"


async def test_many_who_lend_first_at_once_agree_on_one_key(lab: GatewayLab, other_lab: GatewayLab) -> None:
    tokens = [_mint_token(each, tenant="new-tenant") for each in (lab, other_lab) * 8]
    issued = await asyncio.gather(
        *(_exchange_token(each, token=token) for each, token in zip((lab, other_lab) * 8, tokens, strict=True))
    )
    assert len({jwt.get_unverified_header(each.token)["kid"] for each in issued}) == 1
    assert await lab.db.fetchval("select count(*) from deputize.signing_keys where tenant = 'new-tenant'") == 1
    for each in issued:
        assert (await _verify_token(lab, each.token)).tenant == "new-tenant"


async def _current_signing_key(lab: GatewayLab) -> SigningKey:
    assert lab.runtime.signing_keys is not None
    return await lab.runtime.signing_keys.load_current_key("dev")


async def test_a_key_is_sealed_where_it_lies_and_published_without_its_secret(lab: GatewayLab) -> None:
    key = await _current_signing_key(lab)
    secret = key.private.private_bytes_raw()
    row = await lab.db.fetchrow("select sealed, public_jwk from deputize.signing_keys where kid = $1", key.kid)
    assert row is not None
    assert secret not in row["sealed"]
    assert set(orjson.loads(row["public_jwk"])) == {"kty", "crv", "x", "kid", "use", "alg"}


async def test_a_retired_key_signs_no_more_and_its_tokens_live_on_for_as_long_as_they_may(
    lab: GatewayLab, other_lab: GatewayLab
) -> None:
    issued = await _exchange_token(lab, token=_mint_token(lab, tenant="rotating"))
    await lab.db.execute("update deputize.signing_keys set retired_at = now() where tenant = 'rotating'")
    fresh = await _exchange_token(other_lab, token=_mint_token(lab, tenant="rotating"))
    kids = [jwt.get_unverified_header(each.token)["kid"] for each in (issued, fresh)]
    assert len(set(kids)) == 2
    assert (await _verify_token(other_lab, issued.token)).tenant == "rotating"
    await lab.db.execute(
        "update deputize.signing_keys set retired_at = now() - interval '31 days' where kid = $1", kids[0]
    )
    assert other_lab.runtime.signing_keys is not None
    published = await other_lab.runtime.signing_keys._load_snapshot("rotating")
    assert [each["kid"] for each in published.public] == [kids[1]]


@pytest.mark.parametrize(
    "changes",
    [
        {"act": None}, {"grants": None}, {"grants": []}, {"origin": None}, {"trust": None}, {"trust": "absolute"},
        {"origin_jti": None}, {"jti": None}, {"grants": ["00000000-0000-7000-8000-000000000000"] * 2},
    ],
)  # fmt: skip
async def test_a_token_of_ours_without_its_delegation_is_none_even_if_we_signed_it(
    changes: dict[str, Any], lab: GatewayLab
) -> None:
    issued = await _exchange_token(lab)
    claims = {**jwt.decode(issued.token, options={"verify_signature": False}), **changes}
    forged = (await _current_signing_key(lab)).sign(
        {name: value for name, value in claims.items() if value is not None}
    )
    with pytest.raises(TokenMalformed):
        await _verify_token(lab, forged)


async def test_a_key_of_one_tenant_signs_for_no_other(lab: GatewayLab) -> None:
    issued = await _exchange_token(lab)
    key = await _current_signing_key(lab)
    claims = {
        **jwt.decode(issued.token, options={"verify_signature": False}),
        "iss": f"{PUBLIC_URL}/t/new-tenant",
    }
    crossed = jwt.encode(claims, key.private, algorithm="EdDSA", headers={"kid": key.kid, "typ": "at+jwt"})
    with pytest.raises(TokenSignatureInvalid):
        await _verify_token(lab, crossed)


async def test_a_list_of_tools_too_long_for_a_token_is_refused_before_anything_is_lent(lab: GatewayLab) -> None:
    before = await _count_grants(lab)
    tools = tuple(Capability(tool=f"lab.{'t' * 60}{number}", versions="*") for number in range(250))
    with pytest.raises(ExchangeRefused, match="longer"):
        await _exchange_token(lab, tools=tools)
    assert await _count_grants(lab) == before


async def test_what_was_lent_is_seen_only_within_its_tenant(lab: GatewayLab) -> None:
    issued = await _exchange_token(lab, token=_mint_token(lab, "ana", tenant="elsewhere"))
    mine = await lab.gateway.delegations.list_grants(await lab.make_caller("ana"))
    assert issued.grant.id not in {each["grant_id"] for each in mine}
    everybody = await lab.gateway.delegations.list_grants(await lab.make_admin(), limit=200)
    assert issued.grant.id not in {each["grant_id"] for each in everybody}


async def test_a_tool_acts_upstream_in_the_name_of_everybody_and_never_with_the_callers_token(lab: GatewayLab) -> None:
    first = await _exchange_token(lab, agent="planner")
    second = await _exchange_token(lab, token=first.token, agent="worker")
    done = await lab.call("lent_look", "x", by=await _verify_token(lab, second.token))
    assert done.state is State.SUCCEEDED
    lent = contexts[-1]
    assert lent not in (first.token, second.token)
    assert lab.runtime.signing_keys is not None
    key = (await _current_signing_key(lab)).private.public_key()
    claims = jwt.decode(lent, key, algorithms=["EdDSA"], audience="https://notes.example")
    assert (claims["iss"], claims["sub"], claims["jti"]) == (f"{PUBLIC_URL}/t/dev", "ana", done.call_id)
    assert claims["act"] == {"sub": "worker", "act": {"sub": "planner"}}
    assert (claims["scope"], claims["exp"] - claims["iat"] <= 6) == ("lab:write", True)
    # And it is worth nothing here.
    with pytest.raises(TokenAudienceMismatch):
        await _verify_token(lab, lent)


async def test_a_run_that_waits_ends_with_the_token_its_delegation_began_with(lab: GatewayLab) -> None:
    token = _mint_token(lab, "lender")
    first = await _exchange_token(lab, token=token, agent="planner")
    second = await _exchange_token(lab, token=first.token, agent="worker")
    waits = await lab.call("put", "waits", key="waits", by=await _verify_token(lab, second.token), mode="async")
    assert waits.state is State.QUEUED
    origin = jwt.decode(token, options={"verify_signature": False})["jti"]
    await lab.gateway.commands.revoke(await lab.make_admin(), "token", origin)
    await get_lifecycle(lab.gateway).resume_run("dev", waits.call_id, ActiveRuns(lab.runtime))
    assert await lab.fetch_state(waits.call_id) == State.DENIED
    assert list_effects("waits") == []


_ONE_TAG = b'{"arguments":{"lab.put":{"tag":{"const":"allowed"}}}}'


async def test_constraints_hold_for_every_call_and_every_further_delegation(lab: GatewayLab) -> None:
    first = await _exchange_token(lab, agent="planner", constraints=_ONE_TAG)
    second = await _exchange_token(
        lab, token=first.token, agent="worker", constraints=b'{"arguments":{"lab.look":{"count":{"maximum":3}}}}'
    )
    for issued in (first, second):
        by = await _verify_token(lab, issued.token)
        refused = await lab.call("put", "other", key=f"other-{issued.grant.id}", by=by)
        assert (error_slug(refused), refused.http_status) == ("not-in-capability", 403)
        assert parse_body(refused)["error"]["details"]["rule"] == "grant-constraints"
        allowed = await lab.call("put", "allowed", key=f"allowed-{issued.grant.id}", by=by)
        assert allowed.state is State.SUCCEEDED
    by = await _verify_token(lab, second.token)
    assert error_slug(await lab.call("look", {"tag": "many", "count": 4}, by=by)) == "not-in-capability"
    assert error_slug(await lab.call("look", {"tag": "few", "count": 3}, by=by)) is None
    # What is left out could be anything.
    assert error_slug(await lab.call("look", "few", by=by)) == "not-in-capability"
    assert list_effects("other") == []
    dry = await lab.call("put", "other", key="dry", by=by, dry_run=True)
    assert error_slug(dry) == "not-in-capability"


async def test_a_queued_call_keeps_its_constraints(lab: GatewayLab) -> None:
    issued = await _exchange_token(lab, constraints=_ONE_TAG)
    by = await _verify_token(lab, issued.token)
    assert error_slug(await lab.call("put", "queued", key="q", by=by, mode="async")) == "not-in-capability"
    waits = await lab.call("put", "allowed", key="queued-allowed", by=by, mode="async")
    pending_run = await load_pending_run(lab.runtime, "dev", waits.call_id)
    assert pending_run is not None
    assert pending_run.validated.call.caller.constraints == by.constraints != ()
    # As if the stored arguments were others than those that were authorized.
    changed = replace(pending_run.validated, call_input={"tag": "changed"})
    await claim_run(lab.runtime, replace(pending_run, validated=changed))
    assert (await lab.fetch_call(waits.call_id))["error"] == "not-in-capability"


@pytest.mark.parametrize(
    ("constraints", "reason"),
    [
        (b'{"most":5}', "cannot enforce"),
        (b'{"arguments":{"lab.no_such_tool":{"tag":{"const":1}}}}', "no_such_tool"),
    ],
)
async def test_constraints_that_would_not_hold_are_refused(lab: GatewayLab, constraints: bytes, reason: str) -> None:
    before = await _count_grants(lab)
    with pytest.raises(ExchangeRefused, match=reason):
        await _exchange_token(lab, constraints=constraints)
    assert await _count_grants(lab) == before


async def test_a_constrained_administrator_administers_nothing(lab: GatewayLab) -> None:
    token = mint_dev_token(lab.folder, subject="root", scopes=("deputize:admin",))
    issued = await _exchange_token(
        lab, token=token, scopes=frozenset({"deputize:admin"}), constraints=b'{"environments":["staging"]}'
    )
    with pytest.raises(VersionNotInCapability, match="without constraints"):
        await lab.gateway.commands.revoke(await _verify_token(lab, issued.token), "token", "x")
