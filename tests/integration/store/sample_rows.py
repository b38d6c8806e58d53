"""Rows as the lifecycle would put them, with everything a test does not care about filled in."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from deputize.core.clock import Clock
from deputize.store.commit_rows import (
    AuditEntryRow,
    CloseCallRow,
    CommitResult,
    CommitRow,
    FailedReadRow,
    JournalRow,
    OpenCallRow,
)
from deputize.store.group_commit import GroupCommit
from deputize.store.pool import WRITER, Connection, connect_with_role
from deputize.store.tenants import ensure_tenant

CLOCK = Clock()
TENANT = "acme"


def hash_text(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def make_opening(key: str | None = None, **changes: Any) -> OpenCallRow:
    """A mutation about to happen; with a key, one that claims it."""
    row = OpenCallRow(
        tenant=TENANT, call_id=CLOCK.new_id(), tool="crm.put_user", version="1.0.0", digest="sha256:0",
        mutation_class="write-reversible", user="ana", agent="bot", session=None, fingerprint=b"f",
        scope=None if key is None else hash_text("scope"), key=None if key is None else hash_text(key), seconds=5.0,
        window_seconds=3600, trace="0" * 32, entry_id=CLOCK.new_id(), entry=b"intent", salt=b"s",
    )  # fmt: skip
    return row._replace(**changes)


def make_closing(call_id: str, state: str = "succeeded", **changes: Any) -> CloseCallRow:
    row = CloseCallRow(
        tenant=TENANT, call_id=call_id, epoch=1, state=state, error=None, release=False, ciphertext=b"box",
        entry_id=CLOCK.new_id(), entry=b"outcome", salt=b"s",
    )  # fmt: skip
    return row._replace(**changes)


def add_effects(closing: CloseCallRow, *scopes: str) -> CloseCallRow:
    """The outcome with what the call changed."""
    effects = [
        JournalRow(
            tenant=closing.tenant, call_id=closing.call_id, id=closing.entry_id, number=number, flow_id=None, step=None,
            resource="crm.users", op="update", scope=scope, before_digest=None, after_digest=None,
            certainty="happened", compensation_class="full", undo_seconds=60, sealed=b"box",
        )
        for number, scope in enumerate(scopes)
    ]  # fmt: skip
    return closing._replace(journal=tuple(effects))


def make_entry(**changes: Any) -> AuditEntryRow:
    return AuditEntryRow(tenant=TENANT, id=CLOCK.new_id(), call_id=CLOCK.new_id(), entry=b"read", salt=b"s")._replace(
        **changes
    )


def make_failed_read(**changes: Any) -> FailedReadRow:
    """The entry of a read that failed, with its outcome."""
    entry = make_entry()
    assert entry.call_id is not None
    row = FailedReadRow(
        tenant=TENANT, call_id=entry.call_id, state="failed", tool="crm.get_user", version="1.0.0", digest="sha256:0",
        mutation_class="read", user="ana", agent="bot", session=None, error="tool-failed", trace="0" * 32,
        ciphertext=b"box", audit_entry=entry,
    )  # fmt: skip
    return row._replace(**changes)


@asynccontextmanager
async def open_writer(dsn: str, **options: Any) -> AsyncIterator[GroupCommit]:
    """A group committer with a connection of its own, as a gateway has one."""
    writer = GroupCommit(lambda: connect_with_role(dsn, WRITER), boot_id=CLOCK.new_id(), **options)
    await writer.start()
    try:
        yield writer
    finally:
        await writer.stop()


async def put_all(writer: GroupCommit, rows: Sequence[CommitRow]) -> list[CommitResult]:
    """All rows at once, in as few batches as the writer makes of them."""
    return await asyncio.gather(*[writer.put(row) for row in rows])


async def make_tenants(dsn: str, *tenants: str) -> None:
    connection = await asyncpg.connect(dsn)
    for tenant in tenants:
        await ensure_tenant(connection, tenant)
    await connection.close()


async def fetch_states(connection: Connection) -> dict[str, str]:
    return {str(row["id"]): row["state"] for row in await connection.fetch("select id, state from deputize.calls")}


async def wait_until(condition: Callable[[], bool]) -> None:
    """Returns once it holds; for what only shows itself from outside."""
    async with asyncio.timeout(90):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


async def wait_for_blocked_query(owner: Connection, query_like: str = "%deputize.commit_%") -> int:
    """Returns once a query like this one waits for a lock, with the process of the server that runs it."""
    async with asyncio.timeout(90):
        while True:
            pid: int | None = await owner.fetchval(
                "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' "
                "and query like $1 limit 1",
                query_like,
            )
            if pid is not None:
                return pid
            await asyncio.sleep(0.01)


async def wait_until_gone(owner: Connection, pid: int) -> None:
    """Returns once the server has ended that process."""
    async with asyncio.timeout(90):
        while True:
            if not await owner.fetchval("select count(*) from pg_stat_activity where pid = $1", pid):
                return
            await asyncio.sleep(0.02)


async def fetch_one_row(connection: Connection, query: str) -> asyncpg.Record:
    row = await connection.fetchrow(query)
    assert row is not None
    return row
