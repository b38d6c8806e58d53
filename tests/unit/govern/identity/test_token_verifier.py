"""Token verification: which tokens are accepted, the callers they make, and the exact refusals."""

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

from deputize.core.caller import Caller, Capability, compute_decision_cache_key
from deputize.core.config_error import ConfigError
from deputize.core.errors import (
    PermissionProblem,
    TokenAudienceMismatch,
    TokenExpired,
    TokenIssuerUntrusted,
    TokenMalformed,
    TokenMissing,
    TokenSignatureInvalid,
    Unavailable,
)
from deputize.core.settings import IdentitySettings
from deputize.govern.identity.issuer_checks import check_issuers
from deputize.govern.identity.jws import MAX_TOKEN_BYTES
from deputize.govern.identity.token_verifier import TokenVerifier
from tests.support.fake_issuer import (
    AUDIENCE,
    ISSUER,
    NOW,
    FakeIssuer,
    encode_base64url,
    make_claims,
    make_jwk,
    make_private_key,
    make_unsigned_token,
    sign_token,
)

pytestmark = pytest.mark.requirement("GOV-1")


@pytest.fixture
def fake_issuer() -> FakeIssuer:
    return FakeIssuer()


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_each_allowed_algorithm_verifies(fake_issuer: FakeIssuer, algorithm: str) -> None:
    fake_issuer.keys = [make_jwk(algorithm, kid="k")]
    caller = await fake_issuer.verifier().verify_caller(sign_token(algorithm=algorithm, kid="k"))
    expected = Caller(tenant="acme", user="ana", token_id="t-1", issuer=ISSUER, expires_at=NOW + 300, issued_at=NOW)
    expected = replace(expected, primary_issuer=caller.primary_issuer)
    assert caller == replace(expected, decision_cache_key=compute_decision_cache_key(expected))


async def test_a_full_token_becomes_a_full_caller(fake_issuer: FakeIssuer) -> None:
    caller = await fake_issuer.verifier().verify_caller(
        sign_token(
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
    fake_issuer: FakeIssuer,
) -> None:
    verifier = fake_issuer.verifier()
    assert (await verifier.verify_caller(sign_token())).capabilities is None
    assert (await verifier.verify_caller(sign_token(tools=[]))).capabilities == ()


async def test_a_token_without_jti_gets_an_id_from_its_signed_part(
    fake_issuer: FakeIssuer,
) -> None:
    fake_issuer.keys = [make_jwk("ES256", kid="k")]
    # ES256 signs with fresh randomness, so the same claims come with two valid signatures.
    first, second = (sign_token(algorithm="ES256", kid="k", jti=None) for _ in range(2))
    assert first != second
    verifier = fake_issuer.verifier()
    ids = {(await verifier.verify_caller(each)).token_id for each in (first, second)}
    assert len(ids) == 1
    assert ids.pop().startswith("sha256:")


async def test_the_tenant_can_come_from_a_named_claim(fake_issuer: FakeIssuer) -> None:
    verifier = fake_issuer.verifier(tenant=None, tenant_claim="org", tenants=("acme", "beta-*"))
    assert (await verifier.verify_caller(sign_token(org="beta-1"))).tenant == "beta-1"
    for bad in (None, "", "Beta", "a b", "x" * 64, "beta\n", 7, ["beta"]):
        with pytest.raises(TokenMalformed):
            await verifier.verify_caller(sign_token(org=bad, sub=f"s{bad!r}"[:20].replace("\n", "")))
    assert (await verifier.verify_caller(sign_token(org="acme"))).tenant == "acme"
    for other in ("beta", "acme-1", "gamma", "xbeta-1"):
        with pytest.raises(TokenIssuerUntrusted, match="may not speak for the tenant"):
            await verifier.verify_caller(sign_token(org=other))


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
        ({"aud": "https://somebody.example"}, TokenAudienceMismatch),
        ({"aud": [AUDIENCE + "/"]}, TokenAudienceMismatch),
        ({"aud": None}, TokenAudienceMismatch),
        ({"aud": AUDIENCE[:-1]}, TokenAudienceMismatch),
        ({"aud": {AUDIENCE: 1}}, TokenAudienceMismatch),
        ({"iss": "https://issuer.example/"}, TokenIssuerUntrusted),
        ({"iss": None}, TokenIssuerUntrusted),
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
async def test_invalid_claims_are_reported_exactly(
    fake_issuer: FakeIssuer, changes: dict[str, Any], problem: type[PermissionProblem]
) -> None:
    with pytest.raises(problem):
        await fake_issuer.verifier().verify_caller(sign_token(**changes))


async def test_a_claim_that_is_present_but_null_does_not_lift_a_limit(fake_issuer: FakeIssuer) -> None:
    for name in ("tools", "act"):
        body = {**make_claims(), name: None}
        signed = jwt.encode(body, make_private_key("EdDSA", 0), algorithm="EdDSA", headers={"kid": "ed"})
        with pytest.raises(TokenMalformed):
            await fake_issuer.verifier().verify_caller(signed.encode())


async def test_small_clock_differences_are_tolerated(fake_issuer: FakeIssuer) -> None:
    verifier = fake_issuer.verifier()
    await verifier.verify_caller(sign_token(exp=NOW - 4))
    await verifier.verify_caller(sign_token(iat=NOW + 4, nbf=NOW + 4))


async def test_a_chain_of_too_many_agents_is_refused(fake_issuer: FakeIssuer) -> None:
    chain: dict[str, Any] = {"sub": "last"}
    for number in range(8):
        chain = {"sub": f"agent-{number}", "act": chain}
    with pytest.raises(TokenMalformed):
        await fake_issuer.verifier().verify_caller(sign_token(act=chain))
    assert len((await fake_issuer.verifier().verify_caller(sign_token(act=chain["act"]))).agents) == 8


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
        (make_unsigned_token({"alg": "EdDSA"}, [1]), TokenMalformed),
        (make_unsigned_token({"alg": ["EdDSA"]}, {"iss": ISSUER}), TokenMalformed),
        (make_unsigned_token({"alg": "EdDSA", "kid": {"a": 1}}, {"iss": ISSUER}), TokenMalformed),
    ],
)
async def test_malformed_tokens_are_rejected(
    fake_issuer: FakeIssuer, bad: bytes, problem: type[PermissionProblem]
) -> None:
    with pytest.raises(problem):
        await fake_issuer.verifier().verify_caller(bad)


async def test_an_unreplaced_variable_is_explained(fake_issuer: FakeIssuer) -> None:
    with pytest.raises(TokenMalformed, match=r"\$\{"):
        await fake_issuer.verifier().verify_caller(b"${TOKEN:-none}")


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "RS512", "ES384", "PS256", ""])
async def test_other_algorithms_and_no_algorithm_are_refused(fake_issuer: FakeIssuer, algorithm: str) -> None:
    with pytest.raises(TokenSignatureInvalid):
        await fake_issuer.verifier().verify_caller(make_unsigned_token({"alg": algorithm, "kid": "ed"}, make_claims()))


async def test_a_public_key_is_never_used_as_a_shared_secret(fake_issuer: FakeIssuer) -> None:
    fake_issuer.keys = [make_jwk("RS256", kid="k")]
    key = make_private_key("RS256", 0)
    assert isinstance(key, rsa.RSAPrivateKey)
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed_part = make_unsigned_token({"alg": "HS256", "kid": "k"}, make_claims()).rsplit(b".", 1)[0]
    forged = signed_part + b"." + encode_base64url(hmac.digest(pem, signed_part, "sha256"))
    with pytest.raises(TokenSignatureInvalid):
        await fake_issuer.verifier().verify_caller(forged)


async def test_an_algorithm_this_issuer_may_not_use_is_refused_even_with_a_good_signature(
    fake_issuer: FakeIssuer,
) -> None:
    with pytest.raises(TokenSignatureInvalid, match="algorithm allowed for its issuer"):
        await fake_issuer.verifier(algorithms=("RS256",)).verify_caller(sign_token())


async def test_a_shared_secret_in_a_key_set_is_ignored(fake_issuer: FakeIssuer) -> None:
    secret = b"s" * 32
    fake_issuer.keys = [
        {"kty": "oct", "k": encode_base64url(secret).decode(), "kid": "ed", "alg": "HS256"},
        *fake_issuer.keys,
    ]
    signed_part = make_unsigned_token({"alg": "HS256", "kid": "ed"}, make_claims()).rsplit(b".", 1)[0]
    with pytest.raises(TokenSignatureInvalid):
        await fake_issuer.verifier().verify_caller(
            signed_part + b"." + encode_base64url(hmac.digest(secret, signed_part, "sha256"))
        )
    await fake_issuer.verifier().verify_caller(sign_token())


async def test_a_changed_token_does_not_verify(fake_issuer: FakeIssuer) -> None:
    header, _, signature = sign_token().split(b".")
    other = encode_base64url(json.dumps(make_claims(sub="root")).encode())
    with pytest.raises(TokenSignatureInvalid):
        await fake_issuer.verifier().verify_caller(b".".join((header, other, signature)))
    with pytest.raises(TokenSignatureInvalid):
        await fake_issuer.verifier().verify_caller(sign_token(number=1))


async def test_unsupported_critical_extensions_are_rejected(fake_issuer: FakeIssuer) -> None:
    with pytest.raises(TokenMalformed):
        await fake_issuer.verifier().verify_caller(sign_token(headers={"crit": ["exp"], "exp": 1}))


async def test_without_a_key_id_the_only_key_is_used_and_a_choice_is_refused(fake_issuer: FakeIssuer) -> None:
    await fake_issuer.verifier().verify_caller(sign_token(kid=None))
    fake_issuer.keys = [make_jwk("EdDSA", kid="ed"), make_jwk("EdDSA", kid="other", number=1)]
    with pytest.raises(TokenSignatureInvalid):
        await fake_issuer.verifier().verify_caller(sign_token(kid=None))


async def test_a_cached_token_is_not_verified_again_and_expires(fake_issuer: FakeIssuer) -> None:
    verifier = fake_issuer.verifier()
    short = sign_token(exp=NOW + 10)
    assert verifier.get_cached_caller(short) is None
    caller = await verifier.verify_caller(short)
    assert verifier.get_cached_caller(short) is caller
    fake_issuer.time.seconds = 10
    assert verifier.get_cached_caller(short) is None
    long = sign_token(exp=NOW + 300)
    await verifier.verify_caller(long)
    fake_issuer.time.seconds = 39.9
    assert verifier.get_cached_caller(long) is not None
    fake_issuer.time.seconds = 40
    assert verifier.get_cached_caller(long) is None


async def test_the_cache_holds_only_hashes_of_tokens(fake_issuer: FakeIssuer) -> None:
    verifier = fake_issuer.verifier()
    good = sign_token()
    await verifier.verify_caller(good)
    assert list(verifier._cache) == [hashlib.sha256(good).digest()]


async def test_a_cache_of_zero_seconds_is_empty(fake_issuer: FakeIssuer) -> None:
    verifier = fake_issuer.verifier(token_cache_seconds=0)
    good = sign_token()
    await verifier.verify_caller(good)
    assert verifier.get_cached_caller(good) is None


async def test_a_rejected_token_is_not_cached(fake_issuer: FakeIssuer) -> None:
    verifier = fake_issuer.verifier()
    bad = sign_token(number=1)
    with pytest.raises(TokenSignatureInvalid):
        await verifier.verify_caller(bad)
    assert verifier.get_cached_caller(bad) is None


async def test_an_enriched_caller_is_cached(fake_issuer: FakeIssuer) -> None:
    async def complete(caller: Caller) -> Caller:
        return Caller(tenant=caller.tenant, user=caller.user, expires_at=caller.expires_at, pseudonyms=("p",))

    identity = IdentitySettings(issuers=(fake_issuer.issuer(),))
    verifier = TokenVerifier(identity, fake_issuer.time.clock, fake_issuer.fetch, enrich_caller=complete)
    good = sign_token()
    await verifier.verify_caller(good)
    remembered = verifier.get_cached_caller(good)
    assert remembered is not None
    assert remembered.pseudonyms == ("p",)


async def test_many_tokens_at_once_fetch_the_keys_once(fake_issuer: FakeIssuer) -> None:
    verifier = fake_issuer.verifier()
    callers = await asyncio.gather(*(verifier.verify_caller(sign_token(sub=f"user-{n}")) for n in range(20)))
    assert len({caller.user for caller in callers}) == 20
    assert fake_issuer.fetch_count == 1


async def test_unusable_issuers_are_reported_with_a_remedy(fake_issuer: FakeIssuer) -> None:
    broken: list[dict[str, Any]] = [
        {"jwks_file": "keys.json"},
        {"tenant": None},
        {"tenant_claim": "org"},
        {"tenant_claim": "org", "tenant": None},
        {"tenant_claim": "org", "tenant": None, "tenants": ()},
        {"tenant_claim": "org", "tenant": None, "tenants": ("Acme",)},
        {"tenants": ("acme",)},
        {"same_subjects_as": "https://a b"},
        {"tenant": "Not A Slug"},
        {"audience": ""},
        {"algorithms": ()},
    ]
    for changes in broken:
        with pytest.raises(ConfigError, match=ISSUER):
            check_issuers(IdentitySettings(issuers=(fake_issuer.issuer(**changes),)))
    for ours in ("process", "terminal"):
        with pytest.raises(ConfigError, match="reserved for the gateway"):
            check_issuers(IdentitySettings(issuers=(fake_issuer.issuer(issuer=ours),)))
    with pytest.raises(ConfigError, match="twice"):
        check_issuers(IdentitySettings(issuers=(fake_issuer.issuer(), fake_issuer.issuer())))
    for unfindable in ("urn:acme", "issuer.example", "https://issuer.example?a=1", "did:web:127.0.0.1", "did:key:zzz"):
        with pytest.raises(ConfigError, match="set jwks_url"):
            check_issuers(IdentitySettings(issuers=(fake_issuer.issuer(issuer=unfindable, jwks_url=None),)))
    own = fake_issuer.issuer(issuer="https://gateway.example/t/acme")
    with pytest.raises(ConfigError, match="this gateway itself issues"):
        check_issuers(IdentitySettings(issuers=(own,), public_url="https://gateway.example/"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
claim_names = st.sampled_from(
    ["iss", "aud", "sub", "exp", "iat", "nbf", "jti", "act", "scope", "scp", "tools", "sid", "groups", "auth_time",
     "grants", "task", "ceiling", "_claim_names"]
)  # fmt: skip


async def _require_permission_error(fake_issuer: FakeIssuer, bad: bytes) -> None:
    try:
        await fake_issuer.verifier().verify_caller(bad)
    except PermissionProblem:
        return


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(claim_names, json_values, max_size=4))
def test_any_signed_claims_make_a_caller_or_are_rejected(changes: dict[str, Any]) -> None:
    if not isinstance(changes.get("iss", ""), str):
        changes["iss"] = ISSUER  # PyJWT refuses to sign it; unsigned tokens below try other issuers
    asyncio.run(_require_permission_error(FakeIssuer(), sign_token(**changes)))


@given(
    bad=st.binary(max_size=300)
    | st.builds(
        make_unsigned_token,
        st.dictionaries(st.sampled_from(["alg", "kid", "crit", "b64", "typ", "jwk", "x5u"]), json_values, max_size=4),
        json_values | st.builds(lambda extra: {**make_claims(), **extra}, st.dictionaries(claim_names, json_values)),
        st.binary(max_size=80),
    )
)
def test_any_bytes_are_rejected_cleanly(bad: bytes) -> None:
    asyncio.run(_require_permission_error(FakeIssuer(), bad))


@given(place=st.integers(min_value=0, max_value=10_000), byte=st.integers(min_value=0, max_value=255))
def test_a_token_with_a_changed_byte_is_rejected(place: int, byte: int) -> None:
    good = bytearray(sign_token())
    good[place % len(good)] = byte
    asyncio.run(_require_permission_error(FakeIssuer(), bytes(good)))


async def test_unreadable_keys_are_a_gateway_error(fake_issuer: FakeIssuer) -> None:
    fake_issuer.is_down = True
    with pytest.raises(Unavailable):
        await fake_issuer.verifier().verify_caller(sign_token())
