"""Rows that are sent one by one, because PostgreSQL rejected their batch, are all answered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from deputize.core.errors import DeadlineExceeded, InternalError, QueueFull
from deputize.store.commit_rows import CommitResult
from deputize.store.group_commit import GroupCommit
from tests.integration.store.sample_rows import (
    TENANT,
    make_entry,
    make_opening,
    make_tenants,
    open_writer,
    wait_for_blocked_query,
)
from tests.integration.store.test_group_commit_deferral import hold_barrier
from tests.integration.store.test_queue_bounds import make_run

pytestmark = pytest.mark.requirement("QUA-2")
BUSY = "busy"


@pytest.fixture
async def dsn(fresh_database: str) -> str:
    await make_tenants(fresh_database, TENANT, BUSY)
    return fresh_database


@pytest.fixture
async def owner(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@asynccontextmanager
async def hold_key(dsn: str, key: str) -> AsyncIterator[None]:
    """Block every opening with this key until the end of the block, without keeping the key."""
    connection = await asyncpg.connect(dsn)
    row = make_opening(key)
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(
            "insert into deputize.claims (tenant, scope, key, call_id) values ($1, $2, $3, $4)",
            row.tenant, row.scope, row.key, row.call_id,
        )  # fmt: skip
        yield
    finally:
        await transaction.rollback()
        await connection.close()


def put_rejected_run(writer: GroupCommit) -> "asyncio.Future[CommitResult]":
    run = make_run()
    return writer.put(run._replace(open_row=run.open_row._replace(session="\0")), seconds=90)


async def test_a_row_behind_a_refused_run_is_committed_before_the_writer_stops(
    dsn: str, owner: asyncpg.Connection
) -> None:
    async with open_writer(dsn, max_queued_runs=0, timeout=60) as writer:
        async with hold_key(dsn, "k"):
            rejected = put_rejected_run(writer)
            refused = writer.put(make_run(), seconds=90)
            last = writer.put(make_opening("k"), seconds=90)
            await wait_for_blocked_query(owner)
            with pytest.raises(InternalError):
                await rejected
            with pytest.raises(QueueFull):
                await refused
            assert writer.waiting_row_count == 1
            stopping = asyncio.create_task(writer.stop())
        await asyncio.wait_for(stopping, 90)
        assert (await asyncio.wait_for(last, 30)).holder is None


async def test_a_row_behind_a_deferred_one_is_committed_before_the_writer_stops(
    dsn: str, owner: asyncpg.Connection
) -> None:
    async with open_writer(dsn, timeout=60) as writer:
        async with hold_barrier(dsn, BUSY):
            async with hold_key(dsn, "k"):
                rejected = writer.put(make_opening(session="\0"), seconds=90)
                deferred = writer.put(make_entry(tenant=BUSY), seconds=90)
                last = writer.put(make_opening("k"), seconds=90)
                with pytest.raises(InternalError):
                    await rejected
                await wait_for_blocked_query(owner, "%deputize.commit_calls%")
                assert writer.waiting_row_count == 2
                stopping = asyncio.create_task(writer.stop())
            assert (await asyncio.wait_for(last, 90)).holder is None
        await asyncio.wait_for(stopping, 90)
        assert await asyncio.wait_for(deferred, 30)


async def test_a_row_behind_a_refused_run_expires(dsn: str, owner: asyncpg.Connection) -> None:
    async with open_writer(dsn, max_queued_runs=0, timeout=60) as writer:
        async with hold_key(dsn, "k"):
            rejected = put_rejected_run(writer)
            refused = writer.put(make_run(), seconds=90)
            last = writer.put(make_opening("k"), seconds=5)
            await wait_for_blocked_query(owner)
            with pytest.raises(DeadlineExceeded):
                await asyncio.wait_for(last, 30)
        outcomes = await asyncio.gather(rejected, refused, return_exceptions=True)
        assert [type(each) for each in outcomes] == [InternalError, QueueFull]
