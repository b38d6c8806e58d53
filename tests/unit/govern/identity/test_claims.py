"""Claims set a caller's groups, trust and delegations; other kinds of tokens are rejected."""

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.caller import Caller, compute_decision_cache_key
from deputize.core.contract.contract import Effects
from deputize.core.errors import TokenAudienceMismatch, TokenMalformed
from tests.support.fake_issuer import (
    AUDIENCE,
    ISSUER,
    NOW,
    FakeIssuer,
    encode_base64url,
    make_claims,
    make_private_key,
    make_unsigned_token,
    sign_token,
)

pytestmark = pytest.mark.requirement("GOV-1")

GRANT = "0190b6a0-0000-7000-8000-000000000001"


@pytest.fixture
def fake_issuer() -> FakeIssuer:
    return FakeIssuer()


async def _verify_caller(fake_issuer: FakeIssuer, **changes: Any) -> Caller:
    return await fake_issuer.verifier().verify_caller(sign_token(**changes))


async def test_groups_come_from_the_configured_claim(fake_issuer: FakeIssuer) -> None:
    assert (await _verify_caller(fake_issuer, groups=["ops", "dev"])).groups == {"ops", "dev"}
    assert (await _verify_caller(fake_issuer, groups="ops")).groups == {"ops"}
    assert (await _verify_caller(fake_issuer)).groups == frozenset()
    named = await fake_issuer.verifier(groups_claim="roles").verify_caller(
        sign_token(roles=["lead"], groups=["not these"])
    )
    assert named.groups == {"lead"}


@pytest.mark.parametrize("groups", [7, {"ops": True}, [7], [""], ["a\nb"], ["g"] * 1001, ["x" * 256]])
async def test_invalid_groups_reject_the_token(fake_issuer: FakeIssuer, groups: Any) -> None:
    with pytest.raises(TokenMalformed, match="groups"):
        await _verify_caller(fake_issuer, groups=groups)


async def test_omitted_groups_reject_the_token(fake_issuer: FakeIssuer) -> None:
    with pytest.raises(TokenMalformed, match="too many"):
        await _verify_caller(fake_issuer, _claim_names={"groups": "src1"}, _claim_sources={"src1": {}})


async def test_trust_and_human_come_from_the_issuer_settings(fake_issuer: FakeIssuer) -> None:
    plain = await _verify_caller(fake_issuer)
    assert (plain.trust, plain.human) == ("standard", False)
    verifier = fake_issuer.verifier(trust="trusted", human=True)
    person = await verifier.verify_caller(sign_token(auth_time=NOW - 5))
    assert (person.trust, person.human, person.auth_time) == ("trusted", True, NOW - 5)
    agent = await verifier.verify_caller(sign_token(act={"sub": "bot"}))
    assert (agent.trust, agent.human) == ("trusted", False)


@pytest.mark.parametrize(
    "claims_of_a_program", [{"client_id": "ana"}, {"azp": "ana"}, {"idtyp": "app"}, {"gty": "client-credentials"}]
)
async def test_a_client_credentials_token_is_not_human(
    fake_issuer: FakeIssuer, claims_of_a_program: dict[str, Any]
) -> None:
    verifier = fake_issuer.verifier(human=True)
    assert not (await verifier.verify_caller(sign_token(**claims_of_a_program))).human
    assert (await verifier.verify_caller(sign_token(client_id="some-app", azp="some-app"))).human


@pytest.mark.parametrize("auth_time", ["now", True, -1, NOW + 60])
async def test_an_invalid_auth_time_rejects_the_token(fake_issuer: FakeIssuer, auth_time: Any) -> None:
    with pytest.raises(TokenMalformed, match="auth_time"):
        await _verify_caller(fake_issuer, auth_time=auth_time)


async def test_a_delegated_token_names_its_grants_its_task_and_its_ceiling(fake_issuer: FakeIssuer) -> None:
    caller = await _verify_caller(
        fake_issuer, act={"sub": "bot"}, grants=[GRANT.upper()], task="invoices", ceiling="write"
    )
    assert (caller.grants, caller.task, caller.ceiling) == ((GRANT,), "invoices", Effects.WRITE)


@pytest.mark.parametrize(
    "limits",
    [
        {"grants": "g"}, {"grants": [7]}, {"grants": ["not-a-uuid"]}, {"grants": [GRANT] * 9}, {"ceiling": "anything"},
        {"ceiling": ["read"]}, {"task": 7}, {"task": ""}, {"task": "t" * 201}, {"task": "a\0"},
    ],
)  # fmt: skip
async def test_invalid_limits_reject_the_token(fake_issuer: FakeIssuer, limits: dict[str, Any]) -> None:
    with pytest.raises(TokenMalformed):
        await _verify_caller(fake_issuer, **limits)


async def test_every_caller_has_a_decision_cache_key(fake_issuer: FakeIssuer) -> None:
    one = await _verify_caller(fake_issuer, groups=["ops"], jti="one")
    same = await _verify_caller(fake_issuer, groups=["ops"], jti="two")
    other = await _verify_caller(fake_issuer, groups=["ops", "dev"])
    assert one.decision_cache_key == same.decision_cache_key == compute_decision_cache_key(one) != ""
    assert other.decision_cache_key != one.decision_cache_key


@pytest.mark.parametrize("kind", ["JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt", "application/jwt"])
async def test_access_token_types_are_accepted(fake_issuer: FakeIssuer, kind: str) -> None:
    assert (await _verify_caller(fake_issuer, headers={"typ": kind})).user == "ana"


async def test_a_header_without_a_type_is_accepted(fake_issuer: FakeIssuer) -> None:
    assert (await _verify_caller(fake_issuer, headers={"typ": None})).user == "ana"


@pytest.mark.parametrize("kind", ["id+jwt", "dpop+jwt", "logout+jwt", "secevent+jwt", "JWT ", "refresh+jwt"])
async def test_another_kind_of_token_is_refused_by_its_header(fake_issuer: FakeIssuer, kind: str) -> None:
    with pytest.raises(TokenMalformed, match="does not mark an access token"):
        await _verify_caller(fake_issuer, headers={"typ": kind})


@pytest.mark.parametrize("typ", ["", 7, ["JWT"]])
async def test_an_invalid_type_is_rejected(fake_issuer: FakeIssuer, typ: Any) -> None:
    with pytest.raises(TokenMalformed):
        await fake_issuer.verifier().verify_caller(
            make_unsigned_token({"alg": "EdDSA", "typ": typ}, {"iss": ISSUER}, b"x")
        )


@pytest.mark.parametrize("mark", ["at_hash", "c_hash", "s_hash", "nonce", "events"])
async def test_an_identity_token_is_no_access_token_even_for_the_right_audience(
    fake_issuer: FakeIssuer, mark: str
) -> None:
    with pytest.raises(TokenMalformed, match="not an access token"):
        await _verify_caller(fake_issuer, **{mark: "x"})


async def test_an_issuer_that_marks_its_access_tokens_may_put_a_nonce_in_them(fake_issuer: FakeIssuer) -> None:
    assert (await _verify_caller(fake_issuer, headers={"typ": "at+jwt"}, nonce="n")).user == "ana"
    with pytest.raises(TokenMalformed):
        await _verify_caller(fake_issuer, headers={"typ": "at+jwt"}, at_hash="x")


async def test_a_key_bound_token_is_rejected(fake_issuer: FakeIssuer) -> None:
    with pytest.raises(TokenMalformed, match="bound"):
        await _verify_caller(fake_issuer, cnf={"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"})


@pytest.mark.parametrize(
    "act",
    [
        {"sub": "bot", "scope": "deputize:admin"}, {"sub": "bot", "tools": []},
        {"sub": "bot", "act": {"sub": "b", "exp": 1}}, {"sub": "bot", "grants": [GRANT]},
        {"sub": "bot", "tenant": "other"}, {"iss": ISSUER}, {"sub": ["bot"]},
    ],
)  # fmt: skip
async def test_an_actor_claim_has_only_its_identity(fake_issuer: FakeIssuer, act: dict[str, Any]) -> None:
    with pytest.raises(TokenMalformed, match="act"):
        await _verify_caller(fake_issuer, act=act)


async def test_an_actor_claim_may_name_its_issuer(fake_issuer: FakeIssuer) -> None:
    assert (await _verify_caller(fake_issuer, act={"sub": "bot", "iss": ISSUER, "client_id": "c"})).agents == ("bot",)


@pytest.mark.parametrize(
    "audience",
    [
        [AUDIENCE, "https://elsewhere.example"], [AUDIENCE, "account"], [AUDIENCE, 7], [], [[AUDIENCE]],
        [AUDIENCE, "http://issuer.example/userinfo"], [AUDIENCE, "https://issuer.example.evil/userinfo"],
    ],
)  # fmt: skip
async def test_a_token_with_other_audiences_is_rejected(fake_issuer: FakeIssuer, audience: Any) -> None:
    with pytest.raises(TokenAudienceMismatch):
        await _verify_caller(fake_issuer, aud=audience)


async def test_the_issuers_own_urls_are_allowed_audiences(fake_issuer: FakeIssuer) -> None:
    assert (await _verify_caller(fake_issuer, aud=[AUDIENCE, f"{ISSUER}/userinfo"])).user == "ana"


@pytest.mark.parametrize("name", ["sub", "aud", "exp", "\\u0073ub"])
async def test_a_duplicate_claim_rejects_the_token(fake_issuer: FakeIssuer, name: str) -> None:
    good = json.dumps(make_claims())
    twice = f'{{"{name}": "root", {good[1:]}'.encode()
    header = encode_base64url(json.dumps({"alg": "EdDSA", "kid": "ed"}).encode())
    key = make_private_key("EdDSA", 0)
    assert isinstance(key, Ed25519PrivateKey)
    signed_part = header + b"." + encode_base64url(twice)
    with pytest.raises(TokenMalformed):
        await fake_issuer.verifier().verify_caller(signed_part + b"." + encode_base64url(key.sign(signed_part)))
