"""Issuers and DIDs found over a real network: a server of ours, the one egress client, and what it then vouches for."""

import json
from pathlib import Path
from typing import Any

import pytest

from deputize.core.clock import Clock
from deputize.core.errors import EgressDenied, Unavailable
from deputize.core.settings import Identity, Issuer
from deputize.execute.egress import Egress
from deputize.govern.identity.dids import resolve
from deputize.govern.identity.jwks import hosts_of
from deputize.govern.identity.tokens import TokenVerifier
from tests.integration.execute.test_egress import _certificate, answering, going, ok, serving
from tests.unit.govern.identity.tokens_kit import AUDIENCE, jwk, token

pytestmark = pytest.mark.requirement("GOV-1")


def _now() -> int:
    return Clock().epoch_ms() // 1000


def _issuer(name: str) -> Issuer:
    return Issuer(issuer=name, audience=AUDIENCE, tenant="acme")


def _pages(pages: dict[str, Any]) -> Any:
    missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    return lambda path, _: ok(json.dumps(pages[path]).encode()) if path in pages else missing


@pytest.mark.parametrize(
    "place", ["/realm/.well-known/openid-configuration", "/.well-known/oauth-authorization-server/realm"]
)
async def test_an_issuer_on_a_private_host_the_operator_named_is_discovered(place: str) -> None:
    pages: dict[str, Any] = {"/keys": {"keys": [jwk("EdDSA", kid="ed")]}}
    async with serving(_pages(pages)) as server:
        name = f"http://localhost:{server.port}/realm"
        pages[place] = {"issuer": name, "jwks_uri": f"http://localhost:{server.port}/keys"}
        issuer = _issuer(name)
        egress = Egress(allow_hosts=hosts_of([issuer]))
        try:
            verifier = TokenVerifier(Identity(issuers=(issuer,)), Clock(), egress.get)
            caller = await verifier.verify(token(iss=name, iat=_now(), exp=_now() + 60))
        finally:
            await egress.aclose()
        assert (caller.user, caller.issuer) == ("ana", name)


async def test_an_issuers_document_cannot_send_us_where_nobody_may_go() -> None:
    pages: dict[str, Any] = {"/keys": {"keys": [jwk("EdDSA", kid="ed")]}}
    async with serving(_pages(pages)) as server:
        name = f"http://localhost:{server.port}"
        issuer = _issuer(name)
        for target in ("http://169.254.169.254/keys", f"https://127.0.0.1:{server.port}/keys", "https://[::1]/keys"):
            pages["/.well-known/openid-configuration"] = {"issuer": name, "jwks_uri": target}
            egress = Egress(allow_hosts=hosts_of([issuer]))
            try:
                verifier = TokenVerifier(Identity(issuers=(issuer,)), Clock(), egress.get)
                with pytest.raises(Unavailable):
                    await verifier.verify(token(iss=name, iat=_now(), exp=_now() + 60))
            finally:
                await egress.aclose()


async def test_a_did_web_is_resolved_over_tls_at_the_name_it_says(tmp_path: Path) -> None:
    server_side, client_side = _certificate(tmp_path, "agents.internal")
    pages: dict[str, Any] = {}
    async with serving(_pages(pages), tls=server_side) as server:
        did = f"did:web:agents.internal%3A{server.port}:bots:billing"
        method = {"id": "#k", "type": "JsonWebKey", "controller": did, "publicKeyJwk": jwk("ES256", kid=None)}
        pages["/bots/billing/did.json"] = {"id": did, "verificationMethod": [method], "authentication": ["#k"]}
        async with going("agents.internal", resolver=answering("127.0.0.1"), tls=client_side) as egress:
            (key,) = await resolve(did, egress.get)
            assert (key.key_id, key.algorithm_name) == (f"{did}#k", "ES256")
        # A host that nobody named and that leads inside is not asked, whatever DID an agent comes with.
        async with going(resolver=answering("127.0.0.1"), tls=client_side) as egress:
            with pytest.raises(EgressDenied):
                await resolve(did, egress.get)
