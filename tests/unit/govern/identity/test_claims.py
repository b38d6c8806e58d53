"""What claims make of a caller beyond its name: groups, trust, people, delegations; and tokens of another kind."""

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.caller import Caller, standing_of
from deputize.core.contract import Effects
from deputize.core.errors import TokenAudience, TokenMalformed
from tests.unit.govern.identity.tokens_kit import (
    AUDIENCE,
    ISSUER,
    NOW,
    World,
    b64,
    claims,
    private_key,
    token,
    unsigned,
)

pytestmark = pytest.mark.requirement("GOV-1")

GRANT = "0190b6a0-0000-7000-8000-000000000001"


@pytest.fixture
def world() -> World:
    return World()


async def _caller(world: World, **changes: Any) -> Caller:
    return await world.verifier().verify(token(**changes))


async def test_groups_come_from_the_claim_the_issuer_is_set_up_with(world: World) -> None:
    assert (await _caller(world, groups=["ops", "dev"])).groups == {"ops", "dev"}
    assert (await _caller(world, groups="ops")).groups == {"ops"}
    assert (await _caller(world)).groups == frozenset()
    named = await world.verifier(groups_claim="roles").verify(token(roles=["lead"], groups=["not these"]))
    assert named.groups == {"lead"}


@pytest.mark.parametrize("groups", [7, {"ops": True}, [7], [""], ["a\nb"], ["g"] * 1001, ["x" * 256]])
async def test_groups_that_cannot_be_read_refuse_the_token(world: World, groups: Any) -> None:
    with pytest.raises(TokenMalformed, match="groups"):
        await _caller(world, groups=groups)


async def test_groups_left_out_because_there_are_many_refuse_the_token(world: World) -> None:
    with pytest.raises(TokenMalformed, match="too many"):
        await _caller(world, _claim_names={"groups": "src1"}, _claim_sources={"src1": {}})


async def test_trust_and_people_are_what_the_issuer_is_set_up_as(world: World) -> None:
    plain = await _caller(world)
    assert (plain.trust, plain.human) == ("standard", False)
    verifier = world.verifier(trust="trusted", human=True)
    person = await verifier.verify(token(auth_time=NOW - 5))
    assert (person.trust, person.human, person.auth_time) == ("trusted", True, NOW - 5)
    agent = await verifier.verify(token(act={"sub": "bot"}))
    assert (agent.trust, agent.human) == ("trusted", False)


@pytest.mark.parametrize(
    "claims_of_a_program", [{"client_id": "ana"}, {"azp": "ana"}, {"idtyp": "app"}, {"gty": "client-credentials"}]
)
async def test_a_program_that_got_a_token_for_itself_is_no_person(
    world: World, claims_of_a_program: dict[str, Any]
) -> None:
    verifier = world.verifier(human=True)
    assert not (await verifier.verify(token(**claims_of_a_program))).human
    assert (await verifier.verify(token(client_id="some-app", azp="some-app"))).human


@pytest.mark.parametrize("auth_time", ["now", True, -1, NOW + 60])
async def test_a_sign_in_at_no_possible_time_refuses_the_token(world: World, auth_time: Any) -> None:
    with pytest.raises(TokenMalformed, match="auth_time"):
        await _caller(world, auth_time=auth_time)


async def test_a_delegated_token_names_its_grants_its_task_and_its_ceiling(world: World) -> None:
    caller = await _caller(world, act={"sub": "bot"}, grants=[GRANT.upper()], task="invoices", ceiling="write")
    assert (caller.grants, caller.task, caller.ceiling) == ((GRANT,), "invoices", Effects.WRITE)


@pytest.mark.parametrize(
    "limits",
    [
        {"grants": "g"}, {"grants": [7]}, {"grants": ["not-a-uuid"]}, {"grants": [GRANT] * 9}, {"ceiling": "anything"},
        {"ceiling": ["read"]}, {"task": 7}, {"task": ""}, {"task": "t" * 201}, {"task": "a\0"},
    ],
)  # fmt: skip
async def test_limits_that_cannot_be_read_refuse_the_token(world: World, limits: dict[str, Any]) -> None:
    with pytest.raises(TokenMalformed):
        await _caller(world, **limits)


async def test_every_caller_has_the_standing_decisions_are_shared_by(world: World) -> None:
    one = await _caller(world, groups=["ops"], jti="one")
    same = await _caller(world, groups=["ops"], jti="two")
    other = await _caller(world, groups=["ops", "dev"])
    assert one.standing == same.standing == standing_of(one) != ""
    assert other.standing != one.standing


@pytest.mark.parametrize("kind", ["JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt", "application/jwt"])
async def test_what_may_be_an_access_token_is_taken(world: World, kind: str) -> None:
    assert (await _caller(world, headers={"typ": kind})).user == "ana"


async def test_a_header_without_a_type_is_taken(world: World) -> None:
    assert (await _caller(world, headers={"typ": None})).user == "ana"


@pytest.mark.parametrize("kind", ["id+jwt", "dpop+jwt", "logout+jwt", "secevent+jwt", "JWT ", "refresh+jwt"])
async def test_another_kind_of_token_is_refused_by_its_header(world: World, kind: str) -> None:
    with pytest.raises(TokenMalformed, match="something else"):
        await _caller(world, headers={"typ": kind})


@pytest.mark.parametrize("typ", ["", 7, ["JWT"]])
async def test_a_type_that_is_none_is_refused(world: World, typ: Any) -> None:
    with pytest.raises(TokenMalformed):
        await world.verifier().verify(unsigned({"alg": "EdDSA", "typ": typ}, {"iss": ISSUER}, b"x"))


@pytest.mark.parametrize("mark", ["at_hash", "c_hash", "s_hash", "nonce", "events"])
async def test_an_identity_token_is_no_access_token_even_for_the_right_audience(world: World, mark: str) -> None:
    with pytest.raises(TokenMalformed, match="no access token"):
        await _caller(world, **{mark: "x"})


async def test_an_issuer_that_marks_its_access_tokens_may_put_a_nonce_in_them(world: World) -> None:
    assert (await _caller(world, headers={"typ": "at+jwt"}, nonce="n")).user == "ana"
    with pytest.raises(TokenMalformed):
        await _caller(world, headers={"typ": "at+jwt"}, at_hash="x")


async def test_a_token_bound_to_its_holders_key_is_not_taken_from_just_anybody(world: World) -> None:
    with pytest.raises(TokenMalformed, match="bound"):
        await _caller(world, cnf={"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"})


@pytest.mark.parametrize(
    "act",
    [
        {"sub": "bot", "scope": "deputize:admin"}, {"sub": "bot", "tools": []},
        {"sub": "bot", "act": {"sub": "b", "exp": 1}}, {"sub": "bot", "grants": [GRANT]},
        {"sub": "bot", "tenant": "other"}, {"iss": ISSUER}, {"sub": ["bot"]},
    ],
)  # fmt: skip
async def test_an_actor_says_who_it_is_and_nothing_else(world: World, act: dict[str, Any]) -> None:
    with pytest.raises(TokenMalformed, match="act"):
        await _caller(world, act=act)


async def test_an_actor_may_say_who_vouches_for_its_name(world: World) -> None:
    assert (await _caller(world, act={"sub": "bot", "iss": ISSUER, "client_id": "c"})).agents == ("bot",)


@pytest.mark.parametrize(
    "audience",
    [
        [AUDIENCE, "https://elsewhere.example"], [AUDIENCE, "account"], [AUDIENCE, 7], [], [[AUDIENCE]],
        [AUDIENCE, "http://issuer.example/userinfo"], [AUDIENCE, "https://issuer.example.evil/userinfo"],
    ],
)  # fmt: skip
async def test_a_token_others_may_use_too_is_refused(world: World, audience: Any) -> None:
    with pytest.raises(TokenAudience):
        await _caller(world, aud=audience)


async def test_the_issuers_own_endpoints_beside_us_are_nobody_else(world: World) -> None:
    assert (await _caller(world, aud=[AUDIENCE, f"{ISSUER}/userinfo"])).user == "ana"


@pytest.mark.parametrize("name", ["sub", "aud", "exp", "\\u0073ub"])
async def test_a_claim_that_is_said_twice_is_not_read_at_all(world: World, name: str) -> None:
    good = json.dumps(claims())
    twice = f'{{"{name}": "root", {good[1:]}'.encode()
    header = b64(json.dumps({"alg": "EdDSA", "kid": "ed"}).encode())
    key = private_key("EdDSA", 0)
    assert isinstance(key, Ed25519PrivateKey)
    signed_part = header + b"." + b64(twice)
    with pytest.raises(TokenMalformed):
        await world.verifier().verify(signed_part + b"." + b64(key.sign(signed_part)))
