"""Bearer tokens: JWTs of the configured issuers, verified once and remembered for at most 30 seconds.

Above: doors ask `cached` first, which never waits, and `verify` when that knows nothing. Below: `jwks.py` has
the keys, `claims.py` reads what a verified token says. No token is kept, only its hash.
"""

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import jwt
import orjson

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.errors import TokenIssuer, TokenMalformed, TokenMissing, TokenSignature
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Identity, Issuer
from deputize.govern.identity.claims import Claims, caller_of, is_tenant
from deputize.govern.identity.jwks import Fetch, IssuerKeys

MAX_TOKEN_BYTES = 16_384
_MOST_REMEMBERED = 10_000
_ID_LENGTH = 32
# The signature may be empty here, so that an unsigned token is told so instead of being called malformed.
_FORM = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]*)")
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


class TokenVerifier:
    """`complete` may add to a caller what the database knows (its pseudonyms) before it is remembered."""

    def __init__(
        self,
        settings: Identity,
        clock: Clock,
        fetch: Fetch,
        *,
        complete: Callable[[Caller], Awaitable[Caller]] | None = None,
    ) -> None:
        check_issuers(settings)
        self._issuers = {issuer.issuer: issuer for issuer in settings.issuers}
        self._keys = {issuer.issuer: IssuerKeys(issuer, clock, fetch) for issuer in settings.issuers}
        self._settings = settings
        self._clock = clock
        self._complete = complete
        self._remembered: dict[bytes, tuple[Caller, float]] = {}

    def cached(self, token: bytes) -> Caller | None:
        """The caller of a token verified a moment ago."""
        known = self._remembered.get(hashlib.sha256(token).digest())
        if known is None or known[1] <= self._clock.monotonic():
            return None
        return known[0]

    async def verify(self, token: bytes) -> Caller:
        """The caller behind a token, or the exact reason why there is none."""
        known = self.cached(token)
        if known is not None:
            return known
        unverified = _peek(token)
        issuer = self._issuers.get(unverified.issuer)
        if issuer is None:
            raise TokenIssuer("the token's issuer is not among those this gateway trusts")
        if unverified.algorithm not in issuer.algorithms:
            allowed = ", ".join(issuer.algorithms)
            raise TokenSignature(f"the token is not signed in a way its issuer may use ({allowed})")
        key = await self._keys[issuer.issuer].key(unverified.algorithm, unverified.key_id)
        claims = _verified_claims(token, key)
        if claims.get("iss") != issuer.issuer:
            raise TokenIssuer("the token's issuer is not the one its key was chosen for")
        caller = caller_of(
            claims,
            issuer,
            now=self._clock.epoch_ms() / 1000,
            leeway=self._settings.leeway_seconds,
            fallback_id=_id_of(unverified.signed_part),
        )
        if self._complete is not None:
            caller = await self._complete(caller)
        self._remember(token, caller)
        return caller

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
        mistake = _mistake(issuer, names)
        if mistake:
            raise Misconfigured(f"Issuer {issuer.issuer!r} in [identity]: {mistake}.")


def _mistake(issuer: Issuer, names: list[str]) -> str | None:
    if names.count(issuer.issuer) > 1:
        return "it is listed twice; keep one entry"
    if not issuer.audience:
        return "its audience is empty; set it to the aud of tokens meant for this gateway"
    if (issuer.jwks_url is None) == (issuer.jwks_file is None):
        return "set exactly one of jwks_url and jwks_file"
    if (issuer.tenant is None) == (issuer.tenant_claim is None):
        return "set exactly one of tenant and tenant_claim"
    if issuer.tenant is not None and not is_tenant(issuer.tenant):
        return "its tenant must be lower-case letters, digits, - and _, at most 63 of them"
    if not issuer.algorithms:
        return "it lists no algorithms; leave the setting out to allow all that are safe"
    return None


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
    signed_part = token[: form.end(2)]
    return _Unverified(algorithm=algorithm, key_id=key_id, issuer=issuer, signed_part=signed_part)


def _json_part(part: bytes, name: str) -> dict[str, Any]:
    try:
        value = orjson.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    except ValueError:
        raise TokenMalformed(f"the token's {name} cannot be read") from None
    if not isinstance(value, dict):
        raise TokenMalformed(f"the token's {name} is not a JSON object")
    return value


def _verified_claims(token: bytes, key: jwt.PyJWK) -> Claims:
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
    return claims


def _id_of(signed_part: bytes) -> str:
    """Names a token that has no `jti`. The signature is left out: some can be altered and still verify."""
    return "sha256:" + hashlib.sha256(signed_part).hexdigest()[:_ID_LENGTH]
