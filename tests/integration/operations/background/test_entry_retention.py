"""Audit entries expire from the oldest on; what is left of the log verifies, and nothing that has to stay goes."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from deputize.core.settings.database import AuditRetention
from deputize.evidence.log.merkle_tree import hash_leaf
from deputize.lifecycle.runtime import Runtime
from deputize.operations.background.entry_retention import expire_entries
from tests.integration.conftest import ADMIN, SCOPES, HttpGateway
from tests.support.gateway_internals import get_runtime
from tests.support.log_verdicts import verify_log, wait_for_signed_entries

pytestmark = pytest.mark.requirement("GOV-5")
TENANT = "aged"
OLD, AGED, YOUNG = 300, 5, 2
# Beyond seven years; beyond the least that can be set; less than that.
DAYS = {2600: OLD, 400: AGED, 100: YOUNG}
_PARTITION = """
set role deputize_owner;
do $$ declare day date := (now() at time zone 'utc')::date - %(days)s;
begin
    execute format(
        'create table if not exists deputize.%%I partition of deputize.audit_entries for values from (%%L) to (%%L)',
        'audit_entries' || to_char(day, '_YYYYMMDD'),
        deputize.first_uuid_of_day(day), deputize.first_uuid_of_day(day + 1));
end $$;
reset role
"""
_LIST_IDS = "select id from deputize.audit_entries where tenant = 'aged' order by id"
_COUNT = "select count(*) from deputize.audit_entries where tenant = $1"


def _build_ids(days: int, count: int) -> list[UUID]:
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=1, microsecond=0) - timedelta(days=days)
    first = int(midnight.timestamp() * 1000)
    return [UUID(int=(first + number) << 80 | 0x7 << 76 | 0x8 << 60 | number) for number in range(count)]


def _build_entry(entry_id: UUID, tenant: str = TENANT) -> bytes:
    return f'{{"caller":[],"id":"{entry_id}","kind":"read","tenant":"{tenant}","trace":"{"0" * 32}","v":2}}'.encode()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def db(gateway: HttpGateway) -> AsyncIterator[asyncpg.Connection]:
    assert gateway.settings.database.url is not None
    connection = await asyncpg.connect(gateway.settings.database.url.get_secret_value())
    yield connection
    await connection.close()


def _get_runtime(gateway: HttpGateway) -> Runtime:
    assert gateway.in_process is not None
    return get_runtime(gateway.in_process)


def _admin(gateway: HttpGateway, tenant: str = TENANT) -> str:
    return gateway.token("otto", scopes=(*SCOPES, ADMIN), tenant=tenant)


async def _insert_entries(db: asyncpg.Connection, tenant: str = TENANT, counts: Mapping[int, int] = DAYS) -> list[UUID]:
    await db.execute("insert into deputize.tenants (tenant) values ($1) on conflict do nothing", tenant)
    assert await db.fetchval(_COUNT, tenant) == 0
    ids: list[UUID] = []
    for days, count in counts.items():
        await db.execute(_PARTITION % {"days": days})
        for entry_id in _build_ids(days, count):
            await db.execute(
                "insert into deputize.audit_entries (tenant, id, call_id, entry) values ($3, $1, $1, $2)",
                entry_id, _build_entry(entry_id, tenant), tenant,
            )  # fmt: skip
            ids.append(entry_id)
    return ids


async def _verify(gateway: HttpGateway, db: asyncpg.Connection, size: int) -> Any:
    await wait_for_signed_entries(gateway, _admin(gateway), size, TENANT)
    return await verify_log(gateway, _admin(gateway), TENANT)


async def _expire_old_entries(gateway: HttpGateway, db: asyncpg.Connection) -> None:
    """Do what the first test does, if it did not run in this process."""
    if not await db.fetchval("select count(*) from deputize.log_expiries where tenant = 'aged'"):
        ids = await _insert_entries(db)
        await wait_for_signed_entries(gateway, _admin(gateway), len(ids), TENANT)
        assert await expire_entries(_get_runtime(gateway)) == OLD


async def test_entries_expire_and_the_log_still_verifies(gateway: HttpGateway, db: asyncpg.Connection) -> None:
    ids, runtime = await _insert_entries(db), _get_runtime(gateway)
    await wait_for_signed_entries(gateway, _admin(gateway), len(ids), TENANT)

    # It stops before an entry that was changed: that is evidence.
    await db.execute("update deputize.audit_entries set entry = entry || ' ' where id = $1", ids[50])
    assert await expire_entries(runtime, batch_entries=20) == 50
    await db.execute("update deputize.audit_entries set entry = $2 where id = $1", ids[50], _build_entry(ids[50]))

    # It stops before what is held: here a call, and further on a period.
    holds = []
    moment = datetime.fromtimestamp((ids[200].int >> 80) / 1000, UTC)
    period = {"from": moment.isoformat(), "to": (moment + timedelta(milliseconds=5)).isoformat()}
    for scope in ({"call_id": str(ids[150])}, period):
        placed = await gateway.post("/v1/holds", {"reason": "case", **scope}, token=_admin(gateway))
        assert placed.status_code == 201, placed.text
        holds.append(placed.json()["hold_id"])
    for hold_id, count in zip(holds, (100, 50), strict=True):
        assert await expire_entries(runtime, batch_entries=70) == count
        assert await expire_entries(runtime, batch_entries=70) == 0
        headers = {"authorization": f"Bearer {_admin(gateway)}"}
        assert (await gateway.http.delete(f"/v1/holds/{hold_id}", headers=headers)).status_code == 200
    assert await expire_entries(runtime) == 100
    assert await expire_entries(runtime) == 0

    left = {row["id"] for row in await db.fetch("select id from deputize.audit_entries where tenant = 'aged'")}
    assert left.isdisjoint(ids[:OLD])
    assert left >= set(ids[OLD:])
    size = await db.fetchval("select count(*) + $1 from deputize.audit_entries where tenant = 'aged'", OLD)
    verdict = await _verify(gateway, db, size)
    assert verdict.is_trusted, verdict
    assert verdict.expired_count == OLD
    # An entry that is left is still proven to be in the log.
    receipt = await gateway.get(f"/v1/audit/{ids[OLD]}/receipt", token=_admin(gateway))
    assert receipt.status_code == 200, receipt.text
    gone = await gateway.get(f"/v1/audit/{ids[0]}", token=_admin(gateway))
    assert (gone.status_code, gone.json()["error"]["slug"]) == (404, "audit-entry-not-found")

    # One more that is gone is no expiry: not the next, and not one in the middle.
    for index, reason in ((OLD, "no entry of the log says that they expired"), (OLD + 2, "the entry is missing")):
        await db.execute("delete from deputize.audit_entries where id = $1", ids[index])
        verdict = await verify_log(gateway, _admin(gateway), TENANT)
        await db.execute(
            "insert into deputize.audit_entries (tenant, id, call_id, entry) values ('aged', $1, $1, $2)",
            ids[index], _build_entry(ids[index]),
        )  # fmt: skip
        assert verdict.fault is not None
        assert (verdict.fault.first, verdict.fault.last) == (index, index)
        assert reason in verdict.fault.reason

    # An expiry that the owner of the database inserts is logged, and no reason to believe it.
    forged_id = UUID(runtime.clock.new_id())
    subject = f"entries={OLD}-{OLD} days=365"
    forged = f'{{"command":"expire_entries","id":"{forged_id}","subject":"{subject}","tenant":"{TENANT}"}}'.encode()
    await db.execute(
        "insert into deputize.audit_entries (tenant, id, entry) values ('aged', $1, $2)", forged_id, forged
    )
    size = await db.fetchval("select count(*) + $1 from deputize.audit_entries where tenant = 'aged'", OLD)
    deleted = await db.fetchval("delete from deputize.audit_entries where id = $1 returning entry", ids[OLD])
    verdict = await _verify(gateway, db, size)
    index = await db.fetchval("select leaf_index from deputize.log_leaves where entry_id = $1", forged_id)
    assert verdict.fault is not None
    assert (verdict.fault.first, verdict.fault.last) == (OLD, OLD)
    assert f"entry {index} says that they expired, but no key of the log signed that" in verdict.fault.reason
    await db.execute(
        "insert into deputize.audit_entries (tenant, id, entry) values ('aged', $1, $2)", ids[OLD], deleted
    )


async def test_each_tenant_has_its_own_retention(gateway: HttpGateway, db: asyncpg.Connection) -> None:
    runtime, tenants = _get_runtime(gateway), ("trial-1", "bank-1")
    for tenant in tenants:
        await _insert_entries(db, tenant, {400: AGED, 100: YOUNG})
        await wait_for_signed_entries(gateway, _admin(gateway, tenant), AGED + YOUNG, tenant)
    database = runtime.settings.database.model_copy(
        update={"audit_retention": (AuditRetention(tenants="trial-*", days=365), AuditRetention(tenants="*", days=999))}
    )
    settings = runtime.settings.model_copy(update={"database": database})
    assert await expire_entries(replace(runtime, settings=settings)) == AGED
    # The expiry itself is an entry of the log.
    assert [await db.fetchval(_COUNT, tenant) for tenant in tenants] == [YOUNG + 1, AGED + YOUNG]
    await wait_for_signed_entries(gateway, _admin(gateway, "trial-1"), AGED + YOUNG + 1, "trial-1")
    verdict = await verify_log(gateway, _admin(gateway, "trial-1"), "trial-1")
    assert verdict.is_trusted, verdict
    assert verdict.expired_count == AGED


async def test_no_setting_expires_what_is_younger_than_a_year(gateway: HttpGateway, db: asyncpg.Connection) -> None:
    await _expire_old_entries(gateway, db)
    plan = await db.fetchrow("select * from deputize.plan_expiry('aged', 1, 1000)")
    assert plan is not None
    assert tuple(plan) == (OLD, OLD + AGED)
    # Not what someone else planned either, and nothing of another tenant.
    for first, end, tenant in ((OLD, OLD + AGED + 1, "aged"), (OLD + 1, OLD + AGED, "aged"), (OLD, OLD + 1, "dev")):
        query = """select deputize.expire_entries($3, 365, $1, $2, gen_random_uuid(), '{"signatures":["x"]}')"""
        assert await db.fetchval(query, first, end, tenant) is False
    assert await db.fetchrow("select * from deputize.plan_expiry('dev', 365, 1000)") is None
    # Nor what a gateway of release 0.1.0 would expire, which does not sign.
    query = "select deputize.expire_entries('aged', 365, $1, $2, gen_random_uuid(), 'unsigned')"
    assert await db.fetchval(query, OLD, OLD + AGED) is False


async def test_what_the_database_calls_old_is_not_signed_unless_it_is(
    gateway: HttpGateway, db: asyncpg.Connection
) -> None:
    """Its owner can rewrite the plan, the entries and their hashes, but not what the log signed."""
    await _expire_old_entries(gateway, db)
    ids, runtime = [row["id"] for row in await db.fetch(_LIST_IDS)], _get_runtime(gateway)
    definition = await db.fetchval("select pg_get_functiondef('deputize.plan_expiry'::regproc)")
    await db.execute(
        f"""create or replace function deputize.plan_expiry(p_tenant text, p_days integer, p_limit integer)
            returns table(first_index bigint, end_index bigint) language sql as $$
            select {OLD}::bigint, {OLD + AGED + YOUNG}::bigint where p_tenant = 'aged' $$"""
    )
    with capture_logs() as lines:
        try:
            assert await expire_entries(runtime) == 0
            # Entries that are called older than they are, in all places that the database has.
            for young_id, old_id in zip(ids[: AGED + YOUNG], _build_ids(2600, AGED + YOUNG), strict=True):
                entry = _build_entry(old_id)
                await db.execute("update deputize.audit_entries set entry = $2 where id = $1", young_id, entry)
                await db.execute(
                    "update deputize.log_leaves set hash = $2 where entry_id = $1", young_id, hash_leaf(entry)
                )
            assert await expire_entries(runtime) == 0
        finally:
            await db.execute(definition)
    reasons = [each["reason"] for each in lines if each["event"] == "audit_entries_not_expired"]
    assert ["too young" in each for each in reasons] == [True, False]
    assert "not what was signed" in reasons[1]
    assert [row["id"] for row in await db.fetch(_LIST_IDS)][: AGED + YOUNG] == ids[: AGED + YOUNG]
