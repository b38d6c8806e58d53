"""Keys: one master key in a file, one data key per tenant in the database, and what is derived from it.

The master key wraps data keys; what belongs to no tenant has a key derived from it. From a tenant's data key come one
key per purpose (HKDF) and, for sealing, one key per box, so no number of boxes wears a key out. The lifecycle asks
`ready` on its way and awaits `load` once per tenant; `KeySet` itself does no I/O.
"""

import hashlib
import hmac
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from deputize.core.clock import Clock
from deputize.core.errors import SealBroken
from deputize.core.mistakes import Misconfigured
from deputize.store.pool import Store
from deputize.store.private_file import read_private, write_once
from deputize.store.queries import load
from deputize.store.tenants import ensure_tenant

KEY_BYTES = 32
_NONCE_BYTES = 12
_WRAP_FORMAT = b"\x01"
# A box: format, flags, key version (4 bytes), nonce, ciphertext. The first six bytes are authenticated too.
_BOX_FORMAT = 1
_COMPRESSED = 1
_HEADER_BYTES = 6
_COMPRESS_ABOVE = 1024
_SQL = load("keys")


@dataclass(frozen=True, kw_only=True, slots=True)
class MasterKey:
    """Wraps tenants' data keys. Whoever loses it loses everything sealed; whoever leaks it leaks it."""

    material: bytes = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> "MasterKey":
        remedy = f"make one with: openssl rand -out {path} {KEY_BYTES} && chmod 600 {path}"
        material = read_private(path, what="The master key", remedy=remedy)
        if len(material) != KEY_BYTES:
            raise Misconfigured(
                f"The master key at {path} has {len(material)} bytes instead of {KEY_BYTES}: "
                f"restore the right file, or, if nothing was sealed yet, {remedy}."
            )
        return cls(material=material)

    @classmethod
    def read_or_create(cls, path: Path, clock: Clock) -> "MasterKey":
        """For development only: a gateway that serves must never invent the key its data depends on."""
        write_once(path, clock.random_bytes(KEY_BYTES))
        return cls.read(path)

    def wrap(self, tenant: str, version: int, data_key: bytes, clock: Clock) -> bytes:
        nonce = clock.random_bytes(_NONCE_BYTES)
        sealed = AESGCM(self.material).encrypt(nonce, data_key, _wrap_context(tenant, version))
        return _WRAP_FORMAT + nonce + sealed

    def derived(self, purpose: str) -> bytes:
        """A key for what belongs to no tenant."""
        return _derive(self.material, purpose)

    def unwrap(self, tenant: str, version: int, wrapped: bytes) -> bytes:
        nonce, sealed = wrapped[1 : 1 + _NONCE_BYTES], wrapped[1 + _NONCE_BYTES :]
        try:
            if wrapped[:1] != _WRAP_FORMAT:
                raise ValueError("unknown format of a wrapped key")
            return AESGCM(self.material).decrypt(nonce, sealed, _wrap_context(tenant, version))
        except (InvalidTag, ValueError) as error:
            raise SealBroken(
                "the keys of this tenant cannot be opened with the master key of this gateway",
                advice="Whoever runs this gateway must restore the master key this database was used with.",
            ) from error


def _wrap_context(tenant: str, version: int) -> bytes:
    return f"deputize tenant key\0{tenant}\0{version}".encode()


def _box_key(sealing: bytes, context: bytes) -> bytes:
    """Keyed BLAKE2b: a pseudorandom function like HMAC, at a third of its price here."""
    return hashlib.blake2b(context, key=sealing, digest_size=KEY_BYTES).digest()


def _derive(data_key: bytes, purpose: str) -> bytes:
    info = b"deputize " + purpose.encode()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(data_key)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeySet:
    """What one tenant's data keys are used for. New boxes get the newest key, old ones open with theirs.

    `fingerprint` and `records` come from the first key and stay: a request must compare equal, and a decision's record
    keep its name, across rotations.
    """

    tenant: str
    newest: int
    fingerprint: bytes = field(repr=False)
    records: bytes = field(repr=False)
    clock: Clock = field(repr=False)
    _sealing: Mapping[int, bytes] = field(repr=False)
    _webhooks: Mapping[int, bytes] = field(repr=False)

    @classmethod
    def of(cls, tenant: str, data_keys: Mapping[int, bytes], clock: Clock) -> "KeySet":
        first = data_keys[min(data_keys)]
        return cls(
            tenant=tenant,
            newest=max(data_keys),
            fingerprint=_derive(first, "fingerprint"),
            records=_derive(first, "records"),
            clock=clock,
            _sealing={version: _derive(key, "sealing") for version, key in data_keys.items()},
            _webhooks={version: _derive(key, "webhooks") for version, key in data_keys.items()},
        )

    def webhook_keys(self, name: str) -> list[bytes]:
        """What callbacks of this name are signed with, newest first: receivers may still hold the one before."""
        roots = sorted(self._webhooks.items(), reverse=True)
        return [hmac.digest(root, name.encode(), "sha256") for _, root in roots]

    def seal(self, call_id: str, kind: str, data: bytes) -> bytes:
        """The box can be opened only as what it was sealed as: this tenant's, this call's, of this kind."""
        flags = 0
        if len(data) > _COMPRESS_ABOVE:
            smaller = zlib.compress(data, 1)
            if len(smaller) < len(data):
                flags, data = _COMPRESSED, smaller
        header = bytes((_BOX_FORMAT, flags)) + self.newest.to_bytes(4, "big")
        context = self._context(header, call_id, kind)
        nonce = self.clock.random_bytes(_NONCE_BYTES)
        key = _box_key(self._sealing[self.newest], context)
        return header + nonce + AESGCM(key).encrypt(nonce, data, context)

    def open(self, call_id: str, kind: str, box: bytes) -> bytes:
        header, nonce = box[:_HEADER_BYTES], box[_HEADER_BYTES : _HEADER_BYTES + _NONCE_BYTES]
        sealing = self._sealing.get(int.from_bytes(header[2:], "big"))
        if len(nonce) != _NONCE_BYTES or header[0] != _BOX_FORMAT or sealing is None:
            raise SealBroken("the stored original is damaged, or its key is not here")
        context = self._context(header, call_id, kind)
        key = _box_key(sealing, context)
        try:
            data = AESGCM(key).decrypt(nonce, box[_HEADER_BYTES + _NONCE_BYTES :], context)
            return zlib.decompress(data) if header[1] & _COMPRESSED else data
        except (InvalidTag, ValueError, zlib.error) as error:
            raise SealBroken("the stored original is damaged, or belongs to something else") from error

    def _context(self, header: bytes, call_id: str, kind: str) -> bytes:
        return header + f"{self.tenant}\0{call_id}\0{kind}".encode()


class TenantKeys:
    """Every tenant's keys this process has met. Grows by one small entry per tenant served here."""

    def __init__(self, master: MasterKey, clock: Clock) -> None:
        self._master = master
        self._clock = clock
        self._loaded: dict[str, KeySet] = {}

    def ready(self, tenant: str) -> KeySet | None:
        return self._loaded.get(tenant)

    def of_no_tenant(self, purpose: str) -> bytes:
        """The key of something that every gateway of this database shares and no tenant owns."""
        return self._master.derived(purpose)

    async def load(self, store: Store, tenant: str) -> KeySet:
        """Reads the tenant's keys, making the first one if there is none; later calls see keys added since.

        Only what was read back after its commit is used: a key whose commit failed would seal for nobody.
        """
        wrapped = await self._read(store, tenant)
        if not wrapped:
            fresh = self._master.wrap(tenant, 1, self._clock.random_bytes(KEY_BYTES), self._clock)
            async with store.writing() as connection:
                await ensure_tenant(connection, tenant)
                await connection.execute(_SQL["add_first_tenant_key"], tenant, fresh)
            wrapped = await self._read(store, tenant)
        data_keys = {version: self._master.unwrap(tenant, version, key) for version, key in wrapped.items()}
        keys = self._loaded[tenant] = KeySet.of(tenant, data_keys, self._clock)
        return keys

    async def _read(self, store: Store, tenant: str) -> dict[int, bytes]:
        async with store.reading(tenant) as connection:
            rows = await connection.fetch(_SQL["tenant_keys"], tenant)
        return {row["version"]: row["wrapped"] for row in rows}

    def forget(self, tenant: str) -> None:
        self._loaded.pop(tenant, None)
