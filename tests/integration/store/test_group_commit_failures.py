"""What group commit does when PostgreSQL goes away in the middle: nothing lost or doubled, no one left waiting."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest

from deputize.core.errors import Unavailable
from deputize.store import migrate
from deputize.store.commit_rows import CommitRow
from deputize.store.group_commit import GroupCommit
from deputize.store.local_postgres import LocalPostgres
from deputize.store.pool import WRITER, connect_with_role
from tests.integration.store.sample_rows import (
    CLOCK,
    fetch_one_row,
    fetch_states,
    make_closing,
    make_entry,
    make_opening,
    make_tenants,
    open_writer,
    put_all,
    wait_for_blocked_query,
    wait_until,
    wait_until_gone,
)

CLOSE_BARRIER = "select pg_advisory_lock(deputize.barrier_key('acme'))"
OPEN_BARRIER = "select pg_advisory_unlock(deputize.barrier_key('acme'))"

# A server that was killed is back in moments, or on a busy machine in rather more.
TIMEOUT_SECONDS = 90.0


@pytest.fixture
async def dsn(fresh_database: str) -> str:
    await make_tenants(fresh_database, "acme", "other")
    return fresh_database


@pytest.fixture
async def owner(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
def own_postgres(reachable_folder: Path) -> Iterator[LocalPostgres]:
    """A server of this test's own, to be killed."""
    server = LocalPostgres(reachable_folder / "db", settings={"full_page_writes": "off"}).start()
    migrate_in_thread(server.dsn)
    yield server
    server.stop()


def migrate_in_thread(dsn: str) -> None:
    """The session's event loop may be running here already."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(migrate.upgrade, dsn).result()


async def _fetch_counts(owner: asyncpg.Connection) -> tuple[int, int, int]:
    row = await fetch_one_row(
        owner,
        "select (select count(*) from deputize.calls), (select count(*) from deputize.claims), "
        "(select count(*) from deputize.audit_entries)",
    )
    return row[0], row[1], row[2]


@pytest.mark.requirement("QUA-2")
async def test_a_connection_killed_in_mid_batch_loses_and_doubles_nothing(dsn: str, owner: asyncpg.Connection) -> None:
    async with open_writer(dsn) as writer:
        before = make_opening("before")
        await writer.put(before)
        await owner.execute(CLOSE_BARRIER)
        openings = [make_opening(f"k{n}") for n in (0, 1, 2, 3, 4, 0)]
        rows: list[CommitRow] = [*openings, make_closing(before.call_id)]
        waiting = asyncio.gather(*[writer.put(row) for row in rows])
        await owner.fetchval("select pg_terminate_backend($1)", await wait_for_blocked_query(owner))
        await wait_for_blocked_query(owner)
        await owner.execute(OPEN_BARRIER)
        answers = await waiting
        lost = [answer.holder for answer in answers[:6] if answer.holder is not None]
        assert len(lost) == 1
        assert lost[0] in (openings[0].call_id, openings[5].call_id)
        assert answers[6].is_closed
        assert await _fetch_counts(owner) == (6, 6, 7)
        assert writer.outage_reason is None


@pytest.mark.requirement("QUA-2")
async def test_a_reads_entry_caught_in_mid_batch_is_stored_or_refused_but_never_acknowledged_and_lost(
    dsn: str, owner: asyncpg.Connection
) -> None:
    async with open_writer(dsn) as writer:
        await owner.execute(CLOSE_BARRIER)
        reads = asyncio.gather(*[writer.put(make_entry()) for _ in range(5)], return_exceptions=True)
        await owner.fetchval("select pg_terminate_backend($1)", await wait_for_blocked_query(owner))
        await owner.execute(OPEN_BARRIER)
        async with asyncio.timeout(90):
            answers = await reads
        acknowledged = [answer for answer in answers if not isinstance(answer, Unavailable)]
        assert await owner.fetchval("select count(*) from deputize.audit_entries") >= len(acknowledged)
        await wait_until(lambda: writer.outage_reason is None)
        await writer.put(make_entry())


@pytest.mark.requirement("QUA-2")
async def test_a_connection_killed_between_two_batches_is_replaced_without_a_refusal(
    dsn: str, owner: asyncpg.Connection
) -> None:
    async with open_writer(dsn) as writer:
        await writer.put(make_entry())
        await owner.fetch(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
            "and pid <> pg_backend_pid()"
        )
        assert (await writer.put(make_opening("k"))).holder is None
        assert await _fetch_counts(owner) == (1, 1, 2)


@pytest.mark.requirement("QUA-2")
async def test_while_the_server_is_down_openings_are_refused_and_outcomes_wait_for_it(
    own_postgres: LocalPostgres,
) -> None:
    await make_tenants(own_postgres.dsn, "acme")
    async with open_writer(own_postgres.dsn, timeout=5) as writer:
        calls = [make_opening(f"k{n}") for n in range(20)]
        await put_all(writer, calls)
        await asyncio.to_thread(own_postgres.kill)
        outcomes = [writer.put(make_closing(call.call_id), seconds=TIMEOUT_SECONDS) for call in calls]
        await wait_until(lambda: writer.outage_reason is not None)
        for row in (make_opening("late"), make_entry()):
            with pytest.raises(Unavailable) as refused:
                await writer.put(row)
            assert refused.value.nothing_happened
            assert refused.value.retry_after_ms
        assert not any(outcome.done() for outcome in outcomes)
        await asyncio.to_thread(own_postgres.start)
        async with asyncio.timeout(90):
            assert all(answer.is_closed for answer in await asyncio.gather(*outcomes))
        assert (await writer.put(make_opening("late"))).holder is None
        owner = await asyncpg.connect(own_postgres.dsn)
        assert sorted((await fetch_states(owner)).values()) == ["running"] + ["succeeded"] * 20
        assert await _fetch_counts(owner) == (21, 21, 41)
        await owner.close()


@pytest.mark.requirement("QUA-2")
async def test_a_server_killed_under_load_keeps_exactly_what_it_acknowledged(own_postgres: LocalPostgres) -> None:
    await make_tenants(own_postgres.dsn, "acme")
    acknowledged: list[str] = []
    closed: list[str] = []

    async def one_call(writer: GroupCommit, number: int) -> None:
        row = make_opening(f"key-{number}")
        try:
            await writer.put(row)
        except Unavailable:
            return
        acknowledged.append(row.call_id)
        await writer.put(make_closing(row.call_id), seconds=TIMEOUT_SECONDS)
        closed.append(row.call_id)

    async with open_writer(own_postgres.dsn, timeout=5, max_rows=16) as writer:
        tasks = [asyncio.create_task(one_call(writer, number)) for number in range(400)]
        await wait_until(lambda: len(closed) >= 40)
        await asyncio.to_thread(own_postgres.kill)
        await asyncio.to_thread(own_postgres.start)
        async with asyncio.timeout(2 * TIMEOUT_SECONDS):
            await asyncio.gather(*tasks)
        owner = await asyncpg.connect(own_postgres.dsn)
        stored = await fetch_states(owner)
        await owner.close()
    assert len(acknowledged) == len(closed) >= 40
    assert {call for call, state in stored.items() if state == "succeeded"} == set(closed)
    assert set(stored) == set(acknowledged)


@pytest.mark.requirement("QUA-2")
async def test_a_database_that_turned_read_only_is_waited_for_not_taken_for_a_bad_row(
    dsn: str, owner: asyncpg.Connection
) -> None:
    """What a writer meets right after a failover, when its address still leads to the old primary."""
    async with open_writer(dsn) as writer:
        row = make_opening("k")
        await writer.put(row)
        name = dsn.rsplit("/", 1)[1].split("?")[0]
        await owner.execute(f"alter database {name} set default_transaction_read_only = on")
        await owner.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1 and pid <> pg_backend_pid()",
            name,
        )
        outcome = writer.put(make_closing(row.call_id), seconds=TIMEOUT_SECONDS)
        await wait_until(lambda: writer.outage_reason is not None or outcome.done())
        assert not outcome.done()
        with pytest.raises(Unavailable):
            await writer.put(make_opening("other"))
        await owner.execute(
            f"set transaction_read_only = off; alter database {name} reset default_transaction_read_only"
        )
        async with asyncio.timeout(90):
            assert (await outcome).is_closed


async def test_stopping_writes_what_waits_and_then_takes_nothing_more(dsn: str, owner: asyncpg.Connection) -> None:
    writer = GroupCommit(lambda: connect_with_role(dsn, WRITER), boot_id=CLOCK.new_id(), max_rows=3)
    await writer.start()
    futures = [writer.put(make_entry()) for _ in range(10)]
    await writer.stop()
    assert len(await asyncio.gather(*futures)) == 10
    for row in (make_entry(), make_closing(CLOCK.new_id())):
        async with asyncio.timeout(90):
            with pytest.raises(Unavailable):
                await writer.put(row)
    await writer.stop()
    assert (
        await owner.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() "
            "and state = 'active'"
        )
        == 0
    )


async def test_stopping_in_front_of_a_stuck_database_leaves_nobody_waiting(dsn: str, owner: asyncpg.Connection) -> None:
    writer = GroupCommit(lambda: connect_with_role(dsn, WRITER), boot_id=CLOCK.new_id(), timeout=2)
    await writer.start()
    await owner.execute(CLOSE_BARRIER)
    sent = writer.put(make_opening("k"))
    await wait_for_blocked_query(owner)
    queued = writer.put(make_entry())
    async with asyncio.timeout(90):
        await writer.stop()
        with pytest.raises(Unavailable) as in_doubt:
            await sent
        with pytest.raises(Unavailable):
            await queued
    assert not in_doubt.value.nothing_happened
    await owner.execute(OPEN_BARRIER)


async def test_a_writer_whose_drain_is_cancelled_leaves_nobody_waiting_and_goes_on(
    dsn: str, owner: asyncpg.Connection
) -> None:
    async with open_writer(dsn) as writer:
        await owner.execute(CLOSE_BARRIER)
        sent = writer.put(make_opening("k"))
        await wait_for_blocked_query(owner)
        queued = writer.put(make_entry())
        draining = next(task for task in asyncio.all_tasks() if task.get_name() == "group-commit")
        draining.cancel()
        await owner.execute(OPEN_BARRIER)
        async with asyncio.timeout(90):
            with pytest.raises(Unavailable):
                await sent
            later = writer.put(make_entry())
            assert await queued
            assert await later


async def test_a_batch_abandoned_by_its_client_does_not_linger_in_the_server(
    dsn: str, owner: asyncpg.Connection
) -> None:
    """A zombie that commits long after its rows were sent again could bring back a key that was since released."""
    async with open_writer(dsn, timeout=2) as writer:
        await owner.execute(CLOSE_BARRIER)
        sent = writer.put(make_opening("k"), seconds=TIMEOUT_SECONDS)
        await wait_until_gone(owner, await wait_for_blocked_query(owner))
        await owner.execute(OPEN_BARRIER)
        assert (await sent).holder is None


async def test_a_refusal_does_not_tell_callers_about_the_database(dsn: str) -> None:
    writer = GroupCommit(
        lambda: connect_with_role(dsn.replace("/test_", "/gone_test_"), WRITER), boot_id=CLOCK.new_id(), timeout=0.3
    )
    outcome = writer.put(make_closing(CLOCK.new_id()))
    await wait_until(lambda: "refuses" in (writer.outage_reason or ""))
    with pytest.raises(Unavailable) as refused:
        await writer.put(make_entry())
    assert "gone_test_" not in str(refused.value)
    await writer.stop()
    outcome.cancel()
