"""Request tokens from an authorization server: for an authorization code, a refresh token or client credentials."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import urlencode

from deputize.core.clock import Clock
from deputize.core.errors import UpstreamSignInFailed, UpstreamUnavailable
from deputize.execute.upstreams.oauth.client_registration import OAuthClient, build_client_auth
from deputize.execute.upstreams.oauth.oauth_requests import FORM, HttpRequester, OAuthResponse, post_request
from deputize.execute.upstreams.oauth.www_authenticate import parse_scopes

TokenHint = Literal["refresh_token", "access_token"]
# The characters of a bearer token (RFC 6750).
_BEARER: Final = re.compile(r"[A-Za-z0-9\-._~+/]{8,16384}=*")
_LONGEST: Final = 16_384
_MAX_SECONDS: Final = 366 * 86_400
# OAuth errors after which a retry cannot succeed (RFC 6749, 5.2).
_FINAL_ERRORS: Final = frozenset(
    {"invalid_grant", "invalid_client", "unauthorized_client", "invalid_scope", "invalid_target", "access_denied"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Access and refresh token. `expires_at` is in seconds since 1970; None if the server does not say."""

    access: str = field(repr=False)
    refresh: str | None = field(default=None, repr=False)
    expires_at: int | None = None
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenEndpoint:
    """A token endpoint with the resource and the client to request tokens for; stored with the tokens."""

    url: str
    resource: str
    client: OAuthClient


async def exchange_code(
    http: HttpRequester, clock: Clock, endpoint: TokenEndpoint, *, code: str, verifier: str, redirect_uri: str
) -> Tokens:
    """Exchange an authorization code for tokens."""
    form = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier, "redirect_uri": redirect_uri}
    return await _request_tokens(http, clock, endpoint, form)


async def refresh_tokens(http: HttpRequester, clock: Clock, endpoint: TokenEndpoint, *, refresh: str) -> Tokens:
    """Refresh tokens. Without a new refresh token the old one stays valid (RFC 6749, 6)."""
    tokens = await _request_tokens(http, clock, endpoint, {"grant_type": "refresh_token", "refresh_token": refresh})
    return tokens if tokens.refresh is not None else Tokens(
        access=tokens.access, refresh=refresh, expires_at=tokens.expires_at, scopes=tokens.scopes
    )  # fmt: skip


async def request_client_token(
    http: HttpRequester, clock: Clock, endpoint: TokenEndpoint, *, scopes: tuple[str, ...]
) -> Tokens:
    """Request a token with client credentials."""
    form = {"grant_type": "client_credentials"} | ({"scope": " ".join(scopes)} if scopes else {})
    return await _request_tokens(http, clock, endpoint, form)


async def revoke_token(
    http: HttpRequester, clock: Clock, client: OAuthClient, url: str, *, token: str, hint: TokenHint
) -> None:
    """Revoke a token (RFC 7009). The server's 200 also means that it does not know the token (any more)."""
    fields, headers = build_client_auth(client, clock)
    body = urlencode({"token": token, "token_type_hint": hint, **fields}).encode()
    response = await post_request(http, url, body, content_type=FORM, headers=headers)
    if response.is_success:
        return
    if response.status not in (400, 401, 403):
        raise UpstreamUnavailable(f"the authorization server answered the revocation with {response.error_code}")
    raise UpstreamSignInFailed(
        f"the authorization server did not revoke the token ({response.error_code})", is_final=True
    )


async def _request_tokens(
    http: HttpRequester, clock: Clock, endpoint: TokenEndpoint, form: Mapping[str, str]
) -> Tokens:
    fields, headers = build_client_auth(endpoint.client, clock)
    body = urlencode({**form, "resource": endpoint.resource, **fields}).encode()
    response = await post_request(http, endpoint.url, body, content_type=FORM, headers=headers)
    if not response.is_success:
        if response.status not in (400, 401, 403):
            raise UpstreamUnavailable(
                f"the server's authorization server answered with {response.error_code}", nothing_happened=True
            )
        raise UpstreamSignInFailed(
            f"the server's authorization server issued no token ({response.error_code})",
            is_final=response.error_code in _FINAL_ERRORS or response.status != 400,
        )
    return _parse_tokens(response, clock)


def _parse_tokens(response: OAuthResponse, clock: Clock) -> Tokens:
    access, refresh = response.document.get("access_token"), response.document.get("refresh_token")
    kind, seconds = response.document.get("token_type"), response.document.get("expires_in")
    if not isinstance(access, str) or not _BEARER.fullmatch(access) or str(kind).lower() != "bearer":
        raise UpstreamSignInFailed("the server's authorization server issued an invalid bearer token")
    if refresh is not None and (not isinstance(refresh, str) or not 0 < len(refresh) <= _LONGEST):
        raise UpstreamSignInFailed("the server's authorization server issued an invalid refresh token")
    expires_at = None
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds >= 0:
        expires_at = clock.epoch_ms() // 1000 + int(min(seconds, _MAX_SECONDS))
    scope = response.document.get("scope")
    return Tokens(
        access=access,
        refresh=refresh,
        expires_at=expires_at,
        scopes=parse_scopes(scope) if isinstance(scope, str) else (),
    )
