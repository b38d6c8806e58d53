"""An issuer's public keys, from a file or a URL: kept, renewed, looked up again for an unknown key id.

Above: `tokens.py`. Below: the one egress client, handed in as `fetch`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import jwt
import orjson

from deputize.core.clock import Clock
from deputize.core.errors import Problem, TokenSignature, Unavailable
from deputize.core.settings import Issuer

Fetch = Callable[[str], Awaitable[bytes]]

# A token with an unknown key id may make us look again, but no flood of them more often than this.
RETRY_SECONDS = 30.0
# While there are no keys at all, every call fails: look sooner.
FIRST_RETRY_SECONDS = 1.0
# A key its issuer has withdrawn stops working after this long.
RENEW_SECONDS = 300.0
# An issuer that cannot be reached does not take the gateway with it, but not for ever.
LAST_SECONDS = 86_400.0

_UNREADABLE = "the keys of the token's issuer cannot be read at the moment"
_MAX_KEYS = 100
_FAMILIES = {"RS256": ("RSA", None), "ES256": ("EC", "P-256"), "EdDSA": ("OKP", "Ed25519")}
_PUBLIC_PARTS = frozenset({"kty", "crv", "x", "y", "n", "e", "kid"})


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
                self._keys = parse_jwks(await self._read(), self._issuer.algorithms)
                self._tried_at = self._loaded_at = self._clock.monotonic()
            except (Problem, OSError, ValueError) as error:
                self._tried_at = self._clock.monotonic()
                if self._keys is None:
                    raise Unavailable(_UNREADABLE) from error

    async def _read(self) -> bytes:
        if self._issuer.jwks_file is not None:
            return await asyncio.to_thread(self._issuer.jwks_file.read_bytes)
        return await self._fetch(self._issuer.jwks_url or "")


def parse_jwks(document: bytes, algorithms: tuple[str, ...]) -> tuple[jwt.PyJWK, ...]:
    """The signing keys in a JWK Set that fit the algorithms; others are passed over, as RFC 7517 asks."""
    parsed = orjson.loads(document)
    listed = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(listed, list):
        raise ValueError("this is not a JWK Set")
    keys = (_usable(entry, algorithms) for entry in listed[:_MAX_KEYS] if isinstance(entry, dict))
    return tuple(key for key in keys if key is not None)


def _usable(entry: dict[str, Any], algorithms: tuple[str, ...]) -> jwt.PyJWK | None:
    family = (entry.get("kty"), entry.get("crv"))
    algorithm = next((name for name in algorithms if _FAMILIES[name] == family), None)
    if algorithm is None or entry.get("alg", algorithm) != algorithm or entry.get("use", "sig") != "sig":
        return None
    # Only the public parts: a private key left in a file by mistake is not read into memory.
    public = {part: value for part, value in entry.items() if part in _PUBLIC_PARTS}
    try:
        return jwt.PyJWK(public, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
