"""The keys this gateway signs with, one per tenant: made on first use, sealed with the tenant's key, published as a JWK
Set. A tenant's tokens name `{public_url}/t/{tenant}` as their issuer, and verify against that tenant's keys alone.

Above: `tokens.py` verifies with them, `lifecycle/delegate.py` and `credentials.py` sign. Below: the database.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.canonical import canonical
from deputize.core.clock import Clock
from deputize.core.errors import TokenSignature
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Issuer
from deputize.govern.identity.claims import is_tenant
from deputize.govern.identity.discovery import can_be_discovered
from deputize.govern.identity.public_keys import parse_jwks
from deputize.store.keys import KeySet, TenantKeys
from deputize.store.pool import Store
from deputize.store.queries import load

ALGORITHM: Final = "EdDSA"
_BOX = "signing-key"
# A key another process retired is used here for this long at most.
_RENEW_SECONDS = 300.0
# A key id nobody knows makes us look again, but no flood of them more often than this.
_RETRY_SECONDS = 1.0
# Looking costs a connection, and whoever sends tokens of made-up tenants has shown no right to many.
_LOOKS_AT_ONCE = 2
_SQL = load("signing")


@dataclass(frozen=True, kw_only=True, slots=True)
class SigningKey:
    """One tenant's key, ready to sign in that tenant's name."""

    tenant: str
    issuer: str
    audience: str
    kid: str
    private: Ed25519PrivateKey = field(repr=False)

    def sign(self, claims: Mapping[str, Any]) -> str:
        """An access token (RFC 9068) that says these claims and who issued it."""
        said = {**claims, "iss": self.issuer}
        return jwt.encode(said, self.private, algorithm=ALGORITHM, headers={"kid": self.kid, "typ": "at+jwt"})


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """A tenant's keys as they were read at one moment."""

    read_at: float
    public: tuple[dict[str, Any], ...]
    by_id: Mapping[str, jwt.PyJWK]
    sealed: Mapping[str, bytes] = field(repr=False)
    current: str | None


class SigningKeys:
    """Every tenant's keys this process has met."""

    def __init__(self, store: Store, keys: TenantKeys, clock: Clock, *, public_url: str, keep_seconds: int) -> None:
        self.public_url = checked_url(public_url)
        self._store = store
        self._keys = keys
        self._clock = clock
        self._keep_seconds = keep_seconds
        self._known: dict[str, _Known] = {}
        self._opened: dict[str, SigningKey] = {}
        self._looking = asyncio.Semaphore(_LOOKS_AT_ONCE)

    def issuer_of(self, tenant: str) -> str:
        return f"{self.public_url}/t/{tenant}"

    def tenant_of(self, issuer: str) -> str | None:
        """The tenant whose issuer this is, if it is one of ours."""
        start, tenant = f"{self.public_url}/t/", issuer.removeprefix(f"{self.public_url}/t/")
        return tenant if issuer.startswith(start) and is_tenant(tenant) else None

    def as_issuer(self, tenant: str) -> Issuer:
        """How the tokens of one tenant are read: like those of any issuer, for this tenant and this gateway only."""
        return Issuer(issuer=self.issuer_of(tenant), audience=self.public_url, tenant=tenant, algorithms=(ALGORITHM,))

    def ready(self, tenant: str) -> SigningKey | None:
        """The key to sign with, if it is at hand; `current` fetches or makes it."""
        known = self._known.get(tenant)
        if known is None or self._clock.monotonic() - known.read_at > _RENEW_SECONDS:
            return None
        opened = self._opened.get(tenant)
        return opened if opened is not None and opened.kid == known.current else None

    async def current(self, tenant: str) -> SigningKey:
        ready = self.ready(tenant)
        if ready is not None:
            return ready
        known = await self._look(tenant)
        keys = self._keys.ready(tenant) or await self._keys.load(self._store, tenant)
        if known.current is None:
            await self._make(tenant, keys)
            # Only what was read back after its commit is used: another process may have been first.
            known = await self._look(tenant)
        assert known.current is not None
        opened = keys.open(known.current, _BOX, known.sealed[known.current])
        private = Ed25519PrivateKey.from_private_bytes(opened)
        self._opened[tenant] = SigningKey(
            tenant=tenant,
            issuer=self.issuer_of(tenant),
            audience=self.public_url,
            kid=known.current,
            private=private,
        )
        return self._opened[tenant]

    async def public_key(self, tenant: str, key_id: str | None) -> jwt.PyJWK:
        """The key a token of this tenant says it was signed with. A tenant that never signed anything is always looked
        up: its first key may be a moment old and another process's.
        """
        known = self._known.get(tenant)
        if known is None or self._must_look(known, key_id):
            known = await self._look(tenant)
        found = known.by_id.get(key_id or "")
        if found is None:
            raise TokenSignature("the token was signed with a key its issuer does not publish")
        return found

    def _must_look(self, known: _Known, key_id: str | None) -> bool:
        age = self._clock.monotonic() - known.read_at
        return age > (_RENEW_SECONDS if (key_id or "") in known.by_id else _RETRY_SECONDS)

    async def jwks(self, tenant: str) -> dict[str, Any]:
        """What is published for a tenant; of one that never signed anything, and of one nobody knows, no keys."""
        known = self._known.get(tenant)
        if known is None or self._clock.monotonic() - known.read_at > _RETRY_SECONDS:
            known = await self._look(tenant)
        return {"keys": list(known.public)}

    async def _look(self, tenant: str) -> _Known:
        if tenant in self._known:
            return await self._read(tenant)
        async with self._looking:
            return await self._read(tenant)

    async def _read(self, tenant: str) -> _Known:
        async with self._store.reading(tenant) as connection:
            rows = await connection.fetch(_SQL["signing_keys"], tenant, float(self._keep_seconds))
        public = tuple(orjson.loads(row["public_jwk"]) for row in rows)
        keys = parse_jwks(orjson.dumps({"keys": public}), (ALGORITHM,))
        known = _Known(
            read_at=self._clock.monotonic(),
            public=public,
            by_id={key.key_id: key for key in keys if key.key_id is not None},
            sealed={row["kid"]: row["sealed"] for row in rows},
            current=next((row["kid"] for row in rows if row["in_use"]), None),
        )
        if rows:
            self._known[tenant] = known
        return known

    async def _make(self, tenant: str, keys: KeySet) -> None:
        private = Ed25519PrivateKey.from_private_bytes(self._clock.random_bytes(32))
        public = _public_jwk(private)
        sealed = keys.seal(public["kid"], _BOX, private.private_bytes_raw())
        async with self._store.writing() as connection:
            await connection.execute(_SQL["one_maker"], tenant)
            await connection.execute(_SQL["add_signing_key"], tenant, public["kid"], sealed, orjson.dumps(public))


def checked_url(public_url: str) -> str:
    """The gateway's own address, without the slash that would make two names of one issuer."""
    if not can_be_discovered(public_url):
        raise Misconfigured(
            f"identity.public_url is {public_url!r}, which is no address of a gateway: write it like "
            "https://gateway.example.com, without a query."
        )
    return public_url.rstrip("/")


def _public_jwk(private: Ed25519PrivateKey) -> dict[str, str]:
    raw: dict[str, str] = jwt.algorithms.OKPAlgorithm.to_jwk(private.public_key(), as_dict=True)
    jwk = {"crv": raw["crv"], "kty": raw["kty"], "x": raw["x"]}
    # RFC 7638: a key is named by what it is.
    thumbprint = hashlib.sha256(canonical(jwk)).hexdigest()[:32]
    return {**jwk, "alg": ALGORITHM, "use": "sig", "kid": thumbprint}
