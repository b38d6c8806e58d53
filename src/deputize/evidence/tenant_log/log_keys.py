"""Manage the keys of tenants' logs: created with a log's first checkpoint, sealed, and published as verifier keys.

The name of a key is the name of its log (its origin). It stays the same when keys are rotated, when the gateway gets
another address and when the tenant moves.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.clock import Clock
from deputize.core.errors import Unavailable
from deputize.evidence.log.signed_note import NoteSigner, VerifierKey
from deputize.store.keys import KeySet
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

SEAL_PURPOSE: Final = "log-key"
OVERLAP_SECONDS: Final = 7 * 86_400.0
_SQL = load_statements("log")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredLogKey:
    """A key of a log as it is stored."""

    key_id: str
    verifier_key_text: str
    signs: bool
    ciphertext: bytes = field(repr=False)

    @property
    def verifier_key(self) -> VerifierKey:
        """The public half; raises `InvalidNote` if someone changed it, which concerns no other log."""
        return VerifierKey.parse(self.verifier_key_text)

    def open(self, keys: KeySet) -> NoteSigner:
        """Decrypt the private half."""
        private_bytes = keys.unseal(self.key_id, SEAL_PURPOSE, self.ciphertext)
        return NoteSigner(name=self.verifier_key.name, private_key=Ed25519PrivateKey.from_private_bytes(private_bytes))


async def load_log_keys(connection: Connection, tenants: Iterable[str]) -> Mapping[str, list[StoredLogKey]]:
    """Load the keys of these tenants' logs, the newest first; retired ones too, which verify old checkpoints."""
    keys: dict[str, list[StoredLogKey]] = {tenant: [] for tenant in tenants}
    for row in await connection.fetch(_SQL["list_log_keys"], list(keys)):
        keys[row["tenant"]].append(
            StoredLogKey(
                key_id=row["key_id"],
                verifier_key_text=row["verifier_key"],
                signs=row["signs"],
                ciphertext=row["sealed"],
            )
        )
    return keys


async def create_log_key(connection: Connection, keys: KeySet, clock: Clock, origin: str) -> None:
    """Create the first key of a tenant's log, unless it has one."""
    await connection.execute(_SQL["lock_log_key_creation"], keys.tenant)
    key_id, verifier_key, ciphertext = _make_key(keys, clock, origin)
    await connection.execute(_SQL["insert_first_log_key"], keys.tenant, key_id, verifier_key, ciphertext)


async def rotate_log_key(connection: Connection, keys: KeySet, clock: Clock) -> str:
    """Give a log a new key and return it; the old one signs beside it for a week. Raise if the log has no key yet."""
    await connection.execute(_SQL["lock_log_key_creation"], keys.tenant)
    stored_keys = (await load_log_keys(connection, [keys.tenant]))[keys.tenant]
    if not stored_keys:
        raise Unavailable(f"the log of tenant {keys.tenant} has no key yet: a gateway creates it with the first entry")
    key_id, verifier_key, ciphertext = _make_key(keys, clock, stored_keys[0].verifier_key.name)
    await connection.execute(_SQL["retire_log_keys"], keys.tenant, OVERLAP_SECONDS)
    await connection.execute(_SQL["insert_log_key"], keys.tenant, key_id, verifier_key, ciphertext)
    return verifier_key


async def list_log_keys(connection: Connection) -> list[dict[str, Any]]:
    """List the keys of all logs; those that sign no more verify old checkpoints."""
    return [
        {
            "tenant": row["tenant"],
            "verifier_key": row["verifier_key"],
            "state": "signs" if row["signs"] else "verifies",
            "signs_until": None if row["signs_until"] is None else row["signs_until"].isoformat(timespec="seconds"),
        }
        for row in await connection.fetch(_SQL["list_log_key_states"])
    ]


async def describe_log_keys(connection: Connection, tenant: str) -> list[dict[str, Any]]:
    """Describe the keys of one log, the newest first: since when each signs, and until when."""
    return [
        {
            "verifier_key": row["verifier_key"],
            "state": "signs" if row["signs"] else "verifies",
            "signs_since": row["created_at"].isoformat(timespec="seconds"),
            "signs_until": None if row["signs_until"] is None else row["signs_until"].isoformat(timespec="seconds"),
        }
        for row in await connection.fetch(_SQL["describe_log_keys"], tenant)
    ]


def _make_key(keys: KeySet, clock: Clock, origin: str) -> tuple[str, str, bytes]:
    private_key = Ed25519PrivateKey.from_private_bytes(clock.random_bytes(32))
    verifier_key = NoteSigner(name=origin, private_key=private_key).verifier_key
    key_id = verifier_key.key_id.hex()
    return key_id, str(verifier_key), keys.seal(key_id, SEAL_PURPOSE, private_key.private_bytes_raw())
