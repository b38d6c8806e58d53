"""An issuer's keys: rotation, withdrawal, outages, and floods of unknown key ids."""

import asyncio
import json
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from deputize.core.errors import TokenSignature, Unavailable
from deputize.govern.identity.jwks import LAST_SECONDS, RENEW_SECONDS, RETRY_SECONDS, IssuerKeys
from deputize.govern.identity.public_keys import parse_jwks
from tests.unit.govern.identity.tokens_kit import World, jwk, private_key, token

ALL = ("RS256", "ES256", "EdDSA")


@pytest.fixture
def world() -> World:
    return World()


async def test_a_new_key_is_found_at_once_but_looked_for_only_so_often(world: World) -> None:
    verifier = world.verifier(token_cache_seconds=0)
    await verifier.verify(token())
    world.keys.append(jwk("EdDSA", kid="new", number=1))
    world.time.seconds = RETRY_SECONDS
    await verifier.verify(token(kid="new", number=1))
    assert world.fetched == 2
    for _ in range(5):
        with pytest.raises(TokenSignature):
            await verifier.verify(token(kid="unknown"))
    assert world.fetched == 2
    world.time.seconds = 2 * RETRY_SECONDS
    with pytest.raises(TokenSignature):
        await verifier.verify(token(kid="unknown"))
    assert world.fetched == 3


async def test_a_withdrawn_key_stops_working(world: World) -> None:
    verifier = world.verifier(token_cache_seconds=0)
    long = token(exp=2_000_000_000)
    await verifier.verify(long)
    world.keys = [jwk("EdDSA", kid="new", number=1)]
    world.time.seconds = RENEW_SECONDS + 1
    with pytest.raises(TokenSignature):
        await verifier.verify(long)


async def test_an_outage_of_the_issuer_is_survived_for_a_while_but_not_for_ever(world: World) -> None:
    verifier = world.verifier(token_cache_seconds=0)
    long = token(exp=2_000_000_000)
    await verifier.verify(long)
    world.down = True
    world.time.seconds = LAST_SECONDS
    await verifier.verify(long)
    world.time.seconds = LAST_SECONDS + 60
    with pytest.raises(Unavailable):
        await verifier.verify(long)
    world.down = False
    world.time.seconds += RETRY_SECONDS
    await verifier.verify(long)


async def test_an_issuer_that_was_down_at_first_is_asked_again_soon(world: World) -> None:
    verifier = world.verifier()
    world.down = True
    for _ in range(3):
        with pytest.raises(Unavailable):
            await verifier.verify(token())
    assert world.fetched == 1
    world.down = False
    world.time.seconds = 1
    await verifier.verify(token())


async def test_a_caller_who_gives_up_while_keys_are_fetched_does_not_fail_the_others(world: World) -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(url: str) -> bytes:
        asked.set()
        await may_answer.wait()
        return await world.fetch(url)

    keys = IssuerKeys(world.issuer(), world.time.clock, slow)
    first = asyncio.create_task(keys.key("EdDSA", "ed"))
    await asked.wait()
    second = asyncio.create_task(keys.key("EdDSA", "ed"))
    await asyncio.sleep(0)
    first.cancel()
    may_answer.set()
    assert (await second).key_id == "ed"


async def test_keys_can_come_from_a_file(world: World, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": world.keys}))
    await world.verifier(jwks_url=None, jwks_file=file).verify(token())
    assert world.fetched == 0


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"keys": 1}', b"\xff"])
def test_what_is_no_key_set_is_refused(document: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_jwks(document, ALL)


def test_keys_that_cannot_sign_for_this_issuer_are_passed_over() -> None:
    good = jwk("RS256", kid="good")
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
    key = private_key("RS256", 0)
    assert isinstance(key, rsa.RSAPrivateKey)
    private = json.loads(jwt.get_algorithm_by_name("RS256").to_jwk(key))
    private.pop("key_ops", None)
    (read,) = parse_jwks(json.dumps({"keys": [private]}).encode(), ALL)
    assert isinstance(read.key, rsa.RSAPublicKey)


async def test_a_key_too_short_to_trust_verifies_nothing(world: World) -> None:
    weak = rsa.generate_private_key(public_exponent=65_537, key_size=1024)
    entry = json.loads(jwt.get_algorithm_by_name("RS256").to_jwk(weak.public_key()))
    entry.pop("key_ops", None)
    world.keys = [{**entry, "kid": "weak"}]
    body = json.loads(jwt.utils.base64url_decode(token().split(b".")[1]))
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        signed = jwt.encode(body, weak, algorithm="RS256", headers={"kid": "weak"}).encode()
    with pytest.raises(TokenSignature):
        await world.verifier().verify(signed)
