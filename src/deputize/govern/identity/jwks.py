"""Load and cache an issuer's public keys, and reload them for an unknown key id.

`fetch` is the one egress client.
"""

import asyncio
from collections.abc import Iterable
from urllib.parse import urlsplit

import jwt

from deputize.core.clock import Clock
from deputize.core.errors import Problem, TokenSignatureInvalid, Unavailable
from deputize.core.settings import IssuerSettings
from deputize.govern.identity.dids import is_did, parse_web_host, qualify_key_id, resolve_did
from deputize.govern.identity.oidc_discovery import Fetch, find_jwks_url
from deputize.govern.identity.public_keys import parse_jwks

# Tokens with an unknown key id cause a reload, at most this often.
RETRY_SECONDS = 30.0
# Shorter while there are no keys at all, because every call fails.
FIRST_RETRY_SECONDS = 1.0
# A key that its issuer withdrew stops working after this long.
RENEW_SECONDS = 300.0
# While an issuer is unreachable, its keys stay usable for this long.
MAX_AGE_SECONDS = 86_400.0

_KEYS_UNAVAILABLE = "the keys of the token's issuer cannot be fetched at the moment"


class IssuerKeys:
    """The keys of one issuer, usable only with its allowed algorithms."""

    def __init__(self, issuer: IssuerSettings, clock: Clock, fetch: Fetch) -> None:
        self._issuer = issuer
        self._clock = clock
        self._fetch = fetch
        self._keys: tuple[jwt.PyJWK, ...] | None = None
        self._loaded_at = float("-inf")
        self._tried_at = float("-inf")
        self._load_lock = asyncio.Lock()

    async def get_key(self, algorithm: str, key_id: str | None) -> jwt.PyJWK:
        """Return the key that a token names. Without a key id, the issuer must have exactly one key that fits."""
        if has_did_keys(self._issuer):
            key_id = qualify_key_id(self._issuer.issuer, key_id)
        await self._renew()
        jwk = self._find_key(algorithm, key_id)
        if jwk is None and self._can_retry(RETRY_SECONDS):
            await self._load_once()
            jwk = self._find_key(algorithm, key_id)
        if jwk is None:
            raise TokenSignatureInvalid("the token is signed with a key that its issuer does not publish")
        return jwk

    async def _renew(self) -> None:
        age = self._clock.monotonic() - self._loaded_at
        if self._keys is None or age > MAX_AGE_SECONDS:
            if self._can_retry(FIRST_RETRY_SECONDS) or self._load_lock.locked():
                await self._load_once()
            if self._keys is None or self._clock.monotonic() - self._loaded_at > MAX_AGE_SECONDS:
                raise Unavailable(_KEYS_UNAVAILABLE)
        elif age > RENEW_SECONDS and self._can_retry(RETRY_SECONDS) and not self._load_lock.locked():
            # One caller waits for the new keys; the others continue with the old ones.
            await self._load_once()

    def _can_retry(self, interval: float) -> bool:
        return self._clock.monotonic() - self._tried_at >= interval

    def _find_key(self, algorithm: str, key_id: str | None) -> jwt.PyJWK | None:
        candidates = [key for key in self._keys or () if key.algorithm_name == algorithm]
        if key_id is not None:
            return next((key for key in candidates if key.key_id == key_id), None)
        return candidates[0] if len(candidates) == 1 else None

    async def _load_once(self) -> None:
        """Load the keys, or reuse the result of a load that finished while this call waited."""
        last_tried_at = self._tried_at
        async with self._load_lock:
            if self._tried_at != last_tried_at:
                return
            try:
                self._keys = await read_keys(self._issuer, self._fetch)
                self._tried_at = self._loaded_at = self._clock.monotonic()
            except (Problem, OSError, ValueError) as error:
                self._tried_at = self._clock.monotonic()
                if self._keys is None:
                    raise Unavailable(_KEYS_UNAVAILABLE) from error


def has_did_keys(issuer: IssuerSettings) -> bool:
    """Tell whether an issuer's keys come from the DID that is its name."""
    return is_did(issuer.issuer) and issuer.jwks_url is None and issuer.jwks_file is None


async def read_keys(issuer: IssuerSettings, fetch: Fetch) -> tuple[jwt.PyJWK, ...]:
    """Read the issuer's current keys from its file, its URL, its DID or its discovery document."""
    if issuer.jwks_file is not None:
        return parse_jwks(await asyncio.to_thread(issuer.jwks_file.read_bytes), issuer.algorithms)
    if has_did_keys(issuer):
        return tuple(key for key in await resolve_did(issuer.issuer, fetch) if key.algorithm_name in issuer.algorithms)
    url = issuer.jwks_url or await find_jwks_url(issuer.issuer, fetch)
    return parse_jwks(await fetch(url), issuer.algorithms)


def list_issuer_hosts(issuers: Iterable[IssuerSettings]) -> frozenset[str]:
    """List the hosts that serve the issuers' keys or discovery documents."""
    hosts = (
        parse_web_host(each.issuer) if has_did_keys(each) else urlsplit(each.jwks_url or each.issuer).hostname
        for each in issuers
        if each.jwks_file is None
    )
    return frozenset(host for host in hosts if host)
