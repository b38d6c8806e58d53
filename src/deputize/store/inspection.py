"""What an operator wants to know of a database before trusting it. Looks only; used by `deputize doctor`."""

import time
from dataclasses import dataclass

import asyncpg

from deputize.store.migrate import current_revision
from deputize.store.queries import load

_SQL = load("inspection")


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    name: str
    is_there: bool
    may_become: bool
    passes_security_by: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspected:
    """Facts, not judgements. What needs the schema is None where it was never migrated."""

    version_number: int
    version: str
    has_vector: bool
    is_standby: bool
    keeps_writes: bool
    synchronous_commit: str
    standbys: str
    skew_seconds: float
    bytes: int
    revision: str | None
    roles: tuple[Role, ...]
    unguarded: tuple[str, ...] | None = None
    audit_is_append_only: bool | None = None
    days_ahead: int | None = None
    workers_alive: int | None = None
    runs_queued: int | None = None


async def inspect(dsn: str, *, timeout: float = 10.0) -> Inspected:
    connection: asyncpg.Connection = await asyncpg.connect(dsn, timeout=timeout)
    try:
        before = time.time()
        server = await connection.fetchrow(_SQL["server"])
        assert server is not None  # a select without from has one row
        here = (before + time.time()) / 2
        revision = await current_revision(connection)
        migrated = revision is not None
        runs = await connection.fetchrow(_SQL["runs"]) if await connection.fetchval(_SQL["has_runs"]) else None
        return Inspected(
            version_number=server["version_number"],
            version=server["version"],
            has_vector=server["has_vector"],
            is_standby=server["is_standby"],
            keeps_writes=server["fsync"] and server["full_page_writes"],
            synchronous_commit=server["synchronous_commit"],
            standbys=server["standbys"],
            skew_seconds=here - server["clock"],
            bytes=server["bytes"],
            revision=revision,
            roles=tuple(Role(**dict(row)) for row in await connection.fetch(_SQL["roles"])),
            unguarded=tuple(row[0] for row in await connection.fetch(_SQL["unguarded_tables"])) if migrated else None,
            audit_is_append_only=await connection.fetchval(_SQL["audit_is_append_only"]) if migrated else None,
            days_ahead=await connection.fetchval(_SQL["days_ahead"]) if migrated else None,
            workers_alive=None if runs is None else runs["alive"],
            runs_queued=None if runs is None else runs["queued"],
        )
    finally:
        await connection.close()
