"""Erase people: no table names them any more, every audit entry keeps its bytes, and any process finishes the work."""

from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest.mock import patch

import asyncpg
import orjson
import pytest
import pytest_asyncio

from deputize.acts.erasure import continue_erasure, continue_open_erasures
from deputize.core.caller import Caller
from deputize.core.errors import AuthorityRevoked
from deputize.govern.identity.revocations import Revocations
from deputize.lifecycle.runtime import Runtime
from deputize.operations.background import erasures
from tests.integration.conftest import ADMIN, SCOPES, HttpGateway
from tests.support.gateway_internals import get_runtime

pytestmark = pytest.mark.requirement("GOV-5", "GOV-1")
_TABLES = """
    select c.relname as name from pg_class c
    where c.relnamespace = 'deputize'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition order by 1
"""


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


def _get_runtime(gateway: HttpGateway) -> Runtime:
    assert gateway.in_process is not None
    return get_runtime(gateway.in_process)


def _root(gateway: HttpGateway) -> str:
    return gateway.token("root", scopes=(*SCOPES, ADMIN))


async def _report_costs(gateway: HttpGateway) -> list[Any]:
    """Report costs by tool; this also stores what was recorded."""
    answer = await gateway.get("/v1/cost?by=tool", token=_root(gateway))
    assert answer.status_code == 200, answer.text
    currencies: list[Any] = answer.json()["currencies"]
    return currencies


async def _list_tables_naming(db: asyncpg.Connection, name: str) -> set[str]:
    """List the tables that contain a name anywhere, in text or in bytes; a new table is searched too."""
    naming = set()
    for table in [row["name"] for row in await db.fetch(_TABLES)]:
        rows = [row["text"].lower() for row in await db.fetch(f'select t::text as text from deputize."{table}" t')]
        if any(each in row for row in rows for each in (name.lower(), name.encode().hex())):
            naming.add(table)
    return naming


async def _erase(gateway: HttpGateway, name: str, **fields: str) -> dict[str, Any]:
    answer = await gateway.post("/v1/erasures", {"user": name, **fields}, token=_root(gateway))
    assert answer.status_code == 202, answer.text
    erasure: dict[str, Any] = answer.json()
    return erasure


async def _show(gateway: HttpGateway, erasure_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = (await gateway.get(f"/v1/erasures/{erasure_id}", token=_root(gateway))).json()
    return shown


async def _finish(gateway: HttpGateway) -> None:
    await continue_open_erasures(_get_runtime(gateway), seconds=60, grace_seconds=0)


async def _rename(gateway: HttpGateway, user: str, key: str) -> dict[str, Any]:
    answer = await gateway.call("shop.rename_user", {"id": 1, "name": "x"}, token=gateway.token(user), key=key)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def _insert_decisions(db: asyncpg.Connection, name: str, call_id: str) -> None:
    """Let the person have proposed policies, and decided a request and a task about someone else's call."""
    await db.execute(
        "insert into deputize.policy_proposals (tenant, digest, base_epoch, files, proposed_by, expires_at) "
        "values ('dev', 'd', 0, 'f', $1, now() + interval '1 hour')",
        name,
    )
    await db.execute(
        "insert into deputize.deprecated_uses values ('dev', 'shop.get_user', '1.0.0', $1, '', now(), 1, now())",
        name,
    )
    await db.execute(
        "insert into deputize.votes (tenant, id, voter, approve, counts, reason) "
        "values ('dev', $1, $2, true, '{0}', $3)",
        call_id, name, f"looks fine to {name}",
    )  # fmt: skip
    await db.execute(
        "insert into deputize.human_tasks (tenant, id, kind, call_id, question, state, resolved_by, reason, "
        "resolution, resolved_at) values ('dev', $1, 'reconcile', $1, '{}', 'resolved', $2, $3, 'happened', now())",
        call_id, name, f"{name} looked",
    )  # fmt: skip


async def test_no_table_names_the_person_and_no_entry_changes(gateway: HttpGateway, db: asyncpg.Connection) -> None:
    """The person called, delegated, administered and decided; everything that names them is found by searching."""
    name, other = "zoe-lindqvist", "olga-bystander"
    token = gateway.token(name, scopes=(*SCOPES, ADMIN))
    made, others = await _rename(gateway, name, "one"), await _rename(gateway, other, "two")
    read = await gateway.call("shop.get_user", {"id": 1}, token=token)
    assert read.status_code == 200
    lent = await gateway.exchange_token(token, agent="bot", task=f"for {name}")
    assert (await gateway.call("shop.get_user", {"id": 1}, token=lent)).status_code == 200
    failed = (await gateway.call("shop.fail", {"slug": "tool-failed"}, token=token)).json()
    assert await db.fetchval("select count(*) from deputize.sealed_payloads where id = $1", failed["call_id"]) == 1
    costs_before = await _report_costs(gateway)
    for path, body in (
        (
            "/v1/switches",
            {"kind": "agent", "value": "old-bot", "off": True, "reason": f"{name} says so", "unknown": True},
        ),
        ("/v1/secrets", {"name": "crm/key", "value": "a secret value"}),
        ("/v1/revocations", {"kind": "token", "value": "t-1", "reason": f"by {name}"}),
    ):
        answer = await gateway.post(path, body, token=token)
        assert answer.status_code in (200, 201), answer.text
    await _insert_decisions(db, name, others["call_id"])
    before = {row["id"]: row for row in await db.fetch("select * from deputize.audit_entries")}
    assert await _list_tables_naming(db, name) >= {
        "calls", "subjects", "grants", "switches", "secrets", "revocations", "votes", "human_tasks", "decisions",
        "policy_proposals", "deprecated_uses", "call_costs",
    }  # fmt: skip

    erasure = await _erase(gateway, name)
    assert (erasure["state"], erasure["revoked_grants"], erasure["calls_left"]) == ("in_progress", 1, 0)
    # What was delegated ends at once.
    refused = await gateway.call("shop.get_user", {"id": 1}, token=lent)
    assert refused.json()["error"]["slug"] == "revoked"
    await _finish(gateway)

    assert await _list_tables_naming(db, name) == set()
    assert await _report_costs(gateway) == costs_before
    shown = await _show(gateway, erasure["erasure_id"])
    assert (shown["state"], shown["calls_left"], shown["ended_at"] is not None) == ("done", 0, True)
    after = {row["id"]: row for row in await db.fetch("select * from deputize.audit_entries")}
    assert all(after[each]["entry"] == before[each]["entry"] for each in before)
    # What the person's calls contained can no longer be guessed from their commitments; other people's is untouched.
    for call, has_salt in ((made["call_id"], False), (read.json()["call_id"], False), (others["call_id"], True)):
        salts = [row["salt"] for row in after.values() if str(row["call_id"]) == call]
        assert salts
        assert all((salt is not None) == has_salt for salt in salts), call
    erased = [made["call_id"], failed["call_id"]]
    assert await db.fetchval("select count(*) from deputize.sealed_payloads where id = any($1::uuid[])", erased) == 0
    assert await db.fetchval("select count(*) from deputize.sealed_payloads where id = $1", others["call_id"]) > 0
    row = await db.fetchrow("select caller_user, state from deputize.calls where id = $1", made["call_id"])
    assert row is not None
    assert tuple(row) == (f"erased={erasure['erasure_id']}", "succeeded")
    assert await _list_tables_naming(db, other) >= {"calls", "subjects"}


async def test_the_act_is_recorded_without_the_name_and_needs_an_operator(
    gateway: HttpGateway, db: asyncpg.Connection
) -> None:
    name = "yves-recorded"
    await _rename(gateway, name, "yves")
    agents = gateway.token("root", scopes=(*SCOPES, ADMIN), agent="bot")
    for token, slug in ((gateway.token("ana"), "scope-missing"), (agents, "operator-confirmation-required")):
        refused = await gateway.post("/v1/erasures", {"user": name}, token=token)
        assert (refused.status_code, refused.json()["error"]["slug"]) == (403, slug)
    assert "calls" in await _list_tables_naming(db, name)
    await _erase(gateway, name)
    await _finish(gateway)
    entries = [orjson.loads(row["entry"]) for row in await db.fetch("select entry from deputize.audit_entries")]
    acts = [each for each in entries if each.get("command") == "erase_user"]
    assert {each["outcome"] for each in acts} == {"refused", "succeeded"}
    assert await _list_tables_naming(db, name) == set()
    # It leads to the entries of the person, whose name nothing leads to.
    assert any(each["caller"][:1] == [acts[-1]["subject"]] for each in entries)


async def test_a_revoked_person_stays_revoked(gateway: HttpGateway, db: asyncpg.Connection) -> None:
    name = "rex-revoked"
    token = gateway.token(name)
    await _rename(gateway, name, "rex")
    assert (await gateway.post("/v1/revocations", {"kind": "user", "value": name}, token=_root(gateway))).is_success
    for _ in range(2):
        await _erase(gateway, name)
        await _finish(gateway)
        assert await _list_tables_naming(db, name) == set()
        # Both for a gateway that knew the name, and for one that knows only what is stored now.
        refused = await gateway.get("/v1/tools", token=token)
        assert (refused.status_code, refused.json()["error"]["slug"]) == (401, "revoked")
        async with _get_runtime(gateway).store.read_transaction("dev") as connection:
            snapshot = await Revocations().refresh(connection, "dev")
        with pytest.raises(AuthorityRevoked):
            snapshot.check(Caller(tenant="dev", user=name))
        snapshot.check(Caller(tenant="dev", user="someone-else"))
        # Revoking once more, and erasing again, keeps one revocation.
        assert (await gateway.post("/v1/revocations", {"kind": "user", "value": name}, token=_root(gateway))).is_success


async def test_any_process_continues_where_one_died(gateway: HttpGateway, db: asyncpg.Connection) -> None:
    name, runtime = "kim-interrupted", _get_runtime(gateway)
    calls = [(await _rename(gateway, name, f"kim-{each}"))["call_id"] for each in range(3)]
    # As if its process were gone right after the commit that began it.
    erasure_id = (await _erase(gateway, "somebody-else"))["erasure_id"]
    await db.execute(
        "update deputize.erasures set subject = $2, names = array[$2], requested_at = clock_timestamp() where id = $1",
        erasure_id, name,
    )  # fmt: skip
    batch = "select deputize.continue_erasure('dev', $1, 1, 0)"
    assert await db.fetchval(batch, erasure_id) == "more"
    left = "select count(*) from deputize.calls where caller_user = $1"
    assert await db.fetchval(left, name) == 2
    assert (await _show(gateway, erasure_id))["calls_left"] == 2
    # A transaction that dies with its process has done nothing.
    transaction = db.transaction()
    await transaction.start()
    await db.fetchval(batch, erasure_id)
    # While one process has it, others leave it alone.
    assert await continue_erasure(runtime, "dev", erasure_id, seconds=60, grace_seconds=0) == "waiting"
    await transaction.rollback()
    assert await db.fetchval(left, name) == 2
    assert await continue_erasure(runtime, "dev", erasure_id, seconds=60, grace_seconds=0) == "done"
    assert await db.fetchval(left, name) == 0
    assert await db.fetchval("select count(*) from deputize.sealed_payloads where id = any($1)", calls) == 0
    assert await continue_erasure(runtime, "dev", erasure_id, seconds=60, grace_seconds=0) == "done"


async def test_open_calls_are_erased_when_they_end(gateway: HttpGateway, db: asyncpg.Connection) -> None:
    name = "ola-open"
    call_id = (await _rename(gateway, name, "ola"))["call_id"]
    await db.execute("update deputize.calls set ended_at = null where id = $1", call_id)
    erasure = await _erase(gateway, name)
    await _finish(gateway)
    shown = await _show(gateway, erasure["erasure_id"])
    assert (shown["state"], shown["calls_left"]) == ("in_progress", 1)
    await db.execute("update deputize.calls set ended_at = now() where id = $1", call_id)
    await _finish(gateway)
    assert (await _show(gateway, erasure["erasure_id"]))["state"] == "done"
    assert await _list_tables_naming(db, name) == set()


async def test_a_person_who_comes_back_is_a_new_subject(gateway: HttpGateway, db: asyncpg.Connection) -> None:
    name = "eve-returning"
    old = (await _rename(gateway, name, "eve"))["call_id"]
    await _erase(gateway, name)
    await _finish(gateway)
    token = gateway.token(name)
    assert (await gateway.get(f"/v1/calls/{old}", token=token)).status_code == 404
    new = await gateway.call("shop.rename_user", {"id": 2, "name": "x"}, token=token, key="eve-again")
    assert new.status_code == 200
    pseudonyms = []
    for each in (old, new.json()["call_id"]):
        entry = await db.fetchval("select entry from deputize.audit_entries where call_id = $1 limit 1", each)
        pseudonyms.append(orjson.loads(entry)["caller"][0])
    assert pseudonyms[0] != pseudonyms[1]


async def test_nobody_erases_or_sees_an_erasure_of_another_tenant(gateway: HttpGateway, db: asyncpg.Connection) -> None:
    name = "tia-tenant"
    made = await _rename(gateway, name, "tia")
    admin = gateway.other_token("otto", scopes=(*SCOPES, ADMIN))
    for fields in ({}, {"issuer": "https://deputize.dev.local"}):
        theirs = await gateway.post("/v1/erasures", {"user": name, **fields}, token=admin)
        assert theirs.status_code == 202, theirs.text
    await _finish(gateway)
    user = await db.fetchval("select caller_user from deputize.calls where id = $1", made["call_id"])
    assert user == name
    assert await db.fetchval("select count(*) from deputize.subjects where tenant = 'dev' and subject = $1", name) == 1
    for erasure_id in (theirs.json()["erasure_id"], "not-an-id", "01890000-0000-7000-8000-000000000000"):
        answer = await gateway.get(f"/v1/erasures/{erasure_id}", token=_root(gateway))
        assert (answer.status_code, answer.json()["error"]["slug"]) == (404, "erasure-not-found")


async def test_an_erasure_that_fails_holds_up_no_other(gateway: HttpGateway, db: asyncpg.Connection) -> None:
    failing, behind = "fay-failing", "bea-behind"
    ids = [(await _erase(gateway, name))["erasure_id"] for name in (failing, behind)]
    # What a gateway stores of them after their erasures began.
    for name in (failing, behind):
        await db.execute(
            "insert into deputize.deprecated_uses values ('dev', 'shop.get_user', '1.0.0', $1, '', now(), 1, now())",
            name,
        )
    table = "alter table deputize.deprecated_uses"
    await db.execute(f"{table} add constraint test_fails check (caller_user <> 'erased={ids[0]}')")
    try:
        with pytest.raises(asyncpg.CheckViolationError):
            await _finish(gateway)
    finally:
        await db.execute(f"{table} drop constraint test_fails")
    assert [(await _show(gateway, each))["state"] for each in ids] == ["in_progress", "done"]
    assert await _list_tables_naming(db, behind) == set()
    await _finish(gateway)
    assert (await _show(gateway, ids[0]))["state"] == "done"
