"""Group commit on a real PostgreSQL: who wins a key, who closes a call, and that sending twice changes nothing."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import asyncpg
import pytest

from deputize.core.caller import Epochs
from deputize.core.errors import InternalError, Problem
from deputize.store.commit_rows import CommitResult, CommitRow
from deputize.store.group_commit import GroupCommit
from deputize.store.pool import WRITER, connect_with_role
from tests.integration.store.sample_rows import (
    CLOCK,
    add_effects,
    fetch_one_row,
    fetch_states,
    hash_text,
    make_closing,
    make_entry,
    make_failed_read,
    make_opening,
    make_tenants,
    open_writer,
    put_all,
)

NOTHING = Epochs()


@pytest.fixture
async def dsn(fresh_database: str) -> str:
    await make_tenants(fresh_database, "acme", "other")
    return fresh_database


@pytest.fixture
async def writer(dsn: str) -> AsyncIterator[GroupCommit]:
    async with open_writer(dsn) as made:
        yield made


@pytest.fixture
async def owner(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def _expire_window(owner: asyncpg.Connection, call_id: str) -> None:
    await owner.execute("update deputize.calls set window_ends = now() - interval '1 s' where id = $1", call_id)


async def test_an_opening_leaves_a_running_call_a_claim_and_an_intent(
    writer: GroupCommit, owner: asyncpg.Connection
) -> None:
    row = make_opening("k")
    assert await writer.put(row) == CommitResult(NOTHING)
    call = await fetch_one_row(owner, "select * from deputize.calls")
    assert (str(call["id"]), call["state"], call["owner_epoch"], call["window_ends"]) == (
        row.call_id,
        "running",
        1,
        None,
    )
    assert await owner.fetchval("select deadline_at - created_at = interval '5 s' from deputize.calls")
    assert str(await owner.fetchval("select call_id from deputize.claims")) == row.call_id
    assert await owner.fetchval("select entry from deputize.audit_entries") == b"intent"


async def test_a_read_leaves_one_entry_and_nothing_else(writer: GroupCommit, owner: asyncpg.Connection) -> None:
    await writer.put(make_entry())
    counts = await fetch_one_row(
        owner,
        "select (select count(*) from deputize.audit_entries), (select count(*) from deputize.calls), "
        "(select count(*) from deputize.claims), (select count(*) from deputize.sealed_payloads)",
    )
    assert tuple(counts) == (1, 0, 0, 0)


@pytest.mark.requirement("INV-5")
async def test_racers_for_one_key_inside_one_batch_have_exactly_one_winner(
    writer: GroupCommit, owner: asyncpg.Connection
) -> None:
    rows = [make_opening("k") for _ in range(50)]
    answers = await put_all(writer, rows)
    winners = [row.call_id for row, answer in zip(rows, answers, strict=True) if answer.holder is None]
    assert len(winners) == 1
    assert {answer.holder for answer in answers} == {None, winners[0]}
    assert await fetch_states(owner) == {winners[0]: "running"}
    assert await owner.fetchval("select count(*) from deputize.audit_entries") == 1


@pytest.mark.requirement("INV-5")
async def test_the_same_key_is_another_key_for_another_tenant_or_scope(writer: GroupCommit) -> None:
    rows = [make_opening("k"), make_opening("k", tenant="other"), make_opening("k", scope=hash_text("somebody else"))]
    assert [answer.holder for answer in await put_all(writer, rows)] == [None, None, None]


async def test_calls_without_keys_never_meet(writer: GroupCommit, owner: asyncpg.Connection) -> None:
    answers = await put_all(writer, [make_opening() for _ in range(20)])
    assert all(answer.holder is None for answer in answers)
    assert len(await fetch_states(owner)) == 20


@pytest.mark.requirement("INV-5")
async def test_two_writers_racing_for_200_keys_have_one_winner_each_and_no_deadlock_comes_up(
    dsn: str, owner: asyncpg.Connection
) -> None:
    keys = [f"k{n}" for n in range(200)]
    async with open_writer(dsn, max_rows=40) as one, open_writer(dsn, max_rows=70) as two:
        ours = [make_opening(key) for key in keys for _ in range(2)]
        theirs = [make_opening(key) for key in reversed(keys) for _ in range(2)]
        first, second = await asyncio.gather(put_all(one, ours), put_all(two, theirs))
    winners: dict[bytes | None, list[str]] = {}
    for row, answer in zip(ours + theirs, first + second, strict=True):
        if answer.holder is None:
            winners.setdefault(row.key, []).append(row.call_id)
    assert {len(won) for won in winners.values()} == {1}
    assert len(winners) == 200
    holder_of = {
        row["key"]: str(row["call_id"]) for row in await owner.fetch("select key, call_id from deputize.claims")
    }
    assert holder_of == {key: won[0] for key, won in winners.items()}
    for row, answer in zip(ours + theirs, first + second, strict=True):
        assert answer.holder in (None, holder_of[row.key or b""])
    assert len(await fetch_states(owner)) == 200


@pytest.mark.requirement("INV-5")
async def test_an_expired_key_is_retaken_by_exactly_one_racer(dsn: str, owner: asyncpg.Connection) -> None:
    async with open_writer(dsn) as one, open_writer(dsn) as two:
        for _ in range(10):
            key = CLOCK.new_id()
            first = make_opening(key)
            await one.put(first)
            await one.put(make_closing(first.call_id))
            await _expire_window(owner, first.call_id)
            racers = [make_opening(key) for _ in range(6)]
            answers = await asyncio.gather(put_all(one, racers[:3]), put_all(two, racers[3:]))
            flat = [answer for part in answers for answer in part]
            won = [row.call_id for row, answer in zip(racers, flat, strict=True) if answer.holder is None]
            assert len(won) == 1
            assert {answer.holder for answer in flat} == {None, won[0]}


@pytest.mark.requirement("INV-5")
async def test_open_and_unknown_calls_keep_their_keys_for_ever(writer: GroupCommit, owner: asyncpg.Connection) -> None:
    running, unknown = make_opening("a"), make_opening("b", window_seconds=0)
    await put_all(writer, [running, unknown])
    await writer.put(make_closing(unknown.call_id, "unknown", error="outcome-unknown"))
    await owner.execute(
        "update deputize.calls set created_at = now() - interval '90 d', deadline_at = now() - interval '90 d'"
    )
    assert [answer.holder for answer in await put_all(writer, [make_opening("a"), make_opening("b")])] == [
        running.call_id,
        unknown.call_id,
    ]


@pytest.mark.requirement("INV-5")
async def test_the_window_starts_at_the_outcome(writer: GroupCommit, owner: asyncpg.Connection) -> None:
    row = make_opening("k", window_seconds=7200)
    await writer.put(row)
    await owner.execute("update deputize.calls set created_at = now() - interval '9 h'")
    await writer.put(make_closing(row.call_id))
    assert await owner.fetchval("select window_ends - ended_at = interval '2 h' from deputize.calls")
    assert (await writer.put(make_opening("k"))).holder == row.call_id


@pytest.mark.requirement("INV-5")
async def test_a_released_key_is_free_again(writer: GroupCommit, owner: asyncpg.Connection) -> None:
    row = make_opening("k")
    await writer.put(row)
    released = await writer.put(make_closing(row.call_id, "failed", error="tool-precondition", release=True))
    assert released.is_closed
    assert await owner.fetchval("select count(*) from deputize.claims") == 0
    again = make_opening("k")
    assert (await writer.put(again)).holder is None
    assert await fetch_states(owner) == {row.call_id: "failed", again.call_id: "running"}


async def test_closing_is_compare_and_set(writer: GroupCommit, owner: asyncpg.Connection) -> None:
    row = make_opening("k")
    await writer.put(row)
    assert not (await writer.put(make_closing(row.call_id, epoch=2))).is_closed
    assert not (await writer.put(make_closing(CLOCK.new_id()))).is_closed
    assert not (await writer.put(make_closing(row.call_id, tenant="other"))).is_closed
    assert (await writer.put(make_closing(row.call_id, ciphertext=b"first"))).is_closed
    assert not (await writer.put(make_closing(row.call_id, "failed", ciphertext=b"second"))).is_closed
    assert await fetch_states(owner) == {row.call_id: "succeeded"}
    assert await owner.fetchval("select ciphertext from deputize.sealed_payloads") == b"first"
    assert await owner.fetchval("select count(*) from deputize.audit_entries") == 2


async def test_a_losers_closing_never_takes_the_winners_key(writer: GroupCommit, owner: asyncpg.Connection) -> None:
    row = make_opening("k")
    await writer.put(row)
    await writer.put(make_closing(row.call_id, "unknown"))
    await owner.execute("delete from deputize.claims")
    heir = make_opening("k")
    await writer.put(heir)
    assert (await writer.put(make_closing(row.call_id, "failed", release=True))).is_closed
    assert str(await owner.fetchval("select call_id from deputize.claims")) == heir.call_id


async def test_a_late_outcome_settles_an_unknown_one(writer: GroupCommit, owner: asyncpg.Connection) -> None:
    row = make_opening("k")
    await writer.put(row)
    assert (await writer.put(make_closing(row.call_id, "unknown", error="outcome-unknown", ciphertext=b"u"))).is_closed
    assert (await writer.put(make_closing(row.call_id, "succeeded", ciphertext=b"s"))).is_closed
    assert await fetch_states(owner) == {row.call_id: "succeeded"}
    assert await owner.fetchval("select ciphertext from deputize.sealed_payloads") == b"s"
    assert await owner.fetchval("select error is null and window_ends > now() from deputize.calls")


@pytest.mark.parametrize("boxes", [(b"u", b"s"), (None, b"s"), (b"u", None), (None, None)])
async def test_two_outcomes_of_one_call_in_one_batch_are_taken_in_order(
    writer: GroupCommit, owner: asyncpg.Connection, boxes: tuple[bytes | None, bytes | None]
) -> None:
    """A thread that ends just after its deadline: unknown, and at once what it really came to."""
    for _ in range(5):
        row = make_opening()
        await writer.put(row)
        late = [
            make_closing(row.call_id, "unknown", error="outcome-unknown", ciphertext=boxes[0]),
            make_closing(row.call_id, "succeeded", ciphertext=boxes[1]),
        ]
        assert [answer.is_closed for answer in await put_all(writer, late)] == [True, True]
        assert (await fetch_states(owner))[row.call_id] == "succeeded"


@pytest.mark.requirement("INV-5")
@pytest.mark.parametrize("unusual", ["taken key", "foreign outcome", "entry sent before"])
async def test_one_unusual_row_changes_nothing_for_the_others_of_its_batch(
    writer: GroupCommit, owner: asyncpg.Connection, unusual: str
) -> None:
    """The batch leaves the straight way for the careful one; what is done and told stays the same."""
    taken, mine, seen = make_opening("taken"), make_opening("mine"), make_entry()
    await put_all(writer, [taken, mine, seen])
    oddities: dict[str, CommitRow] = {
        "taken key": make_opening("taken"),
        "foreign outcome": make_closing(taken.call_id, epoch=2),
        "entry sent before": seen,
    }
    odd = oddities[unusual]
    fresh, keyless = make_opening("fresh"), make_opening()
    batch: list[CommitRow] = [fresh, keyless, make_closing(mine.call_id, "failed", release=True), make_entry(), odd]
    answers = await put_all(writer, batch)
    assert [answer.holder for answer in answers[:2]] == [None, None]
    assert answers[2].is_closed
    assert answers[4].holder == (taken.call_id if unusual == "taken key" else None)
    assert answers[4].is_closed is (unusual != "foreign outcome")
    assert await fetch_states(owner) == {
        taken.call_id: "running", mine.call_id: "failed", fresh.call_id: "running", keyless.call_id: "running",
    }  # fmt: skip
    holders = {str(row["call_id"]) for row in await owner.fetch("select call_id from deputize.claims")}
    assert holders == {taken.call_id, fresh.call_id}
    # Three from before, and one each from the two openings, the outcome and the entry.
    assert await owner.fetchval("select count(*) from deputize.audit_entries") == 7


async def test_a_batch_sent_twice_changes_nothing_and_answers_the_same(dsn: str, owner: asyncpg.Connection) -> None:
    """What a writer does whose acknowledgement was lost: the same rows, on a new connection."""
    boot = CLOCK.new_id()
    lost = make_opening("lost")
    first = make_opening("k")
    rows: list[CommitRow] = [first, make_opening("k"), make_opening(), make_entry(), lost, make_opening("lost")]
    ends: list[CommitRow] = [
        make_closing(first.call_id, ciphertext=b"1"),
        make_closing(lost.call_id, "failed", release=True),
        make_entry(),
    ]
    for batch in (rows, ends):
        answers = []
        snapshots = []
        for _ in range(3):
            sender = GroupCommit(lambda: connect_with_role(dsn, WRITER), boot_id=boot)
            await sender.start()
            answers.append(await put_all(sender, batch))
            await sender.stop()
            snapshots.append(
                [
                    await owner.fetch(f"select * from deputize.{table} order by 1, 2, 3")
                    for table in ("calls", "claims", "audit_entries", "sealed_payloads")
                ]
            )
        assert all(one == other for one, other in pairwise(answers))
        assert all(one == other for one, other in pairwise(snapshots))


async def test_a_batch_resent_while_its_first_sending_is_still_under_way_has_one_effect(
    dsn: str, owner: asyncpg.Connection
) -> None:
    rows = [make_opening(f"k{n % 7}") for n in range(30)]
    boot = CLOCK.new_id()
    senders = [GroupCommit(lambda: connect_with_role(dsn, WRITER), boot_id=boot) for _ in range(4)]
    for sender in senders:
        await sender.start()
    answers = await asyncio.gather(*(put_all(sender, rows) for sender in senders))
    for sender in senders:
        await sender.stop()
    assert all(one == other for one, other in pairwise(answers))
    assert len(await fetch_states(owner)) == 7


POISON: list[CommitRow] = [
    make_opening("poison", session="a\0b"),
    make_opening("poison", tool="\ud800"),
    make_opening("poison", tenant="nobody"),
    make_opening("poison", call_id="not a uuid"),
    make_closing(CLOCK.new_id(), error="\0"),
    make_entry(id="00000000-0000-7000-8000-000000000000"),
]


@pytest.mark.parametrize("poison", POISON, ids=["nul", "surrogate", "tenant", "id", "closing", "no-partition"])
async def test_a_poisonous_row_hurts_only_itself(
    writer: GroupCommit, owner: asyncpg.Connection, poison: CommitRow
) -> None:
    held = make_opening("held")
    await writer.put(held)
    good: list[CommitRow] = [
        make_opening("a"),
        make_entry(),
        make_closing(held.call_id),
        make_opening("a"),
        make_opening(),
    ]
    futures = [writer.put(row) for row in (*good[:2], poison, *good[2:])]
    answers = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(answers.pop(2), InternalError)
    assert [type(answer) for answer in answers] == [CommitResult] * 5
    assert await owner.fetchval("select count(*) from deputize.audit_entries") == 5
    assert writer.outage_reason is None
    assert (await writer.put(make_entry())).epochs == NOTHING


async def test_a_refused_row_leaves_no_values_in_the_log(
    writer: GroupCommit, capsys: pytest.CaptureFixture[str]
) -> None:
    poisons: list[CommitRow] = [
        make_opening(session="hunter2\0"),
        make_opening(tool="hunter2\ud800"),
        make_opening(call_id="hunter2"),
    ]
    for poison in poisons:
        with pytest.raises(Problem) as refused:
            await writer.put(poison)
        assert "hunter2" not in str(refused.value)
    captured = capsys.readouterr()
    assert "row_refused" in captured.out + captured.err
    assert "hunter2" not in captured.out + captured.err


async def test_a_refused_outcome_is_not_said_to_prove_that_nothing_happened(writer: GroupCommit) -> None:
    with pytest.raises(InternalError) as refused:
        await writer.put(make_closing(CLOCK.new_id(), error="\0"))
    assert not refused.value.nothing_happened


async def test_more_rows_than_a_batch_holds_are_all_written(dsn: str, owner: asyncpg.Connection) -> None:
    async with open_writer(dsn, max_rows=7) as small:
        await put_all(small, [make_entry() for _ in range(100)])
    assert await owner.fetchval("select count(*) from deputize.audit_entries") == 100


async def test_a_caller_that_stops_waiting_does_not_disturb_the_batch(
    writer: GroupCommit, owner: asyncpg.Connection
) -> None:
    futures = [writer.put(make_entry()) for _ in range(5)]
    futures[2].cancel()
    await asyncio.gather(*futures[:2], *futures[3:])
    assert await owner.fetchval("select count(*) from deputize.audit_entries") >= 4
    await writer.put(make_entry())


async def test_the_journal_is_stored_with_its_outcome_once_and_only_by_the_owner(
    writer: GroupCommit, owner: asyncpg.Connection
) -> None:
    opening = make_opening()
    await writer.put(opening)
    foreign = add_effects(make_closing(opening.call_id, epoch=2), "7")
    assert not (await writer.put(foreign)).is_closed
    closing = add_effects(make_closing(opening.call_id), "7", "8")
    # The second time, as if its acknowledgement was lost.
    assert [(await writer.put(closing)).is_closed for _ in range(2)] == [True, True]
    rows = await owner.fetch("select * from deputize.journal where call_id = $1 order by number", opening.call_id)
    assert [(str(row["id"]), row["scope"]) for row in rows] == [(closing.entry_id, "7"), (closing.entry_id, "8")]
    assert (rows[0]["caller_user"], rows[0]["caller_agent"], rows[0]["tool"]) == ("ana", "bot", "crm.put_user")


async def test_a_failed_read_is_stored_with_its_entry_or_not_at_all(
    writer: GroupCommit, owner: asyncpg.Connection
) -> None:
    first, second, entry = make_failed_read(), make_failed_read(), make_entry()
    await put_all(writer, [first, make_opening()])
    # The second time, as if its acknowledgement was lost.
    for _ in range(2):
        await put_all(writer, [first, second, entry])
    ids = [first.call_id, second.call_id, entry.call_id]
    stored = await owner.fetch(
        "select k.state, k.caller_user, s.ciphertext from deputize.calls k join deputize.sealed_payloads s"
        " on s.tenant = k.tenant and s.id = k.id and s.kind = 'outcome' where k.id = any($1::uuid[])",
        ids,
    )
    assert [tuple(each) for each in stored] == [("failed", "ana", b"box")] * 2
    assert await owner.fetchval("select count(*) from deputize.audit_entries where call_id = any($1::uuid[])", ids) == 3
    refused = make_failed_read(error="\0")
    with pytest.raises(InternalError):
        await writer.put(refused)
    assert not await owner.fetchval(
        "select exists (select from deputize.audit_entries where id = $1)", refused.audit_entry.id
    )
