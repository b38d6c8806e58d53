"""Begin a new lineage in a database that went back in time, once a person confirmed that it is to be used."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from deputize.store.pool import Connection, Store
from deputize.store.queries import load_statements
from deputize.store.restore_guard.checkpoint_files import CheckpointFiles
from deputize.store.restore_guard.lineage import DatabaseState, inspect_lineage, list_unknown_lineages
from deputize.store.restore_guard.record_files import LineageRecord

_SQL = load_statements("lineage")
_EPOCHS = load_statements("epochs")
# More acts than anyone performed in the time that was lost: gateways may remember the epochs of those.
_EPOCHS_AHEAD = 1_000_000

# Writes the audit entry of a tenant about the new lineage, in the transaction that begins it.
RecordRecovery = Callable[[Connection, str, str], Awaitable[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """A new lineage, and what it made of what was open."""

    lineage: str
    number: int
    unknown_calls: int
    void_approvals: int


async def load_state(store: Store, records: Sequence[LineageRecord], checkpoints: CheckpointFiles) -> DatabaseState:
    """Compare the database with the records and checkpoints of this machine."""
    async with store.write_transaction() as connection:
        return await inspect_lineage(connection, records, checkpoints)


async def list_tenants(store: Store) -> list[str]:
    """List every tenant of the database."""
    async with store.write_transaction() as connection:
        return [row[0] for row in await connection.fetch(_SQL["list_tenants"])]


async def stop_gateways(store: Store, state: DatabaseState) -> None:
    """Mark the database as gone back, so that every gateway stops before anything is changed."""
    async with store.write_transaction() as connection:
        await connection.execute(_SQL["stop_gateways"], state.lineage, state.loss)


async def begin_lineage(
    store: Store, state: DatabaseState, records: Sequence[LineageRecord], lost_epochs: int, record: RecordRecovery
) -> Recovery | None:
    """Begin the next lineage, all at once; None if another operator has begun it meanwhile.

    Lineages that only the records know, because a later restore went back to before they began, are known from now on.
    """
    async with store.write_transaction() as connection:
        await connection.execute(_SQL["lock_all_barriers"])
        tenants = [row[0] for row in await connection.fetch(_SQL["list_tenants"])]
        current = await inspect_lineage(connection, ())
        if current.lineage != state.lineage:
            return None
        number = current.number + 1
        for lineage in await list_unknown_lineages(connection, records):
            await connection.execute(_SQL["insert_lost_lineage"], lineage, number)
            number += 1
        row = await connection.fetchrow(_SQL["begin_lineage"], number, _EPOCHS_AHEAD + max(lost_epochs, 0))
        assert row is not None  # the function returns one row
        for tenant in tenants:
            await record(connection, tenant, str(row["id"]))
            await connection.execute(_EPOCHS["notify_epoch_change"], tenant)
    return Recovery(
        lineage=str(row["id"]),
        number=number,
        unknown_calls=row["calls"],
        void_approvals=row["approvals"],
    )
