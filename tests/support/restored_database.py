"""Make a database lack what was committed to it, as a restore does, and confirm that it is to be used."""

import asyncio
from collections.abc import Awaitable

import asyncpg

from deputize.core.settings import Settings
from deputize.interfaces.cli.local.recovery import RestoredDatabase, run_recovery
from deputize.lifecycle.runtime import Runtime
from deputize.store.restore_guard.recovery import Recovery
from tests.support.gateway_lab import wait_until

NEWEST_ENTRY = "select tenant, id from deputize.audit_entries order by id desc limit 1"
_EPOCHS_AHEAD = 1_000_000


async def lose_newest_entry(dsn: str) -> None:
    """Make the database lack what it acknowledged last, and drop all connections, as a restore does."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"delete from deputize.audit_entries a using ({NEWEST_ENTRY}) n where a.id = n.id")
    await drop_connections(connection)
    await connection.close()


async def lose_entries(dsn: str, *, keep: asyncpg.Connection) -> None:
    """Make the database lack every audit entry, and drop all connections but the test's own.

    Of acts that commit beside each other, the entry with the highest id is not always the one committed last.
    """
    connection = await asyncpg.connect(dsn)
    await connection.execute("delete from deputize.audit_entries")
    await drop_connections(connection, keep=keep)
    await connection.close()


async def drop_connections(connection: asyncpg.Connection, *, keep: asyncpg.Connection | None = None) -> None:
    await connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
        "and pid not in (pg_backend_pid(), $1)",
        0 if keep is None else keep.get_server_pid(),
    )


async def confirm_recovery(settings: Settings) -> Recovery | None:
    """Confirm as `deputize recover confirm` does."""

    def act(restored: RestoredDatabase) -> Awaitable[Recovery | None]:
        assert restored.state.loss is not None
        return restored.confirm(None, "test")

    return await asyncio.to_thread(run_recovery, settings, act)


async def begin_next_lineage(dsn: str) -> None:
    """Begin the lineage that a confirmation begins, in a database that gateways use."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        "select deputize.begin_lineage((select max(number) + 1 from deputize.lineages), $1)", _EPOCHS_AHEAD
    )
    await connection.close()


async def wait_for_loss(runtime: Runtime) -> None:
    async def has_stopped() -> bool:
        return runtime.lineage.loss is not None

    await wait_until(has_stopped)


async def wait_for_recovery(runtime: Runtime) -> None:
    """Return once the gateway serves again, and knows that the database was restored."""

    async def serves_again() -> bool:
        is_connected = runtime.writer.outage_reason is None and runtime.queue.outage_reason is None
        return is_connected and runtime.lineage.loss is None and runtime.lineage.recovered_at is not None

    await wait_until(serves_again)
