"""Pseudonyms: what audit entries call a subject, so that proofs outlive the right to be forgotten.

A pseudonym is a salted hash with one random salt per (tenant, subject). While the salt's row stands, an
auditor who knows the name can find its entries; once it is deleted, nothing leads from the name to them.
"""

from collections.abc import Sequence

from deputize.core.canonical import commitment
from deputize.core.clock import Clock
from deputize.core.errors import Unavailable
from deputize.store.pool import Connection, Store
from deputize.store.queries import load
from deputize.store.tenants import ensure_tenant

SALT_BYTES = 32
# How long another process may go on using a pseudonym whose salt was erased.
_REMEMBERED_SECONDS = 30.0
_MOST_REMEMBERED = 50_000
_ATTEMPTS = 3
_SQL = load("keys")


class Pseudonyms:
    """Remembers pseudonyms, never salts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[str, float]] = {}

    def ready(self, tenant: str, subjects: Sequence[str]) -> tuple[str, ...] | None:
        """All of them from memory, in the order asked, or None."""
        now = self._clock.monotonic()
        found = []
        for subject in subjects:
            known = self._known.get((tenant, subject))
            if known is None or known[1] <= now:
                return None
            found.append(known[0])
        return tuple(found)

    async def of(self, store: Store, tenant: str, subjects: Sequence[str]) -> tuple[str, ...]:
        """The pseudonyms in the order asked; a subject met for the first time gets its salt now."""
        ready = self.ready(tenant, subjects)
        if ready is not None:
            return ready
        salts = await self._salts(store, tenant, sorted(set(subjects)))
        pseudonyms = {subject: commitment(salt, subject.encode()) for subject, salt in salts.items()}
        dies_at = self._clock.monotonic() + _REMEMBERED_SECONDS
        for subject, pseudonym in pseudonyms.items():
            while len(self._known) >= _MOST_REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[tenant, subject] = (pseudonym, dies_at)
        return tuple(pseudonyms[subject] for subject in subjects)

    async def _salts(self, store: Store, tenant: str, subjects: list[str]) -> dict[str, bytes]:
        for _ in range(_ATTEMPTS):
            async with store.reading(tenant) as connection:
                rows = await connection.fetch(_SQL["subject_salts"], tenant, subjects)
            salts: dict[str, bytes] = {row["subject"]: row["salt"] for row in rows}
            new = [subject for subject in subjects if subject not in salts]
            if not new:
                return salts
            # Read back after the commit, in the next round: another process may have been first.
            async with store.writing() as connection:
                await ensure_tenant(connection, tenant)
                fresh = [self._clock.random_bytes(SALT_BYTES) for _ in new]
                await connection.execute(_SQL["add_subject_salts"], tenant, new, fresh)
        # Only an erasure between our insert and our read, several times in a row, leads here.
        raise Unavailable("a subject of this call is being erased at this moment")

    async def erase(self, connection: Connection, tenant: str, subject: str) -> None:
        """Makes the subject's entries unlinkable; should the subject come back, it is somebody new."""
        await connection.execute(_SQL["erase_subject"], tenant, subject)
        self._known.pop((tenant, subject), None)
