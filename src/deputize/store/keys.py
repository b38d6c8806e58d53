"""Manage keys: one master key in a file, one data key per tenant in the database, and the keys derived from them.

The master key wraps data keys; data without a tenant uses a key derived from the master key. A tenant's data key yields
one key per purpose (HKDF) and one encryption key per ciphertext, so no key wears out. `TenantKeys.get` loads a tenant's
keys once; `KeySet` itself does no input or output.
"""

import contextlib
import hashlib
import hmac
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from deputize.core.bounded_dict import BoundedDict
from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.errors import UnsealFailed
from deputize.store.pool import Store
from deputize.store.private_file import read_private_file, write_once
from deputize.store.queries import load_statements
from deputize.store.tenants import ensure_tenant

KEY_BYTES = 32
_NONCE_BYTES = 12
_WRAP_FORMAT = b"\x01"
# Format, flags, key version (4 bytes), nonce, ciphertext. The first six bytes are authenticated too.
_SEAL_FORMAT = 1
_COMPRESSED_FLAG = 1
_HEADER_BYTES = 6
_COMPRESS_ABOVE = 1024
# Far more tenants than one process serves; their keys can be loaded again.
_MAX_TENANTS = 10_000
# From its creation until it encrypts, a new data key is only loaded: every gateway must be able to decrypt with it.
KEY_OVERLAP_SECONDS = 120.0
_SQL = load_statements("keys")


@dataclass(frozen=True, kw_only=True, slots=True)
class MasterKey:
    """The key that wraps all data keys: without it, nothing that was encrypted can be read."""

    material: bytes = field(repr=False)

    @property
    def id(self) -> str:
        """A name for the key that reveals nothing of it: which master key wrapped a data key."""
        return _derive_key(self.material, "master key id")[:8].hex()

    @classmethod
    def read(cls, path: Path) -> "MasterKey":
        """Read the key from its file."""
        remedy = f"create one with: openssl rand -out {path} {KEY_BYTES} && chmod 600 {path}"
        material = read_private_file(path, description="The master key", remedy=remedy)
        if len(material) != KEY_BYTES:
            raise ConfigError(
                f"The master key at {path} has {len(material)} bytes instead of {KEY_BYTES}: "
                f"restore the right file, or, if this database is new, {remedy}."
            )
        return cls(material=material)

    @classmethod
    def read_or_create(cls, path: Path, clock: Clock) -> "MasterKey":
        """Read the key, or create it. For development only: in production, a lost key must not be replaced silently."""
        write_once(path, clock.random_bytes(KEY_BYTES))
        return cls.read(path)

    def wrap(self, tenant: str, version: int, data_key: bytes, clock: Clock) -> bytes:
        """Encrypt a data key."""
        nonce = clock.random_bytes(_NONCE_BYTES)
        ciphertext = AESGCM(self.material).encrypt(nonce, data_key, _build_wrap_context(tenant, version))
        return _WRAP_FORMAT + nonce + ciphertext

    def derive_key(self, purpose: str) -> bytes:
        """Derive a key for data that belongs to no tenant."""
        return _derive_key(self.material, purpose)

    def unwrap(self, tenant: str, version: int, wrapped_key: bytes) -> bytes:
        """Decrypt a data key; raise `UnsealFailed` if it was encrypted with another master key."""
        nonce, ciphertext = wrapped_key[1 : 1 + _NONCE_BYTES], wrapped_key[1 + _NONCE_BYTES :]
        try:
            if wrapped_key[:1] != _WRAP_FORMAT:
                raise ValueError("a wrapped key has an unknown format")
            return AESGCM(self.material).decrypt(nonce, ciphertext, _build_wrap_context(tenant, version))
        except (InvalidTag, ValueError) as error:
            raise UnsealFailed(
                "the keys of this tenant cannot be decrypted with the master key of this gateway",
                advice="Ask the operator to restore the master key of this database (keys.master_file).",
            ) from error


def _build_wrap_context(tenant: str, version: int) -> bytes:
    return f"deputize tenant key\0{tenant}\0{version}".encode()


def _derive_sealing_key(root_key: bytes, context: bytes) -> bytes:
    """Derive an encryption key with keyed BLAKE2b: a pseudorandom function like HMAC, at a third of its cost."""
    return hashlib.blake2b(context, key=root_key, digest_size=KEY_BYTES).digest()


def _derive_key(data_key: bytes, purpose: str) -> bytes:
    info = b"deputize " + purpose.encode()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(data_key)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeySet:
    """The keys of one tenant. Encryption uses the newest data key; decryption uses the one it was encrypted with.

    `fingerprint_key` and `records_key` come from the first data key and never change: across rotations, equal requests
    must have equal fingerprints, and decision records must keep their ids.
    """

    tenant: str
    newest_version: int
    fingerprint_key: bytes = field(repr=False)
    records_key: bytes = field(repr=False)
    clock: Clock = field(repr=False)
    _sealing_keys: Mapping[int, bytes] = field(repr=False)
    _webhook_roots: Mapping[int, bytes] = field(repr=False)

    @classmethod
    def from_data_keys(
        cls, tenant: str, data_keys: Mapping[int, bytes], clock: Clock, *, newest_version: int | None = None
    ) -> "KeySet":
        """Derive the keys of a tenant from its data keys; `newest_version` encrypts, by default the last one."""
        first = data_keys[min(data_keys)]
        return cls(
            tenant=tenant,
            newest_version=newest_version or max(data_keys),
            fingerprint_key=_derive_key(first, "fingerprint"),
            records_key=_derive_key(first, "records"),
            clock=clock,
            _sealing_keys={version: _derive_key(key, "sealing") for version, key in data_keys.items()},
            _webhook_roots={version: _derive_key(key, "webhooks") for version, key in data_keys.items()},
        )

    def derive_webhook_keys(self, name: str, *, callback_host: str | None = None) -> list[bytes]:
        """Derive the keys that sign webhooks, newest first: receivers may still use the previous one.

        `name` is what an operator named: an event sink, or approvals. A callback's name and host are its caller's
        choice, so its keys are others, and those of its host alone: what one receiver got is worth nothing at another.
        """
        # No name of a sink contains the separator.
        message = name if callback_host is None else f"callback\0{name}\0{callback_host}"
        roots = sorted(self._webhook_roots.items(), reverse=True)
        return [hmac.digest(root, message.encode(), "sha256") for _, root in roots]

    def seal(self, call_id: str, kind: str, data: bytes) -> bytes:
        """Encrypt data; it can be decrypted only for the same tenant, call and kind."""
        flags = 0
        if len(data) > _COMPRESS_ABOVE:
            smaller = zlib.compress(data, 1)
            if len(smaller) < len(data):
                flags, data = _COMPRESSED_FLAG, smaller
        header = bytes((_SEAL_FORMAT, flags)) + self.newest_version.to_bytes(4, "big")
        context = self._build_context(header, call_id, kind)
        nonce = self.clock.random_bytes(_NONCE_BYTES)
        key = _derive_sealing_key(self._sealing_keys[self.newest_version], context)
        return header + nonce + AESGCM(key).encrypt(nonce, data, context)

    def unseal(self, call_id: str, kind: str, ciphertext: bytes) -> bytes:
        """Decrypt data; raise `UnsealFailed` if it is damaged or belongs to something else."""
        header, nonce = ciphertext[:_HEADER_BYTES], ciphertext[_HEADER_BYTES : _HEADER_BYTES + _NONCE_BYTES]
        root_key = self._sealing_keys.get(int.from_bytes(header[2:], "big"))
        if len(nonce) != _NONCE_BYTES or header[0] != _SEAL_FORMAT or root_key is None:
            raise UnsealFailed("the stored value is damaged, or its key is missing")
        context = self._build_context(header, call_id, kind)
        key = _derive_sealing_key(root_key, context)
        try:
            data = AESGCM(key).decrypt(nonce, ciphertext[_HEADER_BYTES + _NONCE_BYTES :], context)
            return zlib.decompress(data) if header[1] & _COMPRESSED_FLAG else data
        except (InvalidTag, ValueError, zlib.error) as error:
            raise UnsealFailed("the stored value is damaged, or belongs to something else") from error

    def _build_context(self, header: bytes, call_id: str, kind: str) -> bytes:
        return header + f"{self.tenant}\0{call_id}\0{kind}".encode()


class TenantKeys:
    """The keys of the tenants that this process serves, cached.

    `master` wraps new data keys; `accepted_masters` are other master keys that may have wrapped existing ones, during a
    rotation.
    """

    def __init__(
        self, store: Store, master: MasterKey, clock: Clock, *, accepted_masters: Sequence[MasterKey] = ()
    ) -> None:
        self._store = store
        self._master = master
        self._accepted_masters = tuple(accepted_masters)
        self._clock = clock
        self._key_sets: BoundedDict[str, KeySet] = BoundedDict(_MAX_TENANTS)
        self._refreshed_at = clock.monotonic()

    def find(self, tenant: str) -> KeySet | None:
        """Find the tenant's keys in memory; None if they were not loaded yet."""
        return self._key_sets.get(tenant)

    async def get(self, tenant: str) -> KeySet:
        """Get the tenant's keys from memory, or load them."""
        return self._key_sets.get(tenant) or await self.load(tenant)

    def derive_shared_key(self, purpose: str) -> bytes:
        """Derive a key that all gateways of this database share and no tenant owns."""
        return self._master.derive_key(purpose)

    async def load(self, tenant: str) -> KeySet:
        """Load the tenant's keys, and create the first one if there is none.

        Only keys that were read back after their commit are used: data encrypted with a key whose commit failed could
        never be decrypted.
        """
        rows = await self._read_rows(tenant)
        if not rows:
            new_key = self._master.wrap(tenant, 1, self._clock.random_bytes(KEY_BYTES), self._clock)
            async with self._store.write_transaction() as connection:
                await ensure_tenant(connection, tenant)
                await connection.execute(_SQL["insert_first_tenant_key"], tenant, new_key, self._master.id)
            rows = await self._read_rows(tenant)
        data_keys = {row["version"]: self.unwrap(tenant, row["version"], row["wrapped"]) for row in rows}
        # The first key is active from the start; a later one is known to all gateways before one encrypts with it.
        newest_version = max((row["version"] for row in rows if row["is_active"]), default=min(data_keys))
        key_set = KeySet.from_data_keys(tenant, data_keys, self._clock, newest_version=newest_version)
        return self._key_sets.put(tenant, key_set)

    def unwrap(self, tenant: str, version: int, wrapped_key: bytes) -> bytes:
        """Decrypt a data key with the master key that wrapped it; raise `UnsealFailed` if it is none of these."""
        try:
            return self._master.unwrap(tenant, version, wrapped_key)
        except UnsealFailed:
            for master in self._accepted_masters:
                with contextlib.suppress(UnsealFailed):
                    return master.unwrap(tenant, version, wrapped_key)
            raise

    async def refresh_rotated(self) -> None:
        """Load again the keys of tenants whose key was rotated, so that what others encrypt can be decrypted here.

        Called every few seconds, and so before a new key becomes active, and again once it is.
        """
        now = self._clock.monotonic()
        since_seconds = now - self._refreshed_at + KEY_OVERLAP_SECONDS
        async with self._store.write_transaction() as connection:
            rows = await connection.fetch(_SQL["list_rotated_tenants"], since_seconds)
        self._refreshed_at = now
        for row in rows:
            if self._key_sets.get(row["tenant"]) is not None:
                await self.load(row["tenant"])

    async def _read_rows(self, tenant: str) -> list[asyncpg.Record]:
        async with self._store.read_transaction(tenant) as connection:
            return await connection.fetch(_SQL["load_tenant_keys"], tenant)

    def forget(self, tenant: str) -> None:
        """Drop the tenant's keys from memory, so that they are loaded again."""
        self._key_sets.discard(tenant)
