"""Verify bearer tokens: JWTs of the configured issuers and of this gateway itself.

Interfaces call `get_cached_caller` first, which never waits, and then `verify_caller`; a token exchange calls
`verify_token` and `verify_actor`. `jwks.py`, `signing_keys.py` and `dids.py` supply keys; `claims.py` builds the
caller. Verified callers are cached for a short time, by a hash of the token.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from deputize.core.caller import Caller, compute_decision_cache_key
from deputize.core.clock import Clock
from deputize.core.errors import (
    AuthorityRevoked,
    TokenAudienceMismatch,
    TokenIssuerUntrusted,
    TokenMalformed,
    TokenSignatureInvalid,
)
from deputize.core.settings import IdentitySettings, IssuerSettings
from deputize.core.subject import build_subject, parse_subject
from deputize.govern.identity.claims import (
    OPERATOR_CLIENT_CLAIM,
    Claims,
    apply_origin_trust,
    build_caller,
    build_delegate,
    build_operator_client,
    parse_lifetime,
    require_access_token,
    require_audience,
)
from deputize.govern.identity.dids import ALGORITHMS as DID_ALGORITHMS
from deputize.govern.identity.dids import DidKeys, is_did
from deputize.govern.identity.issuer_checks import check_issuers
from deputize.govern.identity.jwks import IssuerKeys
from deputize.govern.identity.jws import UnverifiedToken, derive_token_id, parse_unverified, verify_claims
from deputize.govern.identity.oidc_discovery import Fetch
from deputize.govern.identity.primary_issuers import choose_primary_issuer, get_subject_issuer
from deputize.govern.identity.signing_keys import ALGORITHM, SigningKeys

# An agent signs its actor token just before the exchange; a longer lifetime would make it a standing credential.
MAX_SELF_SIGNED_SECONDS = 3600
_MAX_CACHED_TOKENS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedToken:
    """A verified token: its caller and all claims."""

    caller: Caller
    claims: Claims


@dataclass(frozen=True, kw_only=True, slots=True)
class Actor:
    """An agent that proved its identity, by an issuer's token, which can be revoked, or by its own DID."""

    name: str
    issuer: str
    subject_issuer: str
    caller: Caller | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class IdToken:
    """A verified ID token, with what is needed to build its caller."""

    claims: Claims
    issuer: IssuerSettings
    fallback_id: str
    leeway: int


class TokenVerifier:
    """Verifies tokens and caches their callers.

    `enrich_caller` adds what the database knows (pseudonyms) before a caller is cached. `find_primary_issuer` returns
    the issuer whose subjects a tenant stores by their bare names; without it, the settings decide. `own_keys` are the
    gateway's signing keys, if it exchanges tokens. `fetch` reaches hosts from the settings, `fetch_outside` hosts of
    agents' DIDs.
    """

    def __init__(
        self,
        settings: IdentitySettings,
        clock: Clock,
        fetch: Fetch,
        *,
        enrich_caller: Callable[[Caller], Awaitable[Caller]] | None = None,
        find_primary_issuer: Callable[[str], Awaitable[str | None]] | None = None,
        own_keys: SigningKeys | None = None,
        fetch_outside: Fetch | None = None,
        get_recovered_at: Callable[[], float | None] = lambda: None,
    ) -> None:
        check_issuers(settings)
        self._own_keys = own_keys
        self._dids = DidKeys(clock, fetch_outside or fetch)
        self._issuers = {issuer.issuer: issuer for issuer in settings.issuers}
        self._operators = {client.client_id: client for client in settings.operators}
        self._keys = {issuer.issuer: IssuerKeys(issuer, clock, fetch) for issuer in settings.issuers}
        self._settings = settings
        self._clock = clock
        self._get_recovered_at = get_recovered_at
        self._cache_recovered_at: float | None = None
        self._enrich_caller = enrich_caller
        self._find_primary_issuer = find_primary_issuer
        self._cache: dict[bytes, tuple[Caller, float]] = {}

    def get_cached_caller(self, token: bytes, *, allow_console_only: bool = False) -> Caller | None:
        """Return the cached caller of a token, or None. Console-only tokens need `allow_console_only`."""
        if self._get_recovered_at() != self._cache_recovered_at:
            # The database was restored: some tokens that were accepted before no longer are.
            self._cache.clear()
            self._cache_recovered_at = self._get_recovered_at()
        entry = self._cache.get(hashlib.sha256(token).digest())
        if entry is None or entry[1] <= self._clock.monotonic() or (entry[0].only_decides and not allow_console_only):
            return None
        return entry[0]

    async def verify_caller(self, token: bytes, *, allow_console_only: bool = False) -> Caller:
        """Return the caller of a token, from the cache if possible, or raise the exact reason for rejecting it."""
        cached_caller = self.get_cached_caller(token, allow_console_only=allow_console_only)
        if cached_caller is not None:
            return cached_caller
        caller = (await self.verify_token(token, allow_console_only=allow_console_only)).caller
        self._cache_caller(token, caller)
        return caller

    async def verify_token(self, token: bytes, *, allow_console_only: bool = False) -> VerifiedToken:
        """Verify a token without the cache, and return its caller and all claims."""
        unverified_token = parse_unverified(token)
        tenant = self._own_keys.parse_tenant(unverified_token.issuer) if self._own_keys is not None else None
        if self._own_keys is not None and tenant is not None:
            if unverified_token.algorithm != ALGORITHM:
                raise TokenSignatureInvalid(f"the token is not signed with {ALGORITHM}, as this gateway's tokens are")
            issuer = self._own_keys.build_issuer(tenant)
            key = await self._own_keys.load_public_key(tenant, unverified_token.key_id)
            claims = verify_claims(token, key, issuer.issuer)
            self._require_known_delegation(claims)
            now, leeway = self._now(), self._settings.leeway_seconds
            if OPERATOR_CLIENT_CLAIM in claims:
                client = self._operators.get(str(claims[OPERATOR_CLIENT_CLAIM]))
                caller = build_operator_client(claims, issuer, client, now=now, leeway=leeway)
            else:
                caller = build_delegate(claims, issuer, now=now, leeway=leeway)
                caller = apply_origin_trust(caller, self._issuers.get(caller.issuer))
        else:
            issuer = self._find_trusted_issuer(unverified_token)
            key = await self._keys[issuer.issuer].get_key(unverified_token.algorithm, unverified_token.key_id)
            claims = verify_claims(token, key, issuer.issuer)
            caller = build_caller(
                claims,
                issuer,
                now=self._now(),
                leeway=self._settings.leeway_seconds,
                fallback_id=derive_token_id(unverified_token.signed_part),
                is_access_token=unverified_token.is_access_token,
            )
        if caller.only_decides and not allow_console_only:
            raise TokenAudienceMismatch(
                "the token is only for deciding approval requests",
                advice="Get a token whose audience is this gateway. This one can only list and decide approvals.",
            )
        caller = await self.qualify_caller(caller)
        if self._enrich_caller is not None:
            caller = await self._enrich_caller(caller)
        return VerifiedToken(caller=caller, claims=claims)

    def _require_known_delegation(self, claims: Claims) -> None:
        """Refuse a token of this gateway from before the database was restored: its delegation may be lost, or the
        revocation of it.
        """
        recovered_at, issued_at = self._get_recovered_at(), claims.get("iat")
        if recovered_at is not None and not (isinstance(issued_at, int | float) and issued_at >= recovered_at):
            raise AuthorityRevoked(
                "the token was issued before the database of this gateway was restored",
                advice="Exchange the original token again.",
            )

    async def verify_actor(self, token: bytes, tenant: str) -> Actor:
        """Verify an actor token and return its agent: the subject of an issuer's token, or a DID that signed it."""
        unverified_token = parse_unverified(token)
        if unverified_token.issuer not in self._issuers and is_did(unverified_token.issuer):
            did = await self._verify_self_signed(token, unverified_token)
            return Actor(name=did, issuer=did, subject_issuer=did)
        caller = (await self.verify_token(token)).caller
        if caller.tenant != tenant:
            raise TokenIssuerUntrusted("the actor token belongs to another tenant")
        if caller.agents:
            raise TokenMalformed("the actor token acts for another subject; it must identify only the agent itself")
        if caller.issuer not in self._issuers:
            raise TokenIssuerUntrusted("the actor token belongs to an operator client, which cannot act for others")
        return Actor(
            name=parse_subject(caller.user)[1],
            issuer=caller.issuer,
            subject_issuer=get_subject_issuer(self._issuers[caller.issuer]),
            caller=caller,
        )

    async def qualify_caller(self, caller: Caller) -> Caller:
        """Name the user and the proven agents of new claims by the issuer they are subjects of."""
        find_primary_issuer = self._find_primary_issuer
        primary_issuer = (
            choose_primary_issuer(self._settings.issuers, caller.tenant)
            if find_primary_issuer is None
            else await find_primary_issuer(caller.tenant)
        )
        caller = replace(
            caller,
            user=build_subject(self._find_subject_issuer(caller.issuer), caller.user, primary_issuer),
            agent_issuers=tuple(self._find_subject_issuer(each) for each in caller.agent_issuers),
            primary_issuer=primary_issuer,
        )
        return replace(caller, decision_cache_key=compute_decision_cache_key(caller))

    async def verify_id_token(self, token: bytes, issuer: str) -> IdToken:
        """Verify an ID token of one issuer. `oidc_login.py` checks its audience and nonce."""
        unverified_token = parse_unverified(token)
        if unverified_token.issuer != issuer or unverified_token.is_access_token:
            raise TokenMalformed("this is not an ID token of the issuer that the sign-in was started at")
        trusted_issuer = self._find_trusted_issuer(unverified_token)
        key = await self._keys[issuer].get_key(unverified_token.algorithm, unverified_token.key_id)
        return IdToken(
            claims=verify_claims(token, key, issuer),
            issuer=trusted_issuer,
            fallback_id=derive_token_id(unverified_token.signed_part),
            leeway=self._settings.leeway_seconds,
        )

    async def _verify_self_signed(self, token: bytes, unverified_token: UnverifiedToken) -> str:
        if self._own_keys is None:
            raise TokenIssuerUntrusted("this gateway does not exchange tokens, so it accepts no token signed by a DID")
        if unverified_token.algorithm not in DID_ALGORITHMS:
            raise TokenSignatureInvalid(f"a DID's token must be signed with one of {', '.join(DID_ALGORITHMS)}")
        did = unverified_token.issuer
        key = await self._dids.get_key(did, unverified_token.algorithm, unverified_token.key_id)
        claims = verify_claims(token, key, did)
        require_access_token(claims, is_access_token=unverified_token.is_access_token)
        require_audience(claims.get("aud"), (self._own_keys.public_url,), did)
        expires_at, _ = parse_lifetime(claims, self._now(), self._settings.leeway_seconds)
        if expires_at > self._now() + MAX_SELF_SIGNED_SECONDS:
            raise TokenMalformed(f"a token signed by its own subject may last at most {MAX_SELF_SIGNED_SECONDS} s")
        if claims.get("sub") != did or "act" in claims:
            raise TokenMalformed("a DID can sign only for itself: iss and sub must be equal, without act")
        return did

    def _find_trusted_issuer(self, unverified_token: UnverifiedToken) -> IssuerSettings:
        issuer = self._issuers.get(unverified_token.issuer)
        if issuer is None:
            raise TokenIssuerUntrusted("this gateway does not trust the token's issuer")
        if unverified_token.algorithm not in issuer.algorithms:
            algorithms = ", ".join(issuer.algorithms)
            raise TokenSignatureInvalid(
                f"the token is not signed with an algorithm allowed for its issuer ({algorithms})"
            )
        return issuer

    def _find_subject_issuer(self, name: str) -> str:
        issuer = self._issuers.get(name)
        return name if issuer is None else get_subject_issuer(issuer)

    def _now(self) -> float:
        return self._clock.epoch_ms() / 1000

    def _cache_caller(self, token: bytes, caller: Caller) -> None:
        seconds_left = caller.expires_at - self._clock.epoch_ms() / 1000
        seconds = min(seconds_left, self._settings.token_cache_seconds)
        if seconds <= 0:
            return
        # Evict the oldest entry: all have about the same lifetime, so it expires next.
        while len(self._cache) >= _MAX_CACHED_TOKENS:
            del self._cache[next(iter(self._cache))]
        digest = hashlib.sha256(token).digest()
        self._cache.pop(digest, None)
        self._cache[digest] = (caller, self._clock.monotonic() + seconds)
