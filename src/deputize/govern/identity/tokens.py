"""Bearer tokens: JWTs of the configured issuers and of this gateway itself, remembered for at most 30 seconds.

Above: doors ask `cached` first, which never waits, and `verify` when that knows nothing; an exchange asks `examine` and
`actor`. Below: `jwks.py`, `signing.py` and `dids.py` have the keys, `claims.py` reads what a verified token says. No
token is kept, only its hash.
"""

import base64
import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import jwt
import orjson

from deputize.core.caller import PROCESS, TERMINAL, Caller
from deputize.core.clock import Clock
from deputize.core.errors import TokenAudience, TokenIssuer, TokenMalformed, TokenMissing, TokenSignature
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Identity, Issuer
from deputize.govern.identity.claims import (
    Claims,
    caller_of,
    delegate_of,
    is_tenant,
    lifetime_of,
    require_access_token,
    require_audience,
    still_vouched_for,
)
from deputize.govern.identity.dids import ALGORITHMS as DID_ALGORITHMS
from deputize.govern.identity.dids import Dids, NotADid, check_did, is_did
from deputize.govern.identity.discovery import Fetch, can_be_discovered
from deputize.govern.identity.jwks import IssuerKeys, by_did
from deputize.govern.identity.signing import ALGORITHM, SigningKeys

MAX_TOKEN_BYTES = 16_384
# An agent signs for itself just before it is lent something; a token that proves it for longer is a key lying about.
MAX_SELF_SIGNED_SECONDS = 3600
_MOST_REMEMBERED = 10_000
_ID_LENGTH = 32
# The signature may be empty here, so that an unsigned token is told so instead of being called malformed.
_FORM = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]*)")
# RFC 9068 and RFC 8725: the one type of token that is for APIs, and the one that says nothing.
_FOR_APIS, _ANY_JWT = "at+jwt", "jwt"
_SIGNATURES = jwt.PyJWS(
    algorithms=["RS256", "ES256", "EdDSA"],
    options={"verify_signature": True, "enforce_minimum_key_length": True},
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Unverified:
    """What a token claims before anything is checked: enough to choose the key to check it with."""

    algorithm: str
    key_id: str | None
    issuer: str
    signed_part: bytes
    for_apis: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Examined:
    """A verified token: the caller it makes, and every claim it carries."""

    caller: Caller
    claims: Claims


@dataclass(frozen=True, kw_only=True, slots=True)
class Actor:
    """An agent that proved who it is: by a token of an issuer, which can be revoked, or by its own DID."""

    name: str
    issuer: str
    caller: Caller | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class IdToken:
    """What a verified ID token says, and what is needed to make somebody of it."""

    claims: Claims
    issuer: Issuer
    fallback_id: str
    leeway: int


class TokenVerifier:
    """`complete` may add to a caller what the database knows (its pseudonyms) before it is remembered; `own` are the
    keys this gateway signs with, where it exchanges tokens. `fetch` asks where the operator said, `fetch_outside`
    wherever an agent's DID points to.
    """

    def __init__(
        self,
        settings: Identity,
        clock: Clock,
        fetch: Fetch,
        *,
        complete: Callable[[Caller], Awaitable[Caller]] | None = None,
        own: SigningKeys | None = None,
        fetch_outside: Fetch | None = None,
    ) -> None:
        check_issuers(settings)
        self._own = own
        self._dids = Dids(clock, fetch_outside or fetch)
        self._issuers = {issuer.issuer: issuer for issuer in settings.issuers}
        self._keys = {issuer.issuer: IssuerKeys(issuer, clock, fetch) for issuer in settings.issuers}
        self._settings = settings
        self._clock = clock
        self._complete = complete
        self._remembered: dict[bytes, tuple[Caller, float]] = {}

    def cached(self, token: bytes, *, deciding: bool = False) -> Caller | None:
        """The caller of a token verified a moment ago. A token that is only for deciding is known only `deciding`."""
        known = self._remembered.get(hashlib.sha256(token).digest())
        if known is None or known[1] <= self._clock.monotonic() or (known[0].only_decides and not deciding):
            return None
        return known[0]

    async def verify(self, token: bytes, *, deciding: bool = False) -> Caller:
        """The caller behind a token, or the exact reason why there is none."""
        known = self.cached(token, deciding=deciding)
        if known is not None:
            return known
        caller = (await self.examine(token, deciding=deciding)).caller
        self._remember(token, caller)
        return caller

    async def examine(self, token: bytes, *, deciding: bool = False) -> Examined:
        """The same from the token itself, with what it says beside what every caller has."""
        unverified = _peek(token)
        tenant = self._own.tenant_of(unverified.issuer) if self._own is not None else None
        if self._own is not None and tenant is not None:
            if unverified.algorithm != ALGORITHM:
                raise TokenSignature(f"the token is not signed in the way this gateway signs ({ALGORITHM})")
            issuer = self._own.as_issuer(tenant)
            key = await self._own.public_key(tenant, unverified.key_id)
            claims = _verified_claims(token, key, issuer.issuer)
            caller = delegate_of(claims, issuer, now=self._now(), leeway=self._settings.leeway_seconds)
            caller = still_vouched_for(caller, self._issuers.get(caller.issuer))
        else:
            issuer = self._configured(unverified)
            key = await self._keys[issuer.issuer].key(unverified.algorithm, unverified.key_id)
            claims = _verified_claims(token, key, issuer.issuer)
            caller = caller_of(
                claims,
                issuer,
                now=self._now(),
                leeway=self._settings.leeway_seconds,
                fallback_id=_id_of(unverified.signed_part),
                for_apis=unverified.for_apis,
            )
        if caller.only_decides and not deciding:
            raise TokenAudience(
                "the token is for deciding approvals and nothing else",
                advice="Get a token whose audience is this gateway; with this one, see and decide what waits for you.",
            )
        if self._complete is not None:
            caller = await self._complete(caller)
        return Examined(caller=caller, claims=claims)

    async def actor(self, token: bytes, tenant: str) -> Actor:
        """The agent behind an actor token: the subject of an issuer's token, or a DID that signs for itself."""
        unverified = _peek(token)
        if unverified.issuer not in self._issuers and is_did(unverified.issuer):
            return Actor(name=await self._self_signed(token, unverified), issuer=unverified.issuer)
        caller = (await self.examine(token)).caller
        if caller.tenant != tenant:
            raise TokenIssuer("the actor token is not one of this tenant")
        if caller.agents:
            raise TokenMalformed("the actor token acts for somebody; it must say who the agent itself is")
        return Actor(name=caller.user, issuer=caller.issuer, caller=caller)

    async def id_token(self, token: bytes, issuer: str) -> IdToken:
        """The ID token of a sign-in at one issuer. Who it is for, and for which sign-in, is `sign_in.py`'s to see."""
        unverified = _peek(token)
        if unverified.issuer != issuer or unverified.for_apis:
            raise TokenMalformed("this is not an ID token of the issuer that was asked for one")
        configured = self._configured(unverified)
        key = await self._keys[issuer].key(unverified.algorithm, unverified.key_id)
        return IdToken(
            claims=_verified_claims(token, key, issuer),
            issuer=configured,
            fallback_id=_id_of(unverified.signed_part),
            leeway=self._settings.leeway_seconds,
        )

    async def _self_signed(self, token: bytes, unverified: _Unverified) -> str:
        if self._own is None:
            raise TokenIssuer("this gateway exchanges no tokens, so no DID can sign for itself here")
        if unverified.algorithm not in DID_ALGORITHMS:
            raise TokenSignature(f"the token is not signed in a way a DID may use ({', '.join(DID_ALGORITHMS)})")
        did = unverified.issuer
        key = await self._dids.key(did, unverified.algorithm, unverified.key_id)
        claims = _verified_claims(token, key, did)
        require_access_token(claims, for_apis=unverified.for_apis)
        require_audience(claims.get("aud"), (self._own.public_url,), did)
        expires_at, _ = lifetime_of(claims, self._now(), self._settings.leeway_seconds)
        if expires_at > self._now() + MAX_SELF_SIGNED_SECONDS:
            raise TokenMalformed(f"a token signed by its own subject may live {MAX_SELF_SIGNED_SECONDS} s at most")
        if claims.get("sub") != did or "act" in claims:
            raise TokenMalformed("a DID can sign only for itself: iss and sub must be the same, without act")
        return did

    def _configured(self, unverified: _Unverified) -> Issuer:
        issuer = self._issuers.get(unverified.issuer)
        if issuer is None:
            raise TokenIssuer("the token's issuer is not among those this gateway trusts")
        if unverified.algorithm not in issuer.algorithms:
            allowed = ", ".join(issuer.algorithms)
            raise TokenSignature(f"the token is not signed in a way its issuer may use ({allowed})")
        return issuer

    def _now(self) -> float:
        return self._clock.epoch_ms() / 1000

    def _remember(self, token: bytes, caller: Caller) -> None:
        left = caller.expires_at - self._clock.epoch_ms() / 1000
        seconds = min(left, self._settings.token_cache_seconds)
        if seconds <= 0:
            return
        # Oldest first out: entries are remembered equally long, so the oldest is the one that dies next.
        while len(self._remembered) >= _MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        digest = hashlib.sha256(token).digest()
        self._remembered.pop(digest, None)
        self._remembered[digest] = (caller, self._clock.monotonic() + seconds)


def check_issuers(settings: Identity) -> None:
    """Every issuer can be used as configured, or one sentence says which cannot and why."""
    names = [issuer.issuer for issuer in settings.issuers]
    for issuer in settings.issuers:
        mistake = _mistake(issuer, names, settings.public_url)
        if mistake:
            raise Misconfigured(f"Issuer {issuer.issuer!r} in [identity]: {mistake}.")


def _mistake(issuer: Issuer, names: list[str], public_url: str | None) -> str | None:
    if names.count(issuer.issuer) > 1:
        return "it is listed twice; keep one entry"
    if issuer.issuer in (PROCESS, TERMINAL):
        return "this gateway calls itself so; its issuer has another name"
    if not issuer.audience:
        return "its audience is empty; set it to the aud of tokens meant for this gateway"
    if public_url is not None and issuer.issuer.startswith(f"{public_url.rstrip('/')}/t/"):
        return "this gateway issues tokens under that name itself; take the entry out"
    if issuer.console_audience is not None and (mistake := _console_mistake(issuer)):
        return mistake
    if issuer.jwks_url is not None and issuer.jwks_file is not None:
        return "set at most one of jwks_url and jwks_file"
    if issuer.jwks_url is None and issuer.jwks_file is None and not _can_be_found(issuer):
        return "its keys cannot be found by this name; set jwks_url or jwks_file"
    if (issuer.tenant is None) == (issuer.tenant_claim is None):
        return "set exactly one of tenant and tenant_claim"
    if issuer.tenant is not None and not is_tenant(issuer.tenant):
        return "its tenant must be lower-case letters, digits, - and _, at most 63 of them"
    if not issuer.algorithms:
        return "it lists no algorithms; leave the setting out to allow all that are safe"
    return None


def _console_mistake(issuer: Issuer) -> str | None:
    if not issuer.console_audience:
        return "its console_audience is empty; take it out, or set it to the aud of tokens people decide with"
    if not issuer.human or issuer.development or is_did(issuer.issuer):
        return "its console_audience is for people who sign in; set human, or take it out"
    return None


def _can_be_found(issuer: Issuer) -> bool:
    """By OpenID discovery at its address, or as the DID it is."""
    if not by_did(issuer):
        return can_be_discovered(issuer.issuer)
    try:
        check_did(issuer.issuer)
    except NotADid:
        return False
    return True


def _peek(token: bytes) -> _Unverified:
    if not token:
        raise TokenMissing("the request carries no bearer token")
    if b"${" in token:
        raise TokenMalformed("the token still contains ${: the client did not fill in a variable")
    if len(token) > MAX_TOKEN_BYTES:
        raise TokenMalformed(f"the token is longer than {MAX_TOKEN_BYTES} bytes")
    form = _FORM.fullmatch(token)
    if form is None:
        raise TokenMalformed("the token does not have the three parts of a JWT")
    header, claims = _json_part(form[1], "header"), _json_part(form[2], "claims")
    issuer, algorithm, key_id = claims.get("iss"), header.get("alg"), header.get("kid")
    if not isinstance(issuer, str):
        raise TokenIssuer("the token does not name its issuer")
    if not isinstance(algorithm, str) or not (key_id is None or isinstance(key_id, str)):
        raise TokenMalformed("the token's header does not say how it was signed")
    return _Unverified(
        algorithm=algorithm,
        key_id=key_id,
        issuer=issuer,
        signed_part=token[: form.end(2)],
        for_apis=_is_for_apis(header),
    )


def _is_for_apis(header: dict[str, Any]) -> bool:
    """Whether the header says that this is an access token; it may say nothing, but nothing else."""
    if "crit" in header:
        raise TokenMalformed("the token has extensions that must be understood, and are not here")
    kind = header.get("typ", _ANY_JWT)
    name = kind.lower().removeprefix("application/") if isinstance(kind, str) else ""
    if name not in (_FOR_APIS, _ANY_JWT):
        raise TokenMalformed("the token's header says that it is something else than an access token")
    return name == _FOR_APIS


def _json_part(part: bytes, name: str) -> dict[str, Any]:
    try:
        text = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
        value = orjson.loads(text)
        # What is said twice is read in two ways by two readers.
        json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise TokenMalformed(f"the token's {name} cannot be read") from None
    if not isinstance(value, dict):
        raise TokenMalformed(f"the token's {name} is not a JSON object")
    return value


def _once(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a name is given twice")


def _verified_claims(token: bytes, key: jwt.PyJWK, issuer: str) -> Claims:
    """What the signature covers, read again from exactly the bytes that were verified."""
    try:
        payload = _SIGNATURES.decode(token, key, algorithms=[key.algorithm_name])
        claims = orjson.loads(payload)
    except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError, jwt.InvalidKeyError) as error:
        raise TokenSignature("the token's signature does not verify") from error
    except (jwt.PyJWTError, ValueError) as error:
        raise TokenMalformed("the token cannot be read") from error
    if not isinstance(claims, dict):
        raise TokenMalformed("the token's claims are not a JSON object")
    if claims.get("iss") != issuer:
        raise TokenIssuer("the token's issuer is not the one its key was chosen for")
    return claims


def _id_of(signed_part: bytes) -> str:
    """Names a token that has no `jti`. The signature is left out: some can be altered and still verify."""
    return "sha256:" + hashlib.sha256(signed_part).hexdigest()[:_ID_LENGTH]
