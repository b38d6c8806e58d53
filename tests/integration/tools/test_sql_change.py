"""Rows are changed by their key over HTTP: never over a later write, shown before, and taken back by the journal."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from deputize import SemanticViolation, ToolConflict, ToolPrecondition, UpstreamUnavailable
from deputize.core.settings import Settings
from deputize.core.settings.builtin import BuiltinSettings, SqlSettings
from deputize.interfaces.cli.local.project_gateway import load_project
from deputize.store.local_postgres import LocalPostgres
from deputize.tools.sql.changing import Change, ChangedRow, change_row
from deputize.tools.sql.database import Database, Limits
from deputize.tools.sql.statements import Access
from tests.integration.conftest import HttpGateway, serve_gateway
from tests.support.policies import open_policy
from tests.support.sql_shop import SqlShop, make_sql_shop

pytestmark = [pytest.mark.requirement("EXE-4"), pytest.mark.requirement("GOV-4")]

TABLES = (
    "public.customers", "public.products", "public.orders", "public.order_lines", "public.employees", "public.stock",
    "public.things", "public.days",
)  # fmt: skip
_MORE_TABLES = """
set role shop_owner;
create table stock (
  id integer generated always as identity primary key, product integer references products on delete cascade,
  amount integer not null check (amount >= 0), changed timestamptz not null default clock_timestamp()
);
create table stock_log (id bigserial primary key, what text);
create function note_stock() returns trigger language plpgsql security definer as $$ begin
  insert into public.stock_log (what) values (new.amount::text); new.changed := clock_timestamp(); return new;
end $$;
create trigger note_stock before update on stock for each row execute function note_stock();
create table things (
  name text, part text, doc json, docb jsonb, raw bytea, words text[], price numeric, state order_state,
  span tstzrange, ratio float8, twice numeric generated always as (price * 2) stored, primary key (name, part)
);
create table days (day date primary key, note text) partition by range (day);
create table days_2026 partition of days for values from ('2026-01-01') to ('2027-01-01');
create table offers (id integer primary key, product integer references products on delete set null);
insert into stock (product, amount) values (1, 5), (1, 7);
grant select, insert, update, delete on stock, things, days to shop_writer;
grant select on stock, things, days to shop_reader;
"""


def make_url_settings(shop: SqlShop, **options: Any) -> Settings:
    fields = {"url": shop.reader, "change_url": shop.writer, "change_tables": TABLES, **options}
    return Settings(builtin=BuiltinSettings(sql=SqlSettings(**fields)))


@pytest.fixture(scope="module")
def shop(postgres: LocalPostgres) -> Iterator[SqlShop]:
    with make_sql_shop(postgres) as shop:
        postgres.run_sql(_MORE_TABLES, database=shop.name)
        yield shop


@pytest.fixture(scope="module")
def database(shop: SqlShop) -> Database:
    return Database(shop.writer, Access(tables=("public.*",)), Limits(), TABLES)


@dataclass(frozen=True, kw_only=True)
class SqlGateway:
    gateway: HttpGateway

    async def call(self, *, dry_run: bool = False, **arguments: Any) -> dict[str, Any]:
        token = self.gateway.token(scopes=("sql:write",))
        key = None if dry_run else uuid.uuid4().hex
        answer = await self.gateway.call("sql.change", arguments, token=token, dry_run=dry_run, key=key)
        envelope: dict[str, Any] = answer.json()
        return envelope

    async def change(self, **arguments: Any) -> dict[str, Any]:
        envelope = await self.call(**arguments)
        assert envelope["state"] == "succeeded", envelope
        return envelope

    async def plan_undo(self, call_id: str) -> dict[str, Any]:
        plan: dict[str, Any] = (await self._post("/v1/undo/plan", {"call_id": call_id})).json()
        return plan

    async def undo(self, call_id: str) -> dict[str, Any]:
        plan = await self.plan_undo(call_id)
        (step,) = (await self._post("/v1/undo", {"call_id": call_id, "digest": plan["digest"]})).json()["made"]
        made: dict[str, Any] = step
        return made

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        return await self.gateway.post(path, body, token=self.gateway.token(scopes=("sql:write", "deputize:undo")))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(
    module_database: str, shop: SqlShop, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SqlGateway]:
    folder = tmp_path_factory.mktemp("project")
    project_tools = load_project(make_url_settings(shop), folder)
    assert not project_tools.refusals

    def use_policies(settings: Settings) -> Settings:
        return settings.model_copy(update={"policy": open_policy(folder)})

    options = {"tools": tuple(project_tools.tools)}
    async with serve_gateway(module_database, folder, change=use_policies, gateway_options=options) as served:
        yield SqlGateway(gateway=served)


@pytest_asyncio.fixture(loop_scope="session")
async def owner(shop: SqlShop) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(shop.owner)
    yield connection
    await connection.close()


async def change(
    database: Database, op: str, key: str, values: Any = None, expected: Any = None, *, table: str, keeps: bool = True
) -> ChangedRow:
    asked = Change(table=f"public.{table}", op=op, key=key, values=values or {}, expected=expected or {})  # type: ignore[arg-type]
    return await change_row(database, asked, 30.0, keeps=keeps)


async def read(owner: asyncpg.Connection, table: str, key: str = "id = 1") -> str | None:
    text: str | None = await owner.fetchval(f"select t::text from {table} t where {key}")
    return text


async def test_a_row_is_shown_changed_and_taken_back(gateway: SqlGateway, owner: asyncpg.Connection) -> None:
    at_first = await read(owner, "orders", "id = 7")
    arguments: dict[str, Any] = {
        "table": "public.orders", "op": "update", "key": 7, "values": {"state": "sent", "note": "by hand"},
        "expected": {"state": "paid", "note": None},
    }  # fmt: skip
    preview = (await gateway.call(dry_run=True, **arguments))["preview"]
    (shown,) = preview["changes"]
    assert preview["problem"] is None, preview
    assert (shown["op"], shown["scope"]) == ("update", "public.orders/7")
    assert (shown["before"]["state"], shown["after"]["state"], shown["after"]["id"]) == ("paid", "sent", "7")
    assert preview["impact"] == {"undo": "full", "triggers": [], "other_rows": {}, "set_by_database": {}}
    assert await read(owner, "orders", "id = 7") == at_first
    done = await gateway.change(**arguments)
    assert {name: done["result"]["after"][name] for name in shown["after"]} == shown["after"]
    assert "by hand" in str(await read(owner, "orders", "id = 7"))
    undone = await gateway.undo(done["call_id"])
    assert undone["state"] == "succeeded", undone
    assert await read(owner, "orders", "id = 7") == at_first
    # The undo is taken back like any other change.
    assert (await gateway.undo(undone["call_id"]))["state"] == "succeeded"
    assert "by hand" in str(await read(owner, "orders", "id = 7"))


async def test_rows_that_come_and_go_are_taken_back(gateway: SqlGateway, owner: asyncpg.Connection) -> None:
    made = await gateway.change(
        table="public.employees", op="insert", key="77", values={"name": "Eve", "boss": 1, "salary": "1.50"}
    )
    removed = await gateway.change(
        table="public.employees", op="delete", key="77", expected={"name": "Eve", "boss": 1, "salary": "1.50"}
    )
    assert removed["result"]["after"] == {}
    # What came later is taken back first.
    (step,) = (await gateway.plan_undo(made["call_id"]))["steps"]
    assert step["verdict"] == "blocked"
    assert (await gateway.undo(removed["call_id"]))["state"] == "succeeded"
    assert await read(owner, "employees", "id = 77") == "(77,Eve,1,1.50)"
    assert (await gateway.undo(made["call_id"]))["state"] == "succeeded"
    assert await read(owner, "employees", "id = 77") is None


async def test_another_row_does_not_stand_in_the_way_of_an_undo(gateway: SqlGateway) -> None:
    first = await gateway.change(
        table="public.customers", op="update", key="1", values={"city": "Rome"}, expected={"city": "Bern"}
    )
    await gateway.change(
        table="public.customers", op="update", key="2", values={"city": "Rome"}, expected={"city": "Graz"}
    )
    assert (await gateway.undo(first["call_id"]))["state"] == "succeeded"


async def test_what_was_changed_past_the_gateway_is_never_overwritten(
    gateway: SqlGateway, owner: asyncpg.Connection
) -> None:
    arguments: dict[str, Any] = {
        "table": "public.customers", "op": "update", "key": "5", "values": {"city": "Rome"},
        "expected": {"city": "Graz"},
    }  # fmt: skip
    done = await gateway.change(**arguments)
    repeated = await gateway.call(**arguments)
    assert (repeated["error"]["slug"], repeated["error"]["details"]["current"]) == ("tool-conflict", {"city": "Rome"})
    assert not (await gateway.call(dry_run=True, **arguments))["preview"]["preconditions"][0]["holds"]
    await owner.execute("update customers set name = 'Other' where id = 5")
    (step,) = (await gateway.plan_undo(done["call_id"]))["steps"]
    assert (step["verdict"], step["reason"]) == ("blocked", "would_fail")
    assert "name changed" in step["detail"]
    assert "Rome" in str(await read(owner, "customers", "id = 5"))


async def test_triggers_are_named_and_what_they_set_is_shown_apart(
    gateway: SqlGateway, owner: asyncpg.Connection
) -> None:
    arguments: dict[str, Any] = {
        "table": "public.stock", "op": "update", "key": "1", "values": {"amount": 4}, "expected": {"amount": 5},
    }  # fmt: skip
    preview = (await gateway.call(dry_run=True, **arguments))["preview"]
    impact = preview["impact"]
    assert (impact["undo"], impact["triggers"]) == ("partial", ["note_stock"])
    assert impact["other_rows"] == {"public.stock_log": 1}
    assert list(impact["set_by_database"]) == ["changed"]
    assert "changed" not in preview["changes"][0]["after"]
    assert await owner.fetchval("select count(*) from stock_log") == 0
    done = await gateway.change(**arguments)
    assert (done["result"]["undo"], done["result"]["other_rows"]) == ("partial", {"public.stock_log": 1})
    (step,) = (await gateway.plan_undo(done["call_id"]))["steps"]
    assert (step["verdict"], step["class"]) == ("ready", "partial")
    assert (await gateway.undo(done["call_id"]))["state"] == "succeeded"
    assert await owner.fetchval("select amount from stock where id = 1") == 5


async def test_a_row_that_takes_others_along_is_not_deleted(database: Database, owner: asyncpg.Connection) -> None:
    await owner.execute("insert into products (id, name, price) values (90, 'Old pot', 1)")
    await owner.execute("insert into stock (product, amount) values (90, 1), (90, 2)")
    expected = {"name": "Old pot", "price": "1.00", "picture": None}
    with pytest.raises(SemanticViolation, match=r"2 more rows of public\.stock would be deleted") as caught:
        await change(database, "delete", "90", expected=expected, table="products")
    assert caught.value.details["rule"] == "cascades"
    assert await owner.fetchval("select count(*) from stock where product = 90") == 2
    await owner.execute("delete from stock where product = 90; insert into offers values (1, 90)")
    with pytest.raises(SemanticViolation, match=r"1 more row of public\.offers would be changed"):
        await change(database, "delete", "90", expected=expected, table="products")
    await owner.execute("delete from offers")
    assert (await change(database, "delete", "90", expected=expected, table="products")).undo == "full"


async def test_each_type_comes_back_as_it_was(database: Database, owner: asyncpg.Connection) -> None:
    await owner.execute(
        """
        insert into things values ('a,b%', 'x', '{"b": 1.10,  "a": [1e400]}', '{"n": 12345678901234567890.10}',
          '\\x00ff', '{a,"b,c",NULL}', 1.50, 'paid', '[2026-01-01,2026-02-01)', 0.1)
        """
    )
    at_first = await read(owner, "things", "true")
    expected = {
        "doc": '{"b": 1.10,  "a": [1e400]}', "docb": '{"n": 12345678901234567890.10}', "raw": "AP8=",
        "words": ["a", "b,c", None], "price": "1.50", "state": "paid",
        "span": '["2026-01-01 00:00:00+00","2026-02-01 00:00:00+00")', "ratio": 0.1,
    }  # fmt: skip
    removed = await change(database, "delete", "a%2Cb%25,x", expected=expected, table="things")
    assert await read(owner, "things", "true") is None
    back = await change(
        database, removed.inverse_op, removed.key, removed.inverse_values, removed.after, table="things"
    )
    assert await read(owner, "things", "true") == at_first
    assert back.after == removed.before


async def test_a_number_of_the_database_is_found_in_the_result(database: Database) -> None:
    made = await change(database, "insert", "", {"product": 2, "amount": 9}, table="stock")
    assert made.after["id"] == made.key
    assert (made.inverse_op, made.inverse_values) == ("delete", {})
    dated = await change(database, "insert", "2026-05-01", {"note": "x"}, table="days")
    assert (dated.undo, dated.other_rows) == ("full", {})


async def test_what_the_login_cannot_take_back_is_told(database: Database, owner: asyncpg.Connection) -> None:
    await owner.execute("revoke delete on employees from shop_writer")
    shown = await change(database, "insert", "700", {"name": "Eve"}, table="employees", keeps=False)
    await owner.execute("grant delete on employees to shop_writer")
    assert shown.undo == "none"
    assert await read(owner, "employees", "id = 700") is None


async def test_two_changes_at_once_are_one_change(database: Database, owner: asyncpg.Connection) -> None:
    async def try_change(number: int) -> str:
        try:
            await change(database, "update", "9", {"city": f"C{number}"}, {"city": "Bern"}, table="customers")
        except (ToolConflict, SemanticViolation) as error:
            return str(error.details["rule"])
        return "done"

    await owner.execute("update customers set city = 'Bern' where id = 9")
    ends = await asyncio.gather(*map(try_change, range(8)))
    assert (ends.count("done"), set(ends) <= {"done", "expected", "locks"}) == (1, True), ends


@pytest.mark.parametrize(
    ("op", "key", "values", "expected", "table", "rule"),
    [
        ("update", "7", {"state": "sent"}, {}, "orders", "expected"),
        ("update", "7", {}, {}, "orders", "values"),
        ("update", "", {"state": "sent"}, {"state": "paid"}, "orders", "key"),
        ("update", "07", {"state": "sent"}, {"state": "paid"}, "orders", "key"),
        ("insert", "0900", {"name": "x"}, {}, "employees", "key"),
        ("update", "1", {"amount": 2}, {"amount": 1}, "order_lines", "key"),
        ("update", "7", {"id": 8}, {"id": 7}, "orders", "key"),
        ("update", "1", {"words": "a"}, {"words": "b"}, "products", "columns"),
        ("update", "1", {"ctid": "(0,1)"}, {"ctid": "(0,1)"}, "products", "columns"),
        ("update", "1", {'name" = 1 --': "a"}, {'name" = 1 --': "b"}, "products", "columns"),
        ("delete", "7", {}, {"state": "paid"}, "orders", "expected"),
        ("insert", "900", {"name": "x"}, {"name": "x"}, "employees", "expected"),
        ("insert", "900", {"name": "x", "boss": 4711}, {}, "employees", "constraints"),
        ("insert", "900", {"boss": 1}, {}, "employees", "constraints"),
        ("update", "2", {"amount": -1}, {"amount": 7}, "stock", "constraints"),
        ("update", "1", {"name": {"a": 1}}, {"name": "Blue cup 1"}, "products", "values"),
        ("update", "1", {"picture": "%%"}, {"picture": "AP8="}, "products", "values"),
        ("update", "1", {"name": "a\0"}, {"name": "Blue cup 1"}, "products", "values"),
        ("update", "\udc80", {"name": "a"}, {"name": "Blue cup 1"}, "products", "values"),
        ("update", "x", {"state": "sent"}, {"state": "paid"}, "orders", "syntax"),
        ("update", "10", {"state": "stolen"}, {"state": "paid"}, "orders", "syntax"),
        ("delete", "1", {}, {"id": 1}, "stock_log", "tables"),
        ("delete", "1", {}, {"id": 1}, "paid_orders", "tables"),
    ],
)
async def test_what_a_change_must_not_do_is_refused(
    database: Database, op: str, key: str, values: dict[str, Any], expected: dict[str, Any], table: str, rule: str
) -> None:
    with pytest.raises(SemanticViolation) as caught:
        await change(database, op, key, values, expected, table=table)
    assert (caught.value.details["rule"], bool(caught.value.details["hint"])) == (rule, True), caught.value


@pytest.mark.parametrize(("op", "key", "values"), [("update", "4711", {"name": "x"}), ("insert", "1", {"name": "x"})])
async def test_a_row_that_is_not_as_expected_is_a_conflict(
    database: Database, op: str, key: str, values: dict[str, Any]
) -> None:
    with pytest.raises(ToolConflict):
        await change(database, op, key, values, values if op == "update" else {}, table="employees")


async def test_the_login_may_change_these_tables_alone(shop: SqlShop, tmp_path: Path) -> None:
    (refusal,) = load_project(make_url_settings(shop, change_tables=("public.customers",)), tmp_path).refusals
    assert "may change public.employees" in refusal.reasons[0]
    assert "change_url" in refusal.reasons[0]
    (refusal,) = load_project(make_url_settings(shop, change_url=shop.owner), tmp_path).refusals
    assert "may change" in refusal.reasons[0]
    with pytest.raises(ValueError, match="need each other"):
        make_url_settings(shop, change_tables=())
    narrow = Database(shop.writer, Access(tables=("public.*",)), Limits(), ("public.customers",))
    with pytest.raises(ToolPrecondition):
        await change(narrow, "update", "1", {"city": "x"}, {"city": "y"}, table="customers")


async def test_a_change_stays_done_however_its_connection_ends(
    database: Database, owner: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail_to_close(*_: Any, **__: Any) -> None:
        raise ConnectionResetError

    await owner.execute("update customers set city = 'Bern' where id = 12")
    with monkeypatch.context() as patch:
        patch.setattr(asyncpg.Connection, "close", fail_to_close)
        await change(database, "update", "12", {"city": "Ulm"}, {"city": "Bern"}, table="customers")
    assert await owner.fetchval("select city from customers where id = 12") == "Ulm"


@pytest.mark.parametrize("status", ["committed", "aborted", "in progress"])
async def test_a_lost_answer_to_the_commit_is_looked_up(
    database: Database, owner: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    async def lose_answer(self: Any) -> None:
        if status == "committed":
            await self._connection.execute("commit")
            self._connection.terminate()
        elif status == "aborted":
            await self._connection.execute("rollback")
            self._connection.terminate()
        raise ConnectionResetError

    await owner.execute("update customers set city = 'Bern' where id = 11")
    monkeypatch.setattr("asyncpg.transaction.Transaction.commit", lose_answer)
    changing = change(database, "update", "11", {"city": status}, {"city": "Bern"}, table="customers")
    if status == "committed":
        assert (await changing).after["city"] == status
        return
    with pytest.raises(UpstreamUnavailable) as caught:
        await changing
    assert caught.value.nothing_happened == (status == "aborted")
    assert await owner.fetchval("select city from customers where id = 11") == "Bern"
