"""Identify and authenticate this gateway as an OAuth client at an authorization server.

In this order: the client that the operator registered there; the client metadata document at the gateway's own URL, if
the server supports it; dynamic client registration (RFC 7591). A client belongs to one issuer, and its secret is sent
to no other.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote_plus

import jwt
import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from deputize.core.clock import Clock
from deputize.core.errors import CredentialMissing, UpstreamSignInFailed
from deputize.execute.upstreams.oauth.metadata import AuthorizationServer
from deputize.execute.upstreams.oauth.oauth_requests import JSON, HttpRequester, is_loopback, post_request, split_url

CLIENT_NAME: Final = "Deputize"
_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ASSERTION_SECONDS: Final = 60
_MAX_ID_LENGTH: Final = 2048
# Methods for a shared secret, the header preferred; a private key signs an assertion instead.
_SECRET_METHODS: Final = ("client_secret_basic", "client_secret_post")
_KEY_METHOD: Final = "private_key_jwt"
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


@dataclass(frozen=True, kw_only=True, slots=True)
class OAuthClient:
    """A client at one issuer. `secret` is a shared secret or a private key in PEM; None for a public client."""

    issuer: str
    id: str
    method: str
    secret: str | None = field(default=None, repr=False)
    # In seconds since 1970; 0 means never.
    secret_expires_at: int = 0


def build_configured_client(auth_server: AuthorizationServer, client_id: str, secret: str | None) -> OAuthClient:
    """Build the client that the operator registered."""
    if secret is None:
        return OAuthClient(issuer=auth_server.issuer, id=client_id, method="none")
    if secret.lstrip().startswith("-----BEGIN"):
        return OAuthClient(issuer=auth_server.issuer, id=client_id, method=_KEY_METHOD, secret=secret)
    return OAuthClient(
        issuer=auth_server.issuer, id=client_id, method=_choose_secret_method(auth_server.auth_methods), secret=secret
    )


def build_metadata_client(auth_server: AuthorizationServer, url: str) -> OAuthClient:
    """Build the client whose id is the URL of its metadata document."""
    return OAuthClient(issuer=auth_server.issuer, id=url, method="none")


def build_client_metadata(url: str, redirect_uri: str) -> dict[str, Any]:
    """Build the client metadata document that is served at `url`."""
    return {
        "client_id": url,
        **_describe_client(redirect_uri, "none"),
        "client_uri": redirect_uri.partition("/console/")[0],
    }


async def register_client(http: HttpRequester, auth_server: AuthorizationServer, redirect_uri: str) -> OAuthClient:
    """Register a client dynamically (RFC 7591)."""
    assert auth_server.registration_endpoint is not None
    method = next((each for each in (*_SECRET_METHODS, "none") if each in auth_server.auth_methods), "none")
    body = orjson.dumps(_describe_client(redirect_uri, method))
    response = await post_request(http, auth_server.registration_endpoint, body, content_type=JSON)
    client_id, secret = response.document.get("client_id"), response.document.get("client_secret")
    if not response.is_success or not isinstance(client_id, str) or not 0 < len(client_id) <= _MAX_ID_LENGTH:
        raise UpstreamSignInFailed(
            f"the server's authorization server refused to register this gateway ({response.error_code})"
        )
    granted_method = response.document.get("token_endpoint_auth_method", method)
    expires_at = response.document.get("client_secret_expires_at")
    if granted_method == "none" or not isinstance(secret, str):
        return OAuthClient(issuer=auth_server.issuer, id=client_id, method="none")
    if granted_method not in _SECRET_METHODS:
        raise UpstreamSignInFailed(
            "the server's authorization server requires a client authentication method that is not supported"
        )
    return OAuthClient(
        issuer=auth_server.issuer,
        id=client_id,
        method=granted_method,
        secret=secret,
        secret_expires_at=expires_at if isinstance(expires_at, int) else 0,
    )


def build_client_auth(client: OAuthClient, clock: Clock) -> tuple[dict[str, str], dict[str, str]]:
    """Build the form fields and headers that authenticate a request to the token endpoint."""
    if client.secret is None or client.method == "none":
        return {"client_id": client.id}, {}
    if client.method == _KEY_METHOD:
        return {
            "client_id": client.id,
            "client_assertion_type": _ASSERTION,
            "client_assertion": _sign_assertion(client, clock),
        }, {}
    if client.method == "client_secret_basic":
        # RFC 6749, 2.3.1: both halves are encoded as in a form before they are joined.
        pair = f"{quote_plus(client.id)}:{quote_plus(client.secret)}"
        return {}, {"authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
    return {"client_id": client.id, "client_secret": client.secret}, {}


def _choose_secret_method(methods: tuple[str, ...]) -> str:
    return next((each for each in _SECRET_METHODS if each in methods), _SECRET_METHODS[0])


def _describe_client(redirect_uri: str, method: str) -> dict[str, Any]:
    url = split_url(redirect_uri)
    assert url is not None, "the gateway's own URL is valid"
    return {
        "client_name": CLIENT_NAME,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        # OpenID Connect Registration: a client with a loopback redirect is native.
        "application_type": "native" if is_loopback(url.hostname or "") else "web",
    }


def _sign_assertion(client: OAuthClient, clock: Clock) -> str:
    """Sign a client assertion for one request (RFC 7523)."""
    now = clock.epoch_ms() // 1000
    claims: Mapping[str, Any] = {
        "iss": client.id,
        "sub": client.id,
        "aud": client.issuer,
        "jti": clock.new_id(),
        "iat": now,
        "exp": now + _ASSERTION_SECONDS,
    }
    assert client.secret is not None
    try:
        key = serialization.load_pem_private_key(client.secret.strip().encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CredentialMissing("the client's key cannot be read; store an unencrypted private key in PEM") from error
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in _CURVES:
        return jwt.encode(dict(claims), key, _CURVES[key.curve.name])
    if isinstance(key, rsa.RSAPrivateKey):
        return jwt.encode(dict(claims), key, "RS256")
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return jwt.encode(dict(claims), key, "EdDSA")
    raise CredentialMissing("the client's key has an unsupported type; store an EC, RSA or Ed25519 key")
