"""Where one signs in for a server: its own metadata (RFC 9728) names an authorization server, which names its endpoints
(RFC 8414, else OpenID Connect Discovery). Each document must be about whom it was asked about, word for word.

Above: `flow.py`. Below: `web.py`.
"""

from typing import Any, Final

from deputize.core.errors import UpstreamSignInFailed
from deputize.core.frozen import frozen
from deputize.execute.upstreams.signing_in.challenge import MOST_SCOPES, Challenge, scopes_of
from deputize.execute.upstreams.signing_in.web import Web, document_at, is_safe, require_safe, split

OFFLINE: Final = "offline_access"
_RESOURCE: Final = "/.well-known/oauth-protected-resource"
_SERVER: Final = "/.well-known/oauth-authorization-server"
_OPENID: Final = "/.well-known/openid-configuration"
# RFC 8414: what an authorization server takes that does not say.
_DEFAULT_METHODS: Final = ("client_secret_basic",)


@frozen
class Place:
    """One authorization server, for one resource."""

    # As the server publishes it: tokens are asked for with it, to the letter.
    resource: str
    issuer: str
    token: str
    authorization: str | None
    registration: str | None
    methods: tuple[str, ...]
    # What the server says may be asked for; None where it does not say.
    scopes: tuple[str, ...] | None
    offers_offline: bool
    takes_documents: bool
    # RFC 9207: whoever comes back from there says from where.
    names_itself: bool
    takes_s256: bool


async def find(web: Web, server_url: str, challenge: Challenge, *, issuer: str | None) -> Place:
    """`issuer` is the one the operator named; a server that sends people elsewhere is not followed."""
    resource = await _resource(web, server_url, challenge.resource_metadata)
    named = _texts(resource.get("authorization_servers"))
    if issuer is not None and named and issuer not in named:
        raise UpstreamSignInFailed(
            "the server does not name the authorization server that the settings name",
            details={"issuer": issuer},
            advice="Whoever runs this gateway must find out which is right before anything is changed.",
        )
    chosen = issuer or (named[0] if named else None)
    if chosen is None:
        raise UpstreamSignInFailed(
            "the server does not say where to sign in for it",
            advice="Whoever runs this gateway can name the authorization server: issuer under [[servers]].",
        )
    told = await _metadata(web, require_safe(chosen, "its authorization server"))
    scopes = resource.get("scopes_supported")
    return _place(
        told,
        resource=str(resource.get("resource", server_url)),
        issuer=chosen,
        scopes=scopes_of(" ".join(_texts(scopes))) if isinstance(scopes, list) else None,
    )


def _place(told: dict[str, Any], *, resource: str, issuer: str, scopes: tuple[str, ...] | None) -> Place:
    authorization, registration = told.get("authorization_endpoint"), told.get("registration_endpoint")
    methods = told.get("token_endpoint_auth_methods_supported")
    return Place(
        resource=resource,
        issuer=issuer,
        token=require_safe(told.get("token_endpoint"), "its token endpoint"),
        authorization=None if authorization is None else require_safe(authorization, "its authorization endpoint"),
        registration=None if registration is None else require_safe(registration, "its registration endpoint"),
        methods=_texts(methods) if isinstance(methods, list) else _DEFAULT_METHODS,
        scopes=scopes,
        offers_offline=OFFLINE in _texts(told.get("scopes_supported")),
        takes_documents=told.get("client_id_metadata_document_supported") is True,
        names_itself=told.get("authorization_response_iss_parameter_supported") is True,
        takes_s256="S256" in _texts(told.get("code_challenge_methods_supported")),
    )


async def _resource(web: Web, server_url: str, named: str) -> dict[str, Any]:
    """The server's own document: where its refusal says, else below its path, else at the root. Empty for none."""
    place = split(server_url)
    assert place is not None, "the settings name no other addresses"
    root, path = f"{place.scheme}://{place.netloc}", place.path.rstrip("/")
    wellknown = [root + _RESOURCE + path] if path else []
    for url in dict.fromkeys([*([named] if is_safe(named) else []), *wellknown, root + _RESOURCE]):
        document = await document_at(web, url)
        if document is None:
            continue
        if not covers(document.get("resource"), server_url):
            raise UpstreamSignInFailed("what the server says of itself is about another address than its own")
        return document
    return {}


async def _metadata(web: Web, issuer: str) -> dict[str, Any]:
    place = split(issuer)
    assert place is not None, "checked before"
    root, path = f"{place.scheme}://{place.netloc}", place.path.rstrip("/")
    urls = [root + _SERVER + path, root + _OPENID + path, root + path + _OPENID]
    for url in dict.fromkeys(urls):
        document = await document_at(web, url)
        if document is None:
            continue
        if document.get("issuer") != issuer:
            raise UpstreamSignInFailed("what its authorization server says of itself is about another one")
        return document
    raise UpstreamSignInFailed("its authorization server does not say where its endpoints are")


def covers(resource: object, server_url: str) -> bool:
    """Whether a resource is the server at this address, or one that this address lies below."""
    one, other = split(resource), split(server_url)
    if one is None or other is None or one.fragment or one.username is not None:
        return False
    above, below = one.path.rstrip("/"), other.path.rstrip("/")
    same = (one.scheme, one.hostname, _port(one.scheme, one.port)) == (
        other.scheme,
        other.hostname,
        _port(other.scheme, other.port),
    )
    if one.query:
        return same and above == below and one.query == other.query
    return same and (below == above or below.startswith(f"{above}/"))


def _port(scheme: str, port: int | None) -> int:
    return port or (443 if scheme == "https" else 80)


def _texts(value: object) -> tuple[str, ...]:
    found = value if isinstance(value, list) else []
    return tuple(each for each in found[:MOST_SCOPES] if isinstance(each, str))
