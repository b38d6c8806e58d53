"""Sign people in with the authorization code flow of OpenID Connect, with PKCE, state and nonce.

The browser is redirected to the configured issuer and returns with a code. The code is exchanged for an ID token, which
says who the person is, how they signed in and when. `operations/approvals/console_sessions.py` keeps the pending login
in a sealed cookie of the browser.
"""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote_plus, urlencode, urlsplit

import orjson

from deputize.core.bounded_dict import BoundedDict
from deputize.core.caller import (
    ADMIN_SCOPE,
    AUDIT_SCOPE,
    OPERATE_SCOPE,
    UNDO_SCOPE,
    Caller,
    compute_decision_cache_key,
)
from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.errors import Problem, RateLimited, SignInFailed, TokenMalformed, Unavailable
from deputize.core.patterns import matches_glob
from deputize.core.settings import ConsoleGroup, ConsoleRole, ConsoleSettings, IdentitySettings, IssuerSettings
from deputize.govern.identity.claims import Claims, build_caller
from deputize.govern.identity.oidc_discovery import Fetch, OidcEndpoints, find_endpoints, is_discoverable
from deputize.govern.identity.token_verifier import TokenVerifier
from deputize.store.private_file import read_private_file

# Long enough to find a phone or a hardware key; an older login must start again.
LOGIN_SECONDS = 600
_RENEW_SECONDS = 300.0
# Logins need no authentication and each causes requests to the issuer, so their concurrency is limited: in all, and of
# one client address, so that junk from one leaves room for people at others.
_MAX_CONCURRENT_REQUESTS = 8
_MAX_CONCURRENT_OF_ADDRESS = 4
# How many logins of an address are exchanged or wait, and how many after too many of them failed within a minute.
_MAX_WAITING_OF_ADDRESS = 20
_MAX_WAITING_AFTER_FAILURES = 4
_MANY_FAILURES = 20
_FAILURE_SECONDS = 60.0
_MAX_ADDRESSES = 10_000
# Logins whose code was exchanged; each needs a login of its own to be started.
_MAX_USED_LOGINS = 100_000
_MAX_CODE_LENGTH = 4096
# Claims that only ID tokens have; `build_person` checks the relevant ones.
_ID_TOKEN_CLAIMS = frozenset({"nonce", "at_hash", "c_hash", "s_hash"})
_ROLE_SCOPES: Final[Mapping[ConsoleRole, frozenset[str]]] = {
    "auditor": frozenset({AUDIT_SCOPE}),
    "operator": frozenset({OPERATE_SCOPE, UNDO_SCOPE}),
    "administrator": frozenset({ADMIN_SCOPE, UNDO_SCOPE}),
}


class PostForm(Protocol):
    """Send a form with the one egress client; return the body of a 200 response."""

    def __call__(self, url: str, body: bytes, *, headers: Mapping[str, str]) -> Awaitable[bytes]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingLogin:
    """A started login that the response must match. `again` requires a new sign-in, however recent the last one is."""

    state: str
    nonce: str
    verifier: str
    at: int
    again: bool


class OidcLogin:
    """The login at one issuer, as one client, with one redirect URI."""

    def __init__(
        self, console: ConsoleSettings, tokens: TokenVerifier, clock: Clock, fetch: Fetch, post: PostForm, *,
        fresh_seconds: int, redirect_uri: str,
    ) -> None:  # fmt: skip
        # `check_console_settings` has checked that both are set.
        self._issuer = console.issuer or ""
        self._client_id = console.client_id or ""
        self._settings = console
        self._tokens = tokens
        self._clock = clock
        self._fetch = fetch
        self._post = post
        self._fresh_seconds = fresh_seconds
        self._redirect_uri = redirect_uri
        self._cache_entry: tuple[OidcEndpoints, float] | None = None
        self._request_slots = asyncio.Semaphore(_MAX_CONCURRENT_REQUESTS)
        self._turns = LoginTurns(clock)
        self._used_logins: BoundedDict[str, bool] = BoundedDict(_MAX_USED_LOGINS)

    async def start_login(self, *, reauthenticate: bool = False, acr: str = "") -> tuple[str, PendingLogin]:
        """Start a login: return the URL to redirect to, and the pending login. `acr` requests a sign-in method."""
        endpoints = await self._load_endpoints()
        login = PendingLogin(
            state=self._make_random_text(),
            nonce=self._make_random_text(),
            verifier=self._make_random_text(),
            at=self._clock.epoch_ms() // 1000,
            again=reauthenticate,
        )
        challenge = base64.urlsafe_b64encode(hashlib.sha256(login.verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._redirect_uri,
            "scope": " ".join(dict.fromkeys(("openid", *self._settings.scopes))),
            "state": login.state,
            "nonce": login.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            # Always sent, because only then must the ID token contain auth_time.
            "max_age": "0" if reauthenticate else str(self._fresh_seconds),
        }
        query |= {"prompt": "login"} if reauthenticate else {}
        query |= {"acr_values": acr} if acr else {}
        separator = "&" if "?" in endpoints.authorization else "?"
        return f"{endpoints.authorization}{separator}{urlencode(query)}", login

    async def finish_login(self, login: PendingLogin, params: Mapping[str, str], *, address: str = "") -> Caller:
        """Finish a login with the parameters of the redirect, and return the person; or raise the reason.

        One code of a login is exchanged. `address` is the client's, by which exchanges and their failures are counted.
        """
        now = self._clock.epoch_ms() // 1000
        if now - login.at > LOGIN_SECONDS or not _is_equal(params.get("state", ""), login.state):
            raise SignInFailed("this sign-in was not started in this browser, or it took too long")
        endpoints = await self._load_endpoints()
        response_issuer = params.get("iss")
        if response_issuer != self._issuer and (response_issuer is not None or endpoints.has_iss_parameter):
            raise SignInFailed("the response does not come from the issuer that the sign-in was started at")
        code = params.get("code", "")
        if not code or len(code) > _MAX_CODE_LENGTH:
            raise SignInFailed(f"the issuer did not complete the sign-in ({_describe_error(params)})")
        async with self._turns.take_turn(address):
            if self._used_logins.get(login.state):
                raise SignInFailed("this sign-in was answered already: start it again")
            self._used_logins.put(login.state, True)
            token = await self._fetch_id_token(endpoints, code, login)
        id_token = await self._tokens.verify_id_token(token, self._issuer)
        person = build_person(
            id_token.claims,
            id_token.issuer,
            client_id=self._client_id,
            login=login,
            fallback_id=id_token.fallback_id,
            fresh_seconds=self._fresh_seconds,
            session_seconds=self._settings.session_seconds,
            groups=self._settings.groups,
            now=self._clock.epoch_ms() / 1000,
            leeway=id_token.leeway,
        )
        return await self._tokens.qualify_caller(person)

    async def _fetch_id_token(self, endpoints: OidcEndpoints, code: str, login: PendingLogin) -> bytes:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "code_verifier": login.verifier,
        }
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        secret = await self._load_secret()
        if secret and endpoints.secret_in_header:
            # RFC 6749, 2.3.1: both parts are form-encoded before they are joined.
            pair = f"{quote_plus(self._client_id)}:{quote_plus(secret)}"
            headers["authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        else:
            form |= {"client_id": self._client_id} | ({"client_secret": secret} if secret else {})
        try:
            async with self._request_slots:
                response = orjson.loads(await self._post(endpoints.token, urlencode(form).encode(), headers=headers))
            return str(response["id_token"]).encode("ascii")
        except (Problem, OSError, ValueError, KeyError, TypeError) as error:
            raise SignInFailed("the issuer gave no ID token for the authorization code") from error

    async def _load_secret(self) -> str:
        """Load the client secret on each use, so that a new one needs no restart."""
        file = self._settings.client_secret_file
        return "" if file is None else await asyncio.to_thread(_read_secret, file)

    async def _load_endpoints(self) -> OidcEndpoints:
        now = self._clock.monotonic()
        if self._cache_entry is None or now - self._cache_entry[1] > _RENEW_SECONDS:
            try:
                async with self._request_slots:
                    self._cache_entry = (await find_endpoints(self._issuer, self._fetch), now)
            except (Problem, OSError, ValueError) as error:
                if self._cache_entry is None:
                    raise Unavailable("the issuer for console sign-in cannot be reached at the moment") from error
        return self._cache_entry[0]

    def _make_random_text(self) -> str:
        return base64.urlsafe_b64encode(self._clock.random_bytes(32)).rstrip(b"=").decode()


class LoginTurns:
    """The logins whose codes are exchanged, by client address. Anybody can send codes, so those of one address take
    only some of the slots, and of an address at which many failed fewer wait.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # How many of an address are exchanged or wait, and the slots of the address.
        self._waiting: dict[str, tuple[int, asyncio.Semaphore]] = {}
        # When the window of an address began, and its failures since.
        self._failures: BoundedDict[str, tuple[float, int]] = BoundedDict(_MAX_ADDRESSES)

    @asynccontextmanager
    async def take_turn(self, address: str) -> AsyncIterator[None]:
        """Wait for a slot of the address; raise `RateLimited` if too many wait. A failure of the block is counted."""
        count, slots = self._waiting.get(address) or (0, asyncio.Semaphore(_MAX_CONCURRENT_OF_ADDRESS))
        has_failed_often = self._load_failures(address)[1] >= _MANY_FAILURES
        if count >= (_MAX_WAITING_AFTER_FAILURES if has_failed_often else _MAX_WAITING_OF_ADDRESS):
            raise RateLimited(
                "too many people sign in from this address at the moment, or too many sign-ins from it failed",
                advice="Load this page again in a moment.",
                retry_after_ms=1000,
                nothing_happened=True,
            )
        self._waiting[address] = count + 1, slots
        try:
            async with slots:
                yield
        except SignInFailed:
            started_at, failures = self._load_failures(address)
            self._failures.put(address, (started_at, failures + 1))
            raise
        finally:
            count, slots = self._waiting[address]
            if count == 1:
                del self._waiting[address]
            else:
                self._waiting[address] = count - 1, slots

    def _load_failures(self, address: str) -> tuple[float, int]:
        now = self._clock.monotonic()
        started_at, failures = self._failures.get(address) or (now, 0)
        return (now, 0) if now - started_at >= _FAILURE_SECONDS else (started_at, failures)


def build_person(
    claims: Claims,
    issuer: IssuerSettings,
    *,
    client_id: str,
    login: PendingLogin,
    fallback_id: str,
    fresh_seconds: int,
    session_seconds: int,
    groups: Sequence[ConsoleGroup] = (),
    now: float,
    leeway: float,
) -> Caller:
    """Build the caller of a console session from a verified ID token. Pure.

    Elsewhere ID tokens are rejected; here one serves as a console token, under the same rules.
    """
    nonce, authorized_party = claims.get("nonce"), claims.get("azp", client_id)
    if not isinstance(nonce, str) or not _is_equal(nonce, login.nonce):
        raise TokenMalformed("the ID token belongs to another sign-in: its nonce does not match")
    if authorized_party != client_id:
        raise TokenMalformed("the ID token was issued for another client")
    if not issuer.human:
        raise SignInFailed("the issuer is not configured for people: human is not set")
    access_claims = {name: value for name, value in claims.items() if name not in _ID_TOKEN_CLAIMS}
    as_console = issuer.model_copy(update={"console_audience": client_id})
    caller = build_caller(
        access_claims, as_console, now=now, leeway=leeway, fallback_id=fallback_id, is_access_token=True
    )
    if not caller.console:
        raise SignInFailed("the ID token does not belong to a person who signed in")
    earliest = login.at if login.again else now - fresh_seconds
    if caller.auth_time == 0 or caller.auth_time < earliest - leeway:
        raise SignInFailed(
            "the ID token has no auth_time, or you signed in too long ago",
            advice="Sign in again. If this repeats, the issuer ignores max_age: ask its operator to support it.",
        )
    caller = replace(
        caller,
        only_decides=True,
        expires_at=int(now) + session_seconds,
        scopes=_compute_scopes(caller, groups),
    )
    return replace(caller, decision_cache_key=compute_decision_cache_key(caller))


def _compute_scopes(caller: Caller, groups: Sequence[ConsoleGroup]) -> frozenset[str]:
    """Compute what a person may do by their groups. Where groups are configured, they alone give a role."""
    if not groups:
        return caller.scopes
    own_groups = [each for each in groups if each.group in caller.groups and matches_glob(caller.tenant, each.tenants)]
    role_scopes = [_ROLE_SCOPES[each.role] for each in own_groups if each.role is not None]
    claimed_scopes = caller.scopes - {ADMIN_SCOPE, OPERATE_SCOPE, AUDIT_SCOPE}
    return claimed_scopes.union(*role_scopes, *(each.scopes for each in own_groups))


def check_console_settings(console: ConsoleSettings, identity: IdentitySettings, base: str | None) -> None:
    """Raise `ConfigError` for settings that would make every console sign-in fail."""
    if console.issuer is None:
        return
    issuer = next((each for each in identity.issuers if each.issuer == console.issuer), None)
    error = None
    if issuer is None:
        error = "is not among identity.issuers: list it there, with human = true"
    elif not issuer.human or issuer.development:
        error = "is not an issuer for people: set human = true for it under [[identity.issuers]]"
    elif not is_discoverable(issuer.issuer):
        error = "is not a URL, so browsers cannot be redirected there: use an issuer with an https URL"
    elif not console.client_id:
        error = "needs console.client_id: register this gateway there as a client"
    elif base is None:
        error = "needs a URL to redirect browsers back to: set approvals.console_url or identity.public_url"
    elif not _is_safe_url(base):
        error = f"would redirect browsers back to {base}, which is not safe: use an https URL without a query"
    if error is not None:
        raise ConfigError(f"console.issuer {console.issuer!r} {error}.")
    if console.client_secret_file is not None:
        _read_secret(console.client_secret_file)


def _is_safe_url(base: str) -> bool:
    """Tell whether a URL uses https or stays on this machine."""
    return is_discoverable(base) and (
        base.startswith("https://") or urlsplit(base).hostname in ("127.0.0.1", "::1", "localhost")
    )


def _read_secret(file: Path) -> str:
    remedy = "write the client's secret to this file, or remove console.client_secret_file"
    return read_private_file(file, description="The secret of the console's client", remedy=remedy).decode().strip()


def _describe_error(params: Mapping[str, str]) -> str:
    """Return the error code of RFC 6749 if it is well-formed, because anyone can write the URL's parameters."""
    error = params.get("error", "")
    return error if error.isascii() and error.replace("_", "").isalpha() and len(error) < 64 else "no code returned"


def _is_equal(first: str, second: str) -> bool:
    return hmac.compare_digest(first.encode(), second.encode())
