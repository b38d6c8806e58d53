"""Tokens, as an authorization server gives them out: for a code, for a refresh token, or to the client itself.

Above: `flow.py`. Below: `clients.py` says whose request it is, `web.py` sends it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode

from deputize.core.clock import Clock
from deputize.core.errors import UpstreamSignInFailed, UpstreamUnavailable
from deputize.execute.upstreams.signing_in.challenge import scopes_of
from deputize.execute.upstreams.signing_in.clients import Client, shown
from deputize.execute.upstreams.signing_in.web import FORM, Said, Web, posted

# RFC 6750: what a bearer token is made of.
_BEARER: Final = re.compile(r"[A-Za-z0-9\-._~+/]{8,16384}=*")
_LONGEST: Final = 16_384
_LONGEST_SECONDS: Final = 366 * 86_400
# What of an answer other than 200 says that asking again is of no use (RFC 6749, 5.2).
_FINAL: Final = frozenset(
    {"invalid_grant", "invalid_client", "unauthorized_client", "invalid_scope", "invalid_target", "access_denied"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """`expires_at` in seconds since 1970; None where nobody said."""

    access: str = field(repr=False)
    refresh: str | None = field(default=None, repr=False)
    expires_at: int | None = None
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """Where tokens of one resource come from, for one client; kept with what came from there."""

    url: str
    resource: str
    client: Client


async def for_code(web: Web, clock: Clock, at: Endpoint, *, code: str, verifier: str, back_to: str) -> Tokens:
    form = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier, "redirect_uri": back_to}
    return await _asked(web, clock, at, form)


async def for_refresh(web: Web, clock: Clock, at: Endpoint, *, refresh: str) -> Tokens:
    """New ones. Where none comes to refresh with, the old one still does (RFC 6749, 6)."""
    got = await _asked(web, clock, at, {"grant_type": "refresh_token", "refresh_token": refresh})
    return got if got.refresh is not None else Tokens(
        access=got.access, refresh=refresh, expires_at=got.expires_at, scopes=got.scopes
    )  # fmt: skip


async def for_client(web: Web, clock: Clock, at: Endpoint, *, scopes: tuple[str, ...]) -> Tokens:
    form = {"grant_type": "client_credentials"} | ({"scope": " ".join(scopes)} if scopes else {})
    return await _asked(web, clock, at, form)


async def _asked(web: Web, clock: Clock, at: Endpoint, form: Mapping[str, str]) -> Tokens:
    fields, headers = shown(at.client, clock)
    body = urlencode({**form, "resource": at.resource, **fields}).encode()
    said = await posted(web, at.url, body, kind=FORM, headers=headers)
    if not said.good:
        if said.status not in (400, 401, 403):
            raise UpstreamUnavailable(f"its authorization server answers with {said.error}", nothing_happened=True)
        refused = UpstreamSignInFailed(f"its authorization server gives out no token ({said.error})")
        refused.final = said.error in _FINAL or said.status != 400
        raise refused
    return _tokens(said, clock)


def _tokens(said: Said, clock: Clock) -> Tokens:
    access, refresh = said.document.get("access_token"), said.document.get("refresh_token")
    kind, seconds = said.document.get("token_type"), said.document.get("expires_in")
    if not isinstance(access, str) or not _BEARER.fullmatch(access) or str(kind).lower() != "bearer":
        raise UpstreamSignInFailed("its authorization server gives out something that is no bearer token")
    if refresh is not None and (not isinstance(refresh, str) or not 0 < len(refresh) <= _LONGEST):
        raise UpstreamSignInFailed("its authorization server gives out something that is no refresh token")
    ends = None
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds >= 0:
        ends = clock.epoch_ms() // 1000 + int(min(seconds, _LONGEST_SECONDS))
    scope = said.document.get("scope")
    return Tokens(
        access=access,
        refresh=refresh,
        expires_at=ends,
        scopes=scopes_of(scope) if isinstance(scope, str) else (),
    )
