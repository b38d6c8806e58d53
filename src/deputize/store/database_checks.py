"""Inspect a database for `deputize doctor`, without changing it."""

import contextlib
import time
from dataclasses import dataclass

import asyncpg

from deputize.store.logins import list_allowed_audit_changes, list_login_powers
from deputize.store.queries import load_statements
from deputize.store.schema_revision import SchemaState, read_schema_state

_SQL = load_statements("inspection")
_PROBES, _PROBE_SECONDS = 3, 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabaseRole:
    """A role that the gateway needs, and what it may do."""

    name: str
    is_there: bool
    may_become: bool
    passes_security_by: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabaseFacts:
    """The facts that `deputize doctor` judges. Those that need the schema are None before the first migration."""

    version_number: int
    version: str
    has_vector: bool
    is_standby: bool
    is_durable: bool
    synchronous_commit: str
    standbys: str
    skew_seconds: float
    bytes: int
    schema: SchemaState
    roles: tuple[DatabaseRole, ...]
    tables_without_row_security: tuple[str, ...] | None = None
    login: str = ""
    login_powers: tuple[str, ...] = ()
    """What makes the login able to rewrite the audit."""
    allowed_audit_changes: tuple[str, ...] | None = None
    """Changes of the audit that were tried and not refused."""
    days_ahead: int | None = None
    workers_alive: int | None = None
    runs_queued: int | None = None


async def check_prepared_statements(dsn: str, *, timeout: float = 10.0) -> None:
    """Raise the driver's error if a statement that was prepared on a connection cannot be used there later.

    A pooler that lends server connections for a transaction may give the next transaction another one. While a second
    connection holds the server connection that the statement was prepared on, the first one gets another.
    """
    first: asyncpg.Connection = await asyncpg.connect(dsn, timeout=timeout)
    second: asyncpg.Connection = await asyncpg.connect(dsn, timeout=timeout)
    try:
        statement = await first.prepare("select 1")
        # Several times: which server connection the second one gets is the pooler's choice.
        for _ in range(_PROBES):
            await statement.fetchval()
            async with second.transaction():
                await second.execute("select 1")
                # A pooler with a single server connection lets this one wait, and has nothing to lose.
                with contextlib.suppress(TimeoutError):
                    await statement.fetchval(timeout=_PROBE_SECONDS)
    finally:
        first.terminate()
        second.terminate()


async def inspect_database(dsn: str, *, timeout: float = 10.0) -> DatabaseFacts:
    """Collect the facts of a database."""
    connection: asyncpg.Connection = await asyncpg.connect(dsn, timeout=timeout)
    try:
        before = time.time()
        server = await connection.fetchrow(_SQL["describe_server"])
        assert server is not None  # a select without from has one row
        local_time = (before + time.time()) / 2
        schema = await read_schema_state(connection)
        is_migrated = schema.current is not None
        runs = (
            await connection.fetchrow(_SQL["count_workers_and_runs"])
            if await connection.fetchval(_SQL["check_runs_schema"])
            else None
        )
        return DatabaseFacts(
            version_number=server["version_number"],
            version=server["version"],
            has_vector=server["has_vector"],
            is_standby=server["is_standby"],
            is_durable=server["fsync"] and server["full_page_writes"],
            synchronous_commit=server["synchronous_commit"],
            standbys=server["standbys"],
            skew_seconds=local_time - server["clock"],
            bytes=server["bytes"],
            schema=schema,
            roles=tuple(DatabaseRole(**dict(row)) for row in await connection.fetch(_SQL["list_roles"])),
            tables_without_row_security=tuple(
                row[0] for row in await connection.fetch(_SQL["list_tables_without_row_security"])
            )
            if is_migrated
            else None,
            login=server["login"],
            login_powers=await list_login_powers(connection),
            allowed_audit_changes=await list_allowed_audit_changes(connection) if is_migrated else None,
            days_ahead=await connection.fetchval(_SQL["count_partition_days_ahead"]) if is_migrated else None,
            workers_alive=None if runs is None else runs["alive"],
            runs_queued=None if runs is None else runs["queued"],
        )
    finally:
        await connection.close()
