"""Discover a server's authorization server and its endpoints.

The server's protected resource metadata (RFC 9728) names the authorization server; its metadata (RFC 8414, else OpenID
Connect Discovery) names the endpoints. Each document must identify exactly the server that it was requested for.
"""

from typing import Any, Final

from deputize.core.errors import UpstreamSignInFailed
from deputize.core.value_types import frozen
from deputize.execute.upstreams.oauth.oauth_requests import (
    HttpRequester,
    fetch_document,
    is_safe_url,
    require_safe_url,
    split_url,
)
from deputize.execute.upstreams.oauth.www_authenticate import MOST_SCOPES, Challenge, parse_scopes

OFFLINE_ACCESS: Final = "offline_access"
_RESOURCE_WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
_SERVER_WELL_KNOWN: Final = "/.well-known/oauth-authorization-server"
_OPENID_WELL_KNOWN: Final = "/.well-known/openid-configuration"
# The default if an authorization server does not declare its methods (RFC 8414).
_DEFAULT_METHODS: Final = ("client_secret_basic",)


@frozen
class AuthorizationServer:
    """The metadata of an authorization server, for one resource."""

    # Exactly as the server publishes it; token requests repeat it.
    resource: str
    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None
    registration_endpoint: str | None
    auth_methods: tuple[str, ...]
    # The scopes that the server supports; None if it does not say.
    scopes: tuple[str, ...] | None
    supports_offline_access: bool
    supports_client_metadata: bool
    # Authorization responses have an `iss` parameter (RFC 9207).
    supports_iss_parameter: bool
    supports_s256: bool


async def discover_auth_server(
    http: HttpRequester, server_url: str, challenge: Challenge, *, issuer: str | None
) -> AuthorizationServer:
    """Discover the authorization server of an MCP server.

    `issuer` is the one from the settings; if the server names only others, that is an error.
    """
    resource = await _fetch_resource_metadata(http, server_url, challenge.resource_metadata)
    issuers = _list_strings(resource.get("authorization_servers"))
    if issuer is not None and issuers and issuer not in issuers:
        raise UpstreamSignInFailed(
            "the server names another authorization server than issuer in its settings",
            details={"issuer": issuer},
            advice="The operator must find out which one is right, and correct issuer under [[servers]] or "
            "[[services]] if needed.",
        )
    issuer_url = issuer or (issuers[0] if issuers else None)
    if issuer_url is None:
        raise UpstreamSignInFailed(
            "the server does not name its authorization server",
            advice="The operator can set issuer for it under [[servers]] or [[services]].",
        )
    metadata = await _fetch_server_metadata(http, require_safe_url(issuer_url, "the authorization server's URL"))
    scopes = resource.get("scopes_supported")
    return _build_auth_server(
        metadata,
        resource=str(resource.get("resource", server_url)),
        issuer=issuer_url,
        scopes=parse_scopes(" ".join(_list_strings(scopes))) if isinstance(scopes, list) else None,
    )


def _build_auth_server(
    metadata: dict[str, Any], *, resource: str, issuer: str, scopes: tuple[str, ...] | None
) -> AuthorizationServer:
    authorization, registration = metadata.get("authorization_endpoint"), metadata.get("registration_endpoint")
    methods = metadata.get("token_endpoint_auth_methods_supported")
    return AuthorizationServer(
        resource=resource,
        issuer=issuer,
        token_endpoint=require_safe_url(metadata.get("token_endpoint"), "the token endpoint"),
        authorization_endpoint=None
        if authorization is None
        else require_safe_url(authorization, "the authorization endpoint"),
        registration_endpoint=None
        if registration is None
        else require_safe_url(registration, "the registration endpoint"),
        auth_methods=_list_strings(methods) if isinstance(methods, list) else _DEFAULT_METHODS,
        scopes=scopes,
        supports_offline_access=OFFLINE_ACCESS in _list_strings(metadata.get("scopes_supported")),
        supports_client_metadata=metadata.get("client_id_metadata_document_supported") is True,
        supports_iss_parameter=metadata.get("authorization_response_iss_parameter_supported") is True,
        supports_s256="S256" in _list_strings(metadata.get("code_challenge_methods_supported")),
    )


async def discover_revocation_endpoint(http: HttpRequester, issuer: str) -> str | None:
    """Discover where an issuer revokes tokens (RFC 7009); None if it does not offer it."""
    metadata = await _fetch_server_metadata(http, require_safe_url(issuer, "the authorization server's URL"))
    endpoint = metadata.get("revocation_endpoint")
    return None if endpoint is None else require_safe_url(endpoint, "the revocation endpoint")


async def _fetch_resource_metadata(http: HttpRequester, server_url: str, metadata_url: str) -> dict[str, Any]:
    """Fetch the protected resource metadata from the challenge's URL, by path or at the root; empty if none."""
    parts = split_url(server_url)
    assert parts is not None, "the settings accept only valid URLs"
    root, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    wellknown = [root + _RESOURCE_WELL_KNOWN + path] if path else []
    for url in dict.fromkeys(
        [*([metadata_url] if is_safe_url(metadata_url) else []), *wellknown, root + _RESOURCE_WELL_KNOWN]
    ):
        document = await fetch_document(http, url)
        if document is None:
            continue
        if not is_resource_for(document.get("resource"), server_url):
            raise UpstreamSignInFailed("the server's resource metadata is for another URL than the server's")
        return document
    return {}


async def _fetch_server_metadata(http: HttpRequester, issuer: str) -> dict[str, Any]:
    parts = split_url(issuer)
    assert parts is not None, "checked before"
    root, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    urls = [root + _SERVER_WELL_KNOWN + path, root + _OPENID_WELL_KNOWN + path, root + path + _OPENID_WELL_KNOWN]
    for url in dict.fromkeys(urls):
        document = await fetch_document(http, url)
        if document is None:
            continue
        if document.get("issuer") != issuer:
            raise UpstreamSignInFailed("the metadata of the server's authorization server is for another issuer")
        return document
    raise UpstreamSignInFailed("the server's authorization server has no metadata document")


def is_resource_for(resource: object, server_url: str) -> bool:
    """Tell whether a resource identifies the server at this URL, or a parent path of it."""
    parent, server = split_url(resource), split_url(server_url)
    if parent is None or server is None or parent.fragment or parent.username is not None:
        return False
    parent_path, server_path = parent.path.rstrip("/"), server.path.rstrip("/")
    is_same_origin = (parent.scheme, parent.hostname, _get_port(parent.scheme, parent.port)) == (
        server.scheme,
        server.hostname,
        _get_port(server.scheme, server.port),
    )
    if parent.query:
        return is_same_origin and parent_path == server_path and parent.query == server.query
    return is_same_origin and (server_path == parent_path or server_path.startswith(f"{parent_path}/"))


def _get_port(scheme: str, port: int | None) -> int:
    return port or (443 if scheme == "https" else 80)


def _list_strings(value: object) -> tuple[str, ...]:
    items = value if isinstance(value, list) else []
    return tuple(each for each in items[:MOST_SCOPES] if isinstance(each, str))
