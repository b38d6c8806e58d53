"""Tokens: which are accepted, what a caller becomes, and the exact refusal of everything else."""

import asyncio
import hashlib
import hmac
import json
from dataclasses import replace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deputize.core.caller import Caller, Capability, standing_of
from deputize.core.errors import (
    Permission,
    TokenAudience,
    TokenExpired,
    TokenIssuer,
    TokenMalformed,
    TokenMissing,
    TokenSignature,
    Unavailable,
)
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Identity
from deputize.govern.identity.tokens import MAX_TOKEN_BYTES, TokenVerifier, check_issuers
from tests.unit.govern.identity.tokens_kit import (
    AUDIENCE,
    ISSUER,
    NOW,
    World,
    b64,
    claims,
    jwk,
    private_key,
    token,
    unsigned,
)

pytestmark = pytest.mark.requirement("GOV-1")


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_each_allowed_algorithm_verifies(world: World, algorithm: str) -> None:
    world.keys = [jwk(algorithm, kid="k")]
    caller = await world.verifier().verify(token(algorithm=algorithm, kid="k"))
    expected = Caller(tenant="acme", user="ana", token_id="t-1", issuer=ISSUER, expires_at=NOW + 300, issued_at=NOW)
    assert caller == replace(expected, standing=standing_of(expected))


async def test_a_full_token_becomes_a_full_caller(world: World) -> None:
    caller = await world.verifier().verify(
        token(
            act={"sub": "billing-bot", "act": {"sub": "did:example:planner"}},
            azp="some-client",
            client_id="some-client",
            scope="crm:read crm:write",
            scp=["extra"],
            sid="s-7",
            aud=[AUDIENCE],
            tools=[
                {"tool_id": "crm.get_user", "version_range": "^2"},
                {"tool": "crm__delete_user", "versions": "1.x"},
                {"tool": "crm.list"},
            ],
        )
    )
    assert caller.subjects == ("ana", "billing-bot", "did:example:planner")
    assert caller.scopes == {"crm:read", "crm:write", "extra"}
    assert caller.session == "s-7"
    assert caller.capabilities == (
        Capability(tool="crm.get_user", versions="^2"),
        Capability(tool="crm.delete_user", versions="1.x"),
        Capability(tool="crm.list", versions="*"),
    )


async def test_a_token_without_a_tools_claim_limits_no_tools_and_an_empty_one_limits_all(
    world: World,
) -> None:
    verifier = world.verifier()
    assert (await verifier.verify(token())).capabilities is None
    assert (await verifier.verify(token(tools=[]))).capabilities == ()


async def test_a_token_without_an_id_is_named_by_what_is_signed_and_not_by_its_signature(
    world: World,
) -> None:
    world.keys = [jwk("ES256", kid="k")]
    # ES256 signs with fresh randomness, so the same claims come with two valid signatures.
    first, second = (token(algorithm="ES256", kid="k", jti=None) for _ in range(2))
    assert first != second
    verifier = world.verifier()
    ids = {(await verifier.verify(each)).token_id for each in (first, second)}
    assert len(ids) == 1
    assert ids.pop().startswith("sha256:")


async def test_the_tenant_can_come_from_a_named_claim(world: World) -> None:
    verifier = world.verifier(tenant=None, tenant_claim="org")
    assert (await verifier.verify(token(org="beta-1"))).tenant == "beta-1"
    for bad in (None, "", "Beta", "a b", "x" * 64, "beta\n", 7, ["beta"]):
        with pytest.raises(TokenMalformed):
            await verifier.verify(token(org=bad, sub=f"s{bad!r}"[:20].replace("\n", "")))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"exp": NOW - 6}, TokenExpired),
        ({"exp": None}, TokenMalformed),
        ({"exp": "soon"}, TokenMalformed),
        ({"exp": True}, TokenMalformed),
        ({"exp": 2**60}, TokenMalformed),
        ({"iat": NOW + 6}, TokenMalformed),
        ({"nbf": NOW + 6}, TokenMalformed),
        ({"aud": "https://somebody.example"}, TokenAudience),
        ({"aud": [AUDIENCE + "/"]}, TokenAudience),
        ({"aud": None}, TokenAudience),
        ({"aud": AUDIENCE[:-1]}, TokenAudience),
        ({"aud": {AUDIENCE: 1}}, TokenAudience),
        ({"iss": "https://issuer.example/"}, TokenIssuer),
        ({"iss": None}, TokenIssuer),
        ({"sub": None}, TokenMalformed),
        ({"sub": ""}, TokenMalformed),
        ({"sub": "a\0b"}, TokenMalformed),
        ({"sub": "a\nb"}, TokenMalformed),
        ({"sub": "a" * 513}, TokenMalformed),
        ({"sub": 7}, TokenMalformed),
        ({"jti": "a\0b"}, TokenMalformed),
        ({"act": "bot"}, TokenMalformed),
        ({"act": {}}, TokenMalformed),
        ({"act": {"sub": "bot", "act": []}}, TokenMalformed),
        ({"scope": {"a": 1}}, TokenMalformed),
        ({"scp": [1]}, TokenMalformed),
        ({"tools": {"crm.get": "*"}}, TokenMalformed),
        ({"tools": ["crm.get"]}, TokenMalformed),
        ({"tools": [{}]}, TokenMalformed),
        ({"tools": [{"tool": "crm.get", "versions": 1}]}, TokenMalformed),
        ({"sid": "s" * 201}, TokenMalformed),
    ],
)
async def test_what_is_wrong_with_the_claims_is_said_exactly(
    world: World, changes: dict[str, Any], problem: type[Permission]
) -> None:
    with pytest.raises(problem):
        await world.verifier().verify(token(**changes))


async def test_a_claim_that_is_present_but_null_does_not_lift_a_limit(world: World) -> None:
    for name in ("tools", "act"):
        body = {**claims(), name: None}
        signed = jwt.encode(body, private_key("EdDSA", 0), algorithm="EdDSA", headers={"kid": "ed"})
        with pytest.raises(TokenMalformed):
            await world.verifier().verify(signed.encode())


async def test_a_small_difference_of_clocks_is_forgiven(world: World) -> None:
    verifier = world.verifier()
    await verifier.verify(token(exp=NOW - 4))
    await verifier.verify(token(iat=NOW + 4, nbf=NOW + 4))


async def test_a_chain_of_too_many_agents_is_refused(world: World) -> None:
    chain: dict[str, Any] = {"sub": "last"}
    for number in range(8):
        chain = {"sub": f"agent-{number}", "act": chain}
    with pytest.raises(TokenMalformed):
        await world.verifier().verify(token(act=chain))
    assert len((await world.verifier().verify(token(act=chain["act"]))).agents) == 8


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (b"", TokenMissing),
        (b"${DEPUTIZE_TOKEN}", TokenMalformed),
        (b"not a token", TokenMalformed),
        (b"a.b", TokenMalformed),
        (b"a.b.c", TokenMalformed),
        (b"a.b.c.d.e", TokenMalformed),
        (b"x" * (MAX_TOKEN_BYTES + 1), TokenMalformed),
        (b"\xff\xfe.\x00.\x00", TokenMalformed),
        (unsigned({"alg": "EdDSA"}, [1]), TokenMalformed),
        (unsigned({"alg": ["EdDSA"]}, {"iss": ISSUER}), TokenMalformed),
        (unsigned({"alg": "EdDSA", "kid": {"a": 1}}, {"iss": ISSUER}), TokenMalformed),
    ],
)
async def test_what_is_no_token_is_called_so(world: World, bad: bytes, problem: type[Permission]) -> None:
    with pytest.raises(problem):
        await world.verifier().verify(bad)


async def test_a_variable_the_client_did_not_fill_in_is_explained(world: World) -> None:
    with pytest.raises(TokenMalformed, match=r"\$\{"):
        await world.verifier().verify(b"${TOKEN:-none}")


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "RS512", "ES384", "PS256", ""])
async def test_other_algorithms_and_no_algorithm_are_refused(world: World, algorithm: str) -> None:
    with pytest.raises(TokenSignature):
        await world.verifier().verify(unsigned({"alg": algorithm, "kid": "ed"}, claims()))


async def test_a_public_key_is_never_taken_for_a_shared_secret(world: World) -> None:
    world.keys = [jwk("RS256", kid="k")]
    key = private_key("RS256", 0)
    assert isinstance(key, rsa.RSAPrivateKey)
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed_part = unsigned({"alg": "HS256", "kid": "k"}, claims()).rsplit(b".", 1)[0]
    forged = signed_part + b"." + b64(hmac.digest(pem, signed_part, "sha256"))
    with pytest.raises(TokenSignature):
        await world.verifier().verify(forged)


async def test_an_algorithm_this_issuer_may_not_use_is_refused_even_with_a_good_signature(
    world: World,
) -> None:
    with pytest.raises(TokenSignature):
        await world.verifier(algorithms=("RS256",)).verify(token())


async def test_a_shared_secret_in_a_key_set_is_passed_over(world: World) -> None:
    secret = b"s" * 32
    world.keys = [{"kty": "oct", "k": b64(secret).decode(), "kid": "ed", "alg": "HS256"}, *world.keys]
    signed_part = unsigned({"alg": "HS256", "kid": "ed"}, claims()).rsplit(b".", 1)[0]
    with pytest.raises(TokenSignature):
        await world.verifier().verify(signed_part + b"." + b64(hmac.digest(secret, signed_part, "sha256")))
    await world.verifier().verify(token())


async def test_a_changed_token_does_not_verify(world: World) -> None:
    header, _, signature = token().split(b".")
    other = b64(json.dumps(claims(sub="root")).encode())
    with pytest.raises(TokenSignature):
        await world.verifier().verify(b".".join((header, other, signature)))
    with pytest.raises(TokenSignature):
        await world.verifier().verify(token(number=1))


async def test_critical_extensions_nobody_here_understands_are_refused(world: World) -> None:
    with pytest.raises(TokenMalformed):
        await world.verifier().verify(token(headers={"crit": ["exp"], "exp": 1}))


async def test_without_a_key_id_the_only_key_is_used_and_a_choice_is_refused(world: World) -> None:
    await world.verifier().verify(token(kid=None))
    world.keys = [jwk("EdDSA", kid="ed"), jwk("EdDSA", kid="other", number=1)]
    with pytest.raises(TokenSignature):
        await world.verifier().verify(token(kid=None))


async def test_a_remembered_token_is_not_verified_again_and_dies_in_time(world: World) -> None:
    verifier = world.verifier()
    short = token(exp=NOW + 10)
    assert verifier.cached(short) is None
    caller = await verifier.verify(short)
    assert verifier.cached(short) is caller
    world.time.seconds = 10
    assert verifier.cached(short) is None
    long = token(exp=NOW + 300)
    await verifier.verify(long)
    world.time.seconds = 39.9
    assert verifier.cached(long) is not None
    world.time.seconds = 40
    assert verifier.cached(long) is None


async def test_nothing_is_remembered_of_a_token_but_its_hash(world: World) -> None:
    verifier = world.verifier()
    good = token()
    await verifier.verify(good)
    assert list(verifier._remembered) == [hashlib.sha256(good).digest()]


async def test_a_cache_of_no_seconds_remembers_nothing(world: World) -> None:
    verifier = world.verifier(token_cache_seconds=0)
    good = token()
    await verifier.verify(good)
    assert verifier.cached(good) is None


async def test_a_refused_token_is_not_remembered(world: World) -> None:
    verifier = world.verifier()
    bad = token(number=1)
    with pytest.raises(TokenSignature):
        await verifier.verify(bad)
    assert verifier.cached(bad) is None


async def test_what_is_added_to_a_caller_is_remembered_with_it(world: World) -> None:
    async def complete(caller: Caller) -> Caller:
        return Caller(tenant=caller.tenant, user=caller.user, expires_at=caller.expires_at, pseudonyms=("p",))

    identity = Identity(issuers=(world.issuer(),))
    verifier = TokenVerifier(identity, world.time.clock, world.fetch, complete=complete)
    good = token()
    await verifier.verify(good)
    remembered = verifier.cached(good)
    assert remembered is not None
    assert remembered.pseudonyms == ("p",)


async def test_many_tokens_at_once_fetch_the_keys_once(world: World) -> None:
    verifier = world.verifier()
    callers = await asyncio.gather(*(verifier.verify(token(sub=f"user-{n}")) for n in range(20)))
    assert len({caller.user for caller in callers}) == 20
    assert world.fetched == 1


async def test_issuers_that_cannot_be_used_are_named_with_the_way_out(world: World) -> None:
    broken: list[dict[str, Any]] = [
        {"jwks_file": "keys.json"},
        {"tenant": None},
        {"tenant_claim": "org"},
        {"tenant": "Not A Slug"},
        {"audience": ""},
        {"algorithms": ()},
    ]
    for changes in broken:
        with pytest.raises(Misconfigured, match=ISSUER):
            check_issuers(Identity(issuers=(world.issuer(**changes),)))
    for ours in ("process", "terminal"):
        with pytest.raises(Misconfigured, match="calls itself so"):
            check_issuers(Identity(issuers=(world.issuer(issuer=ours),)))
    with pytest.raises(Misconfigured, match="twice"):
        check_issuers(Identity(issuers=(world.issuer(), world.issuer())))
    for unfindable in ("urn:acme", "issuer.example", "https://issuer.example?a=1", "did:web:127.0.0.1", "did:key:zzz"):
        with pytest.raises(Misconfigured, match="set jwks_url"):
            check_issuers(Identity(issuers=(world.issuer(issuer=unfindable, jwks_url=None),)))
    own = world.issuer(issuer="https://gateway.example/t/acme")
    with pytest.raises(Misconfigured, match="this gateway issues"):
        check_issuers(Identity(issuers=(own,), public_url="https://gateway.example/"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
claim_names = st.sampled_from(
    ["iss", "aud", "sub", "exp", "iat", "nbf", "jti", "act", "scope", "scp", "tools", "sid", "groups", "auth_time",
     "grants", "task", "ceiling", "_claim_names"]
)  # fmt: skip


async def _only_permission(world: World, bad: bytes) -> None:
    try:
        await world.verifier().verify(bad)
    except Permission:
        return


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(claim_names, json_values, max_size=4))
def test_signed_claims_of_any_shape_end_in_a_caller_or_a_refusal(changes: dict[str, Any]) -> None:
    if not isinstance(changes.get("iss", ""), str):
        changes["iss"] = ISSUER  # PyJWT refuses to sign it; unsigned tokens below try other issuers
    asyncio.run(_only_permission(World(), token(**changes)))


@settings(max_examples=200, deadline=None)
@given(
    bad=st.binary(max_size=300)
    | st.builds(
        unsigned,
        st.dictionaries(st.sampled_from(["alg", "kid", "crit", "b64", "typ", "jwk", "x5u"]), json_values, max_size=4),
        json_values | st.builds(lambda extra: {**claims(), **extra}, st.dictionaries(claim_names, json_values)),
        st.binary(max_size=80),
    )
)
def test_bytes_of_any_kind_end_in_a_refusal_and_nothing_worse(bad: bytes) -> None:
    asyncio.run(_only_permission(World(), bad))


@settings(max_examples=100, deadline=None)
@given(place=st.integers(min_value=0, max_value=10_000), byte=st.integers(min_value=0, max_value=255))
def test_a_good_token_with_one_byte_changed_ends_in_a_refusal(place: int, byte: int) -> None:
    good = bytearray(token())
    good[place % len(good)] = byte
    asyncio.run(_only_permission(World(), bytes(good)))


async def test_keys_that_cannot_be_read_are_our_fault_and_not_the_tokens(world: World) -> None:
    world.down = True
    with pytest.raises(Unavailable):
        await world.verifier().verify(token())
