"""Delegations that ended, revocations of their ids and unused decision records are deleted; what may matter stays."""

import asyncio
from pathlib import Path

import asyncpg
import pytest

from deputize.operations.background.retention import Retention
from deputize.operations.background.sweeper import Sweeper
from tests.support.gateway_lab import GatewayLab, open_lab

pytestmark = pytest.mark.requirement("GOV-1")
OLD, CHILD, LIVE = (f"0190a000-0000-7000-8000-00000000000{number}" for number in (1, 2, 3))
_GRANT = """
insert into deputize.grants (tenant, id, parent, grantor, agents, scopes, not_after)
values ('dev', $1, $2, 'ana', '{bot}', '{}', now() - make_interval(days => $3))
"""
_REVOCATION = """
insert into deputize.revocations (tenant, kind, value, revoked_by, changed_epoch) values ('dev', $1, $2, 'root', 0)
"""
_DECISION = """
insert into deputize.decisions (tenant, id, record, last_at)
values ('dev', $1, '{}', now() - make_interval(days => $2))
"""
_HOLD = """
insert into deputize.legal_holds (tenant, id, kind, call_id, reason, placed_by)
values ('dev', gen_random_uuid(), 'call', gen_random_uuid(), 'a lawsuit', 'root')
"""


async def _sweep(lab: GatewayLab, db: asyncpg.Connection) -> int:
    await db.execute("delete from deputize.periodic_tasks where name = 'delete old authority'")
    return await Retention(lab.runtime).delete_old_authority()


async def test_only_what_cannot_matter_any_more_is_deleted(lab: GatewayLab) -> None:
    db = lab.db
    for id, parent, days in ((OLD, None, 31), (CHILD, OLD, 32), (LIVE, None, 29)):
        await db.execute(_GRANT, id, parent, days)
    for kind, value in (("grant", OLD), ("token", CHILD), ("grant", LIVE), ("token", "of-an-issuer"), ("user", "eve")):
        await db.execute(_REVOCATION, kind, value)
    for id, days in (("unused", 368), ("used", 366)):
        await db.execute(_DECISION, id, days)

    # The parent goes after its child, in a batch of its own.
    assert await _sweep(lab, db) == 3
    assert await _sweep(lab, db) == 0

    assert [str(row["id"]) for row in await db.fetch("select id from deputize.grants where grantor = 'ana'")] == [LIVE]
    kept = {row["value"] for row in await db.fetch("select value from deputize.revocations where revoked_by = 'root'")}
    assert kept >= {LIVE, "of-an-issuer", "eve"}
    assert not kept & {OLD, CHILD}
    decisions = {row["id"] for row in await db.fetch("select id from deputize.decisions where record = '{}'")}
    assert decisions == {"used"}


async def test_a_decision_that_relies_on_a_record_keeps_it_and_cannot_change_it(lab: GatewayLab) -> None:
    await lab.db.execute(_DECISION, "again", 400)
    async with lab.runtime.store.write_transaction() as connection:
        arguments = (["dev", "dev"], ["again", "again"], [b"changed", b"changed"])
        await connection.execute("select deputize.record_decisions($1, $2, $3)", *arguments)
    row = await lab.db.fetchrow(
        "select record, last_at > now() - interval '1 minute' as fresh from deputize.decisions where id = 'again'"
    )
    assert row is not None
    assert (row["record"], row["fresh"]) == (b"{}", True)
    await _sweep(lab, lab.db)
    assert await lab.db.fetchval("select count(*) from deputize.decisions where id = 'again'") == 1


async def test_a_hold_on_a_call_keeps_the_delegations_it_may_have_been_made_under(lab: GatewayLab) -> None:
    await lab.db.execute(_GRANT, OLD, None, 31)
    await lab.db.execute(_HOLD)
    assert await _sweep(lab, lab.db) == 0
    await lab.db.execute("delete from deputize.legal_holds")
    assert await _sweep(lab, lab.db) == 1


async def test_a_gateway_starts_and_marks_abandoned_calls_while_deletion_has_to_wait(
    fresh_database: str, tmp_path: Path
) -> None:
    blocker = await asyncpg.connect(fresh_database)
    try:
        async with blocker.transaction(), asyncio.timeout(60):
            await blocker.execute("select deputize.lock_legal_holds(true)")
            async with open_lab(fresh_database, tmp_path) as lab:
                assert await lab.run_sweeper() == 0
                await Sweeper(lab.runtime).run_step()
    finally:
        await blocker.close()


_OF_ENDED_CALL = """
with ended as (
    update deputize.calls set ended_at = now() - interval '40 days' where id = $1 returning tenant, id
), callback as (
    insert into deputize.callbacks (tenant, id, request) select tenant, id, '' from ended
), delivery as (
    insert into deputize.deliveries (tenant, call_id, state, delivered_at)
    select tenant, id, 'succeeded', now() - interval '40 days' from ended
), progress as (
    insert into deputize.progress (tenant, id, seq, report, at)
    select tenant, id, 1000, '', now() - interval '40 days' from ended
)
insert into deputize.checkpoints (tenant, call_id, seq, epoch, kind, ciphertext)
select tenant, id, 1000, 1, 'micro', '' from ended
"""
_LEFT = """
select (select count(*) from deputize.deliveries where call_id = $1),
       (select count(*) from deputize.callbacks where id = $1),
       (select count(*) from deputize.progress where id = $1),
       (select count(*) from deputize.checkpoints where call_id = $1)
"""
_HOLD_OF = """
insert into deputize.legal_holds
    (tenant, id, kind, subject, pseudonym, call_id, from_at, first_id, before_id, reason, placed_by)
select $3, gen_random_uuid(), $1, case $1 when 'subject' then 'ana' end, case $1 when 'subject' then 'p' end,
    case $1 when 'call' then $2::uuid end, case $1 when 'period' then now() end,
    case $1 when 'period' then $2::uuid end,
    case $1 when 'period' then 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid end, 'a lawsuit', 'root'
"""


@pytest.mark.requirement("GOV-5")
@pytest.mark.parametrize("kind", ["subject", "call", "period"])
async def test_a_hold_committed_while_retention_begins_keeps_deliveries_and_all_else_of_a_call(
    lab: GatewayLab, kind: str
) -> None:
    call_id = (await lab.call("note", kind, key=f"held-{kind}")).call_id
    await lab.db.execute(_OF_ENDED_CALL, call_id)
    await lab.db.execute("delete from deputize.periodic_tasks")
    await lab.db.execute("insert into deputize.tenants (tenant) values ('elsewhere') on conflict do nothing")
    placer = await asyncpg.connect(lab.dsn)
    try:
        async with placer.transaction():
            await placer.execute("select deputize.lock_legal_holds(true)")
            await placer.execute(_HOLD_OF, kind, call_id, "dev")
            deletion = asyncio.create_task(Retention(lab.runtime).delete_old_data())
            await lab.wait_for_blocked_query("%lock_legal_holds%")
        await deletion
        assert tuple(await lab.db.fetchrow(_LEFT, call_id) or ()) == (1, 1, 1, 1)
    finally:
        await placer.close()
        await lab.db.execute("delete from deputize.legal_holds")
    # A hold of another tenant holds nothing.
    await lab.db.execute(_HOLD_OF, kind, call_id, "elsewhere")
    await lab.db.execute("delete from deputize.periodic_tasks")
    await Retention(lab.runtime).delete_old_data()
    await lab.db.execute("delete from deputize.legal_holds")
    assert tuple(await lab.db.fetchrow(_LEFT, call_id) or ()) == (0, 0, 0, 0)
