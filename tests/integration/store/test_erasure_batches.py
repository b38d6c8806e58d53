"""An erasure changes few rows in each transaction, however much there is about a person."""

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime

import asyncpg
import pytest
import pytest_asyncio

pytestmark = pytest.mark.requirement("GOV-5")
LIMIT, ROWS = 20, 70
_ERASURE = "00000000-0000-7000-8000-000000000001"
# How many rows are still about the person, who is 'ann' with the pseudonym 'p'.
_COUNTS = {
    "progress": "select count(*) from deputize.progress",
    "checkpoints": "select count(*) from deputize.checkpoints",
    "grants": "select count(*) from deputize.grants where grantor = 'ann'",
    "votes": "select count(*) from deputize.votes where voter = 'ann'",
    "human_tasks": "select count(*) from deputize.human_tasks where resolved_by = 'ann'",
    "secrets": "select count(*) from deputize.secrets where updated_by = 'ann'",
    "tool_versions": "select count(*) from deputize.tool_versions where registered_by = 'ann'",
    "deprecated_uses": "select count(*) from deputize.deprecated_uses where caller_user = 'ann'",
    "switches": "select count(*) from deputize.switches where turned_by = 'ann'",
    "revocations": "select count(*) from deputize.revocations where revoked_by = 'ann'",
    "call_costs": "select count(*) from deputize.call_costs where task <> ''",
    "observed_values": "select count(*) from deputize.observed_values",
    "result_chunks": "select count(*) from deputize.result_chunks",
    "results": "select count(*) from deputize.results",
}
_ROWS = """
insert into deputize.tenants (tenant) values ('acme');
insert into deputize.calls (tenant, id, state, tool, version, tool_digest, mutation_class, caller_user, caller_agent,
    fingerprint, owner, deadline_at, window_seconds, trace, created_at, ended_at)
select 'acme', '{call}', 'succeeded', 't.t', '1.0.0', 'd', 'read', 'ann', '', '\\x00', gen_random_uuid(), now(), 60,
    't', now() - interval '2 days', now() - interval '1 day';
insert into deputize.progress (tenant, id, seq, report) select 'acme', '{call}', n, '' from generate_series(1, {n}) n;
insert into deputize.checkpoints (tenant, call_id, seq, epoch, kind, ciphertext)
select 'acme', '{call}', n, 1, 'micro', '' from generate_series(1, {n}) n;
insert into deputize.grants (tenant, id, grantor, agents, scopes, not_after, created_at)
select 'acme', gen_random_uuid(), 'ann', '{{bot}}', '{{}}', now(), now() - interval '1 day'
from generate_series(1, {n});
insert into deputize.votes (tenant, id, voter, approve, counts, reason)
select 'acme', gen_random_uuid(), 'ann', true, '{{0}}', 'ann says so' from generate_series(1, {n});
insert into deputize.human_tasks (tenant, id, kind, call_id, question, state, resolved_by, reason, resolution,
    resolved_at)
select 'acme', gen_random_uuid(), 'reconcile', gen_random_uuid(), '', 'resolved', 'ann', 'ann looked', 'happened', now()
from generate_series(1, {n});
insert into deputize.secrets (tenant, name, sealed, updated_by)
select 'acme', 's/' || n, '', 'ann' from generate_series(1, {n}) n;
insert into deputize.tools (tenant, name, outward_name)
select 'acme', 't.t' || n, 't_t' || n from generate_series(1, {n}) n;
insert into deputize.tool_versions (tenant, name, version, digest, contract, state, registered_by, changed_epoch)
select 'acme', 't.t' || n, '1.0.0', 'd', '', 'available', 'ann', 0 from generate_series(1, {n}) n;
insert into deputize.deprecated_uses
select 'acme', 't.t' || n, '1.0.0', 'ann', '', now(), 1, now() from generate_series(1, {n}) n;
insert into deputize.switches (tenant, kind, value, off_epoch, reason, turned_by)
select 'acme', 'agent', 'a' || n, 0, 'ann says so', 'ann' from generate_series(1, {n}) n;
insert into deputize.revocations (tenant, kind, value, reason, revoked_by, changed_epoch)
select 'acme', 'token', 't' || n, 'ann says so', 'ann', 0 from generate_series(1, {n}) n;
insert into deputize.call_costs
select 'acme', now(), 't.t', '1.0.0', '{{p}}', 'for ann ' || n, 'EUR', 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1
from generate_series(1, {n}) n;
insert into deputize.observed_values
select 'acme', 'p', 'rule', int4send(n), 't.t', 1, '{call}', '', now(), now() from generate_series(1, {n}) n;
insert into deputize.results
    (tenant, reference, call_id, tool, caller_user, caller_agents, bytes, is_redacted, expires_at)
select 'acme', 'r' || n, '{call}', 't.t', 'ann', '{{}}', 1, false, now() from generate_series(1, {n}) n;
insert into deputize.result_chunks (tenant, reference, number, sealed)
select 'acme', 'r' || n % 3 + 1, n, '' from generate_series(1, {n}) n;
insert into deputize.erasures (tenant, id, subject, names, pseudonym)
values ('acme', '{erasure}', 'ann', '{{ann}}', 'p');
"""


@pytest_asyncio.fixture
async def owner(fresh_database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(fresh_database)
    yield connection
    await connection.close()


async def _count_rows(owner: asyncpg.Connection) -> Mapping[str, int]:
    return {table: await owner.fetchval(query) for table, query in _COUNTS.items()}


async def test_no_batch_changes_more_rows_of_a_table_than_its_limit(owner: asyncpg.Connection) -> None:
    await owner.execute("call deputize.create_partitions(1)")
    call_id = await owner.fetchval("select deputize.first_uuid_of_day((now() at time zone 'utc')::date)")
    await owner.execute(_ROWS.format(call=call_id, erasure=_ERASURE, n=ROWS))
    before = await _count_rows(owner)
    assert set(before.values()) == {ROWS}
    for _ in range(100 * len(_COUNTS)):
        result = await owner.fetchval("select deputize.continue_erasure('acme', $1, $2, 0)", _ERASURE, LIMIT)
        left = await _count_rows(owner)
        too_many = {table: before[table] - left[table] for table in left if before[table] - left[table] > LIMIT}
        assert not too_many, too_many
        before = left
        if result != "more":
            break
    assert result == "done"
    assert set(before.values()) == {0}
    # What the calls cost stays, in one row without a task; nothing that was decided or changed is lost.
    assert await owner.fetchval("select sum(calls) from deputize.call_costs") == ROWS
    for table, column in (("votes", "voter"), ("switches", "turned_by"), ("revocations", "revoked_by")):
        kept = f"select count(*) from deputize.{table} where {column} = $1 and reason = ''"
        assert await owner.fetchval(kept, f"erased={_ERASURE}") == ROWS


async def test_what_a_person_does_while_they_are_erased_is_merged(owner: asyncpg.Connection) -> None:
    """Every gateway goes on storing what it counted of the person: what was erased before must not be in the way."""
    vote_id = "00000000-0000-7000-8000-000000000002"
    await owner.execute("insert into deputize.tenants (tenant) values ('acme')")
    await owner.execute(
        "insert into deputize.erasures (tenant, id, subject, names, pseudonym) "
        "values ('acme', $1, 'ann', '{ann}', 'p')",
        _ERASURE,
    )
    for day, grace_seconds, expected in ((1, 3600, "waiting"), (2, 3600, "waiting"), (3, 0, "done")):
        await owner.execute(
            "insert into deputize.deprecated_uses values ('acme', 't.t', '1.0.0', 'ann', '', '2026-01-01', 2, $1)",
            datetime(2026, 1, day, tzinfo=UTC),
        )
        await owner.execute(
            "insert into deputize.votes (tenant, id, voter, approve, counts) values ('acme', $1, 'ann', true, '{0}')",
            vote_id,
        )
        batch = "select deputize.continue_erasure('acme', $1, $2, $3)"
        assert await owner.fetchval(batch, _ERASURE, LIMIT, grace_seconds) == expected
    (use,) = await owner.fetch("select caller_user, calls, last_used_at from deputize.deprecated_uses")
    assert tuple(use) == (f"erased={_ERASURE}", 6, datetime(2026, 1, 3, tzinfo=UTC))
    votes = await owner.fetch("select voter from deputize.votes")
    assert [row["voter"] for row in votes] == [f"erased={_ERASURE}"]


async def test_a_vote_that_still_counts_keeps_its_voter_who_cannot_vote_again(owner: asyncpg.Connection) -> None:
    await owner.execute(
        "insert into deputize.tenants (tenant) values ('acme');"
        "insert into deputize.erasures (tenant, id, subject, names, pseudonym) "
        f"values ('acme', '{_ERASURE}', 'ann', '{{ann}}', 'p');"
        "insert into deputize.approvals (tenant, id, call_id, binding, demands, presentation, chain, tool, group_key, "
        f"levels, expires_at) values ('acme', '{_ERASURE}', '{_ERASURE}', '', '', '', '{{}}', '', '', '{{}}', now());"
        "insert into deputize.votes (tenant, id, voter, approve, counts) "
        f"values ('acme', '{_ERASURE}', 'ann', true, '{{0}}')"
    )
    batch = f"select deputize.continue_erasure('acme', '{_ERASURE}', {LIMIT}, 0)"
    find_voter = "select voter from deputize.votes"
    assert (await owner.fetchval(batch), await owner.fetchval(find_voter)) == ("waiting", "ann")
    await owner.execute("update deputize.approvals set state = 'approved'")
    assert (await owner.fetchval(batch), await owner.fetchval(find_voter)) == ("done", f"erased={_ERASURE}")
