"""Where an issuer that was named by its address alone publishes its keys: OpenID Connect Discovery, else RFC 8414.

Above: `jwks.py`, which asks again whenever it renews the keys. Below: the one egress client, handed in as `fetch`,
which checks every address once more.
"""

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import SplitResult, urlsplit

import orjson

from deputize.core.errors import Problem

Fetch = Callable[[str], Awaitable[bytes]]


def can_be_discovered(issuer: str) -> bool:
    """Whether an issuer's name is an address with a well-known place beside it."""
    place = _place(issuer)
    return place is not None and not place.query and not place.fragment


async def find_jwks_url(issuer: str, fetch: Fetch) -> str:
    """The key set an issuer names in its own document; a document that is not its own says nothing."""
    document = orjson.loads(await _document(issuer, fetch))
    if not isinstance(document, dict) or document.get("issuer") != issuer:
        raise ValueError("the document at the issuer's address is not this issuer's")
    return _jwks_uri(document, issuer)


async def _document(issuer: str, fetch: Fetch) -> bytes:
    try:
        return await fetch(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    except (Problem, OSError):
        place = urlsplit(issuer)
        path = place.path.rstrip("/")
        return await fetch(f"{place.scheme}://{place.netloc}/.well-known/oauth-authorization-server{path}")


def _jwks_uri(document: dict[str, Any], issuer: str) -> str:
    """https, or without TLS only at the very address the operator wrote down without TLS."""
    uri, ours = document.get("jwks_uri"), urlsplit(issuer)
    place = _place(uri) if isinstance(uri, str) else None
    if not isinstance(uri, str) or place is None:
        raise ValueError("the issuer's document names no key set")
    if place.scheme != "https" and (place.scheme, place.netloc) != (ours.scheme, ours.netloc):
        raise ValueError("the issuer's document names a key set that is not served over https")
    return uri


def _place(address: str) -> SplitResult | None:
    try:
        place = urlsplit(address)
        usable = place.scheme in ("http", "https") and bool(place.hostname) and "@" not in place.netloc
    except ValueError:
        return None
    return place if usable else None
