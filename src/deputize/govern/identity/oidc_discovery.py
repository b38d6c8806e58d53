"""Discover an issuer's endpoints and keys: OpenID Connect Discovery, else OAuth metadata (RFC 8414).

`jwks.py` uses it whenever it reloads keys, `oidc_login.py` to sign people in. `fetch` is the one egress client, which
checks every URL again.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

import orjson

from deputize.core.errors import Problem

Fetch = Callable[[str], Awaitable[bytes]]


def is_discoverable(issuer: str) -> bool:
    """Tell whether an issuer's name is a URL that can have a discovery document."""
    url = _parse_http_url(issuer)
    return url is not None and not url.query and not url.fragment


@dataclass(frozen=True, kw_only=True, slots=True)
class OidcEndpoints:
    """An issuer's authorization and token endpoints, and how it expects client authentication."""

    authorization: str
    token: str
    # RFC 9207: whether the authorization response contains `iss`.
    has_iss_parameter: bool
    # Whether a client sends its secret in the Authorization header; otherwise in the form.
    secret_in_header: bool


async def find_jwks_url(issuer: str, fetch: Fetch) -> str:
    """Find the JWK Set URL in the issuer's discovery document; a document of another issuer is rejected."""
    return _require_endpoint(await _load_metadata(issuer, fetch), "jwks_uri", issuer)


async def find_endpoints(issuer: str, fetch: Fetch) -> OidcEndpoints:
    """Find the login endpoints in the issuer's discovery document."""
    document = await _load_metadata(issuer, fetch)
    auth_methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    return OidcEndpoints(
        authorization=_require_endpoint(document, "authorization_endpoint", issuer),
        token=_require_endpoint(document, "token_endpoint", issuer),
        has_iss_parameter=document.get("authorization_response_iss_parameter_supported") is True,
        secret_in_header=isinstance(auth_methods, list) and "client_secret_basic" in auth_methods,
    )


async def _load_metadata(issuer: str, fetch: Fetch) -> dict[str, Any]:
    document = orjson.loads(await _fetch_metadata(issuer, fetch))
    if not isinstance(document, dict) or document.get("issuer") != issuer:
        raise ValueError("the discovery document names another issuer")
    return document


async def _fetch_metadata(issuer: str, fetch: Fetch) -> bytes:
    try:
        return await fetch(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    except (Problem, OSError):
        url = urlsplit(issuer)
        path = url.path.rstrip("/")
        return await fetch(f"{url.scheme}://{url.netloc}/.well-known/oauth-authorization-server{path}")


def _require_endpoint(document: dict[str, Any], name: str, issuer: str) -> str:
    """Require an https URL; plain http only at the issuer's own address, if the operator configured that as http."""
    address, issuer_url = document.get(name), urlsplit(issuer)
    url = _parse_http_url(address) if isinstance(address, str) else None
    if not isinstance(address, str) or url is None:
        raise ValueError(f"the issuer's discovery document has no {name}")
    if url.scheme != "https" and (url.scheme, url.netloc) != (issuer_url.scheme, issuer_url.netloc):
        raise ValueError(f"the {name} in the issuer's discovery document is not an https URL")
    return address


def _parse_http_url(address: str) -> SplitResult | None:
    try:
        url = urlsplit(address)
        is_usable = url.scheme in ("http", "https") and bool(url.hostname) and "@" not in url.netloc
    except ValueError:
        return None
    return url if is_usable else None
