"""Open connections by role: readers see one tenant, writers write, and the direct connection listens and locks."""

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from asyncpg.protocol import protocol as asyncpg_protocol

# asyncpg asks two abstract classes about every element of every array, whether it is an array itself: a batch of calls
# has hundreds of elements, and each answer runs Python code. Builtin types are told apart without.
_ARRAY_TYPES: tuple[type, ...] = (list, tuple, set, frozenset, range, dict, type({}.keys()), type({}.values()), deque)
for _name in ("IterableABC", "SizedABC"):
    setattr(asyncpg_protocol, _name, _ARRAY_TYPES)

# A connection, from a pool or not.
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"

# Raises if the database behind a connection of the writer must not be used.
Verify = Callable[[Connection], Awaitable[None]]

# The database is unreachable, or the connection to it broke.
CONNECTION_ERRORS = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

# Set for each transaction: behind a connection pooler, the next one may run in another session.
_SET_READER_ROLE = "select set_config('role', $1, true), set_config('deputize.tenant', $2, true)"
# The timeout frees the locks of a process that freezes in the middle of a transaction.
_SET_WRITER_ROLE = """
select set_config('role', $1, true), set_config('idle_in_transaction_session_timeout', '15s', true),
       set_config('synchronous_commit', coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), true)
"""

READER = "deputize_reader"
WRITER = "deputize_writer"


async def connect_with_role(dsn: str, role: str) -> asyncpg.Connection:
    """Open a connection that acts as a role."""
    connection: asyncpg.Connection = await asyncpg.connect(dsn)
    await _set_role(connection, role)
    return connection


async def _set_role(connection: Connection, role: str) -> None:
    """Set the role, and the settings that the commit barrier and durability need, whatever the server's defaults."""
    await connection.execute(
        f"set role {role}; set jit = off; set default_transaction_isolation = 'read committed';"
        "select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """The database: two DSNs and two roles. Nothing can be read without naming a tenant."""

    dsn: str
    direct_dsn: str
    readers: "asyncpg.Pool[asyncpg.Record]"
    writers: "asyncpg.Pool[asyncpg.Record]"
    verify: Verify | None = None

    @classmethod
    async def open(
        cls, dsn: str, *, direct_dsn: str | None = None, read_connections: int = 8, verify: Verify | None = None
    ) -> "Store":
        """Open the pools of both roles. `verify` checks the database behind every new connection that writes."""

        async def as_reader(connection: Connection) -> None:
            await _set_role(connection, READER)

        async def as_writer(connection: Connection) -> None:
            await _set_role(connection, WRITER)
            if verify is not None:
                await verify(connection)

        readers = await asyncpg.create_pool(dsn, min_size=1, max_size=read_connections, init=as_reader)
        try:
            writers = await asyncpg.create_pool(dsn, min_size=1, max_size=4, init=as_writer)
        except BaseException:
            readers.terminate()
            raise
        return cls(dsn=dsn, direct_dsn=direct_dsn or dsn, readers=readers, writers=writers, verify=verify)

    async def close(self) -> None:
        """Close the pools."""
        for pool in (self.readers, self.writers):
            with contextlib.suppress(TimeoutError):
                await pool.close()

    async def connect_writer(self) -> asyncpg.Connection:
        """Open the connection of the group commit, without a pooler: its role must last from batch to batch."""
        connection = await connect_with_role(self.direct_dsn, WRITER)
        if self.verify is not None:
            try:
                await self.verify(connection)
            except BaseException:
                connection.terminate()
                raise
        return connection

    async def reconnect(self) -> None:
        """Replace all connections of the pools by new ones, each at its next use."""
        for pool in (self.readers, self.writers):
            await pool.expire_connections()

    @contextlib.asynccontextmanager
    async def read_transaction(self, tenant: str, *, repeatable: bool = False) -> AsyncIterator[Connection]:
        """Open a read-only transaction on one tenant; row-level security hides all others."""
        isolation: Literal["repeatable_read", "read_committed"] = "repeatable_read" if repeatable else "read_committed"
        async with (
            self.readers.acquire() as connection,
            connection.transaction(readonly=True, isolation=isolation),
        ):
            await connection.execute(_SET_READER_ROLE, READER, tenant)
            yield connection

    @contextlib.asynccontextmanager
    async def write_transaction(self) -> AsyncIterator[Connection]:
        """Open a transaction as the writer, for all but the batches of calls: leases, sweeps, administrative acts."""
        async with self.writers.acquire() as connection, connection.transaction(isolation="read_committed"):
            await connection.execute(_SET_WRITER_ROLE, WRITER)
            yield connection
