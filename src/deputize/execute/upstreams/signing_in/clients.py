"""Who this gateway is at an authorization server, and how it shows that.

In this order: the client that the operator registered there; the document at this gateway's own address, where such are
taken; a registration made for the occasion (RFC 7591). A client is of one issuer: its secret is shown to no other.

Above: `flow.py`. Below: `web.py`.
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
from deputize.execute.upstreams.signing_in.places import Place
from deputize.execute.upstreams.signing_in.web import JSON, Web, is_loopback, posted, split

NAME: Final = "Deputize"
_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ASSERTION_SECONDS: Final = 60
_LONGEST_ID: Final = 2048
# With a secret, in the header rather than the form; a secret that is a key signs instead.
_WITH_SECRET: Final = ("client_secret_basic", "client_secret_post")
_WITH_KEY: Final = "private_key_jwt"
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """`secret` is a password or a private key in PEM; None for a client that keeps none."""

    issuer: str
    id: str
    method: str
    secret: str | None = field(default=None, repr=False)
    # When the secret ends, in seconds since 1970; 0 for never.
    secret_ends: int = 0


def known(place: Place, client_id: str, secret: str | None) -> Client:
    """The client that the operator registered."""
    if secret is None:
        return Client(issuer=place.issuer, id=client_id, method="none")
    if secret.lstrip().startswith("-----BEGIN"):
        return Client(issuer=place.issuer, id=client_id, method=_WITH_KEY, secret=secret)
    return Client(issuer=place.issuer, id=client_id, method=_best(place.methods), secret=secret)


def documented(place: Place, url: str) -> Client:
    """The client whose id is the address of its document."""
    return Client(issuer=place.issuer, id=url, method="none")


def document(url: str, back_to: str) -> dict[str, Any]:
    """What stands at that address."""
    return {"client_id": url, **_described(back_to, "none"), "client_uri": back_to.partition("/console/")[0]}


async def registered(web: Web, place: Place, back_to: str) -> Client:
    """A client of our own, made there and then."""
    assert place.registration is not None
    wanted = next((each for each in (*_WITH_SECRET, "none") if each in place.methods), "none")
    body = orjson.dumps(_described(back_to, wanted))
    said = await posted(web, place.registration, body, kind=JSON)
    client_id, secret = said.document.get("client_id"), said.document.get("client_secret")
    if not said.good or not isinstance(client_id, str) or not 0 < len(client_id) <= _LONGEST_ID:
        raise UpstreamSignInFailed(f"its authorization server does not register this gateway ({said.error})")
    given = said.document.get("token_endpoint_auth_method", wanted)
    ends = said.document.get("client_secret_expires_at")
    if given == "none" or not isinstance(secret, str):
        return Client(issuer=place.issuer, id=client_id, method="none")
    if given not in _WITH_SECRET:
        raise UpstreamSignInFailed(
            "its authorization server wants this gateway to prove itself in a way it does not know"
        )
    return Client(
        issuer=place.issuer, id=client_id, method=given, secret=secret, secret_ends=ends if isinstance(ends, int) else 0
    )


def shown(client: Client, clock: Clock) -> tuple[dict[str, str], dict[str, str]]:
    """Fields and headers by which a request to the token endpoint says whose it is."""
    if client.secret is None or client.method == "none":
        return {"client_id": client.id}, {}
    if client.method == _WITH_KEY:
        return {
            "client_id": client.id,
            "client_assertion_type": _ASSERTION,
            "client_assertion": _assertion(client, clock),
        }, {}
    if client.method == "client_secret_basic":
        # RFC 6749, 2.3.1: both halves are encoded as in a form before they are joined.
        pair = f"{quote_plus(client.id)}:{quote_plus(client.secret)}"
        return {}, {"authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
    return {"client_id": client.id, "client_secret": client.secret}, {}


def _best(methods: tuple[str, ...]) -> str:
    return next((each for each in _WITH_SECRET if each in methods), _WITH_SECRET[0])


def _described(back_to: str, method: str) -> dict[str, Any]:
    place = split(back_to)
    assert place is not None, "our own address"
    return {
        "client_name": NAME,
        "redirect_uris": [back_to],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        # OpenID Connect Registration: what comes back to this very machine is no web application.
        "application_type": "native" if is_loopback(place.hostname or "") else "web",
    }


def _assertion(client: Client, clock: Clock) -> str:
    """RFC 7523, for one request."""
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
        raise CredentialMissing(
            "the client's key cannot be read: it must be a private key in PEM, not encrypted"
        ) from error
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in _CURVES:
        return jwt.encode(dict(claims), key, _CURVES[key.curve.name])
    if isinstance(key, rsa.RSAPrivateKey):
        return jwt.encode(dict(claims), key, "RS256")
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return jwt.encode(dict(claims), key, "EdDSA")
    raise CredentialMissing("the client's key is of a kind that nothing is signed with here")
