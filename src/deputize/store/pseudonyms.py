"""Replace subjects by pseudonyms in audit entries, so that entries stay valid when a subject is erased.

A pseudonym is a salted hash with one random salt per tenant and subject. While the salt exists, an auditor who knows
the name can find its entries; once the salt is deleted, nothing leads from the name to them.
"""

from collections.abc import Sequence

from deputize.core.bounded_dict import BoundedDict
from deputize.core.canonical import compute_commitment
from deputize.core.clock import Clock
from deputize.core.errors import Unavailable
from deputize.store.pool import Connection, Store
from deputize.store.queries import load_statements
from deputize.store.tenants import ensure_tenant

SALT_BYTES = 32
# How long another process may still use a pseudonym whose salt was erased.
_CACHE_SECONDS = 30.0
_MAX_CACHE_ENTRIES = 50_000
_ATTEMPTS = 3
_SQL = load_statements("keys")


class Pseudonyms:
    """Computes pseudonyms, and caches them; salts are never cached."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cache: BoundedDict[tuple[str, str], tuple[str, float]] = BoundedDict(_MAX_CACHE_ENTRIES)

    def find(self, tenant: str, subjects: Sequence[str]) -> tuple[str, ...] | None:
        """Find all pseudonyms in the cache, in the order of the subjects; None if one is missing."""
        now = self._clock.monotonic()
        pseudonyms = []
        for subject in subjects:
            cache_entry = self._cache.get((tenant, subject))
            if cache_entry is None or cache_entry[1] <= now:
                return None
            pseudonyms.append(cache_entry[0])
        return tuple(pseudonyms)

    async def get_or_create(self, store: Store, tenant: str, subjects: Sequence[str]) -> tuple[str, ...]:
        """Get the pseudonyms in the order of the subjects; a new subject gets a salt."""
        cache_hit = self.find(tenant, subjects)
        if cache_hit is not None:
            return cache_hit
        salts = await self._load_salts(store, tenant, sorted(set(subjects)))
        pseudonyms = {subject: compute_commitment(salt, subject.encode()) for subject, salt in salts.items()}
        expires_at = self._clock.monotonic() + _CACHE_SECONDS
        for subject, pseudonym in pseudonyms.items():
            self._cache.put((tenant, subject), (pseudonym, expires_at))
        return tuple(pseudonyms[subject] for subject in subjects)

    async def _load_salts(self, store: Store, tenant: str, subjects: list[str]) -> dict[str, bytes]:
        for _ in range(_ATTEMPTS):
            async with store.read_transaction(tenant) as connection:
                rows = await connection.fetch(_SQL["load_subject_salts"], tenant, subjects)
            salts: dict[str, bytes] = {row["subject"]: row["salt"] for row in rows}
            new = [subject for subject in subjects if subject not in salts]
            if not new:
                return salts
            # Read back after the commit, in the next iteration: another process may have been first.
            async with store.write_transaction() as connection:
                await ensure_tenant(connection, tenant)
                new_salts = [self._clock.random_bytes(SALT_BYTES) for _ in new]
                await connection.execute(_SQL["insert_subject_salts"], tenant, new, new_salts)
        # Only repeated erasures between insert and read lead here.
        raise Unavailable("a subject of this call is being erased; try again")

    async def erase(self, connection: Connection, tenant: str, subject: str) -> None:
        """Delete the subject's salt, so that its entries cannot be linked to it; if it returns, it is a new subject."""
        await connection.execute(_SQL["delete_subject"], tenant, subject)
        self._cache.discard((tenant, subject))
