"""People who come in person: the authorization code flow of OpenID Connect, with PKCE, state and nonce.

Somebody is sent to the issuer of the settings, comes back with a code, and the ID token that the code is worth says who
they are, how they proved it and when. Above: `lifecycle/console.py`, which keeps what was begun in the browser's own
sealed cookie. Below: `discovery.py` says where to go, `tokens.py` verifies, the one egress client is handed in.
"""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import quote_plus, urlencode, urlsplit

import orjson

from deputize.core.caller import Caller, standing_of
from deputize.core.clock import Clock
from deputize.core.errors import Problem, SignInFailed, TokenMalformed, Unavailable
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Console, Identity, Issuer
from deputize.govern.identity.claims import Claims, caller_of
from deputize.govern.identity.discovery import Endpoints, Fetch, can_be_discovered, find_endpoints
from deputize.govern.identity.tokens import TokenVerifier
from deputize.store.private_file import read_private

# Long enough to find a phone and a key; what was begun earlier is begun again.
BEGUN_SECONDS = 600
_RENEW_SECONDS = 300.0
# Anybody can begin, and whoever comes back makes us ask the issuer: not many of them at once.
_ASKING_AT_ONCE = 8
_MAX_CODE_LENGTH = 4096
# What ID tokens carry beside what every token does; `person_of` has looked at what counts of it.
_OF_ID_TOKENS = frozenset({"nonce", "at_hash", "c_hash", "s_hash"})


class Post(Protocol):
    """The one way out, for a form; answers with the body of a 200."""

    def __call__(self, url: str, body: bytes, *, headers: Mapping[str, str]) -> Awaitable[bytes]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """What whoever comes back has to match; `again` asks for a new sign-in, however recent the last one is."""

    state: str
    nonce: str
    verifier: str
    at: int
    again: bool


class SignIn:
    """At one issuer, as one client, and back to one address."""

    def __init__(
        self, console: Console, tokens: TokenVerifier, clock: Clock, fetch: Fetch, post: Post, *,
        fresh_seconds: int, back_to: str,
    ) -> None:  # fmt: skip
        # `check_console` has seen to it that both are set.
        self._issuer = console.issuer or ""
        self._client_id = console.client_id or ""
        self._settings = console
        self._tokens = tokens
        self._clock = clock
        self._fetch = fetch
        self._post = post
        self._fresh_seconds = fresh_seconds
        self._back_to = back_to
        self._known: tuple[Endpoints, float] | None = None
        self._asking = asyncio.Semaphore(_ASKING_AT_ONCE)

    async def begin(self, *, again: bool = False, level: str = "") -> tuple[str, Begun]:
        """Where to send somebody, and what to remember meanwhile. `level` is a way of signing in that is wished for."""
        place = await self._endpoints()
        begun = Begun(
            state=self._random(),
            nonce=self._random(),
            verifier=self._random(),
            at=self._clock.epoch_ms() // 1000,
            again=again,
        )
        challenge = base64.urlsafe_b64encode(hashlib.sha256(begun.verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._back_to,
            "scope": " ".join(dict.fromkeys(("openid", *self._settings.scopes))),
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            # Asked for even where any age would do: only then must the issuer say when it was.
            "max_age": "0" if again else str(self._fresh_seconds),
        }
        asked |= {"prompt": "login"} if again else {}
        asked |= {"acr_values": level} if level else {}
        joined = "&" if "?" in place.authorization else "?"
        return f"{place.authorization}{joined}{urlencode(asked)}", begun

    async def finish(self, begun: Begun, answer: Mapping[str, str]) -> Caller:
        """Who came back, or why nobody did."""
        now = self._clock.epoch_ms() // 1000
        if now - begun.at > BEGUN_SECONDS or not _equal(answer.get("state", ""), begun.state):
            raise SignInFailed("this is not the sign-in that was begun in this browser, or it took too long")
        place = await self._endpoints()
        came_from = answer.get("iss")
        if came_from != self._issuer and (came_from is not None or place.names_itself):
            raise SignInFailed("whoever sent you back here is not the issuer you were sent to")
        code = answer.get("code", "")
        if not code or len(code) > _MAX_CODE_LENGTH:
            raise SignInFailed(f"the issuer let nobody in ({_told(answer)})")
        token = await self._token(place, code, begun)
        verified = await self._tokens.id_token(token, self._issuer)
        return person_of(
            verified.claims,
            verified.issuer,
            client_id=self._client_id,
            begun=begun,
            fallback_id=verified.fallback_id,
            fresh_seconds=self._fresh_seconds,
            session_seconds=self._settings.session_seconds,
            now=self._clock.epoch_ms() / 1000,
            leeway=verified.leeway,
        )

    async def _token(self, place: Endpoints, code: str, begun: Begun) -> bytes:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._back_to,
            "code_verifier": begun.verifier,
        }
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        secret = await self._secret()
        if secret and place.secret_in_header:
            # RFC 6749, 2.3.1: both halves are encoded as in a form before they are joined.
            pair = f"{quote_plus(self._client_id)}:{quote_plus(secret)}"
            headers["authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        else:
            form |= {"client_id": self._client_id} | ({"client_secret": secret} if secret else {})
        try:
            async with self._asking:
                said = orjson.loads(await self._post(place.token, urlencode(form).encode(), headers=headers))
            return str(said["id_token"]).encode("ascii")
        except (Problem, OSError, ValueError, KeyError, TypeError) as error:
            raise SignInFailed("the issuer did not say who you are for the code you came back with") from error

    async def _secret(self) -> str:
        """Read for every use, so that a new one needs no restart."""
        file = self._settings.client_secret_file
        return "" if file is None else await asyncio.to_thread(_read_secret, file)

    async def _endpoints(self) -> Endpoints:
        now = self._clock.monotonic()
        if self._known is None or now - self._known[1] > _RENEW_SECONDS:
            try:
                async with self._asking:
                    self._known = (await find_endpoints(self._issuer, self._fetch), now)
            except (Problem, OSError, ValueError) as error:
                if self._known is None:
                    raise Unavailable("the issuer people sign in at cannot be asked at the moment") from error
        return self._known[0]

    def _random(self) -> str:
        return base64.urlsafe_b64encode(self._clock.random_bytes(32)).rstrip(b"=").decode()


def person_of(
    claims: Claims, issuer: Issuer, *, client_id: str, begun: Begun, fallback_id: str, fresh_seconds: int,
    session_seconds: int, now: float, leeway: float,
) -> Caller:  # fmt: skip
    """Whoever an ID token names, as a caller who is there in person. Pure; the signature was verified before.

    To everybody else an ID token is none of theirs. Here it is what a token for the console is, under the same rules.
    """
    nonce, party = claims.get("nonce"), claims.get("azp", client_id)
    if not isinstance(nonce, str) or not _equal(nonce, begun.nonce):
        raise TokenMalformed("the ID token was not made for this sign-in")
    if party != client_id:
        raise TokenMalformed("the ID token was made for another client")
    if not issuer.human:
        raise SignInFailed("the issuer of this sign-in is not marked as one where people sign in")
    said = {name: value for name, value in claims.items() if name not in _OF_ID_TOKENS}
    as_console = issuer.model_copy(update={"console_audience": client_id})
    caller = caller_of(said, as_console, now=now, leeway=leeway, fallback_id=fallback_id, for_apis=True)
    if not caller.console:
        raise SignInFailed("the ID token is not one of a person who signed in")
    earliest = begun.at if begun.again else now - fresh_seconds
    if caller.auth_time == 0 or caller.auth_time < earliest - leeway:
        raise SignInFailed(
            "the issuer does not say when you signed in, or it was too long ago",
            advice="Sign in again. If it stays so, the issuer does not heed max_age: whoever runs it must change that.",
        )
    caller = replace(caller, only_decides=True, expires_at=int(now) + session_seconds)
    return replace(caller, standing=standing_of(caller))


def check_console(console: Console, identity: Identity, base: str | None) -> None:
    """Raises for what would only show once somebody wants to sign in."""
    if console.issuer is None:
        return
    issuer = next((each for each in identity.issuers if each.issuer == console.issuer), None)
    mistake = None
    if issuer is None:
        mistake = "is not among identity.issuers: list it there, with human = true"
    elif not issuer.human or issuer.development:
        mistake = "is not one where people sign in: set human = true for it under [[identity.issuers]]"
    elif not can_be_discovered(issuer.issuer):
        mistake = "is no address, so nobody can be sent there"
    elif not console.client_id:
        mistake = "needs console.client_id: register this gateway there as a client"
    elif base is None:
        mistake = "needs an address to send people back to: set approvals.console_url or identity.public_url"
    elif not _is_safe(base):
        mistake = f"would send people back to {base}, where anybody on the way reads along: give it an https address"
    if mistake is not None:
        raise Misconfigured(f"console.issuer {console.issuer!r} {mistake}.")
    if console.client_secret_file is not None:
        _read_secret(console.client_secret_file)


def _is_safe(base: str) -> bool:
    """https, or an address that never leaves this machine."""
    return can_be_discovered(base) and (
        base.startswith("https://") or urlsplit(base).hostname in ("127.0.0.1", "::1", "localhost")
    )


def _read_secret(file: Path) -> str:
    remedy = "put the client's secret there, or take console.client_secret_file out"
    return read_private(file, what="The secret of the console's client", remedy=remedy).decode().strip()


def _told(answer: Mapping[str, str]) -> str:
    """The issuer's own word for it, if it is one (RFC 6749): anybody can write the rest of an address."""
    error = answer.get("error", "")
    return error if error.isascii() and error.replace("_", "").isalpha() and len(error) < 64 else "no code came back"


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
