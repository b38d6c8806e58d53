"""What waits for a commit, and what a tenant has queued, is bounded; one tenant at its bound holds up no other."""

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from deputize.core.errors import AuditBackpressure, QueueFull, Unavailable
from deputize.store.commit_rows import CommitResult, QueueRunRow, RunRow
from deputize.store.group_commit import GroupCommit
from deputize.store.pool import WRITER
from tests.integration.store.sample_rows import CLOCK, make_closing, make_entry, make_opening, make_tenants, open_writer
from tests.integration.store.test_group_commit_deferral import hold_barrier, wait_for_lock

pytestmark = pytest.mark.requirement("CON-6")
ACME, OTHER = "acme", "other"
_numbers = itertools.count()


@pytest.fixture
async def dsn(fresh_database: str) -> str:
    await make_tenants(fresh_database, ACME, OTHER)
    return fresh_database


def make_run(tenant: str = ACME, key: str | None = None, *, user: str | None = None, priority: int = 5) -> QueueRunRow:
    """A run, of another user each time unless one is named."""
    opening = make_opening(key, tenant=tenant, user=user or f"user-{next(_numbers)}")
    not_after = datetime.now(UTC) + timedelta(days=1)
    run = RunRow(input=b"i", caller=b"c", not_after=not_after, priority=priority, release="1")
    return QueueRunRow(tenant, opening.call_id, opening, run, None)


async def count_queued(dsn: str, tenant: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(
            await connection.fetchval(
                "select count(*) from deputize.calls where tenant = $1 and state = 'queued'", tenant
            )
        )
    finally:
        await connection.close()


async def test_no_more_rows_wait_than_the_bound_but_ends_are_always_taken(dsn: str) -> None:
    async with open_writer(dsn, max_waiting_rows=3) as writer:
        opening = make_opening("k")
        await writer.put(opening)
        # Nothing is sent before this test waits.
        waiting = [writer.put(make_entry()) for _ in range(3)]
        for refused in (writer.put(make_entry()), writer.put(make_opening("other")), writer.put(make_run())):
            with pytest.raises(AuditBackpressure) as refusal:
                await refused
            assert (refusal.value.nothing_happened, refusal.value.retry_after_ms) == (True, 1000)
            assert "3 records wait to be stored" in refusal.value.message
            # Awaiting a future that is done does not let the writer run.
            assert not any(each.done() for each in waiting)
        closing = writer.put(make_closing(opening.call_id))
        assert (await closing).is_closed
        await asyncio.gather(*waiting)
        await writer.put(make_entry())


async def test_rows_of_a_tenant_that_is_held_up_use_up_only_their_own_bound(dsn: str) -> None:
    async with open_writer(dsn, max_waiting_rows=2) as writer:
        async with hold_barrier(dsn, ACME):
            first = writer.put(make_entry(), seconds=60)
            await wait_for_lock(dsn)
            waiting = [first, *(writer.put(make_entry(), seconds=60) for _ in range(2))]
            with pytest.raises(AuditBackpressure):
                await writer.put(make_entry())
            await writer.put(make_entry(tenant=OTHER), seconds=60)
        await asyncio.gather(*waiting)


async def test_a_tenant_queues_as_many_calls_as_allowed_and_another_one_is_not_concerned(dsn: str) -> None:
    async with open_writer(dsn, max_queued_runs=3, timeout=60) as writer:
        rows = [make_run() for _ in range(10)] + [make_run(OTHER) for _ in range(2)]
        results = await asyncio.gather(*(writer.put(row, seconds=60) for row in rows), return_exceptions=True)
        refusals = [each for each in results if isinstance(each, BaseException)]
        assert [type(each) for each in refusals] == [QueueFull] * 7
        assert refusals == results[3:10]
        assert [await count_queued(dsn, tenant) for tenant in (ACME, OTHER)] == [3, 2]
        with pytest.raises(QueueFull) as refusal:
            await writer.put(make_run(), seconds=60)
        assert refusal.value.message == "3 calls of this tenant are queued, as many as runs.max_queued allows"
        assert refusal.value.nothing_happened
        await writer.put(make_run(OTHER), seconds=60)


async def test_a_user_queues_half_of_what_the_tenant_may(dsn: str) -> None:
    async with open_writer(dsn, max_queued_runs=6, timeout=60) as writer:
        rows = [make_run(user="eve") for _ in range(5)] + [make_run(user="bob") for _ in range(2)]
        results = await asyncio.gather(*(writer.put(row, seconds=60) for row in rows), return_exceptions=True)
        assert [isinstance(each, QueueFull) for each in results] == [False] * 3 + [True] * 2 + [False] * 2
        assert isinstance(results[3], QueueFull)
        assert results[3].message == "3 calls of this user are queued, half of what runs.max_queued allows"
        assert await count_queued(dsn, ACME) == 5


async def list_queue(dsn: str) -> list[tuple[str, int]]:
    """List whose calls the engine takes in which order, with their priorities: as it selects them itself."""
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "select k.caller_user, r.priority from dbos.workflow_status w "
            "join deputize.calls k on k.id = w.workflow_uuid::uuid join deputize.runs r on r.id = k.id "
            "where w.status = 'ENQUEUED' order by w.priority, w.created_at, k.id"
        )
        return [(row["caller_user"], row["priority"]) for row in rows]
    finally:
        await connection.close()


async def take_first(dsn: str, count: int) -> list[str]:
    """Take the first calls of the queue away, as a worker does, and list whose they were."""
    first = [user for user, _ in await list_queue(dsn)][:count]
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            "update dbos.workflow_status set status = 'PENDING' where workflow_uuid in (select workflow_uuid from "
            "dbos.workflow_status where status = 'ENQUEUED' order by priority, created_at, workflow_uuid limit $1)",
            count,
        )
    finally:
        await connection.close()
    return first


async def test_users_take_turns_in_the_queue_whatever_priority_one_of_them_names(dsn: str) -> None:
    async with open_writer(dsn, timeout=60) as writer:
        for _ in range(12):
            await writer.put(make_run(user="eve", priority=1), seconds=60)
        for user in ("ana", "ana", "bob"):
            await writer.put(make_run(user=user), seconds=60)
        assert [user for user, _ in await list_queue(dsn)][:6] == ["eve", "ana", "bob", "eve", "ana", "eve"]
        # One who comes later begins with the turn that is served then, and not behind what others queued.
        assert len(await take_first(dsn, 8)) == 8
        await writer.put(make_run(user="zoe"), seconds=60)
        assert "zoe" in [user for user, _ in await list_queue(dsn)][:2]


async def test_a_priority_orders_ones_own_calls_and_gives_no_more_turns(dsn: str) -> None:
    async with open_writer(dsn, timeout=60) as writer:
        for priority in (5, 5, 5, 1, 9):
            await writer.put(make_run(user="ana", priority=priority), seconds=60)
        order = [priority for _, priority in await list_queue(dsn)]
        assert order.index(1) <= 1
        assert order[-1] == 9
        for _ in range(100):
            await writer.put(make_run(user="bob"), seconds=60)
        # One call at a time of each priority, whenever there is none left: never twice as many as another user gets
        # for each of its priorities, and the other user is served all the time.
        served: list[str] = []
        for number in range(100):
            await writer.put(make_run(user="eve", priority=1 + number % 10), seconds=60)
            served += await take_first(dsn, 1)
        assert served.count("bob") >= 20


async def test_what_is_refused_leaves_nothing_and_a_repeated_key_still_finds_its_call(dsn: str) -> None:
    async with open_writer(dsn, max_queued_runs=1, timeout=60) as writer:
        first = make_run(key="k")
        await writer.put(first, seconds=60)
        refused = make_run(key="other")
        with pytest.raises(QueueFull):
            await writer.put(refused, seconds=60)
        assert (await writer.put(make_run(key="k"), seconds=60)).holder == first.call_id
    connection = await asyncpg.connect(dsn)
    try:
        for table in ("calls", "runs", "claims", "audit_entries"):
            assert await connection.fetchval(f"select count(*) from deputize.{table}") == 1, table
        assert await connection.fetchval("select count(*) from dbos.workflow_status") == 1
    finally:
        await connection.close()


async def test_a_repeated_key_that_waits_with_new_calls_still_finds_its_call(dsn: str) -> None:
    async with open_writer(dsn, max_queued_runs=1, timeout=60) as writer:
        first = make_run(key="k")
        await writer.put(first, seconds=60)
        # The same key of another tenant is a new call.
        await writer.put(make_run(OTHER), seconds=60)
        rows = [make_run(), make_run(key="new"), make_run(key="k"), make_run(OTHER, key="k"), make_run(key="k")]
        results = await asyncio.gather(*(writer.put(row, seconds=60) for row in rows), return_exceptions=True)
        holders = [each.holder if isinstance(each, CommitResult) else type(each) for each in results]
        assert holders == [QueueFull, QueueFull, first.call_id, QueueFull, first.call_id]
    assert [await count_queued(dsn, tenant) for tenant in (ACME, OTHER)] == [1, 1]


async def test_a_repeated_key_is_a_new_call_once_its_window_has_ended(dsn: str) -> None:
    async with open_writer(dsn, max_queued_runs=1, timeout=60) as writer:
        first = make_run(key="k")
        await writer.put(first, seconds=60)
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute("update deputize.calls set window_ends = now() where id = $1", first.call_id)
        finally:
            await connection.close()
        rows = [make_run(), make_run(key="k"), make_run(key="k")]
        results = await asyncio.gather(*(writer.put(row, seconds=60) for row in rows), return_exceptions=True)
        assert [type(each) for each in results] == [QueueFull] * 3


async def test_a_connection_lost_while_keys_are_looked_up_leaves_nobody_waiting(dsn: str) -> None:
    losses: list[str] = []

    class LosingConnection(asyncpg.Connection):
        async def fetch(self, query: str, *arguments: Any, **options: Any) -> Any:
            if "deputize.claims" in query and not losses:
                losses.append(query)
                self.terminate()
            return await super().fetch(query, *arguments, **options)

    async def connect() -> asyncpg.Connection:
        connection = await asyncpg.connect(dsn, connection_class=LosingConnection)
        await connection.execute(f"set role {WRITER}")
        return connection

    writer = GroupCommit(connect, boot_id=CLOCK.new_id(), max_queued_runs=1, timeout=60)
    await writer.start()
    try:
        first = make_run(key="k")
        await writer.put(first, seconds=60)
        rows = [make_run(), make_run(), make_run(key="k")]
        results = await asyncio.gather(*(writer.put(row, seconds=60) for row in rows), return_exceptions=True)
        # Rows that were not sent yet are refused with the connection, as ever.
        assert [type(each) for each in results] == [QueueFull, Unavailable, Unavailable]
        assert len(losses) == 1
        assert (await writer.put(make_run(key="k"), seconds=60)).holder == first.call_id
    finally:
        await writer.stop()


async def test_a_release_that_knows_no_bound_queues_as_before(dsn: str) -> None:
    async with open_writer(dsn, timeout=60) as writer:
        await asyncio.gather(*(writer.put(make_run(), seconds=60) for _ in range(5)))
    assert await count_queued(dsn, ACME) == 5
