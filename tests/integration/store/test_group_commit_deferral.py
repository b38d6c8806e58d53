"""A tenant whose barrier is held delays its own rows, and no other tenant's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from deputize.store.commit_rows import CommitRow
from deputize.store.group_commit import GroupCommit
from tests.integration.store.sample_rows import (
    TENANT,
    make_closing,
    make_entry,
    make_opening,
    make_tenants,
    open_writer,
    put_all,
)
from tests.support.gateway_lab import CLOSE_BARRIER, wait_until

pytestmark = pytest.mark.requirement("GOV-5")
BUSY, OTHER = "busy", "also-busy"


@pytest.fixture
async def dsn(fresh_database: str) -> str:
    await make_tenants(fresh_database, TENANT, BUSY, OTHER)
    return fresh_database


@asynccontextmanager
async def hold_barrier(dsn: str, *tenants: str) -> AsyncIterator[None]:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            for tenant in tenants:
                await connection.execute(CLOSE_BARRIER, tenant)
            yield
    finally:
        await connection.close()


async def wait_for_lock(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)

    async def is_waiting() -> bool:
        return bool(await connection.fetchval("select count(*) from pg_locks where not granted"))

    try:
        await wait_until(is_waiting)
    finally:
        await connection.close()


async def test_rows_of_other_tenants_commit_while_a_barrier_is_held(dsn: str) -> None:
    async with open_writer(dsn) as writer:
        async with hold_barrier(dsn, BUSY):
            mixed: list[CommitRow] = [make_entry(tenant=BUSY), make_opening("k"), make_entry(), make_entry(tenant=BUSY)]
            futures = [writer.put(row, seconds=60) for row in mixed]
            await asyncio.wait_for(asyncio.gather(futures[1], futures[2]), 30)
            await wait_for_lock(dsn)
            for _ in range(5):
                await asyncio.wait_for(writer.put(make_entry(), seconds=60), 30)
            assert not futures[0].done()
            assert not futures[3].done()
        await asyncio.wait_for(asyncio.gather(futures[0], futures[3]), 30)


async def test_rows_of_a_tenant_keep_their_order(dsn: str) -> None:
    async with open_writer(dsn) as writer:
        async with hold_barrier(dsn, BUSY):
            openings = [make_opening(f"k{number}", tenant=BUSY) for number in range(3)]
            waiting = [writer.put(row, seconds=60) for row in openings]
            await wait_for_lock(dsn)
            # Behind the openings, although another tenant's rows go ahead.
            waiting += [writer.put(make_closing(row.call_id, tenant=BUSY), seconds=60) for row in openings]
            waiting += [
                writer.put(make_closing(row.call_id, "failed", tenant=BUSY, ciphertext=b"late"), seconds=60)
                for row in openings
            ]
            await asyncio.wait_for(writer.put(make_entry(), seconds=60), 30)
        results = await asyncio.wait_for(asyncio.gather(*waiting), 30)
        assert [each.is_closed for each in results[3:]] == [True] * 3 + [False] * 3
        # Nothing waits any more, so the tenant shares batches again.
        await writer.put(make_entry(tenant=BUSY), seconds=60)
        assert writer._waiting_lane is not None
        assert not writer._waiting_lane._waiting_tenants


async def test_two_busy_tenants_wait_one_after_the_other(dsn: str) -> None:
    async with open_writer(dsn) as writer:
        async with hold_barrier(dsn, OTHER):
            async with hold_barrier(dsn, BUSY):
                first = writer.put(make_entry(tenant=BUSY), seconds=60)
                await wait_for_lock(dsn)
                second = writer.put(make_entry(tenant=OTHER), seconds=60)
                await asyncio.wait_for(writer.put(make_entry(), seconds=60), 30)
            await asyncio.wait_for(first, 30)
            assert not second.done()
        await asyncio.wait_for(second, 30)


async def test_a_storm_of_acts_does_not_starve_its_own_tenant(dsn: str) -> None:
    is_over = asyncio.Event()

    async def act() -> None:
        while not is_over.is_set():
            async with hold_barrier(dsn, BUSY):
                await asyncio.sleep(0.005)

    async with open_writer(dsn) as writer:
        acts = [asyncio.create_task(act()) for _ in range(3)]
        for _ in range(10):
            await asyncio.wait_for(put_all(writer, [make_entry(tenant=BUSY) for _ in range(3)]), 30)
        is_over.set()
        await asyncio.gather(*acts)


async def test_a_writer_that_stops_writes_what_waits(dsn: str, fresh_database: str) -> None:
    async with open_writer(dsn, timeout=30) as writer:
        async with hold_barrier(dsn, BUSY):
            waiting = writer.put(make_entry(tenant=BUSY), seconds=60)
            await wait_for_lock(dsn)
            stopping = asyncio.create_task(_stop(writer))
            await asyncio.sleep(0)
        await asyncio.wait_for(waiting, 30)
        await asyncio.wait_for(stopping, 30)


async def _stop(writer: GroupCommit) -> None:
    await writer.stop()
