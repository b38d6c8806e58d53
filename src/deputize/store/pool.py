"""Connections, by what they may do: readers see one tenant, the writer appends, the direct one listens and locks."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy

# Anything SQL can be sent through, pooled or not.
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"

# The database is away, went away meanwhile, or left a connection that is of no use any more.
LOST = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

# Taken anew for each transaction: behind a pooler, the next one may run in another session.
_AS_READER = "select set_config('role', $1, true), set_config('deputize.tenant', $2, true)"
# A process that is frozen in the middle of one must not keep its locks from the others for ever.
_AS_WRITER = """
select set_config('role', $1, true), set_config('idle_in_transaction_session_timeout', '15s', true),
       set_config('synchronous_commit', coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), true)
"""

READER = "deputize_reader"
WRITER = "deputize_writer"


async def connect(dsn: str, role: str) -> asyncpg.Connection:
    connection: asyncpg.Connection = await asyncpg.connect(dsn)
    await _take(connection, role)
    return connection


async def _take(connection: Connection, role: str) -> None:
    """The role, and what the barrier and durability stand on, whatever this server's or database's defaults are."""
    await connection.execute(
        f"set role {role}; set jit = off; set default_transaction_isolation = 'read committed';"
        "select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """The database as the rooms above see it: two DSNs, two roles, no way to read without naming a tenant."""

    dsn: str
    direct_dsn: str
    readers: "asyncpg.Pool[asyncpg.Record]"
    writers: "asyncpg.Pool[asyncpg.Record]"

    @classmethod
    async def open(cls, dsn: str, *, direct_dsn: str | None = None, read_connections: int = 8) -> "Store":
        async def as_reader(connection: Connection) -> None:
            await _take(connection, READER)

        async def as_writer(connection: Connection) -> None:
            await _take(connection, WRITER)

        readers = await asyncpg.create_pool(dsn, min_size=1, max_size=read_connections, init=as_reader)
        writers = await asyncpg.create_pool(dsn, min_size=1, max_size=4, init=as_writer)
        return cls(dsn=dsn, direct_dsn=direct_dsn or dsn, readers=readers, writers=writers)

    async def close(self) -> None:
        for pool in (self.readers, self.writers):
            with contextlib.suppress(TimeoutError):
                await pool.close()

    async def connect_writer(self) -> asyncpg.Connection:
        """The group committer's own connection, past any pooler: its role must hold from one batch to the next."""
        return await connect(self.direct_dsn, WRITER)

    @contextlib.asynccontextmanager
    async def reading(self, tenant: str, *, repeatable: bool = False) -> AsyncIterator[Connection]:
        """A read-only look at one tenant; row-level security hides every other one."""
        isolation: Literal["repeatable_read", "read_committed"] = "repeatable_read" if repeatable else "read_committed"
        async with (
            self.readers.acquire() as connection,
            connection.transaction(readonly=True, isolation=isolation),
        ):
            await connection.execute(_AS_READER, READER, tenant)
            yield connection

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[Connection]:
        """One transaction as the writer, for what is not a call's batch: leases, sweeping, administrative acts."""
        async with self.writers.acquire() as connection, connection.transaction(isolation="read_committed"):
            await connection.execute(_AS_WRITER, WRITER)
            yield connection
