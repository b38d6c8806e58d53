"""Discover issuers and DIDs over a real network, with the one egress client."""

import json
from pathlib import Path
from typing import Any

import pytest

from deputize.core.clock import Clock
from deputize.core.errors import EgressDenied, Unavailable
from deputize.core.settings import IdentitySettings, IssuerSettings
from deputize.execute.egress import Egress
from deputize.govern.identity.dids import resolve_did
from deputize.govern.identity.jwks import list_issuer_hosts
from deputize.govern.identity.token_verifier import TokenVerifier
from tests.support.egress_server import (
    make_certificate,
    make_ok_response,
    make_resolver,
    open_egress,
    run_server,
)
from tests.support.fake_issuer import AUDIENCE, make_jwk, sign_token

pytestmark = pytest.mark.requirement("GOV-1")


def _epoch_seconds() -> int:
    return Clock().epoch_ms() // 1000


def _make_issuer(name: str) -> IssuerSettings:
    return IssuerSettings(issuer=name, audience=AUDIENCE, tenant="acme")


def _serve_pages(pages: dict[str, Any]) -> Any:
    missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    return lambda path, _: make_ok_response(json.dumps(pages[path]).encode()) if path in pages else missing


@pytest.mark.parametrize(
    "place", ["/realm/.well-known/openid-configuration", "/.well-known/oauth-authorization-server/realm"]
)
async def test_an_issuer_on_a_private_host_the_operator_named_is_discovered(place: str) -> None:
    pages: dict[str, Any] = {"/keys": {"keys": [make_jwk("EdDSA", kid="ed")]}}
    async with run_server(_serve_pages(pages)) as server:
        name = f"http://localhost:{server.port}/realm"
        pages[place] = {"issuer": name, "jwks_uri": f"http://localhost:{server.port}/keys"}
        issuer = _make_issuer(name)
        egress = Egress(allow_hosts=list_issuer_hosts([issuer]))
        try:
            verifier = TokenVerifier(IdentitySettings(issuers=(issuer,)), Clock(), egress.get)
            caller = await verifier.verify_caller(sign_token(iss=name, iat=_epoch_seconds(), exp=_epoch_seconds() + 60))
        finally:
            await egress.aclose()
        assert (caller.user, caller.issuer) == ("ana", name)


async def test_a_discovery_document_cannot_lead_to_a_forbidden_host() -> None:
    pages: dict[str, Any] = {"/keys": {"keys": [make_jwk("EdDSA", kid="ed")]}}
    async with run_server(_serve_pages(pages)) as server:
        name = f"http://localhost:{server.port}"
        issuer = _make_issuer(name)
        for target in ("http://169.254.169.254/keys", f"https://127.0.0.1:{server.port}/keys", "https://[::1]/keys"):
            pages["/.well-known/openid-configuration"] = {"issuer": name, "jwks_uri": target}
            egress = Egress(allow_hosts=list_issuer_hosts([issuer]))
            try:
                verifier = TokenVerifier(IdentitySettings(issuers=(issuer,)), Clock(), egress.get)
                with pytest.raises(Unavailable):
                    await verifier.verify_caller(sign_token(iss=name, iat=_epoch_seconds(), exp=_epoch_seconds() + 60))
            finally:
                await egress.aclose()


async def test_a_did_web_is_resolved_over_tls_at_its_host(tmp_path: Path) -> None:
    server_side, client_side = make_certificate(tmp_path, "agents.internal")
    pages: dict[str, Any] = {}
    async with run_server(_serve_pages(pages), tls=server_side) as server:
        did = f"did:web:agents.internal%3A{server.port}:bots:billing"
        method = {"id": "#k", "type": "JsonWebKey", "controller": did, "publicKeyJwk": make_jwk("ES256", kid=None)}
        pages["/bots/billing/did.json"] = {"id": did, "verificationMethod": [method], "authentication": ["#k"]}
        async with open_egress("agents.internal", resolver=make_resolver("127.0.0.1"), tls=client_side) as egress:
            (key,) = await resolve_did(did, egress.get)
            assert (key.key_id, key.algorithm_name) == (f"{did}#k", "ES256")
        # A host that nobody named and that leads inside is not asked, whatever DID an agent comes with.
        async with open_egress(resolver=make_resolver("127.0.0.1"), tls=client_side) as egress:
            with pytest.raises(EgressDenied):
                await resolve_did(did, egress.get)
