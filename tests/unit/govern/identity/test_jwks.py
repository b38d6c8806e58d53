"""An issuer's keys: rotation, withdrawal, outages, and floods of unknown key ids."""

import asyncio
import json
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from deputize.core.errors import TokenSignatureInvalid, Unavailable
from deputize.govern.identity.jwks import MAX_AGE_SECONDS, RENEW_SECONDS, RETRY_SECONDS, IssuerKeys
from deputize.govern.identity.public_keys import parse_jwks
from tests.support.fake_issuer import FakeIssuer, make_jwk, make_private_key, sign_token

ALL = ("RS256", "ES256", "EdDSA")


@pytest.fixture
def fake_issuer() -> FakeIssuer:
    return FakeIssuer()


async def test_a_new_key_is_found_at_once_but_refetches_are_limited(fake_issuer: FakeIssuer) -> None:
    verifier = fake_issuer.verifier(token_cache_seconds=0)
    await verifier.verify_caller(sign_token())
    fake_issuer.keys.append(make_jwk("EdDSA", kid="new", number=1))
    fake_issuer.time.seconds = RETRY_SECONDS
    await verifier.verify_caller(sign_token(kid="new", number=1))
    assert fake_issuer.fetch_count == 2
    for _ in range(5):
        with pytest.raises(TokenSignatureInvalid):
            await verifier.verify_caller(sign_token(kid="unknown"))
    assert fake_issuer.fetch_count == 2
    fake_issuer.time.seconds = 2 * RETRY_SECONDS
    with pytest.raises(TokenSignatureInvalid):
        await verifier.verify_caller(sign_token(kid="unknown"))
    assert fake_issuer.fetch_count == 3


async def test_a_withdrawn_key_stops_working(fake_issuer: FakeIssuer) -> None:
    verifier = fake_issuer.verifier(token_cache_seconds=0)
    long = sign_token(exp=2_000_000_000)
    await verifier.verify_caller(long)
    fake_issuer.keys = [make_jwk("EdDSA", kid="new", number=1)]
    fake_issuer.time.seconds = RENEW_SECONDS + 1
    with pytest.raises(TokenSignatureInvalid):
        await verifier.verify_caller(long)


async def test_known_keys_survive_an_issuer_outage_for_a_day(fake_issuer: FakeIssuer) -> None:
    verifier = fake_issuer.verifier(token_cache_seconds=0)
    long = sign_token(exp=2_000_000_000)
    await verifier.verify_caller(long)
    fake_issuer.is_down = True
    fake_issuer.time.seconds = MAX_AGE_SECONDS
    await verifier.verify_caller(long)
    fake_issuer.time.seconds = MAX_AGE_SECONDS + 60
    with pytest.raises(Unavailable):
        await verifier.verify_caller(long)
    fake_issuer.is_down = False
    fake_issuer.time.seconds += RETRY_SECONDS
    await verifier.verify_caller(long)


async def test_keys_of_an_issuer_down_at_startup_are_retried_soon(fake_issuer: FakeIssuer) -> None:
    verifier = fake_issuer.verifier()
    fake_issuer.is_down = True
    for _ in range(3):
        with pytest.raises(Unavailable):
            await verifier.verify_caller(sign_token())
    assert fake_issuer.fetch_count == 1
    fake_issuer.is_down = False
    fake_issuer.time.seconds = 1
    await verifier.verify_caller(sign_token())


async def test_a_caller_who_gives_up_while_keys_are_fetched_does_not_fail_the_others(fake_issuer: FakeIssuer) -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(url: str) -> bytes:
        asked.set()
        await may_answer.wait()
        return await fake_issuer.fetch(url)

    keys = IssuerKeys(fake_issuer.issuer(), fake_issuer.time.clock, slow)
    first = asyncio.create_task(keys.get_key("EdDSA", "ed"))
    await asked.wait()
    second = asyncio.create_task(keys.get_key("EdDSA", "ed"))
    await asyncio.sleep(0)
    first.cancel()
    may_answer.set()
    assert (await second).key_id == "ed"


async def test_keys_can_come_from_a_file(fake_issuer: FakeIssuer, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": fake_issuer.keys}))
    await fake_issuer.verifier(jwks_url=None, jwks_file=file).verify_caller(sign_token())
    assert fake_issuer.fetch_count == 0


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"keys": 1}', b"\xff"])
def test_an_invalid_key_set_is_rejected(document: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_jwks(document, ALL)


def test_unusable_keys_are_ignored() -> None:
    good = make_jwk("RS256", kid="good")
    others = [
        {**good, "use": "enc"},
        {**good, "alg": "RS512"},
        {**good, "n": "!"},
        {"kty": "EC", "crv": "P-384", "x": "AA", "y": "AA"},
        {"kty": "OKP", "crv": "Ed448", "x": "AA", "alg": "EdDSA"},
        {"kty": ["RSA"]},
        "not a key",
    ]
    keys = parse_jwks(json.dumps({"keys": [*others, good]}).encode(), ALL)
    assert [key.key_id for key in keys] == ["good"]
    assert parse_jwks(json.dumps({"keys": [good]}).encode(), ("EdDSA",)) == ()


def test_private_parts_in_a_key_set_are_not_read() -> None:
    key = make_private_key("RS256", 0)
    assert isinstance(key, rsa.RSAPrivateKey)
    private = json.loads(jwt.get_algorithm_by_name("RS256").to_jwk(key))
    private.pop("key_ops", None)
    (read,) = parse_jwks(json.dumps({"keys": [private]}).encode(), ALL)
    assert isinstance(read.key, rsa.RSAPublicKey)


async def test_a_key_too_short_to_trust_verifies_nothing(fake_issuer: FakeIssuer) -> None:
    weak = rsa.generate_private_key(public_exponent=65_537, key_size=1024)
    entry = json.loads(jwt.get_algorithm_by_name("RS256").to_jwk(weak.public_key()))
    entry.pop("key_ops", None)
    fake_issuer.keys = [{**entry, "kid": "weak"}]
    body = json.loads(jwt.utils.base64url_decode(sign_token().split(b".")[1]))
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        signed = jwt.encode(body, weak, algorithm="RS256", headers={"kid": "weak"}).encode()
    with pytest.raises(TokenSignatureInvalid):
        await fake_issuer.verifier().verify_caller(signed)
