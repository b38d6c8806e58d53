"""DIDs: which keys speak for one, where a did:web is looked for, and who may sign as what."""

import asyncio
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from deputize.core.errors import Permission, TokenMalformed, TokenSignature, Unavailable, UpstreamUnavailable
from deputize.core.settings import Identity
from deputize.govern.identity.dids import (
    REMEMBERED_SECONDS,
    Dids,
    NotADid,
    base58,
    check_did,
    document_url,
    resolve,
)
from deputize.govern.identity.tokens import TokenVerifier
from tests.unit.govern.identity.tokens_kit import World, jwk, private_key, token

pytestmark = pytest.mark.requirement("GOV-1")

ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
# From the did:key specification.
ED25519 = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
P256 = "did:key:zDnaerDaTF5BXEavCrfRZEk316dpbLsfPDZ3WJ5hRTPFU2169"
SECP256K1 = "did:key:zQ3shokFTS3brHcDQrn82RUDfCZESWL1ZdCEJwekUDPQiYBme"
WEB = "did:web:agents.example"


def encode58(data: bytes) -> str:
    number, text = int.from_bytes(data, "big"), ""
    while number:
        number, place = divmod(number, 58)
        text = ALPHABET[place] + text
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + text


def multikey(number: int = 0) -> str:
    key = private_key("EdDSA", number).public_key()
    assert isinstance(key, Ed25519PublicKey)
    return "z" + encode58(b"\xed\x01" + key.public_bytes_raw())


class Web:
    def __init__(self, document: Any = None) -> None:
        self.document = document
        self.asked: list[str] = []

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        if self.document is None:
            raise UpstreamUnavailable("nobody answers")
        return self.document if isinstance(self.document, bytes) else json.dumps(self.document).encode()


def document(**changes: Any) -> dict[str, Any]:
    method = {"id": f"{WEB}#k", "type": "JsonWebKey", "controller": WEB, "publicKeyJwk": jwk("EdDSA", kid=None)}
    return {"id": WEB, "verificationMethod": [method], "assertionMethod": [f"{WEB}#k"], **changes}


def dids(web: Web, world: World | None = None) -> Dids:
    return Dids((world or World()).time.clock, web.fetch)


@settings(max_examples=200)
@given(st.binary(max_size=64))
def test_base_58_reads_back_what_was_written(data: bytes) -> None:
    assert base58(encode58(data)) == data


@pytest.mark.parametrize("text", ["0", "O", "I", "l", "é", " ", "z" * 129])
def test_what_is_no_base_58_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="this is"):
        base58(text)


async def test_a_did_key_is_its_own_key_and_nobody_is_asked() -> None:
    web = Web()
    (ed,) = await resolve(ED25519, web.fetch)
    assert isinstance(ed.key, Ed25519PublicKey)
    assert ed.key.public_bytes_raw().hex() == "2e6fcce36701dc791488e0d0b1745cc1e33a4c1c9fcc41c63bd343dbbe0970e6"
    (p256,) = await resolve(P256, web.fetch)
    assert isinstance(p256.key, EllipticCurvePublicKey)
    assert p256.key_id == f"{P256}#{P256.removeprefix('did:key:')}"
    assert web.asked == []


@pytest.mark.parametrize(
    ("did", "url"),
    [
        ("did:web:example.com", "https://example.com/.well-known/did.json"),
        ("did:web:example.com:user:alice", "https://example.com/user/alice/did.json"),
        ("did:web:example.com%3A3000:bots", "https://example.com:3000/bots/did.json"),
        ("did:web:example.com%3a3000", "https://example.com:3000/.well-known/did.json"),
    ],
)
def test_a_did_web_lies_under_https_where_it_says(did: str, url: str) -> None:
    assert document_url(did) == url


@pytest.mark.parametrize(
    "did",
    [
        "did:web:", "did:web:127.0.0.1", "did:web:127.1", "did:web:2130706433", "did:web:0x7f000001", "did:web:a%2Fb",
        "did:web:user@example.com", "did:web:example.com/x", "did:web:example.com:..:x", "did:web:example.com:.",
        "did:web:example.com::x", "did:web:example.com#k", "did:web:example.com?x", "did:web:example.com%3A",
        "did:web:exa mple.com", "did:web:[::1]", "did:web:" + "a" * 400, "did:ion:abc", "did:key:", "did:key:abc",
        "did:key:z", SECP256K1, ED25519[:-1], ED25519 + "1",
    ],
)  # fmt: skip
def test_what_cannot_be_resolved_is_no_did_here(did: str) -> None:
    with pytest.raises(NotADid):
        check_did(did)


@pytest.mark.parametrize("key_id", [None, "k", "#k", f"{WEB}#k"])
async def test_a_key_is_found_by_any_way_of_writing_its_name(key_id: str | None) -> None:
    web = Web(document())
    assert (await dids(web).key(WEB, "EdDSA", key_id)).key_id == f"{WEB}#k"
    assert web.asked == ["https://agents.example/.well-known/did.json"]


async def test_keys_may_be_embedded_relative_and_in_multibase() -> None:
    embedded = {"id": "#m", "type": "Multikey", "controller": WEB, "publicKeyMultibase": multikey()}
    web = Web({"id": WEB, "authentication": [embedded]})
    assert (await dids(web).key(WEB, "EdDSA", "#m")).algorithm_name == "EdDSA"
    web = Web({"id": WEB, "verificationMethod": [embedded], "authentication": ["#m"]})
    assert (await dids(web).key(WEB, "EdDSA", None)).key_id == f"{WEB}#m"


METHOD = document()["verificationMethod"][0]


@pytest.mark.parametrize(
    "changes",
    [
        {"assertionMethod": []},
        {"assertionMethod": None, "keyAgreement": [f"{WEB}#k"]},
        {"assertionMethod": None, "capabilityInvocation": [f"{WEB}#k"]},
        {"assertionMethod": ["did:web:other.example#k"]},
        {"verificationMethod": [{**METHOD, "controller": "did:web:other.example"}]},
        {"verificationMethod": [{**METHOD, "id": "did:web:other.example#k"}]},
        {"verificationMethod": [{**METHOD, "publicKeyJwk": {"kty": "oct", "k": "c2VjcmV0"}}]},
        {"verificationMethod": [{**METHOD, "publicKeyJwk": {"kty": "RSA"}}]},
        {"verificationMethod": "x"},
        {"verificationMethod": [7, {"id": 7}], "assertionMethod": [7, {"id": 7}, {}]},
    ],
)
async def test_only_keys_the_document_gives_this_purpose_speak_for_it(changes: dict[str, Any]) -> None:
    with pytest.raises(TokenSignature):
        await dids(Web(document(**changes))).key(WEB, "EdDSA", None)


async def test_a_key_of_another_name_or_algorithm_does_not_speak() -> None:
    for algorithm, key_id in (("ES256", None), ("EdDSA", "other"), ("EdDSA", "did:web:other.example#k")):
        with pytest.raises(TokenSignature):
            await dids(Web(document())).key(WEB, algorithm, key_id)


@pytest.mark.parametrize("page", [None, b"", b"[]", b"{}", {"id": "did:web:other.example"}, {"id": WEB + ":x"}])
async def test_a_document_that_cannot_be_had_or_is_anothers_accepts_nothing(page: Any) -> None:
    with pytest.raises(Unavailable):
        await dids(Web(page)).key(WEB, "EdDSA", None)


async def test_a_document_is_remembered_for_a_minute_and_no_longer() -> None:
    world, web = World(), Web(document())
    known = dids(web, world)
    for _ in range(3):
        await known.key(WEB, "EdDSA", "k")
    assert len(web.asked) == 1
    world.time.seconds = REMEMBERED_SECONDS
    web.document = document(assertionMethod=[])
    with pytest.raises(TokenSignature):
        await known.key(WEB, "EdDSA", "k")


async def test_a_did_may_be_an_issuer_like_any_other() -> None:
    world, web = World(), Web(document())
    identity = Identity(issuers=(world.issuer(issuer=WEB, jwks_url=None),))
    verifier = TokenVerifier(identity, world.time.clock, web.fetch)
    assert (await verifier.verify(token(iss=WEB, kid="#k"))).user == "ana"
    with pytest.raises(TokenSignature):
        await verifier.verify(token(iss=WEB, kid="#k", number=1))
    web.document = None
    with pytest.raises(Unavailable):
        await TokenVerifier(identity, world.time.clock, web.fetch).verify(token(iss=WEB, kid="#k"))


async def test_a_did_nobody_configured_is_no_issuer() -> None:
    own = f"did:key:{multikey()}"
    with pytest.raises(Permission):
        await World().verifier().verify(token(iss=own, sub=own, kid=None))


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=8) | st.sampled_from([WEB, f"{WEB}#k", "#k", "assertionMethod"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["id", "verificationMethod", "assertionMethod", "publicKeyJwk", "publicKeyMultibase", "kty"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_a_document_of_any_shape_ends_in_a_refusal_and_nothing_worse(page: Any) -> None:
    async def ask() -> None:
        web = Web({"id": WEB, **page} if isinstance(page, dict) else page)
        with pytest.raises((Permission, Unavailable)):
            await dids(web).key(WEB, "EdDSA", None)

    asyncio.run(ask())


async def test_a_token_of_what_is_no_did_key_is_malformed() -> None:
    with pytest.raises(TokenMalformed):
        await dids(Web()).key("did:key:zzz", "EdDSA", None)
