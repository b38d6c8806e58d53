"""DIDs: which keys are used, where a did:web is resolved, and who may sign for whom."""

import asyncio
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.errors import (
    PermissionProblem,
    TokenMalformed,
    TokenSignatureInvalid,
    Unavailable,
    UpstreamUnavailable,
)
from deputize.core.settings import IdentitySettings
from deputize.govern.identity.dids import (
    CACHE_SECONDS,
    DidKeys,
    InvalidDid,
    build_document_url,
    check_did,
    decode_base58,
    resolve_did,
)
from deputize.govern.identity.token_verifier import TokenVerifier
from tests.support.fake_issuer import FakeIssuer, make_jwk, make_private_key, sign_token

pytestmark = pytest.mark.requirement("GOV-1")

ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
# From the did:key specification.
ED25519 = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
P256 = "did:key:zDnaerDaTF5BXEavCrfRZEk316dpbLsfPDZ3WJ5hRTPFU2169"
SECP256K1 = "did:key:zQ3shokFTS3brHcDQrn82RUDfCZESWL1ZdCEJwekUDPQiYBme"
WEB = "did:web:agents.example"


def encode_base58(data: bytes) -> str:
    number, text = int.from_bytes(data, "big"), ""
    while number:
        number, place = divmod(number, 58)
        text = ALPHABET[place] + text
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + text


def make_multikey(number: int = 0) -> str:
    key = make_private_key("EdDSA", number).public_key()
    assert isinstance(key, Ed25519PublicKey)
    return "z" + encode_base58(b"\xed\x01" + key.public_bytes_raw())


class FakeWeb:
    def __init__(self, document: Any = None) -> None:
        self.document = document
        self.fetched_urls: list[str] = []

    async def fetch(self, url: str) -> bytes:
        self.fetched_urls.append(url)
        if self.document is None:
            raise UpstreamUnavailable("nobody answers")
        return self.document if isinstance(self.document, bytes) else json.dumps(self.document).encode()


def make_did_document(**changes: Any) -> dict[str, Any]:
    method = {"id": f"{WEB}#k", "type": "JsonWebKey", "controller": WEB, "publicKeyJwk": make_jwk("EdDSA", kid=None)}
    return {"id": WEB, "verificationMethod": [method], "assertionMethod": [f"{WEB}#k"], **changes}


def make_resolver(web: FakeWeb, fake_issuer: FakeIssuer | None = None) -> DidKeys:
    return DidKeys((fake_issuer or FakeIssuer()).time.clock, web.fetch)


@given(st.binary(max_size=64))
def test_base_58_decodes_what_was_encoded(data: bytes) -> None:
    assert decode_base58(encode_base58(data)) == data


@pytest.mark.parametrize("text", ["0", "O", "I", "l", "é", " ", "z" * 129])
def test_invalid_base_58_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="the text is"):
        decode_base58(text)


async def test_a_did_key_resolves_without_a_request() -> None:
    web = FakeWeb()
    (ed,) = await resolve_did(ED25519, web.fetch)
    assert isinstance(ed.key, Ed25519PublicKey)
    assert ed.key.public_bytes_raw().hex() == "2e6fcce36701dc791488e0d0b1745cc1e33a4c1c9fcc41c63bd343dbbe0970e6"
    (p256,) = await resolve_did(P256, web.fetch)
    assert isinstance(p256.key, EllipticCurvePublicKey)
    assert p256.key_id == f"{P256}#{P256.removeprefix('did:key:')}"
    assert web.fetched_urls == []


@pytest.mark.parametrize(
    ("did", "url"),
    [
        ("did:web:example.com", "https://example.com/.well-known/did.json"),
        ("did:web:example.com:user:alice", "https://example.com/user/alice/did.json"),
        ("did:web:example.com%3A3000:bots", "https://example.com:3000/bots/did.json"),
        ("did:web:example.com%3a3000", "https://example.com:3000/.well-known/did.json"),
    ],
)
def test_a_did_web_maps_to_its_https_url(did: str, url: str) -> None:
    assert build_document_url(did) == url


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
def test_unsupported_dids_are_rejected(did: str) -> None:
    with pytest.raises(InvalidDid):
        check_did(did)


@pytest.mark.parametrize("key_id", [None, "k", "#k", f"{WEB}#k"])
async def test_a_key_is_found_by_any_form_of_its_id(key_id: str | None) -> None:
    web = FakeWeb(make_did_document())
    assert (await make_resolver(web).get_key(WEB, "EdDSA", key_id)).key_id == f"{WEB}#k"
    assert web.fetched_urls == ["https://agents.example/.well-known/did.json"]


async def test_keys_may_be_embedded_relative_and_in_multibase() -> None:
    embedded = {"id": "#m", "type": "Multikey", "controller": WEB, "publicKeyMultibase": make_multikey()}
    web = FakeWeb({"id": WEB, "authentication": [embedded]})
    assert (await make_resolver(web).get_key(WEB, "EdDSA", "#m")).algorithm_name == "EdDSA"
    web = FakeWeb({"id": WEB, "verificationMethod": [embedded], "authentication": ["#m"]})
    assert (await make_resolver(web).get_key(WEB, "EdDSA", None)).key_id == f"{WEB}#m"


METHOD = make_did_document()["verificationMethod"][0]


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
async def test_only_keys_with_the_right_purpose_are_used(changes: dict[str, Any]) -> None:
    with pytest.raises(TokenSignatureInvalid):
        await make_resolver(FakeWeb(make_did_document(**changes))).get_key(WEB, "EdDSA", None)


async def test_a_key_with_another_id_or_algorithm_is_not_used() -> None:
    for algorithm, key_id in (("ES256", None), ("EdDSA", "other"), ("EdDSA", "did:web:other.example#k")):
        with pytest.raises(TokenSignatureInvalid):
            await make_resolver(FakeWeb(make_did_document())).get_key(WEB, algorithm, key_id)


@pytest.mark.parametrize("page", [None, b"", b"[]", b"{}", {"id": "did:web:other.example"}, {"id": WEB + ":x"}])
async def test_a_missing_or_foreign_document_accepts_no_token(page: Any) -> None:
    with pytest.raises(Unavailable):
        await make_resolver(FakeWeb(page)).get_key(WEB, "EdDSA", None)


async def test_a_document_is_cached_for_a_minute() -> None:
    fake_issuer, web = FakeIssuer(), FakeWeb(make_did_document())
    known = make_resolver(web, fake_issuer)
    for _ in range(3):
        await known.get_key(WEB, "EdDSA", "k")
    assert len(web.fetched_urls) == 1
    fake_issuer.time.seconds = CACHE_SECONDS
    web.document = make_did_document(assertionMethod=[])
    with pytest.raises(TokenSignatureInvalid):
        await known.get_key(WEB, "EdDSA", "k")


async def test_a_did_may_be_an_issuer_like_any_other() -> None:
    fake_issuer, web = FakeIssuer(), FakeWeb(make_did_document())
    identity = IdentitySettings(issuers=(fake_issuer.issuer(issuer=WEB, jwks_url=None),))
    verifier = TokenVerifier(identity, fake_issuer.time.clock, web.fetch)
    assert (await verifier.verify_caller(sign_token(iss=WEB, kid="#k"))).user == "ana"
    with pytest.raises(TokenSignatureInvalid):
        await verifier.verify_caller(sign_token(iss=WEB, kid="#k", number=1))
    web.document = None
    with pytest.raises(Unavailable):
        await TokenVerifier(identity, fake_issuer.time.clock, web.fetch).verify_caller(sign_token(iss=WEB, kid="#k"))


async def test_an_unconfigured_did_is_not_an_issuer() -> None:
    own = f"did:key:{make_multikey()}"
    with pytest.raises(PermissionProblem):
        await FakeIssuer().verifier().verify_caller(sign_token(iss=own, sub=own, kid=None))


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
def test_any_document_resolves_or_is_rejected(page: Any) -> None:
    async def resolve_key() -> None:
        web = FakeWeb({"id": WEB, **page} if isinstance(page, dict) else page)
        with pytest.raises((PermissionProblem, Unavailable)):
            await make_resolver(web).get_key(WEB, "EdDSA", None)

    asyncio.run(resolve_key())


async def test_a_token_of_an_invalid_did_key_is_malformed() -> None:
    with pytest.raises(TokenMalformed):
        await make_resolver(FakeWeb()).get_key("did:key:zzz", "EdDSA", None)
