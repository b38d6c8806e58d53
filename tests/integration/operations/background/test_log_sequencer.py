"""Entries become leaves of their tenant's log exactly once, whatever happens to the processes that append them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from deputize.core.clock import Clock
from deputize.evidence.log.checkpoint import open_checkpoint
from deputize.evidence.log.leaf import build_leaf
from deputize.evidence.log.merkle_tree import MerkleFrontier, hash_leaf
from deputize.evidence.log.signed_note import parse_note
from deputize.evidence.log.tiles import MAX_ENTRY_SIZE
from deputize.evidence.tenant_log.log_appender import LogDivergence, load_checked_frontier
from deputize.evidence.tenant_log.log_keys import load_log_keys
from deputize.operations.background import log_sequencer
from deputize.operations.background.log_sequencer import LogSequencer
from deputize.store.exclusive_lease import LeaseTakeover
from deputize.store.keys import KEY_BYTES, MasterKey, TenantKeys
from deputize.store.pool import WRITER, Store, connect_with_role
from deputize.store.restore_guard.checkpoint_files import SavedCheckpoint
from tests.integration.store.sample_rows import (
    make_entry,
    make_tenants,
    open_writer,
    put_all,
    wait_for_blocked_query,
)

pytestmark = pytest.mark.requirement("GOV-5")
TENANTS = ("acme", "other")
EXPIRE_LEASE = "update deputize.log_sequencer set expires_at = now() - interval '1 second'"


@pytest.fixture
async def store(fresh_database: str) -> AsyncIterator[Store]:
    await make_tenants(fresh_database, *TENANTS)
    opened = await Store.open(fresh_database, read_connections=2)
    yield opened
    await opened.close()


@pytest.fixture
async def blocker(store: Store) -> AsyncIterator[asyncpg.Connection]:
    """A second connection of the owner, to hold a lock with."""
    connection = await asyncpg.connect(store.direct_dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def owner(store: Store) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(store.direct_dsn)
    yield connection
    await connection.close()


def make_sequencer(store: Store, **options: Any) -> LogSequencer:
    clock = Clock()
    keys = TenantKeys(store, MasterKey(material=b"\x05" * KEY_BYTES), clock)
    return LogSequencer(store, keys, clock, boot_id=clock.new_id(), public_url="https://gateway.example", **options)


async def write_entries(store: Store, count: int, *, tenants: Sequence[str] = TENANTS, text: str = "") -> None:
    async with open_writer(store.direct_dsn) as writer:
        rows = [make_entry(tenant=tenants[n % len(tenants)], entry=f"{text} {n}".encode()) for n in range(count)]
        await put_all(writer, rows)


async def drain(sequencer: LogSequencer, owner: asyncpg.Connection) -> None:
    """Run steps until nothing is queued and every log is signed."""
    async with asyncio.timeout(90):
        while True:
            await sequencer.run_step()
            if await owner.fetchval(
                """select not exists (select from deputize.log_queue) and not exists (select from deputize.log_backlogs)
                   and not exists (select from deputize.log_leaves l where l.leaf_index >= coalesce(
                       (select max(size) from deputize.log_checkpoints c where c.tenant = l.tenant), 0))"""
            ):
                return


async def verify_log(owner: asyncpg.Connection, tenant: str) -> int:
    """Compute every signed root again from the entries themselves; return how many entries there are."""
    leaves = await owner.fetch(
        """select l.leaf_index, a.entry from deputize.log_leaves l
           join deputize.audit_entries a on a.tenant = l.tenant and a.id = l.entry_id
           where l.tenant = $1 order by l.leaf_index""",
        tenant,
    )
    notes = {
        row["size"]: row["note"]
        for row in await owner.fetch("select size, note from deputize.log_checkpoints where tenant = $1", tenant)
    }
    keys = [each.verifier_key for each in (await load_log_keys(owner, [tenant]))[tenant]]
    assert [row["leaf_index"] for row in leaves] == list(range(len(leaves)))
    assert max(notes) == len(leaves)
    frontier = MerkleFrontier()
    for row in leaves:
        frontier.append(hash_leaf(build_leaf(row["entry"])))
        if (note := notes.get(frontier.size)) is not None:
            checkpoint = open_checkpoint(parse_note(note), keys)
            assert checkpoint.origin == f"gateway.example/log/{tenant}"
            assert (checkpoint.size, checkpoint.root) == (frontier.size, frontier.compute_root())
    return len(leaves)


async def test_three_sequencers_that_lose_their_turns_append_every_entry_once(
    store: Store, owner: asyncpg.Connection
) -> None:
    sequencers = [make_sequencer(store, batch_entries_each=70) for _ in range(3)]
    is_over = asyncio.Event()

    async def sequence(sequencer: LogSequencer) -> None:
        while not is_over.is_set():
            with contextlib.suppress(LeaseTakeover):
                await sequencer.run_step()
            await asyncio.sleep(0)

    async def take_turns_away() -> None:
        while not is_over.is_set():
            await owner.execute(EXPIRE_LEASE)
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        for sequencer in sequencers:
            tasks.create_task(sequence(sequencer))
        disturbance = tasks.create_task(take_turns_away())
        for number in range(5):
            await write_entries(store, 400, text=f"round {number}")
        is_over.set()
        await disturbance

    await owner.execute(EXPIRE_LEASE)
    await drain(sequencers[0], owner)
    assert [await verify_log(owner, tenant) for tenant in TENANTS] == [1000, 1000]
    assert await owner.fetchval("select epoch from deputize.log_sequencer") > 3
    assert await owner.fetchval("select count(*) from deputize.log_nodes where level = 1") == 6


async def test_what_a_process_appended_and_did_not_sign_is_signed_by_the_next(
    store: Store, owner: asyncpg.Connection, blocker: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sequencer, "_LEASE_SECONDS", 600.0)
    await write_entries(store, 3, tenants=["acme"])
    first, second = make_sequencer(store), make_sequencer(store)
    await first.run_step()
    async with blocker.transaction():
        await blocker.execute("lock table deputize.log_checkpoints in exclusive mode")
        step = asyncio.create_task(first.run_step())
        pid = await wait_for_blocked_query(owner, "%into deputize.log_checkpoints%")
        step.cancel()
        await owner.execute("select pg_terminate_backend($1)", pid)
        await asyncio.wait([step])
    assert await owner.fetchval("select count(*) from deputize.log_leaves") == 3
    assert await owner.fetchval("select count(*) from deputize.log_checkpoints") == 0

    await second.run_step()
    assert await owner.fetchval("select count(*) from deputize.log_checkpoints") == 0
    await first.stop()
    await drain(second, owner)
    assert await verify_log(owner, "acme") == 3


async def test_a_process_that_takes_long_to_begin_still_has_its_lease(
    store: Store, owner: asyncpg.Connection, blocker: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would begin again and again, and append nothing."""
    monkeypatch.setattr(log_sequencer, "_LEASE_SECONDS", 1.0)
    async with blocker.transaction():
        await blocker.execute("lock table deputize.log_checkpoints in access exclusive mode")
        step = asyncio.create_task(make_sequencer(store).run_step())
        await wait_for_blocked_query(owner, "%deputize.log_checkpoints c%")
        released_at = await owner.fetchval("select clock_timestamp() from pg_sleep(1.2)")
    await step
    assert await owner.fetchval("select expires_at from deputize.log_sequencer") > released_at


async def test_a_process_that_was_taken_over_in_the_middle_of_a_step_appends_nothing(
    store: Store, owner: asyncpg.Connection, blocker: asyncpg.Connection
) -> None:
    await write_entries(store, 3, tenants=["acme"])
    first = make_sequencer(store)
    await first.run_step()
    async with blocker.transaction():
        await blocker.execute("update deputize.log_sequencer set owner = gen_random_uuid(), epoch = epoch + 1")
        step = asyncio.create_task(first.run_step())
        await wait_for_blocked_query(owner, "%update deputize.log_sequencer%")
    with pytest.raises(LeaseTakeover):
        await step
    assert await owner.fetchval("select count(*) from deputize.log_leaves") == 0
    assert await owner.fetchval("select count(*) from deputize.log_queue") == 3


async def test_an_entry_that_commits_late_is_not_passed_over(
    store: Store, owner: asyncpg.Connection, blocker: asyncpg.Connection
) -> None:
    sequencer = make_sequencer(store)
    late = make_entry(entry=b"late")
    async with blocker.transaction():
        await blocker.execute(
            "insert into deputize.audit_entries (tenant, id, entry) values ($1, $2, $3)", late.tenant, late.id, b"late"
        )
        await write_entries(store, 2, tenants=["acme"])
        await drain(sequencer, owner)
        assert await owner.fetchval("select count(*) from deputize.log_leaves") == 2
    await drain(sequencer, owner)
    assert await verify_log(owner, "acme") == 3
    assert str(await owner.fetchval("select entry_id from deputize.log_leaves where leaf_index = 2")) == late.id


async def test_a_log_that_was_changed_does_not_grow_and_others_do(store: Store, owner: asyncpg.Connection) -> None:
    await write_entries(store, 6)
    sequencer = make_sequencer(store)
    await drain(sequencer, owner)
    await sequencer.stop()
    await owner.execute("update deputize.log_leaves set hash = sha256('x') where tenant = 'acme' and leaf_index = 1")

    await write_entries(store, 4)
    second = make_sequencer(store)
    for _ in range(5):
        await second.run_step()
    assert await verify_log(owner, "other") == 5
    assert await owner.fetchval("select max(size) from deputize.log_checkpoints where tenant = 'acme'") == 3
    assert await owner.fetchval("select count(*) from deputize.log_queue where tenant = 'acme'") == 2


async def test_a_tenant_whose_first_key_cannot_be_made_holds_up_no_other(
    store: Store, owner: asyncpg.Connection
) -> None:
    """Its data key was wrapped with a master key that this gateway does not have."""
    clock = Clock()
    await TenantKeys(store, MasterKey(material=b"\x06" * KEY_BYTES), clock).load("acme")
    await write_entries(store, 4)
    sequencer = make_sequencer(store)
    for _ in range(4):
        await sequencer.run_step()
    assert await verify_log(owner, "other") == 2
    assert await owner.fetchval("select count(*) from deputize.log_checkpoints where tenant = 'acme'") == 0


async def test_a_changed_key_of_one_log_holds_up_no_other(store: Store, owner: asyncpg.Connection) -> None:
    await write_entries(store, 4)
    sequencer = make_sequencer(store)
    await drain(sequencer, owner)
    await owner.execute("update deputize.log_keys set verifier_key = 'x+y' where tenant = 'acme'")
    await write_entries(store, 4)
    for _ in range(4):
        await sequencer.run_step()
    assert await verify_log(owner, "other") == 4
    assert await owner.fetchval("select max(size) from deputize.log_checkpoints where tenant = 'acme'") == 2


@pytest.mark.parametrize(
    "forged_row",
    [
        "insert into deputize.log_nodes (tenant, level, node_index, hash) values ('acme', 1, 0, sha256('x'))",
        "insert into deputize.log_leaves (tenant, leaf_index, entry_id, hash)"
        " values ('acme', 2, gen_random_uuid(), sha256('x'))",
    ],
)
async def test_a_row_that_stands_in_the_way_of_one_log_holds_up_no_other(
    store: Store, owner: asyncpg.Connection, forged_row: str
) -> None:
    await write_entries(store, 4)
    sequencer = make_sequencer(store)
    await drain(sequencer, owner)
    await owner.execute(forged_row)
    await write_entries(store, 600)
    for _ in range(6):
        with contextlib.suppress(*LogSequencer.tolerated_errors):
            await sequencer.run_step()
    assert await verify_log(owner, "other") == 302
    assert await owner.fetchval("select max(size) from deputize.log_checkpoints where tenant = 'acme'") == 2


async def test_a_large_entry_has_a_leaf_with_its_digest(store: Store, owner: asyncpg.Connection) -> None:
    async with open_writer(store.direct_dsn) as writer:
        for size in (MAX_ENTRY_SIZE, MAX_ENTRY_SIZE + 1):
            await writer.put(make_entry(entry=b"x" * size))
    await drain(make_sequencer(store), owner)
    assert await verify_log(owner, "acme") == 2
    assert len(build_leaf(b"x" * (MAX_ENTRY_SIZE + 1))) < 200


async def test_a_small_batch_is_followed_by_a_pause_and_a_full_one_is_not(
    store: Store, owner: asyncpg.Connection
) -> None:
    """Without the pause, the sequencer would follow every few calls, at the cost of the calls."""
    sequencer = make_sequencer(store, batch_entries_each=10)
    await drain(sequencer, owner)
    await write_entries(store, 12, tenants=["acme"])
    assert await sequencer.run_step() == 0
    assert await sequencer.run_step() == sequencer.interval_seconds
    assert await verify_log(owner, "acme") == 12


async def test_entries_from_before_the_log_are_appended_in_steps(store: Store, owner: asyncpg.Connection) -> None:
    await write_entries(store, 2100, tenants=["acme"])
    await owner.execute("delete from deputize.log_queue")
    await owner.execute("insert into deputize.log_backlogs (tenant) select tenant from deputize.tenants")
    await write_entries(store, 5, tenants=["acme"])
    await drain(make_sequencer(store), owner)
    assert await verify_log(owner, "acme") == 2105


async def test_every_insertion_of_an_entry_queues_it(owner: asyncpg.Connection) -> None:
    """Also into a partition that was made later, and with several insertions in one statement."""
    await owner.execute("call deputize.create_partitions(9)")
    ids = [Clock().new_id() for _ in range(3)]
    await owner.execute(
        """with first as (insert into deputize.audit_entries (tenant, id, entry) values ('acme', $1, 'x'))
           insert into deputize.audit_entries (tenant, id, entry) values ('other', $2, 'x'),
               ('other', overlay($3::text placing substr(deputize.first_uuid_of_day(current_date + 9)::text, 1, 13)
                                 from 1)::uuid, 'x')""",
        *ids,
    )
    query = "select tenant, id from deputize.audit_entries order by 1, 2"
    queue_query = "select tenant, entry_id as id from deputize.log_queue order by 1, 2"
    assert await owner.fetch(query) == await owner.fetch(queue_query)
    assert await owner.fetchval("select count(*) from deputize.log_queue") == 3


async def test_a_log_is_compared_with_the_checkpoint_that_is_saved_outside_the_database(
    store: Store, owner: asyncpg.Connection
) -> None:
    await write_entries(store, 20)
    await drain(make_sequencer(store), owner)
    row = await owner.fetchrow("select size, root, note from deputize.log_checkpoints where tenant = 'acme'")
    assert row is not None
    saved = SavedCheckpoint(tenant="acme", size=row["size"], root=row["root"], note=row["note"])
    async with store.write_transaction() as connection:
        assert (await load_checked_frontier(connection, "acme", saved)).size == 10
        with pytest.raises(LogDivergence, match="its first 10 entries are not what was signed"):
            await load_checked_frontier(connection, "acme", replace(saved, root=bytes(32)))
        with pytest.raises(LogDivergence, match="it has 10 entries, and 11 were signed"):
            await load_checked_frontier(connection, "acme", replace(saved, size=11))


async def test_an_entry_leaves_the_queue_only_with_its_leaf(store: Store, owner: asyncpg.Connection) -> None:
    await write_entries(store, 10)
    delete = "delete from deputize.log_queue where tenant = 'acme'"
    writer = await connect_with_role(store.direct_dsn, WRITER)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="only with its leaf"):
            await writer.execute(delete)
        # Also if rows are shown of another tenant when the deletion is checked.
        transaction = writer.transaction()
        await transaction.start()
        await writer.execute(delete)
        await writer.execute("set local role deputize_reader; set local deputize.tenant = 'other'")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="only with its leaf"):
            await transaction.commit()
    finally:
        await writer.close()
    await drain(make_sequencer(store), owner)
    assert [await verify_log(owner, tenant) for tenant in TENANTS] == [5, 5]
