"""A tenant's whole log is verified over HTTP, and whatever is changed in the database is found at its place."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import orjson
import pytest
import pytest_asyncio

from deputize.evidence.log.receipt_check import check_receipt, parse_log_keys
from deputize.evidence.log.signed_note import VerifierKey
from deputize.interfaces.cli.local.log_audit import LogAudit, LogVerdict, load_checkpoint, load_keys
from tests.integration.conftest import ADMIN, SCOPES, HttpGateway
from tests.support.gateway_internals import get_runtime

pytestmark = pytest.mark.requirement("GOV-5")
ENTRIES = 280


def _admin(gateway: HttpGateway) -> str:
    return gateway.token("log-auditor", scopes=(*SCOPES, ADMIN))


async def _verify(gateway: HttpGateway) -> LogVerdict:
    loop, token = asyncio.get_running_loop(), _admin(gateway)

    def read_log(path: str) -> bytes | None:
        answer = asyncio.run_coroutine_threadsafe(gateway.get(f"/log/dev/{path}", token=token), loop).result(60)
        assert answer.status_code in (200, 404), answer.text
        return answer.content if answer.status_code == 200 else None

    def verify() -> LogVerdict:
        keys = load_keys(read_log)
        _, newest = load_checkpoint(read_log, keys)
        return LogAudit(read_log, keys).verify(newest)

    return await asyncio.to_thread(verify)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def size(gateway: HttpGateway) -> int:
    """How many entries a checkpoint covers, at least: more than one bundle."""
    for _ in range(ENTRIES // 20):
        answers = await asyncio.gather(*(gateway.call("shop.get_user", {"id": 1}) for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}
    async with asyncio.timeout(90):
        while True:
            answer = await gateway.get("/log/dev/checkpoint", token=_admin(gateway))
            if answer.status_code == 200 and int(answer.text.split("\n")[1]) >= ENTRIES:
                return ENTRIES
            await asyncio.sleep(0.05)


@pytest.fixture
async def owner(gateway: HttpGateway) -> AsyncIterator[asyncpg.Connection]:
    assert gateway.in_process is not None
    connection = await asyncpg.connect(get_runtime(gateway.in_process).store.direct_dsn)
    yield connection
    await connection.close()


async def _find_entry_id(owner: asyncpg.Connection, index: int) -> str:
    query = "select entry_id from deputize.log_leaves where tenant = 'dev' and leaf_index = $1"
    return str(await owner.fetchval(query, index))


async def _find_signed_range(owner: asyncpg.Connection, index: int) -> tuple[int, int]:
    """Find what the two checkpoints around an entry enclose."""
    query = """select coalesce(max(size) filter (where size <= $1), 0), min(size) filter (where size > $1) - 1
               from deputize.log_checkpoints where tenant = 'dev'"""
    row = await owner.fetchrow(query, index)
    assert row is not None
    return row[0], row[1]


async def test_an_unchanged_log_is_trusted(gateway: HttpGateway, size: int) -> None:
    verdict = await _verify(gateway)
    assert verdict.is_trusted, verdict
    assert verdict.size >= size
    assert verdict.signed_at is not None


@pytest.mark.parametrize("index", [0, 17, 255, 256, 270])
async def test_a_changed_entry_is_named_with_when_it_was_signed(
    gateway: HttpGateway, size: int, owner: asyncpg.Connection, index: int
) -> None:
    entry_id = await _find_entry_id(owner, index)
    original = await owner.fetchval("select entry from deputize.audit_entries where id = $1", entry_id)
    await owner.execute("update deputize.audit_entries set entry = entry || ' ' where id = $1", entry_id)
    try:
        verdict = await _verify(gateway)
    finally:
        await owner.execute("update deputize.audit_entries set entry = $2 where id = $1", entry_id, original)
    assert verdict.fault is not None
    assert (verdict.fault.first, verdict.fault.last, verdict.entry_id) == (index, index, entry_id)
    signed_at = await owner.fetchval(
        "select signed_at from deputize.log_checkpoints where tenant = 'dev' and size > $1 order by size limit 1", index
    )
    assert verdict.signed_at == signed_at.isoformat(timespec="seconds")


async def test_an_entry_changed_with_its_leaf_is_enclosed_by_two_checkpoints(
    gateway: HttpGateway, size: int, owner: asyncpg.Connection
) -> None:
    entry_id = await _find_entry_id(owner, 200)
    first, last = await _find_signed_range(owner, 200)
    row = await owner.fetchrow(
        """select a.entry, l.hash from deputize.audit_entries a join deputize.log_leaves l on l.entry_id = a.id
           where a.id = $1""",
        entry_id,
    )
    assert row is not None
    change_leaf = "update deputize.log_leaves set hash = $2 where tenant = 'dev' and entry_id = $1"
    await owner.execute("update deputize.audit_entries set entry = entry || ' ' where id = $1", entry_id)
    await owner.execute(
        "update deputize.log_leaves set hash = sha256('\\x00'::bytea || $2) where tenant = 'dev' and entry_id = $1",
        entry_id,
        row["entry"] + b" ",
    )
    try:
        verdict = await _verify(gateway)
    finally:
        await owner.execute("update deputize.audit_entries set entry = $2 where id = $1", entry_id, row["entry"])
        await owner.execute(change_leaf, entry_id, row["hash"])
    assert verdict.fault is not None
    assert (verdict.fault.first, verdict.fault.last) == (first, last)


async def test_an_entry_that_bypassed_the_log_is_named(
    gateway: HttpGateway, size: int, owner: asyncpg.Connection
) -> None:
    """Insert an entry as the owner of the database, without the trigger that queues it."""
    entry_id = await _find_entry_id(owner, 5)
    columns = await owner.fetch(
        """select attname from pg_attribute
           where attrelid = 'deputize.audit_entries'::regclass and attnum > 0 and not attisdropped order by attnum"""
    )
    names = [row["attname"] for row in columns]
    values = ", ".join("$2::uuid" if name == "id" else name for name in names)
    forged_id = f"{entry_id[:-4]}{(int(entry_id[-4:], 16) ^ 1):04x}"
    async with owner.transaction():
        await owner.execute("set local session_replication_role = replica")
        await owner.execute(
            f"insert into deputize.audit_entries ({', '.join(names)}) "
            f"select {values} from deputize.audit_entries where tenant = 'dev' and id = $1",
            entry_id,
            forged_id,
        )
    try:
        verdict = await _verify(gateway)
    finally:
        await owner.execute("delete from deputize.audit_entries where tenant = 'dev' and id = $1", forged_id)
    assert (verdict.fault, verdict.is_trusted) == (None, False)
    assert list(verdict.unlogged_entries) == [forged_id]
    assert (await _verify(gateway)).is_trusted


async def test_any_entry_that_a_caller_may_see_has_a_receipt(gateway: HttpGateway, size: int) -> None:
    page = await gateway.get("/v1/audit", token=_admin(gateway), limit=1, kind="command")
    command = page.json()["entries"][0]
    mine = await gateway.get("/v1/audit", limit=1)
    for token, entry_id in ((_admin(gateway), command["id"]), (gateway.token(), mine.json()["entries"][0]["id"])):
        async with asyncio.timeout(60):
            while (answer := await gateway.get(f"/v1/audit/{entry_id}/receipt", token=token)).status_code == 409:
                assert answer.json()["error"]["slug"] == "receipt-pending"
                await asyncio.sleep(0.1)
        assert answer.status_code == 200, answer.text
        keys = [VerifierKey.parse(each) for each in answer.json()["verifier_keys"]]
        assert check_receipt(answer.json()["receipt"].encode(), keys).entry["id"] == entry_id
    assert parse_log_keys("\n".join(map(str, keys))) == keys
    for token in (gateway.token("eve"), gateway.other_token("root", scopes=(*SCOPES, ADMIN))):
        refusal = await gateway.get(f"/v1/audit/{command['id']}/receipt", token=token)
        assert (refusal.status_code, refusal.json()["error"]["slug"]) == (404, "audit-entry-not-found")
    for entry_id in ("nonsense", "00000000-0000-0000-0000-000000000000"):
        assert (await gateway.get(f"/v1/audit/{entry_id}/receipt", token=_admin(gateway))).status_code == 404


@pytest.mark.parametrize("path", ["checkpoints", "unlogged"])
async def test_only_administrators_of_the_tenant_see_the_history(path: str, gateway: HttpGateway, size: int) -> None:
    assert (await gateway.get(f"/log/dev/{path}")).status_code == 403
    token = gateway.other_token("root", scopes=(*SCOPES, ADMIN))
    theirs, nobodys = [await gateway.get(f"/log/{tenant}/{path}", token=token) for tenant in ("dev", "no-tenant")]
    assert theirs.status_code == nobodys.status_code == 404
    assert orjson.loads(theirs.content)["detail"] == orjson.loads(nobodys.content)["detail"]
