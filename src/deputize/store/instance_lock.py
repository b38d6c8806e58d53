"""Hold the lock of the one development gateway on a database, in the database itself.

A file can be deleted, and a second gateway on the same database would show valid approval codes to the agent that
started it. The lock belongs to a session of PostgreSQL: it ends with the process, and only a client with the database's
password can take it away. `deputize dev` holds it while it runs; `deputize serve` refuses a database where it is held.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable

import asyncpg
import structlog

from deputize.core.event_loop.timed_wait import wait_for_event
from deputize.store.pool import CONNECTION_ERRORS

_KEY = "hashtextextended('deputize.development_gateway', 0)"
_TRY_LOCK = f"select pg_try_advisory_lock({_KEY})"
_TRY_SHARED_LOCK = f"select pg_try_advisory_lock_shared({_KEY})"
# The session that holds the lock. A key of 64 bits is shown in two halves.
_FIND_HOLDER = f"""
select a.pid, a.application_name
from pg_locks l join pg_stat_activity a using (pid)
where l.locktype = 'advisory' and l.objsubid = 1 and l.granted and l.mode = 'ExclusiveLock'
  and l.database = (select oid from pg_database where datname = current_database())
  and (l.classid::bigint << 32 | l.objid::bigint) = {_KEY}
"""
_NAME_PREFIX = "deputize dev, process "
_CONNECT_SECONDS = 10.0
_HEARTBEAT_SECONDS = 5.0
_RETRY_SECONDS = 0.5
log = structlog.get_logger(__name__)


class InstanceLock:
    """The lock of this process, as long as its connection lives."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: asyncpg.Connection | None = None
        self._session_pid: int | None = None
        self._loss = asyncio.Event()
        self.holder = ""
        """The process that holds the lock instead, after `acquire` returned False."""

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock, as far as its connection shows."""
        return self._connection is not None and not self._connection.is_closed()

    async def acquire(self) -> bool:
        """Take the lock; return False if another process holds it."""
        name = f"{_NAME_PREFIX}{os.getpid()}"
        connection: asyncpg.Connection = await asyncpg.connect(
            self._dsn, timeout=_CONNECT_SECONDS, server_settings={"application_name": name}
        )
        try:
            if not await connection.fetchval(_TRY_LOCK) and not await self._replace_own_session(connection):
                await connection.close()
                return False
        except BaseException:
            connection.terminate()
            raise
        self._loss.clear()
        self._connection, self._session_pid = connection, connection.get_server_pid()
        connection.add_termination_listener(self._on_termination)
        return True

    async def keep(self, on_return: Callable[[], Awaitable[None]]) -> None:
        """Take the lock again whenever its connection is lost; return once another process holds it."""
        while True:
            await self._wait_for_loss()
            log.warning("instance_lock_lost")
            while not self.is_held:
                try:
                    if not await self.acquire():
                        return
                except CONNECTION_ERRORS:
                    await asyncio.sleep(_RETRY_SECONDS)
            log.info("instance_lock_taken_again")
            await on_return()

    def drop(self) -> None:
        """Give the lock up by closing its connection at once."""
        if self._connection is not None:
            self._connection.terminate()

    async def _replace_own_session(self, connection: asyncpg.Connection) -> bool:
        """End a lost session of this process that the server still believes in, and take the lock from it."""
        row = await connection.fetchrow(_FIND_HOLDER)
        if row is not None and row["pid"] == self._session_pid:
            await connection.execute("select pg_terminate_backend($1, 1000)", row["pid"])
        elif row is not None:
            self.holder = str(row["application_name"]).removeprefix(_NAME_PREFIX)
            return False
        return bool(await connection.fetchval(_TRY_LOCK))

    async def _wait_for_loss(self) -> None:
        while self.is_held:
            if not await wait_for_event(self._loss, _HEARTBEAT_SECONDS):
                await self._check_connection()

    async def _check_connection(self) -> None:
        """Ask the server for an answer: a connection can be dead without having been closed."""
        connection = self._connection
        try:
            if connection is not None:
                await connection.fetchval("select 1", timeout=_HEARTBEAT_SECONDS)
        except CONNECTION_ERRORS:
            self.drop()

    def _on_termination(self, connection: object) -> None:
        if connection is self._connection:
            self._loss.set()


async def is_development_database(dsn: str) -> bool:
    """Tell whether a development gateway holds the lock of a database."""
    connection: asyncpg.Connection = await asyncpg.connect(dsn, timeout=_CONNECT_SECONDS)
    try:
        return not await connection.fetchval(_TRY_SHARED_LOCK)
    finally:
        await connection.close()
