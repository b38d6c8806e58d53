"""Manage the gateway's signing keys, one per tenant: created on first use, sealed, and published as a JWK Set.

A tenant's tokens have the issuer `{public_url}/t/{tenant}` and verify only with that tenant's keys. `token_verifier.py`
verifies with them; `operations/admin/delegations.py` and `lifecycle/credentials` sign.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.canonical import canonicalize
from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.errors import TokenSignatureInvalid
from deputize.core.settings import IssuerSettings
from deputize.govern.identity.claims import is_tenant_name
from deputize.govern.identity.oidc_discovery import is_discoverable
from deputize.govern.identity.public_keys import parse_jwks
from deputize.store.keys import KeySet, TenantKeys
from deputize.store.pool import Connection, Store
from deputize.store.queries import load_statements

ALGORITHM: Final = "EdDSA"
_SEAL_PURPOSE = "signing-key"
# A key that another process retired is used here for at most this long.
_RENEW_SECONDS = 300.0
# A retired key verifies this much longer than the longest token lasts: processes that know it not to be retired sign
# with it a little longer, and clocks differ.
_RETIRED_MARGIN_SECONDS = _RENEW_SECONDS + 120
# Tokens with an unknown key id cause a reload, at most this often.
_RETRY_SECONDS = 1.0
# A load takes a connection, and tokens of invented tenants cause loads before any authentication.
_MAX_CONCURRENT_LOADS = 2
_SQL = load_statements("signing")


@dataclass(frozen=True, kw_only=True, slots=True)
class SigningKey:
    """One tenant's private key, with the issuer and audience of its tokens."""

    tenant: str
    issuer: str
    audience: str
    kid: str
    private: Ed25519PrivateKey = field(repr=False)

    def sign(self, claims: Mapping[str, Any]) -> str:
        """Sign an access token (RFC 9068) with these claims and the issuer."""
        token_claims = {**claims, "iss": self.issuer}
        return jwt.encode(token_claims, self.private, algorithm=ALGORITHM, headers={"kid": self.kid, "typ": "at+jwt"})


@dataclass(frozen=True, kw_only=True, slots=True)
class _KeySnapshot:
    """A tenant's keys as loaded at one time."""

    loaded_at: float
    public: tuple[dict[str, Any], ...]
    keys_by_id: Mapping[str, jwt.PyJWK]
    ciphertexts: Mapping[str, bytes] = field(repr=False)
    current: str | None


class SigningKeys:
    """The signing keys of all tenants that this process has used."""

    def __init__(self, store: Store, keys: TenantKeys, clock: Clock, *, public_url: str, keep_seconds: int) -> None:
        self.public_url = normalize_public_url(public_url)
        self._store = store
        self._keys = keys
        self._clock = clock
        self._keep_seconds = keep_seconds
        self._snapshots: dict[str, _KeySnapshot] = {}
        self._signing_keys: dict[str, SigningKey] = {}
        self._load_slots = asyncio.Semaphore(_MAX_CONCURRENT_LOADS)

    def build_issuer_name(self, tenant: str) -> str:
        return f"{self.public_url}/t/{tenant}"

    def parse_tenant(self, issuer: str) -> str | None:
        """Return the tenant of an issuer name, or None if this gateway is not the issuer."""
        prefix, tenant = f"{self.public_url}/t/", issuer.removeprefix(f"{self.public_url}/t/")
        return tenant if issuer.startswith(prefix) and is_tenant_name(tenant) else None

    def build_issuer(self, tenant: str) -> IssuerSettings:
        """Build issuer settings for a tenant's own tokens, valid for this tenant and this gateway only."""
        return IssuerSettings(
            issuer=self.build_issuer_name(tenant), audience=self.public_url, tenant=tenant, algorithms=(ALGORITHM,)
        )

    def get_ready_key(self, tenant: str) -> SigningKey | None:
        """Return the signing key if it is in memory; otherwise use `load_current_key`."""
        snapshot = self._snapshots.get(tenant)
        if snapshot is None or self._clock.monotonic() - snapshot.loaded_at > _RENEW_SECONDS:
            return None
        signing_key = self._signing_keys.get(tenant)
        return signing_key if signing_key is not None and signing_key.kid == snapshot.current else None

    async def load_current_key(self, tenant: str) -> SigningKey:
        """Load a tenant's signing key, or create it on first use."""
        ready_key = self.get_ready_key(tenant)
        if ready_key is not None:
            return ready_key
        snapshot = await self._load_snapshot(tenant)
        keys = await self._keys.get(tenant)
        if snapshot.current is None:
            await self._create_key(tenant, keys)
            # Use only the key that is read back after the commit: another process may have created one first.
            snapshot = await self._load_snapshot(tenant)
        assert snapshot.current is not None
        private_bytes = keys.unseal(snapshot.current, _SEAL_PURPOSE, snapshot.ciphertexts[snapshot.current])
        private = Ed25519PrivateKey.from_private_bytes(private_bytes)
        self._signing_keys[tenant] = SigningKey(
            tenant=tenant,
            issuer=self.build_issuer_name(tenant),
            audience=self.public_url,
            kid=snapshot.current,
            private=private,
        )
        return self._signing_keys[tenant]

    async def load_public_key(self, tenant: str, key_id: str | None) -> jwt.PyJWK:
        """Return the public key that a token of this tenant names.

        A tenant without keys is always loaded again, because another process may just have created its first key.
        """
        snapshot = self._snapshots.get(tenant)
        if snapshot is None or self._should_reload(snapshot, key_id):
            snapshot = await self._load_snapshot(tenant)
        key = snapshot.keys_by_id.get(key_id or "")
        if key is None:
            raise TokenSignatureInvalid("the token is signed with a key that its issuer does not publish")
        return key

    def _should_reload(self, snapshot: _KeySnapshot, key_id: str | None) -> bool:
        age = self._clock.monotonic() - snapshot.loaded_at
        return age > (_RENEW_SECONDS if (key_id or "") in snapshot.keys_by_id else _RETRY_SECONDS)

    async def load_jwks(self, tenant: str) -> dict[str, Any]:
        """Return a tenant's JWK Set; it is empty for a tenant without keys and for an unknown tenant."""
        snapshot = self._snapshots.get(tenant)
        if snapshot is None or self._clock.monotonic() - snapshot.loaded_at > _RETRY_SECONDS:
            snapshot = await self._load_snapshot(tenant)
        return {"keys": list(snapshot.public)}

    async def _load_snapshot(self, tenant: str) -> _KeySnapshot:
        if tenant in self._snapshots:
            return await self._read_snapshot(tenant)
        async with self._load_slots:
            return await self._read_snapshot(tenant)

    async def _read_snapshot(self, tenant: str) -> _KeySnapshot:
        async with self._store.read_transaction(tenant) as connection:
            rows = await connection.fetch(
                _SQL["list_signing_keys"], tenant, compute_retired_seconds(self._keep_seconds)
            )
        public = tuple(orjson.loads(row["public_jwk"]) for row in rows)
        keys = parse_jwks(orjson.dumps({"keys": public}), (ALGORITHM,))
        snapshot = _KeySnapshot(
            loaded_at=self._clock.monotonic(),
            public=public,
            keys_by_id={key.key_id: key for key in keys if key.key_id is not None},
            ciphertexts={row["kid"]: row["sealed"] for row in rows},
            current=next((row["kid"] for row in rows if row["in_use"]), None),
        )
        if rows:
            self._snapshots[tenant] = snapshot
        return snapshot

    async def _create_key(self, tenant: str, keys: KeySet) -> None:
        async with self._store.write_transaction() as connection:
            await connection.execute(_SQL["lock_signing_key_creation"], tenant)
            await _insert_key(connection, keys, self._clock)


async def rotate_signing_key(connection: Connection, keys: KeySet, clock: Clock) -> str:
    """Replace a tenant's signing key and return the new one's id. The old one verifies until its tokens expire."""
    await connection.execute(_SQL["lock_signing_key_creation"], keys.tenant)
    await connection.execute(_SQL["retire_signing_keys"], keys.tenant)
    return await _insert_key(connection, keys, clock)


async def list_signing_keys(connection: Connection, keep_seconds: int) -> list[dict[str, Any]]:
    """List the signing keys of all tenants that sign or still verify."""
    return [
        {
            "tenant": row["tenant"],
            "kid": row["kid"],
            "state": "signs" if row["retired_at"] is None else "verifies",
            "verifies_until": None
            if row["verifies_until"] is None
            else row["verifies_until"].isoformat(timespec="seconds"),
        }
        for row in await connection.fetch(_SQL["list_signing_key_states"], compute_retired_seconds(keep_seconds))
    ]


def compute_retired_seconds(keep_seconds: int) -> float:
    """Compute how long a retired key verifies: until every token it signed has expired."""
    return keep_seconds + _RETIRED_MARGIN_SECONDS


async def _insert_key(connection: Connection, keys: KeySet, clock: Clock) -> str:
    private = Ed25519PrivateKey.from_private_bytes(clock.random_bytes(32))
    public = _build_public_jwk(private)
    ciphertext = keys.seal(public["kid"], _SEAL_PURPOSE, private.private_bytes_raw())
    await connection.execute(_SQL["insert_signing_key"], keys.tenant, public["kid"], ciphertext, orjson.dumps(public))
    return public["kid"]


def normalize_public_url(public_url: str) -> str:
    """Check the gateway's public URL and remove a trailing slash, so that an issuer has one name."""
    if not is_discoverable(public_url):
        raise ConfigError(
            f"identity.public_url is {public_url!r}, which is not a valid URL: write it like "
            "https://gateway.example.com, without a query."
        )
    return public_url.rstrip("/")


def _build_public_jwk(private: Ed25519PrivateKey) -> dict[str, str]:
    raw: dict[str, str] = jwt.algorithms.OKPAlgorithm.to_jwk(private.public_key(), as_dict=True)
    jwk = {"crv": raw["crv"], "kty": raw["kty"], "x": raw["x"]}
    # RFC 7638: the key id is a thumbprint of the key.
    thumbprint = hashlib.sha256(canonicalize(jwk)).hexdigest()[:32]
    return {**jwk, "alg": ALGORITHM, "use": "sig", "kid": thumbprint}
