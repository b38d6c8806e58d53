"""Issuers with only a URL: how their keys are discovered, and which documents are rejected."""

import json
from typing import Any

import pytest

from deputize.core.errors import TokenSignatureInvalid, Unavailable, UpstreamUnavailable
from deputize.core.settings import IdentitySettings
from deputize.govern.identity.jwks import RENEW_SECONDS, RETRY_SECONDS, list_issuer_hosts
from deputize.govern.identity.oidc_discovery import find_jwks_url
from deputize.govern.identity.token_verifier import TokenVerifier
from tests.support.fake_issuer import ISSUER, FakeIssuer, make_jwk, sign_token

pytestmark = pytest.mark.requirement("GOV-1")

OPENID = f"{ISSUER}/.well-known/openid-configuration"
OAUTH = f"{ISSUER}/.well-known/oauth-authorization-server"


class FakeWeb:
    """Documents by URL; every other URL is 404."""

    def __init__(self, **pages: Any) -> None:
        self.pages: dict[str, Any] = pages
        self.fetched_urls: list[str] = []

    async def fetch(self, url: str) -> bytes:
        self.fetched_urls.append(url)
        if url not in self.pages:
            raise UpstreamUnavailable("the host answered 404")
        page = self.pages[url]
        return page if isinstance(page, bytes) else json.dumps(page).encode()


def _make_web(fake_issuer: FakeIssuer, at: str = OPENID, **changes: Any) -> FakeWeb:
    document = {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys", **changes}
    return FakeWeb(**{at: document, f"{ISSUER}/keys": {"keys": fake_issuer.keys}})


def _make_verifier(fake_issuer: FakeIssuer, web: FakeWeb, **changes: Any) -> TokenVerifier:
    identity = IdentitySettings(issuers=(fake_issuer.issuer(jwks_url=None, **changes),), token_cache_seconds=0)
    return TokenVerifier(identity, fake_issuer.time.clock, web.fetch)


async def test_keys_are_found_by_the_discovery_document() -> None:
    fake_issuer = FakeIssuer()
    web = _make_web(fake_issuer)
    assert (await _make_verifier(fake_issuer, web).verify_caller(sign_token())).user == "ana"
    assert web.fetched_urls == [OPENID, f"{ISSUER}/keys"]


async def test_an_issuer_without_openid_is_found_by_rfc_8414() -> None:
    fake_issuer = FakeIssuer()
    web = _make_web(fake_issuer, at=OAUTH)
    assert (await _make_verifier(fake_issuer, web).verify_caller(sign_token())).user == "ana"
    assert web.fetched_urls == [OPENID, OAUTH, f"{ISSUER}/keys"]


async def test_an_issuer_with_a_path_is_discovered_at_both_well_known_urls() -> None:
    issuer = "https://login.example/realms/acme/"
    web = FakeWeb()
    with pytest.raises(UpstreamUnavailable):
        await find_jwks_url(issuer, web.fetch)
    assert web.fetched_urls == [
        "https://login.example/realms/acme/.well-known/openid-configuration",
        "https://login.example/.well-known/oauth-authorization-server/realms/acme",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": ISSUER + "/"},
        {"issuer": "https://evil.example"},
        {"issuer": None},
        {"jwks_uri": None},
        {"jwks_uri": ["https://issuer.example/keys"]},
        {"jwks_uri": "http://issuer.example/keys"},
        {"jwks_uri": "http://127.0.0.1/keys"},
        {"jwks_uri": "file:///etc/keys"},
        {"jwks_uri": "https://user@issuer.example/keys"},
        {"jwks_uri": "https://[keys"},
    ],
)
async def test_a_foreign_or_unsafe_document_is_rejected(changes: dict[str, Any]) -> None:
    fake_issuer = FakeIssuer()
    with pytest.raises(Unavailable):
        await _make_verifier(fake_issuer, _make_web(fake_issuer, **changes)).verify_caller(sign_token())


@pytest.mark.parametrize("page", [b"", b"[]", b"<html>", b"\xff"])
async def test_an_invalid_document_is_rejected(page: bytes) -> None:
    fake_issuer = FakeIssuer()
    with pytest.raises(Unavailable):
        await _make_verifier(fake_issuer, FakeWeb(**{OPENID: page})).verify_caller(sign_token())


async def test_http_keys_are_allowed_only_at_a_configured_http_issuer() -> None:
    plain = "http://idp.test:8080"
    well_known = f"{plain}/.well-known/openid-configuration"
    for place, good in ((plain, True), ("http://other.test:8080", False), ("http://idp.test", False)):
        web = FakeWeb(**{well_known: {"issuer": plain, "jwks_uri": f"{place}/keys"}})
        if good:
            assert await find_jwks_url(plain, web.fetch) == f"{place}/keys"
        else:
            with pytest.raises(ValueError, match="https"):
                await find_jwks_url(plain, web.fetch)


async def test_a_changed_jwks_uri_is_used_at_the_next_reload() -> None:
    fake_issuer = FakeIssuer()
    web = _make_web(fake_issuer)
    verifier = _make_verifier(fake_issuer, web)
    await verifier.verify_caller(sign_token())
    web.pages[OPENID]["jwks_uri"] = "https://keys.example/new"
    web.pages["https://keys.example/new"] = {"keys": [make_jwk("EdDSA", kid="new", number=1)]}
    fake_issuer.time.seconds = RENEW_SECONDS + 1
    with pytest.raises(TokenSignatureInvalid):
        await verifier.verify_caller(sign_token(exp=2_000_000_000))
    assert (await verifier.verify_caller(sign_token(kid="new", number=1, exp=2_000_000_000))).user == "ana"


async def test_known_keys_stay_valid_while_discovery_fails() -> None:
    fake_issuer = FakeIssuer()
    web = _make_web(fake_issuer)
    verifier = _make_verifier(fake_issuer, web)
    await verifier.verify_caller(sign_token())
    web.pages.clear()
    fake_issuer.time.seconds = RENEW_SECONDS + 1
    assert (await verifier.verify_caller(sign_token(exp=2_000_000_000))).user == "ana"
    fake_issuer.time.seconds += RETRY_SECONDS
    with pytest.raises(TokenSignatureInvalid):
        await verifier.verify_caller(sign_token(kid="other", exp=2_000_000_000))


async def test_two_issuers_of_one_tenant_use_their_own_keys() -> None:
    fake_issuer = FakeIssuer()
    second = "https://second.example"
    web = _make_web(fake_issuer)
    web.pages |= {
        f"{second}/.well-known/openid-configuration": {"issuer": second, "jwks_uri": f"{second}/keys"},
        f"{second}/keys": {"keys": [make_jwk("EdDSA", kid="ed", number=1)]},
    }
    issuers = (fake_issuer.issuer(jwks_url=None), fake_issuer.issuer(jwks_url=None, issuer=second, trust="untrusted"))
    verifier = TokenVerifier(IdentitySettings(issuers=issuers), fake_issuer.time.clock, web.fetch)
    first, other = (
        await verifier.verify_caller(sign_token()),
        await verifier.verify_caller(sign_token(iss=second, number=1)),
    )
    assert (first.tenant, other.tenant) == ("acme", "acme")
    assert (first.trust, other.trust) == ("standard", "untrusted")
    for crossed in (sign_token(iss=second), sign_token(number=1)):
        with pytest.raises(TokenSignatureInvalid):
            await verifier.verify_caller(crossed)


def test_issuer_hosts_come_from_the_settings() -> None:
    fake_issuer = FakeIssuer()
    issuers = [
        fake_issuer.issuer(jwks_url="https://keys.test/k"),
        fake_issuer.issuer(issuer="https://login.test/realm", jwks_url=None),
        fake_issuer.issuer(issuer="did:web:agents.test%3A8443:bot", jwks_url=None),
        fake_issuer.issuer(issuer="did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK", jwks_url=None),
        fake_issuer.issuer(issuer="urn:dev", jwks_url=None, jwks_file="keys.json"),
    ]
    assert list_issuer_hosts(issuers) == {"keys.test", "login.test", "agents.test"}
