"""Legal holds: what they cover is neither erased nor deleted, everything else is, and everything is recorded."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

import asyncpg
import orjson
import pytest
import pytest_asyncio

from deputize.acts.erasure import continue_open_erasures
from deputize.operations.background import erasures
from deputize.store.pool import WRITER, connect_with_role
from tests.integration.conftest import ADMIN, SCOPES, HttpGateway
from tests.support.gateway_internals import get_runtime

pytestmark = pytest.mark.requirement("GOV-5")


@pytest.fixture(scope="module", autouse=True)
def _pause_background() -> Iterator[None]:
    """The tests say when erasures are continued."""
    with patch.object(erasures, "_INTERVAL_SECONDS", 3600.0):
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def db(gateway: HttpGateway) -> AsyncIterator[asyncpg.Connection]:
    assert gateway.settings.database.url is not None
    connection = await asyncpg.connect(gateway.settings.database.url.get_secret_value())
    yield connection
    await connection.close()


@pytest.fixture(autouse=True)
async def _remove_holds(db: asyncpg.Connection) -> AsyncIterator[None]:
    yield
    await db.execute("delete from deputize.legal_holds")


def _root(gateway: HttpGateway) -> str:
    return gateway.token("root", scopes=(*SCOPES, ADMIN))


async def _place(gateway: HttpGateway, **fields: Any) -> dict[str, Any]:
    answer = await gateway.post("/v1/holds", {"reason": "case 4711", **fields}, token=_root(gateway))
    assert answer.status_code == 201, answer.text
    hold: dict[str, Any] = answer.json()
    return hold


async def _remove(gateway: HttpGateway, hold_id: str, token: str | None = None) -> Any:
    headers = {"authorization": f"Bearer {token or _root(gateway)}"}
    return await gateway.http.delete(f"/v1/holds/{hold_id}", headers=headers)


async def _rename(gateway: HttpGateway, user: str) -> str:
    answer = await gateway.call("shop.rename_user", {"id": 1, "name": "x"}, token=gateway.token(user), key=user)
    assert answer.status_code == 200, answer.text
    call_id: str = answer.json()["call_id"]
    return call_id


async def _continue(gateway: HttpGateway) -> None:
    assert gateway.in_process is not None
    await continue_open_erasures(get_runtime(gateway.in_process), seconds=60, grace_seconds=0)


async def _erase(gateway: HttpGateway, user: str) -> Any:
    return await gateway.post("/v1/erasures", {"user": user}, token=_root(gateway))


async def _count_payloads(db: asyncpg.Connection, call_id: str) -> int:
    count: int = await db.fetchval("select count(*) from deputize.sealed_payloads where id = $1", call_id)
    return count


@pytest.mark.parametrize("kind", ["subject", "call", "period"])
async def test_a_hold_refuses_an_erasure_and_names_itself(
    gateway: HttpGateway, db: asyncpg.Connection, kind: str
) -> None:
    name, bystander = f"held-by-{kind}", f"free-of-{kind}"
    begun_at = datetime.now(UTC)
    # Ids have whole milliseconds: the period begins and ends in others than those of the calls.
    await asyncio.sleep(0.005)
    call_id = await _rename(gateway, name)
    ended_at = datetime.now(UTC) + timedelta(milliseconds=1)
    await asyncio.sleep(0.005)
    other_id = await _rename(gateway, bystander)
    period = {"from": begun_at.isoformat(), "to": ended_at.isoformat()}
    scope: dict[str, Any] = {"subject": {"user": name}, "call": {"call_id": call_id}, "period": period}[kind]
    hold = await _place(gateway, **scope)

    refused = await _erase(gateway, name)
    problem = refused.json()["error"]
    assert (refused.status_code, problem["slug"]) == (409, "legal-hold-active")
    assert problem["details"] == {"hold_id": hold["hold_id"], "kind": kind, "reason": "case 4711", "placed_by": "root"}
    assert hold["hold_id"] in refused.text
    await _continue(gateway)
    assert await _count_payloads(db, call_id) > 0
    assert await db.fetchval("select caller_user from deputize.calls where id = $1", call_id) == name
    assert await db.fetchval("select count(*) from deputize.subjects where subject = $1", name) == 1
    # Others are erased as before.
    assert (await _erase(gateway, bystander)).status_code == 202
    await _continue(gateway)
    assert await _count_payloads(db, other_id) == 0

    assert (await _remove(gateway, hold["hold_id"])).status_code == 200
    assert (await _erase(gateway, name)).status_code == 202
    await _continue(gateway)
    assert await _count_payloads(db, call_id) == 0


async def test_a_hold_stops_an_erasure_that_has_begun(gateway: HttpGateway, db: asyncpg.Connection) -> None:
    name = "held-late"
    call_id = await _rename(gateway, name)
    # Open calls are erased when they end: until then the erasure goes on.
    await db.execute("update deputize.calls set ended_at = null where id = $1", call_id)
    assert (await _erase(gateway, name)).status_code == 202
    hold = await _place(gateway, call_id=call_id)
    await db.execute("update deputize.calls set ended_at = now() where id = $1", call_id)
    await _continue(gateway)
    assert await _count_payloads(db, call_id) > 0
    assert (await _remove(gateway, hold["hold_id"])).status_code == 200
    await _continue(gateway)
    assert await _count_payloads(db, call_id) == 0


async def test_holds_are_recorded_without_names_and_removed_by_operators_only(
    gateway: HttpGateway, db: asyncpg.Connection
) -> None:
    name = "recorded-held"
    await _rename(gateway, name)
    hold = await _place(gateway, user=name)
    listed = (await gateway.get("/v1/holds", token=_root(gateway))).json()["holds"]
    assert [(each["hold_id"], each["user"], each["placed_by"], each["reason"]) for each in listed] == [
        (hold["hold_id"], name, "root", "case 4711")
    ]
    await _erase(gateway, name)
    agent = gateway.token("root", scopes=(*SCOPES, ADMIN), agent="bot")
    for token, slug in ((gateway.token("ana"), "scope-missing"), (agent, "operator-confirmation-required")):
        refused = await _remove(gateway, hold["hold_id"], token)
        assert (refused.status_code, refused.json()["error"]["slug"]) == (403, slug)
    assert (await _remove(gateway, hold["hold_id"])).json() == {"hold_id": hold["hold_id"], "state": "removed"}

    rows = await db.fetch("select entry from deputize.audit_entries where position($1 in entry) > 0", b"hold=")
    entries = [orjson.loads(row["entry"]) for row in rows]
    acts = [(each["command"], each["outcome"]) for each in entries if hold["hold_id"] in each["subject"]]
    assert sorted(acts) == [("place_hold", "succeeded"), ("remove_hold", "refused"), ("remove_hold", "succeeded")]
    assert all(name.encode() not in row["entry"] and b"case 4711" not in row["entry"] for row in rows)
    erase = "select count(*) from deputize.audit_entries where position($1 in entry) > 0 and position($2 in entry) > 0"
    assert await db.fetchval(erase, b'"command":"erase_user"', b'"error":"E3810"') >= 1


async def test_invalid_holds_are_refused(gateway: HttpGateway) -> None:
    now = datetime.now(UTC)
    unknown_id = "01890000-0000-7000-8000-000000000000"
    for body in (
        {},
        {"user": "a", "call_id": unknown_id},
        {"call_id": unknown_id},
        {"issuer": "https://x", "from": now.isoformat()},
        {"from": now.isoformat(), "to": (now - timedelta(days=1)).isoformat()},
        {"to": now.isoformat(), "user": "a"},
    ):
        refused = await gateway.post("/v1/holds", {"reason": "r", **body}, token=_root(gateway))
        assert refused.status_code == 400, (body, refused.text)
    assert (await gateway.post("/v1/holds", {"user": "a"}, token=_root(gateway))).status_code == 400
    assert (await gateway.post("/v1/holds", {"user": "a", "reason": "r"})).status_code == 403
    assert (await gateway.get("/v1/holds")).status_code == 403
    for hold_id in (unknown_id, "nothing"):
        assert (await _remove(gateway, hold_id)).json()["error"]["slug"] == "hold-not-found"


async def test_a_hold_of_another_tenant_holds_nothing_and_is_not_seen(
    gateway: HttpGateway, db: asyncpg.Connection
) -> None:
    name = "held-elsewhere"
    call_id = await _rename(gateway, name)
    theirs = gateway.other_token("otto", scopes=(*SCOPES, ADMIN))
    period = {"from": (datetime.now(UTC) - timedelta(days=1)).isoformat()}
    assert (await gateway.post("/v1/holds", {"reason": "r", "call_id": call_id}, token=theirs)).status_code == 400
    for scope in ({"user": name}, period):
        placed = await gateway.post("/v1/holds", {"reason": "r", **scope}, token=theirs)
        assert placed.status_code == 201, placed.text
        assert (await _remove(gateway, placed.json()["hold_id"])).status_code == 404
    assert (await gateway.get("/v1/holds", token=_root(gateway))).json() == {"holds": []}
    assert (await _erase(gateway, name)).status_code == 202
    await _continue(gateway)
    assert await _count_payloads(db, call_id) == 0


async def test_erasures_that_wait_for_holds_keep_no_other_waiting(gateway: HttpGateway, db: asyncpg.Connection) -> None:
    """More of them wait than are continued in one step, and all are older than the one that is free."""
    assert gateway.in_process is not None
    await _rename(gateway, "held-many")
    await _place(gateway, user="held-many")
    insert = (
        "insert into deputize.erasures (tenant, id, subject, names, pseudonym, requested_at) "
        "select 'dev', gen_random_uuid(), $1::text, array[$1::text], $1::text, now() - $2::interval "
        "from generate_series(1, $3) returning id"
    )
    await db.execute(insert, "held-many", timedelta(hours=2), 25)
    free_id = await db.fetchval(insert, "free-behind-many", timedelta(hours=1), 1)
    continuation = erasures.ErasureContinuation(get_runtime(gateway.in_process))
    try:
        for _ in range(2):
            await continuation.run_step()
        assert await db.fetchval("select ended_at from deputize.erasures where id = $1", free_id) is not None
        # It begins anew after the last one: one that a hold stopped goes on once the hold is removed.
        await db.execute("delete from deputize.legal_holds")
        for _ in range(2):
            await continuation.run_step()
        assert await db.fetchval("select count(*) from deputize.erasures where ended_at is null") == 0
    finally:
        await db.execute("delete from deputize.erasures where subject is not null")


async def test_a_gateways_login_cannot_place_or_remove_a_hold_without_its_entry(
    gateway: HttpGateway, db: asyncpg.Connection
) -> None:
    hold = await _place(gateway, user="held")
    other_id = UUID(int=1)
    insert = """insert into deputize.legal_holds (tenant, id, kind, call_id, reason, placed_by)
                values ('dev', $1, 'call', $1, 'none', 'root')"""
    assert gateway.settings.database.url is not None
    writer = await connect_with_role(gateway.settings.database.url.get_secret_value(), WRITER)
    try:
        for statement, hold_id in (
            (insert, other_id),
            ("delete from deputize.legal_holds where id = $1", hold["hold_id"]),
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="needs the audit entry"):
                await writer.execute(statement, hold_id)
    finally:
        await writer.close()
    assert await db.fetchval("select array_agg(id::text) from deputize.legal_holds") == [hold["hold_id"]]
    assert (await _remove(gateway, hold["hold_id"])).status_code == 200
