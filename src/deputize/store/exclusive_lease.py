"""Let one process at a time do a job: a lease is a row with an owner and an epoch.

Every transaction that does the job renews the lease first, which locks its row: a process that was taken over in the
middle of anything cannot commit. A process that stops gives the lease up; one that dies is followed when it ends.
"""

from typing import Final

import asyncpg

from deputize.core.value_types import frozen
from deputize.store.pool import Connection


class LeaseTakeover(Exception):
    """Another process does the job now."""


@frozen
class LeaseStatements:
    """The SQL of one kind of lease. The key of the row, if there are several, follows the named parameters.

    `claim` takes the owner and seconds and returns the epoch, `renew` the owner, the epoch and seconds, and `release`
    the owner.
    """

    claim: str
    renew: str
    release: str


class ExclusiveLease:
    """The lease of one job, as one process sees it. `epoch` is set while this process believes that it holds it."""

    def __init__(self, statements: LeaseStatements, *key: str, boot_id: str, seconds: float) -> None:
        self._statements: Final = statements
        self._key = key
        self._boot_id = boot_id
        self._seconds = seconds
        self.epoch: int | None = None

    def can_claim(self, row: asyncpg.Record) -> bool:
        """Tell whether this process must claim the lease before it works, by `is_held` and `is_free` of its row."""
        return bool(row["is_free"] or row["is_held"])

    def holds(self, row: asyncpg.Record) -> bool:
        """Tell whether the row shows what this process believes."""
        return self.epoch is not None and bool(row["is_held"])

    async def claim(self, connection: Connection) -> bool:
        """Take the lease if it is free or this process's own; it gets a new epoch either way."""
        await self.release(connection)
        self.epoch = await connection.fetchval(self._statements.claim, self._boot_id, self._seconds, *self._key)
        return self.epoch is not None

    async def renew(self, connection: Connection) -> None:
        """Renew the lease and hold its row until the transaction ends; raise `LeaseTakeover` if another has it."""
        parameters = self._boot_id, self.epoch, self._seconds, *self._key
        if not await connection.fetchval(self._statements.renew, *parameters):
            raise LeaseTakeover("another process holds the lease now")

    async def release(self, connection: Connection) -> None:
        """Give the lease up, so that another process can take over at once."""
        self.epoch = None
        await connection.execute(self._statements.release, self._boot_id, *self._key)
