"""What is kept for a while is forgotten after it, and nothing that someone still needs."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from deputize.store.queries import load_statements
from tests.integration.store.sample_rows import wait_for_blocked_query

DAYS = 30
_DELETE_RESULTS = load_statements("results")["delete_expired_results"]
_PART = """
set role deputize_owner;
do $$ declare day date := (now() at time zone 'utc')::date - %(ago)s; parent text;
begin
    foreach parent in array array['calls', 'sealed_payloads', 'journal'] loop
        execute format(
            'create table if not exists deputize.%%I partition of deputize.%%I for values from (%%L) to (%%L)',
            parent || to_char(day, '_YYYYMMDD'), parent,
            deputize.first_uuid_of_day(day), deputize.first_uuid_of_day(day + 1));
    end loop;
end $$;
reset role
"""
_CALL = """
with made as (
    select overlay(deputize.first_uuid_of_day((now() at time zone 'utc')::date - $1::integer)::text
                   placing substr(gen_random_uuid()::text, 25) from 25)::uuid as id
), called as (
    insert into deputize.calls (tenant, id, state, tool, version, tool_digest, mutation_class, caller_user,
        caller_agent, fingerprint, owner, deadline_at, window_seconds, trace, ended_at, window_ends)
    select 'acme', id, $2, 't.t', '1.0.0', 'd', 'read', 'ann', '', '\\x00', gen_random_uuid(), now(), 60, 't',
        now() - make_interval(days => $3), now() - make_interval(days => $3) from made
), boxed as (
    insert into deputize.sealed_payloads (tenant, id, kind, ciphertext) select 'acme', id, 'input', '\\x00' from made
), queued as (
    insert into deputize.runs (tenant, id, priority, caller, release) select 'acme', id, 5, '\\x00', '0' from made
), claimed as (
    insert into deputize.claims (tenant, scope, key, call_id) select 'acme', '\\x00', uuid_send(id), id from made
)
select id::text from made
"""
_LEFT = "select id::text from deputize.{table} order by 1"


@pytest_asyncio.fixture
async def owner(fresh_database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(fresh_database)
    yield connection
    await connection.close()


async def insert_call(
    owner: asyncpg.Connection, *, days_ago: int, state: str = "succeeded", ended_days_ago: int | None = None
) -> str:
    await owner.execute(_PART % {"ago": days_ago})
    return str(await owner.fetchval(_CALL, days_ago, state, ended_days_ago))


async def fetch_remaining(owner: asyncpg.Connection, table: str) -> set[str]:
    return {row[0] for row in await owner.fetch(_LEFT.format(table=table))}


@pytest.mark.requirement("GOV-6")
async def test_originals_of_calls_that_are_long_over_are_deleted(owner: asyncpg.Connection) -> None:
    await insert_call(owner, days_ago=40, ended_days_ago=40)
    await insert_call(owner, days_ago=50, ended_days_ago=50)
    kept = await insert_call(owner, days_ago=5, ended_days_ago=5)
    await owner.execute("select deputize.delete_old_payloads($1)", DAYS)
    assert await fetch_remaining(owner, "sealed_payloads") == await fetch_remaining(owner, "runs") == {kept}
    assert await owner.fetchval("select count(*) from deputize.claims") == 1


async def test_what_is_still_open_or_ended_lately_keeps_its_originals_and_nothing_beside_it(
    owner: asyncpg.Connection,
) -> None:
    waits = await insert_call(owner, days_ago=40, state="awaiting_approval")
    lately = await insert_call(owner, days_ago=40, ended_days_ago=2)
    await insert_call(owner, days_ago=40, ended_days_ago=40)
    await owner.execute("select deputize.delete_old_payloads($1)", DAYS)
    assert await fetch_remaining(owner, "sealed_payloads") == await fetch_remaining(owner, "runs") == {waits, lately}


async def test_one_of_many_processes_does_a_periodic_task(fresh_database: str) -> None:
    many = await asyncio.gather(*(asyncpg.connect(fresh_database) for _ in range(6)))
    began = await asyncio.gather(
        *(each.fetchval("select deputize.claim_periodic_task('sweep the stairs', 50)") for each in many)
    )
    assert began.count(True) == 1
    await many[0].execute("update deputize.periodic_tasks set begun_at = begun_at - interval '51 minutes'")
    assert await many[1].fetchval("select deputize.claim_periodic_task('sweep the stairs', 50)") is True
    for each in many:
        await each.close()


_HOLD = """
insert into deputize.legal_holds
    (tenant, id, kind, subject, pseudonym, call_id, from_at, first_id, before_id, reason, placed_by)
select 'acme', gen_random_uuid(), $1, case $1 when 'subject' then 'ann' end, case $1 when 'subject' then 'p' end,
    case $1 when 'call' then $2::uuid end, case $1 when 'period' then now() end,
    case $1 when 'period' then $2::uuid end,
    case $1 when 'period' then 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid end, 'case', 'root'
"""


@pytest.mark.requirement("GOV-5")
async def test_the_journal_forgets_whole_days_and_keeps_what_is_held(owner: asyncpg.Connection) -> None:
    await owner.execute("insert into deputize.tenants (tenant) values ('acme')")
    calls = [await insert_call(owner, days_ago=days, ended_days_ago=days) for days in (40, 41, 5)]
    for call_id in calls:
        await owner.execute(
            "insert into deputize.journal (tenant, id, number, call_id, caller_user, caller_agent, tool, version, "
            "resource, op, scope, certainty, compensation_class, began_at) "
            "values ('acme', $1, 0, $1, 'ann', '', 't.t', '1.0.0', 'r', 'update', '*', 'happened', 'full', now())",
            call_id,
        )
    await owner.execute(_HOLD, "call", calls[0])
    assert await owner.fetchval("select deputize.delete_old_journal($1)", DAYS) == 0
    assert await fetch_remaining(owner, "journal") == {calls[0], calls[2]}
    await owner.execute("delete from deputize.legal_holds")
    assert await owner.fetchval("select deputize.delete_old_journal($1)", DAYS) == 1
    assert await fetch_remaining(owner, "journal") == {calls[2]}


@pytest.mark.requirement("GOV-5")
@pytest.mark.parametrize("kind", ["subject", "call", "period"])
async def test_what_is_held_stays_until_the_hold_is_removed(owner: asyncpg.Connection, kind: str) -> None:
    other = await insert_call(owner, days_ago=50, ended_days_ago=50)
    held = await insert_call(owner, days_ago=40, ended_days_ago=40)
    await owner.execute("update deputize.calls set caller_user = 'bob' where id = $1", other)
    await owner.execute("insert into deputize.tenants (tenant) values ('acme'), ('elsewhere')")
    await owner.execute(
        "insert into deputize.decisions (tenant, id, record, last_at) "
        "values ('acme', 'd', '{}', now() - interval '3 years')"
    )
    for call_id, user in ((held, "ann"), (other, "bob")):
        await owner.execute(
            "insert into deputize.results "
            "(tenant, reference, call_id, tool, caller_user, caller_agents, bytes, is_redacted, expires_at) "
            "values ('acme', $1, $2, 't.t', $3, '{}', 1, false, now() - interval '1 day')",
            user, call_id, user,
        )  # fmt: skip
    await owner.execute(_HOLD, kind, held)
    await owner.execute("select deputize.delete_old_payloads($1)", DAYS)
    assert await owner.fetchval(_DELETE_RESULTS, 100) == 1
    assert await owner.fetchval("select reference from deputize.results") == "ann"
    assert await fetch_remaining(owner, "sealed_payloads") == await fetch_remaining(owner, "runs") == {held}
    assert await owner.fetchval("select deputize.delete_old_decisions(365, 100)") == 0
    # A hold of another tenant holds nothing.
    await owner.execute("update deputize.legal_holds set tenant = 'elsewhere'")
    await owner.execute("select deputize.delete_old_payloads($1)", DAYS)
    assert await fetch_remaining(owner, "sealed_payloads") == await fetch_remaining(owner, "runs") == set()
    assert await owner.fetchval("select deputize.delete_old_decisions(365, 100)") == 1
    assert await owner.fetchval(_DELETE_RESULTS, 100) == 1


async def test_no_hold_is_placed_in_the_middle_of_a_deletion(fresh_database: str) -> None:
    deleter, placer = [await asyncpg.connect(fresh_database) for _ in range(2)]
    deletion = deleter.transaction()
    await deletion.start()
    await deleter.execute("select deputize.delete_old_payloads($1)", DAYS)
    placement = placer.transaction()
    await placement.start()
    await placer.execute("set local lock_timeout = '50ms'")
    with pytest.raises(asyncpg.LockNotAvailableError):
        await placer.execute("select deputize.lock_legal_holds(true)")
    await placement.rollback()
    await deletion.commit()
    async with placer.transaction():
        await placer.execute("select deputize.lock_legal_holds(true)")
    for each in (deleter, placer):
        await each.close()


_DELETIONS = {
    "payloads": f"select deputize.delete_old_payloads({DAYS})",
    "grants": f"select deputize.delete_ended_grants({DAYS}, 100)",
    "decisions": "select deputize.delete_old_decisions(365, 100)",
    "erasure": "select deputize.continue_erasure('acme', '00000000-0000-7000-8000-000000000001', 100, 0)",
}
_KEPT = """
select (select count(*) from deputize.sealed_payloads), (select count(*) from deputize.runs),
       (select count(*) from deputize.grants where grantor = 'ann'), (select count(*) from deputize.decisions)
"""


@pytest.mark.requirement("GOV-5")
@pytest.mark.parametrize("deletion", _DELETIONS)
async def test_a_hold_that_is_committed_while_a_deletion_begins_is_not_overlooked(
    owner: asyncpg.Connection, fresh_database: str, deletion: str
) -> None:
    """The deletion has begun, with its snapshot, when the hold is committed; it deletes nothing that is held."""
    held = await insert_call(owner, days_ago=40, ended_days_ago=40)
    await owner.execute("insert into deputize.tenants (tenant) values ('acme')")
    await owner.execute(
        "insert into deputize.decisions (tenant, id, record, last_at) "
        "values ('acme', 'd', '{}', now() - interval '3 years')"
    )
    await owner.execute(
        "insert into deputize.grants (tenant, id, grantor, agents, scopes, not_after) "
        "values ('acme', gen_random_uuid(), 'ann', '{bot}', '{}', now() - interval '3 years')"
    )
    await owner.execute(
        "insert into deputize.erasures (tenant, id, subject, names, pseudonym) "
        "values ('acme', '00000000-0000-7000-8000-000000000001', 'ann', '{ann}', 'p')"
    )
    deleter, placer = [await asyncpg.connect(fresh_database) for _ in range(2)]
    placement = placer.transaction()
    await placement.start()
    await placer.execute("select deputize.lock_legal_holds(true)")
    await placer.execute(_HOLD, "call", held)
    deleting = asyncio.create_task(deleter.execute(_DELETIONS[deletion]))
    await wait_for_blocked_query(owner, _DELETIONS[deletion])
    await placement.commit()
    await deleting
    assert tuple(await owner.fetchrow(_KEPT) or ()) == (1, 1, 1, 1)
    assert await owner.fetchval("select caller_user from deputize.calls where id = $1", held) == "ann"
    for each in (deleter, placer):
        await each.close()


_OLD_ENTRY = """
with made as (
    select deputize.first_uuid_of_day((now() at time zone 'utc')::date - 800) as id,
           convert_to('{"caller":["old-pseudonym"]}', 'UTF8') as entry
), written as (
    insert into deputize.audit_entries (tenant, id, call_id, entry) select 'acme', id, null, entry from made
), appended as (
    insert into deputize.log_leaves (tenant, leaf_index, entry_id, hash)
    select 'acme', 0, id, deputize.hash_entry(entry) from made
)
insert into deputize.log_checkpoints (tenant, size, root, note) values ('acme', 1, sha256(''), '')
"""


@pytest.mark.requirement("GOV-5")
async def test_a_hold_keeps_entries_under_the_pseudonym_that_an_open_erasure_ended(owner: asyncpg.Connection) -> None:
    """An erasure begins by ending the pseudonym; a hold placed after that knows only the person's next one."""
    await owner.execute(_PART.replace("'calls', 'sealed_payloads'", "'audit_entries'") % {"ago": 800})
    await owner.execute("insert into deputize.tenants (tenant) values ('acme'), ('elsewhere')")
    await owner.execute(_OLD_ENTRY)
    plan = "select first_index, end_index from deputize.plan_expiry('acme', 365, 10)"
    assert tuple(await owner.fetchrow(plan) or ()) == (0, 1)
    await owner.execute(
        "insert into deputize.erasures (tenant, id, subject, names, pseudonym) "
        "values ('acme', gen_random_uuid(), 'ann', '{ann}', 'old-pseudonym')"
    )
    await owner.execute(_HOLD, "subject", None)
    assert await owner.fetchrow(plan) is None
    # A hold of another tenant holds nothing.
    await owner.execute("update deputize.legal_holds set tenant = 'elsewhere'")
    assert tuple(await owner.fetchrow(plan) or ()) == (0, 1)
