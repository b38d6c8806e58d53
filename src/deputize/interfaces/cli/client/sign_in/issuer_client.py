"""Ask a gateway who issues its tokens, and an issuer where it issues them; send forms to its endpoints.

With the standard library's HTTP client, which follows no redirects. Tokens travel over TLS, or on this machine.
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from deputize.core.config_error import ConfigError

_TIMEOUT_SECONDS = 30.0
_MAX_BYTES = 1 << 20
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_RESOURCE_METADATA_PATH = "/.well-known/oauth-protected-resource"
_DISCOVERY_PATHS = ("/.well-known/openid-configuration", "/.well-known/oauth-authorization-server")


class IssuerRefusal(Exception):
    """An OAuth error, such as `authorization_pending`, with the issuer's explanation."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(f"{error}: {description}" if description else error)
        self.error = error


@dataclass(frozen=True, kw_only=True, slots=True)
class LoginOffer:
    """How people sign in for one gateway: at which issuer, as which client, and for which audience."""

    issuer: str
    client_id: str
    audience: str
    console_audience: str | None
    scopes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class IssuerEndpoints:
    """An issuer's endpoints; those it does not have are empty."""

    issuer: str
    token: str
    authorization: str
    device: str
    revocation: str
    has_iss_parameter: bool
    has_refresh_tokens: bool


def load_login_offer(url: str) -> LoginOffer:
    """Read the gateway's metadata (RFC 9728): how people sign in for it. One issuer of several must be the first."""
    status, document = _send("GET", url + _RESOURCE_METADATA_PATH)
    if status == 404 or not isinstance(document, dict):
        raise ConfigError(
            f"The gateway at {url} does not say where people sign in: set public_url under [identity] there, and "
            "login_client_id for the issuer."
        )
    if document.get("resource") != url:
        raise ConfigError(
            f"The gateway at {url} says that it is {document.get('resource')}: use that address, or correct public_url "
            "under [identity] there. A token for one gateway must not be sent to another."
        )
    offers = document.get("deputize_login") or ()
    if not offers:
        raise ConfigError(
            f"No issuer of {url} lets people sign in from the command line: register a public client at the identity "
            "provider, and set its id as login_client_id under [[identity.issuers]]. Until then, set DEPUTIZE_TOKEN."
        )
    first = offers[0]
    return LoginOffer(
        issuer=str(first["issuer"]),
        client_id=str(first["client_id"]),
        audience=str(first["audience"]),
        console_audience=first.get("console_audience"),
        scopes=tuple(str(each) for each in document.get("scopes_supported") or ()),
    )


def load_endpoints(issuer: str) -> IssuerEndpoints:
    """Discover an issuer's endpoints; a document of another issuer is rejected."""
    for path in _DISCOVERY_PATHS:
        status, document = _send("GET", issuer.rstrip("/") + path)
        if status == 200 and isinstance(document, dict):
            break
    else:
        raise ConfigError(f"The issuer {issuer} has no discovery document: check issuer under [[identity.issuers]].")
    if document.get("issuer") != issuer:
        raise ConfigError(f"The issuer {issuer} names itself {document.get('issuer')}: correct issuer in the settings.")
    return IssuerEndpoints(
        issuer=issuer,
        token=str(document.get("token_endpoint") or ""),
        authorization=str(document.get("authorization_endpoint") or ""),
        device=str(document.get("device_authorization_endpoint") or ""),
        revocation=str(document.get("revocation_endpoint") or ""),
        has_iss_parameter=document.get("authorization_response_iss_parameter_supported") is True,
        has_refresh_tokens="offline_access" in (document.get("scopes_supported") or ()),
    )


def build_audience_fields(audience: str) -> dict[str, str]:
    """Name whom a token is for, in the words of RFC 8707 if the audience is a URI, and in those of other providers."""
    return {"audience": audience, **({"resource": audience} if ":" in audience else {})}


def require_tls(url: str) -> None:
    """Raise unless the address is one of the web, over TLS or on this machine."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ConfigError(f"{url} is not an https address: tokens are sent over TLS only, except on this machine.")


def post_form(url: str, fields: Mapping[str, str]) -> dict[str, Any]:
    """Post a form to an endpoint of the issuer; raise `IssuerRefusal` for an OAuth error."""
    status, value = _send("POST", url, urlencode(fields).encode())
    document: dict[str, Any] = value if isinstance(value, dict) else {}
    if status >= 400 or "error" in document:
        raise IssuerRefusal(str(document.get("error") or f"HTTP {status}"), str(document.get("error_description", "")))
    return document


def _send(method: str, url: str, form: bytes | None = None) -> tuple[int, Any]:
    require_tls(url)
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection = (
        http.client.HTTPSConnection(host, parts.port, timeout=_TIMEOUT_SECONDS, context=ssl.create_default_context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, parts.port, timeout=_TIMEOUT_SECONDS)
    )
    headers = {"Accept": "application/json"}
    if form is not None:
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    try:
        connection.request(method, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), form, headers)
        response = connection.getresponse()
        raw = response.read(_MAX_BYTES)
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "strerror", None) or error).lower() or type(error).__name__
        raise ConfigError(f"{parts.scheme}://{parts.netloc} cannot be reached ({reason}): check the address.") from None
    finally:
        connection.close()
    try:
        return response.status, json.loads(raw) if raw else {}
    except ValueError:
        return response.status, None
