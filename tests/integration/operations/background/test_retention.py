"""Delegations that ended, revocations of their ids and unused decision records are deleted; what may matter stays."""

import asyncpg
import pytest

from deputize.operations.background.sweeper import Sweeper
from tests.support.gateway_lab import GatewayLab

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


async def _sweep(lab: GatewayLab, db: asyncpg.Connection) -> int:
    await db.execute("delete from deputize.periodic_tasks where name = 'delete old authority'")
    return await Sweeper(lab.runtime).delete_old_authority()


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
