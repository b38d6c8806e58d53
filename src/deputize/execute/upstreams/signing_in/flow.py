"""Signing in to a server: the authorization code flow of OAuth 2.1 for a person, client credentials for the gateway.

As MCP wants it (2025-11-25, 2026-07-28): PKCE with S256 or not at all, the resource named in every request (RFC 8707),
whoever comes back says from where (RFC 9207) where they do, scopes as the server asks for them. What was begun carries
all that is needed to end it, so that a code goes to nobody but the issuer its owner was sent to.

Above: `lifecycle/servers/`, which keeps what is begun and what comes of it. Below: the rest of this folder.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode

from deputize.core.clock import Clock
from deputize.core.errors import UpstreamSignInFailed
from deputize.execute.upstreams.signing_in import clients, places, tokens
from deputize.execute.upstreams.signing_in.challenge import Challenge, together
from deputize.execute.upstreams.signing_in.clients import Client
from deputize.execute.upstreams.signing_in.places import OFFLINE, Place
from deputize.execute.upstreams.signing_in.tokens import Endpoint, Tokens
from deputize.execute.upstreams.signing_in.web import Web

_LONGEST_CODE: Final = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """What whoever comes back has to match, and where the code they bring is worth something."""

    state: str
    verifier: str = field(repr=False)
    issuer: str
    names_itself: bool
    endpoint: Endpoint
    # What was asked for: a server that wants more is asked for this and that.
    scopes: tuple[str, ...]


class SigningIn:
    """`back_to` is where people come back to; `document` the address of our client's document, where it has one."""

    def __init__(self, web: Web, clock: Clock, *, back_to: str, document: str | None) -> None:
        self._web = web
        self._clock = clock
        self.back_to = back_to
        self.document = document

    async def find(self, server_url: str, challenge: Challenge, *, issuer: str | None = None) -> Place:
        return await places.find(self._web, server_url, challenge, issuer=issuer)

    async def client(self, place: Place, *, client_id: str | None, secret: str | None, kept: Client | None) -> Client:
        """Who we are there. `kept` is a registration of before; one with another issuer is none."""
        if client_id is not None:
            return clients.known(place, client_id, secret)
        if place.takes_documents and self.document is not None:
            return clients.documented(place, self.document)
        now = self._clock.epoch_ms() // 1000
        if kept is not None and kept.issuer == place.issuer and (kept.secret_ends == 0 or kept.secret_ends > now + 60):
            return kept
        if place.registration is not None:
            return await clients.registered(self._web, place, self.back_to)
        raise UpstreamSignInFailed(
            "its authorization server takes only clients that were registered there before",
            details={"issuer": place.issuer},
            advice="Whoever runs this gateway must register it there and set issuer and client_id under [[servers]].",
        )

    def begin(self, place: Place, client: Client, scopes: tuple[str, ...]) -> tuple[str, Begun]:
        """Where to send somebody, and what to remember meanwhile."""
        if place.authorization is None:
            raise UpstreamSignInFailed("nobody can sign in at its authorization server")
        if not place.takes_s256:
            raise UpstreamSignInFailed("its authorization server does not say that it protects codes (PKCE with S256)")
        begun = Begun(
            state=self._random(),
            verifier=self._random(),
            issuer=place.issuer,
            names_itself=place.names_itself,
            endpoint=Endpoint(url=place.token, resource=place.resource, client=client),
            scopes=scopes,
        )
        challenge = base64.urlsafe_b64encode(hashlib.sha256(begun.verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": client.id,
            "redirect_uri": self.back_to,
            "state": begun.state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "resource": place.resource,
        }
        asked |= {"scope": " ".join(scopes)} if scopes else {}
        # OpenID Connect gives no refresh token unless the person is asked for it.
        asked |= {"prompt": "consent"} if OFFLINE in scopes else {}
        joined = "&" if "?" in place.authorization else "?"
        return f"{place.authorization}{joined}{urlencode(asked)}", begun

    async def finish(self, begun: Begun, answer: Mapping[str, str]) -> Tokens:
        """What the code that came back is worth."""
        if not hmac.compare_digest(answer.get("state", "").encode(), begun.state.encode()):
            raise UpstreamSignInFailed("this is not the sign-in that was begun here")
        came_from = answer.get("iss")
        if came_from != begun.issuer and (came_from is not None or begun.names_itself):
            raise UpstreamSignInFailed("whoever sent you back is not the authorization server you were sent to")
        code = answer.get("code", "")
        if not code or len(code) > _LONGEST_CODE:
            raise UpstreamSignInFailed(f"its authorization server let nobody in ({_word(answer.get('error', ''))})")
        return await tokens.for_code(
            self._web, self._clock, begun.endpoint, code=code, verifier=begun.verifier, back_to=self.back_to
        )

    async def refresh(self, endpoint: Endpoint, refresh: str) -> Tokens:
        return await tokens.for_refresh(self._web, self._clock, endpoint, refresh=refresh)

    async def as_client(self, place: Place, client: Client, scopes: tuple[str, ...]) -> Tokens:
        """A token of the gateway's own."""
        at = Endpoint(url=place.token, resource=place.resource, client=client)
        return await tokens.for_client(self._web, self._clock, at, scopes=scopes)

    def _random(self) -> str:
        return base64.urlsafe_b64encode(self._clock.random_bytes(32)).rstrip(b"=").decode()


def scopes_to_ask(place: Place, challenge: Challenge, before: tuple[str, ...], *, offline: bool) -> tuple[str, ...]:
    """What to ask for: what the server wants now and what was asked for before; else all it knows; else nothing."""
    wanted = together(before, challenge.scopes) if challenge.scopes or before else (place.scopes or ())
    return together(wanted, (OFFLINE,)) if offline and wanted and place.offers_offline else wanted


def asks_in_vain(challenge: Challenge, asked: tuple[str, ...]) -> bool:
    """Whether the server wants what was asked for already: asking once more would go round in a circle."""
    return challenge.wants_more and set(challenge.scopes) <= set(asked)


def _word(error: str) -> str:
    """The issuer's own word for it, if it is one (RFC 6749): anybody can write the rest of an address."""
    fits = error.isascii() and error.replace("_", "").isalpha() and len(error) < 64
    return error if fits else "no code came back"
