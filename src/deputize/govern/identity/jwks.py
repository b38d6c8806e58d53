"""An issuer's public keys, wherever it publishes them: kept, renewed, looked up again for an unknown key id.

Above: `tokens.py`. Below: the one egress client, handed in as `fetch`.
"""

import asyncio
from collections.abc import Iterable
from urllib.parse import urlsplit

import jwt

from deputize.core.clock import Clock
from deputize.core.errors import Problem, TokenSignature, Unavailable
from deputize.core.settings import Issuer
from deputize.govern.identity.dids import is_did, key_name, resolve, web_host
from deputize.govern.identity.discovery import Fetch, find_jwks_url
from deputize.govern.identity.public_keys import parse_jwks

# A token with an unknown key id may make us look again, but no flood of them more often than this.
RETRY_SECONDS = 30.0
# While there are no keys at all, every call fails: look sooner.
FIRST_RETRY_SECONDS = 1.0
# A key its issuer has withdrawn stops working after this long.
RENEW_SECONDS = 300.0
# An issuer that cannot be reached does not take the gateway with it, but not for ever.
LAST_SECONDS = 86_400.0

_UNREADABLE = "the keys of the token's issuer cannot be read at the moment"


class IssuerKeys:
    """The keys of one issuer, usable only with the algorithms it may use."""

    def __init__(self, issuer: Issuer, clock: Clock, fetch: Fetch) -> None:
        self._issuer = issuer
        self._clock = clock
        self._fetch = fetch
        self._keys: tuple[jwt.PyJWK, ...] | None = None
        self._loaded_at = float("-inf")
        self._tried_at = float("-inf")
        self._loading = asyncio.Lock()

    async def key(self, algorithm: str, key_id: str | None) -> jwt.PyJWK:
        """The key a token says it was signed with; None means the token does not say."""
        if by_did(self._issuer):
            key_id = key_name(self._issuer.issuer, key_id)
        await self._renew()
        found = self._find(algorithm, key_id)
        if found is None and self._may_try(RETRY_SECONDS):
            await self._load_once()
            found = self._find(algorithm, key_id)
        if found is None:
            raise TokenSignature("the token was signed with a key its issuer does not publish")
        return found

    async def _renew(self) -> None:
        age = self._clock.monotonic() - self._loaded_at
        if self._keys is None or age > LAST_SECONDS:
            if self._may_try(FIRST_RETRY_SECONDS) or self._loading.locked():
                await self._load_once()
            if self._keys is None or self._clock.monotonic() - self._loaded_at > LAST_SECONDS:
                raise Unavailable(_UNREADABLE)
        elif age > RENEW_SECONDS and self._may_try(RETRY_SECONDS) and not self._loading.locked():
            # One caller waits for the new keys; the others go on with the old ones.
            await self._load_once()

    def _may_try(self, interval: float) -> bool:
        return self._clock.monotonic() - self._tried_at >= interval

    def _find(self, algorithm: str, key_id: str | None) -> jwt.PyJWK | None:
        fitting = [key for key in self._keys or () if key.algorithm_name == algorithm]
        if key_id is not None:
            return next((key for key in fitting if key.key_id == key_id), None)
        return fitting[0] if len(fitting) == 1 else None

    async def _load_once(self) -> None:
        """Whoever waited while another was loading uses what that one brought."""
        seen = self._tried_at
        async with self._loading:
            if self._tried_at != seen:
                return
            try:
                self._keys = await read_keys(self._issuer, self._fetch)
                self._tried_at = self._loaded_at = self._clock.monotonic()
            except (Problem, OSError, ValueError) as error:
                self._tried_at = self._clock.monotonic()
                if self._keys is None:
                    raise Unavailable(_UNREADABLE) from error


def by_did(issuer: Issuer) -> bool:
    """Whether an issuer's keys are those of the DID it is named by."""
    return is_did(issuer.issuer) and issuer.jwks_url is None and issuer.jwks_file is None


async def read_keys(issuer: Issuer, fetch: Fetch) -> tuple[jwt.PyJWK, ...]:
    """The issuer's keys as published now: in its file, at its URL, by its DID, or where its own document says."""
    if issuer.jwks_file is not None:
        return parse_jwks(await asyncio.to_thread(issuer.jwks_file.read_bytes), issuer.algorithms)
    if by_did(issuer):
        return tuple(key for key in await resolve(issuer.issuer, fetch) if key.algorithm_name in issuer.algorithms)
    url = issuer.jwks_url or await find_jwks_url(issuer.issuer, fetch)
    return parse_jwks(await fetch(url), issuer.algorithms)


def hosts_of(issuers: Iterable[Issuer]) -> frozenset[str]:
    """The hosts an operator named by naming issuers: where their keys, or the documents that lead to them, lie."""
    named = (
        web_host(each.issuer) if by_did(each) else urlsplit(each.jwks_url or each.issuer).hostname
        for each in issuers
        if each.jwks_file is None
    )
    return frozenset(host for host in named if host)
