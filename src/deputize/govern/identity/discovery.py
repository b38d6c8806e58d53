"""What an issuer that was named by its address alone publishes: OpenID Connect Discovery, else RFC 8414.

Above: `jwks.py`, which asks again whenever it renews the keys, and `sign_in.py`, which sends people there. Below: the
one egress client, handed in as `fetch`, which checks every address once more.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

import orjson

from deputize.core.errors import Problem

Fetch = Callable[[str], Awaitable[bytes]]


def can_be_discovered(issuer: str) -> bool:
    """Whether an issuer's name is an address with a well-known place beside it."""
    place = _place(issuer)
    return place is not None and not place.query and not place.fragment


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoints:
    """Where people sign in at an issuer, and where what they bring back is turned into a token."""

    authorization: str
    token: str
    # RFC 9207: whether whoever comes back from there says from where.
    names_itself: bool
    # How a client with a secret shows it: in the Authorization header, or else in the form.
    secret_in_header: bool


async def find_jwks_url(issuer: str, fetch: Fetch) -> str:
    """The key set an issuer names in its own document; a document that is not its own says nothing."""
    return _address(await _own_document(issuer, fetch), "jwks_uri", issuer)


async def find_endpoints(issuer: str, fetch: Fetch) -> Endpoints:
    document = await _own_document(issuer, fetch)
    shown = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    return Endpoints(
        authorization=_address(document, "authorization_endpoint", issuer),
        token=_address(document, "token_endpoint", issuer),
        names_itself=document.get("authorization_response_iss_parameter_supported") is True,
        secret_in_header=isinstance(shown, list) and "client_secret_basic" in shown,
    )


async def _own_document(issuer: str, fetch: Fetch) -> dict[str, Any]:
    document = orjson.loads(await _document(issuer, fetch))
    if not isinstance(document, dict) or document.get("issuer") != issuer:
        raise ValueError("the document at the issuer's address is not this issuer's")
    return document


async def _document(issuer: str, fetch: Fetch) -> bytes:
    try:
        return await fetch(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    except (Problem, OSError):
        place = urlsplit(issuer)
        path = place.path.rstrip("/")
        return await fetch(f"{place.scheme}://{place.netloc}/.well-known/oauth-authorization-server{path}")


def _address(document: dict[str, Any], name: str, issuer: str) -> str:
    """https, or without TLS only at the very address the operator wrote down without TLS."""
    address, ours = document.get(name), urlsplit(issuer)
    place = _place(address) if isinstance(address, str) else None
    if not isinstance(address, str) or place is None:
        raise ValueError(f"the issuer's document names no {name}")
    if place.scheme != "https" and (place.scheme, place.netloc) != (ours.scheme, ours.netloc):
        raise ValueError(f"the issuer's document names a {name} that is not served over https")
    return address


def _place(address: str) -> SplitResult | None:
    try:
        place = urlsplit(address)
        usable = place.scheme in ("http", "https") and bool(place.hostname) and "@" not in place.netloc
    except ValueError:
        return None
    return place if usable else None
