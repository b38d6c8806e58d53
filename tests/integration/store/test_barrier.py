"""The commit is the barrier: a batch comes before a change of authority, or answers with the epoch that includes it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from deputize.core.caller import Epochs
from deputize.store.pool import Store
from deputize.store.queries import load_statements
from tests.integration.store.sample_rows import (
    CLOCK,
    fetch_states,
    make_closing,
    make_entry,
    make_opening,
    make_tenants,
    open_writer,
    wait_for_blocked_query,
)

pytestmark = pytest.mark.requirement("NEW-7")
EPOCHS, RUNS, CALLS = load_statements("epochs"), load_statements("runs"), load_statements("calls")
RAISE = "update deputize.epochs set revocation = revocation + 1 where tenant = $1 returning revocation"


@pytest.fixture
async def dsn(fresh_database: str) -> str:
    await make_tenants(fresh_database, "acme", "other")
    return fresh_database


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[Store]:
    opened = await Store.open(dsn, read_connections=2)
    yield opened
    await opened.close()


@pytest.fixture
async def owner(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.mark.parametrize("make", [make_opening, make_entry])
async def test_a_batch_waits_for_a_change_under_way_and_answers_with_its_epoch(
    dsn: str, store: Store, owner: asyncpg.Connection, make: Any
) -> None:
    async with open_writer(dsn) as writer:
        async with store.write_transaction() as change:
            await change.execute(EPOCHS["lock_barrier_exclusive"], "acme")
            put = writer.put(make())
            await wait_for_blocked_query(owner)
            assert await change.fetchval(RAISE, "acme") == 1
            assert not put.done()
        assert (await put).epochs == Epochs(revocation=1)


async def test_a_batch_under_way_holds_up_a_change_and_does_not_see_it(
    dsn: str, store: Store, owner: asyncpg.Connection
) -> None:
    row = make_opening("k")
    watching = await asyncpg.connect(dsn)
    async with open_writer(dsn) as writer:
        # Somebody else holds the claim's row, so that the batch stands still while it holds the barrier.
        async with owner.transaction():
            await owner.execute(
                "insert into deputize.claims (tenant, scope, key, call_id) values ('acme', $1, $2, $3)",
                row.scope, row.key, CLOCK.new_id(),
            )  # fmt: skip
            put = writer.put(row)
            await wait_for_blocked_query(watching)

            async def change() -> int:
                async with store.write_transaction() as connection:
                    await connection.execute(EPOCHS["lock_barrier_exclusive"], "acme")
                    raised: int = await connection.fetchval(RAISE, "acme")
                    return raised

            changing = asyncio.create_task(change())
            await wait_for_blocked_query(watching, "%pg_advisory_xact_lock(%")
            assert not changing.done()
        assert (await put).epochs == Epochs()
        assert await changing == 1
    await watching.close()


async def test_tenants_that_do_not_change_are_not_held_up(dsn: str, store: Store) -> None:
    async with open_writer(dsn) as writer, store.write_transaction() as change:
        await change.execute(EPOCHS["lock_barrier_exclusive"], "other")
        async with asyncio.timeout(90):
            await writer.put(make_opening())


async def test_under_load_no_commit_after_a_change_answers_with_an_older_epoch(dsn: str, store: Store) -> None:
    """By PostgreSQL's own commit order, from its commit timestamps."""
    answered: dict[str, int] = {}

    async def load_on(writer: Any, stop: asyncio.Event) -> None:
        while not stop.is_set():
            row = make_entry()
            answered[row.id] = (await writer.put(row)).epochs.revocation

    stop = asyncio.Event()
    async with open_writer(dsn) as one, open_writer(dsn) as two:
        callers = [asyncio.create_task(load_on(writer, stop)) for writer in (one, two) for _ in range(8)]
        changed_in: dict[int, int] = {}
        for _ in range(60):
            async with store.write_transaction() as change:
                await change.execute(EPOCHS["lock_barrier_exclusive"], "acme")
                raised = await change.fetchval(RAISE, "acme")
                changed_in[raised] = int(await change.fetchval("select pg_current_xact_id()::text::bigint"))
        stop.set()
        await asyncio.gather(*callers)
    async with store.write_transaction() as connection:
        rows = await connection.fetch(
            "select id, xmin::text::bigint as born, pg_xact_commit_timestamp(xmin) as at from deputize.audit_entries"
        )
        moments = {
            epoch: await connection.fetchval("select pg_xact_commit_timestamp($1::text::xid)", str(number))
            for epoch, number in changed_in.items()
        }
    assert len(answered) > 60
    order = sorted(moments.items(), key=lambda each: each[0])
    assert [moment for _, moment in order] == sorted(moments.values())
    wrong = []
    for row in rows:
        seen = answered[str(row["id"])]
        after = sum(moment < row["at"] for _, moment in order)
        surely_before = sum(moment <= row["at"] for _, moment in order)
        if not after <= seen <= surely_before:
            wrong.append((seen, after, surely_before))
    assert wrong == []


async def _retake_call(store: Store, call_id: str, epoch: int, boot: str, margin: float = 2.0) -> list[asyncpg.Record]:
    async with store.write_transaction() as connection:
        rows: list[asyncpg.Record] = await connection.fetch(
            CALLS["take_over_call"], "acme", call_id, epoch, boot, 5.0, margin, CLOCK.new_id(), b"again", b"s"
        )
        return rows


def _is_claimed(answers: list[asyncpg.Record]) -> bool:
    return any(row["kind"] == "taken_over" for row in answers)


async def test_an_unknown_call_is_retaken_by_exactly_one_of_many(
    dsn: str, store: Store, owner: asyncpg.Connection
) -> None:
    row = make_opening("k")
    async with open_writer(dsn) as writer:
        await writer.put(row)
        await writer.put(make_closing(row.call_id, "unknown", error="outcome-unknown"))
        answers = await asyncio.gather(*(_retake_call(store, row.call_id, 1, CLOCK.new_id()) for _ in range(4)))
        assert [_is_claimed(each) for each in answers].count(True) == 1
        assert all(any(answer["kind"] == "epochs" for answer in each) for each in answers)
        assert await owner.fetchval("select count(*) from deputize.audit_entries where entry = 'again'") == 1
        assert not (await writer.put(make_closing(row.call_id, epoch=1))).is_closed
        assert await fetch_states(owner) == {row.call_id: "running"}
        assert (await writer.put(make_closing(row.call_id, epoch=2))).is_closed


async def test_a_running_call_is_retaken_only_when_its_owners_lease_is_over(
    dsn: str, store: Store, owner: asyncpg.Connection
) -> None:
    row = make_opening("k")
    async with open_writer(dsn) as writer:
        await writer.put(row)
        boot = str(await owner.fetchval("select owner from deputize.calls"))
        await owner.fetchval(RUNS["renew_lease"], boot, 10.0, "test")
        assert not _is_claimed(await _retake_call(store, row.call_id, 1, CLOCK.new_id()))
        await owner.execute("update deputize.leases set expires_at = now() - interval '1 s'")
        assert not _is_claimed(await _retake_call(store, row.call_id, 1, CLOCK.new_id(), margin=30.0))
        assert not _is_claimed(await _retake_call(store, row.call_id, 1, boot, margin=0.0))
        assert not _is_claimed(await _retake_call(store, row.call_id, 2, CLOCK.new_id(), margin=0.0))
        assert _is_claimed(await _retake_call(store, row.call_id, 1, CLOCK.new_id(), margin=0.0))


async def test_a_retake_that_races_the_late_outcome_of_the_old_owner_leaves_one_of_the_two(
    dsn: str, store: Store, owner: asyncpg.Connection
) -> None:
    async with open_writer(dsn) as writer:
        for _ in range(20):
            row = make_opening()
            await writer.put(row)
            await writer.put(make_closing(row.call_id, "unknown"))
            taken, closed = await asyncio.gather(
                _retake_call(store, row.call_id, 1, CLOCK.new_id()), writer.put(make_closing(row.call_id))
            )
            assert _is_claimed(taken) is not closed.is_closed
            assert (await fetch_states(owner))[row.call_id] == ("running" if _is_claimed(taken) else "succeeded")


async def test_a_retake_waits_at_the_barrier_and_answers_with_the_new_epoch(
    dsn: str, store: Store, owner: asyncpg.Connection
) -> None:
    row = make_opening()
    async with open_writer(dsn) as writer:
        await writer.put(row)
        await writer.put(make_closing(row.call_id, "unknown"))
    async with store.write_transaction() as change:
        await change.execute(EPOCHS["lock_barrier_exclusive"], "acme")
        taking = asyncio.create_task(_retake_call(store, row.call_id, 1, CLOCK.new_id()))
        await wait_for_blocked_query(owner, "%take_over_call%")
        await change.execute(RAISE, "acme")
    assert next(each["revocation"] for each in await taking if each["kind"] == "epochs") == 1


async def test_a_gateway_that_was_cut_off_does_not_believe_a_call_its_own_that_was_taken_over_meanwhile(
    dsn: str, store: Store, owner: asyncpg.Connection
) -> None:
    """Its opening committed, the answer was lost, another took the call over; then the opening is sent again."""
    row = make_opening("k")
    async with open_writer(dsn) as writer:
        await writer.put(row)
        assert _is_claimed(await _retake_call(store, row.call_id, 1, CLOCK.new_id(), margin=0.0))
        assert (await writer.put(row)).holder == row.call_id
    assert await owner.fetchval("select owner_epoch from deputize.calls") == 2


async def test_two_sweepers_share_abandoned_calls_and_mark_each_once(
    dsn: str, store: Store, owner: asyncpg.Connection
) -> None:
    async with open_writer(dsn) as writer:
        await asyncio.gather(*[writer.put(make_opening(seconds=0.0)) for _ in range(10)])
    async with store.write_transaction() as one, store.write_transaction() as two:
        first = await one.fetch(RUNS["lock_abandoned_calls"], 0.0)
        second = await two.fetch(RUNS["lock_abandoned_calls"], 0.0)
    assert len(first) == 10
    assert second == []
    for call in first:
        done = [
            await owner.execute(RUNS["mark_call_unknown"], "acme", call["id"], call["owner_epoch"]) for _ in range(2)
        ]
        assert done == ["UPDATE 1", "UPDATE 0"]
