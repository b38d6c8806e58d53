"""What is kept for a while is forgotten after it, and nothing that someone still needs."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

DAYS = 30
_PART = """
set role deputize_owner;
do $$ declare day date := (now() at time zone 'utc')::date - %(ago)s; parent text;
begin
    foreach parent in array array['calls', 'sealed_payloads'] loop
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
