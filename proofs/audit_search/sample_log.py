"""Fill a database with audit entries of a month, of two tenants, and with the questions to ask of them."""

import hashlib
from collections.abc import Callable

import asyncpg

from deputize.core.clock import Clock
from deputize.evidence.entry_filters import EntryFilter

DAYS = 30
TENANT, OTHER_TENANT = "acme", "other"
_DAY_MS = 86_400_000
_BATCH = 50_000
_DROP_INDEX = "drop index deputize.audit_entries_by_terms"
_CREATE_INDEX = (
    "create index audit_entries_by_terms on deputize.audit_entries using gin "
    "(deputize.list_audit_terms(tenant, id, entry)) with (fastupdate = on, gin_pending_list_limit = 16384)"
)
_MAKE_PARTITIONS = """
do $$ declare part text; day date; begin
    for n in 0..{days} loop
        day := (now() at time zone 'utc')::date - n;
        part := to_char(day, '"audit_entries_"YYYYMMDD');
        continue when to_regclass('deputize.' || part) is not null;
        execute format('create table deputize.%I (like deputize.audit_entries including all)', part);
        execute format('alter table deputize.audit_entries attach partition deputize.%I for values from (%L) to (%L)',
            part, deputize.first_uuid_of_day(day), deputize.first_uuid_of_day(day + 1));
    end loop;
end $$
"""
_FILL = """
insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
select tenant, id, id, convert_to(format(
    '{"arguments":"%s","attempts":1,"call":"%s","caller":["%s","%s"],"decision":"%s","digest":"%s","id":"%s",'
    '"kind":"%s","latency_us":1234,"mutation_class":"read","operation":"python:tools.x","outcome":"%s","policy":"%s",'
    '"result":"%s","rules":["token-scopes","rule-%s"],"scopes":["read res-%s res/{id}"],"session":"s-%s",'
    '"states":["planned","selected","arguments_ready","running","succeeded"],"tenant":"%s",'
    '"time":"2026-11-01T00:00:00.000Z","tool":"crm.t%s","trace":"%s","v":2,"version":"1.0.0"}',
    repeat('a', 64), id, encode(sha256(convert_to('u' || u, 'UTF8')), 'hex'),
    encode(sha256(convert_to('a' || n % 20, 'UTF8')), 'hex'), repeat('d', 32), repeat('e', 64), id,
    case when n % 1000 = 7 then 'refusal' else 'read' end,
    case when n % 1000 = 7 then 'denied' when n % 500 = 3 then 'failed' else 'succeeded' end,
    repeat('p', 64), repeat('r', 64), n % 50, n % 30, n % 20000, tenant, t, md5(n::text)), 'UTF8'), sha256('x')
from (
    select n, floor(power(random(), 2) * 2000)::int as u, floor(power(random(), 3) * 300)::int as t,
        case when n % 10 = 0 then 'other' else 'acme' end as tenant,
        (lpad(to_hex($3::bigint + (n * $4::float8)::bigint), 12, '0') || '7' || substr(md5(n || 'i'), 1, 3) || '8'
            || substr(md5(n || 'j'), 1, 15))::uuid as id
    from generate_series($1::bigint, $2::bigint) as n
) as drawn
"""


async def fill_log(connection: asyncpg.Connection, count: int, log: Callable[[str], None]) -> None:
    """Write the entries, then build the index as a migration would."""
    await connection.execute("set role deputize_owner")
    await connection.execute(_MAKE_PARTITIONS.replace("{days}", str(DAYS)))
    await connection.execute(_DROP_INDEX)
    first_ms = Clock().epoch_ms() - (DAYS - 1) * _DAY_MS
    step = (DAYS - 1) * _DAY_MS / count
    for start in range(0, count, _BATCH):
        await connection.execute(_FILL, start, min(count, start + _BATCH) - 1, first_ms, step)
    log(f"{count:,} entries written")
    await connection.execute(_CREATE_INDEX)
    await connection.execute("analyze deputize.audit_entries")
    log("index built")


def list_questions(count: int) -> list[EntryFilter]:
    """List thirty kinds of question: frequent, rare, absent, and combinations of them."""
    user = [_hash(f"u{n}") for n in (0, 100, 900, 1900, 999_999)]
    agent = [_hash(f"a{n}") for n in (1, 3, 999)]
    trace = [hashlib.md5(str(n).encode(), usedforsecurity=False).hexdigest() for n in (1, count // 2 + 1, -1)]
    return [
        EntryFilter(), EntryFilter(kind="read"), EntryFilter(outcome="succeeded"), EntryFilter(decision="allow"),
        EntryFilter(tool="crm.t0"), EntryFilter(tool="crm.t150"), EntryFilter(tool="crm.t299"),
        EntryFilter(tool="crm.absent"), *(EntryFilter(user=each) for each in user),
        *(EntryFilter(agent=each) for each in agent), *(EntryFilter(trace=each) for each in trace),
        EntryFilter(session="s-7"), EntryFilter(session="absent"), EntryFilter(rule="rule-7"),
        EntryFilter(rule="rule-absent"), EntryFilter(resource="res-3"), EntryFilter(outcome="failed"),
        EntryFilter(outcome="denied", tool="crm.t299"), EntryFilter(kind="refusal"), EntryFilter(kind="command"),
        EntryFilter(decision="deny"), EntryFilter(decision="ask"), EntryFilter(user=user[1], agent=agent[1]),
        EntryFilter(user=user[1], rule="rule-7"), EntryFilter(session="s-7", kind="read", outcome="succeeded"),
    ]  # fmt: skip


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
