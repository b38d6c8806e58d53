"""Issuers named by their address alone: where their keys are found, and what is not believed on the way."""

import json
from typing import Any

import pytest

from deputize.core.errors import TokenSignature, Unavailable, UpstreamUnavailable
from deputize.core.settings import Identity
from deputize.govern.identity.discovery import find_jwks_url
from deputize.govern.identity.jwks import RENEW_SECONDS, RETRY_SECONDS, hosts_of
from deputize.govern.identity.tokens import TokenVerifier
from tests.unit.govern.identity.tokens_kit import ISSUER, World, jwk, token

pytestmark = pytest.mark.requirement("GOV-1")

OPENID = f"{ISSUER}/.well-known/openid-configuration"
OAUTH = f"{ISSUER}/.well-known/oauth-authorization-server"


class Web:
    """What is published where; everything else is 404."""

    def __init__(self, **pages: Any) -> None:
        self.pages: dict[str, Any] = pages
        self.asked: list[str] = []

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        if url not in self.pages:
            raise UpstreamUnavailable("the host answered 404")
        page = self.pages[url]
        return page if isinstance(page, bytes) else json.dumps(page).encode()


def _web(world: World, at: str = OPENID, **changes: Any) -> Web:
    document = {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys", **changes}
    return Web(**{at: document, f"{ISSUER}/keys": {"keys": world.keys}})


def _verifier(world: World, web: Web, **changes: Any) -> TokenVerifier:
    identity = Identity(issuers=(world.issuer(jwks_url=None, **changes),), token_cache_seconds=0)
    return TokenVerifier(identity, world.time.clock, web.fetch)


async def test_keys_are_found_where_the_issuers_own_document_says() -> None:
    world = World()
    web = _web(world)
    assert (await _verifier(world, web).verify(token())).user == "ana"
    assert web.asked == [OPENID, f"{ISSUER}/keys"]


async def test_an_issuer_without_openid_is_found_by_rfc_8414() -> None:
    world = World()
    web = _web(world, at=OAUTH)
    assert (await _verifier(world, web).verify(token())).user == "ana"
    assert web.asked == [OPENID, OAUTH, f"{ISSUER}/keys"]


async def test_an_issuer_with_a_path_is_looked_for_in_both_ways_of_writing_it() -> None:
    issuer = "https://login.example/realms/acme/"
    web = Web()
    with pytest.raises(UpstreamUnavailable):
        await find_jwks_url(issuer, web.fetch)
    assert web.asked == [
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
async def test_a_document_that_is_not_its_own_or_leads_astray_is_not_believed(changes: dict[str, Any]) -> None:
    world = World()
    with pytest.raises(Unavailable):
        await _verifier(world, _web(world, **changes)).verify(token())


@pytest.mark.parametrize("page", [b"", b"[]", b"<html>", b"\xff"])
async def test_what_is_no_document_says_nothing(page: bytes) -> None:
    world = World()
    with pytest.raises(Unavailable):
        await _verifier(world, Web(**{OPENID: page})).verify(token())


async def test_without_tls_keys_lie_only_where_the_operator_wrote_so() -> None:
    plain = "http://idp.test:8080"
    well_known = f"{plain}/.well-known/openid-configuration"
    for place, good in ((plain, True), ("http://other.test:8080", False), ("http://idp.test", False)):
        web = Web(**{well_known: {"issuer": plain, "jwks_uri": f"{place}/keys"}})
        if good:
            assert await find_jwks_url(plain, web.fetch) == f"{place}/keys"
        else:
            with pytest.raises(ValueError, match="https"):
                await find_jwks_url(plain, web.fetch)


async def test_a_document_that_moves_the_keys_is_followed_when_they_are_renewed() -> None:
    world = World()
    web = _web(world)
    verifier = _verifier(world, web)
    await verifier.verify(token())
    web.pages[OPENID]["jwks_uri"] = "https://keys.example/new"
    web.pages["https://keys.example/new"] = {"keys": [jwk("EdDSA", kid="new", number=1)]}
    world.time.seconds = RENEW_SECONDS + 1
    with pytest.raises(TokenSignature):
        await verifier.verify(token(exp=2_000_000_000))
    assert (await verifier.verify(token(kid="new", number=1, exp=2_000_000_000))).user == "ana"


async def test_while_discovery_fails_the_known_keys_stay_and_unknown_ones_are_refused() -> None:
    world = World()
    web = _web(world)
    verifier = _verifier(world, web)
    await verifier.verify(token())
    web.pages.clear()
    world.time.seconds = RENEW_SECONDS + 1
    assert (await verifier.verify(token(exp=2_000_000_000))).user == "ana"
    world.time.seconds += RETRY_SECONDS
    with pytest.raises(TokenSignature):
        await verifier.verify(token(kid="other", exp=2_000_000_000))


async def test_two_issuers_of_one_tenant_each_vouch_for_their_own() -> None:
    world = World()
    second = "https://second.example"
    web = _web(world)
    web.pages |= {
        f"{second}/.well-known/openid-configuration": {"issuer": second, "jwks_uri": f"{second}/keys"},
        f"{second}/keys": {"keys": [jwk("EdDSA", kid="ed", number=1)]},
    }
    issuers = (world.issuer(jwks_url=None), world.issuer(jwks_url=None, issuer=second, trust="untrusted"))
    verifier = TokenVerifier(Identity(issuers=issuers), world.time.clock, web.fetch)
    first, other = await verifier.verify(token()), await verifier.verify(token(iss=second, number=1))
    assert (first.tenant, other.tenant) == ("acme", "acme")
    assert (first.trust, other.trust) == ("standard", "untrusted")
    for crossed in (token(iss=second), token(number=1)):
        with pytest.raises(TokenSignature):
            await verifier.verify(crossed)


def test_the_hosts_an_operator_named_are_those_of_its_issuers() -> None:
    world = World()
    issuers = [
        world.issuer(jwks_url="https://keys.test/k"),
        world.issuer(issuer="https://login.test/realm", jwks_url=None),
        world.issuer(issuer="did:web:agents.test%3A8443:bot", jwks_url=None),
        world.issuer(issuer="did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK", jwks_url=None),
        world.issuer(issuer="urn:dev", jwks_url=None, jwks_file="keys.json"),
    ]
    assert hosts_of(issuers) == {"keys.test", "login.test", "agents.test"}
