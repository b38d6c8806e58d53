"""The tools of a database are called over HTTP and read what they may; without any one layer, nothing is changed."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from deputize import SemanticViolation, ToolPrecondition, UpstreamUnavailable
from deputize.core.errors import Problem
from deputize.core.settings import Settings
from deputize.core.settings.builtin import BuiltinSettings, SqlSettings
from deputize.interfaces.cli.local.project_gateway import load_project
from deputize.store.local_postgres import LocalPostgres
from deputize.tools.sql import reading
from deputize.tools.sql.database import Database, Limits
from deputize.tools.sql.statements import Access, Statement
from deputize.tools.sql.validation import Check, validate_table
from tests.integration.conftest import HttpGateway, serve_gateway
from tests.support.policies import open_policy
from tests.support.sql_shop import STATE, SqlShop, make_sql_shop
from tests.support.sql_statements import HOSTILE, HOSTILE_OF_ANY_LOGIN, OVERSIZED, build_honest_statements

pytestmark = [pytest.mark.requirement("EXE-4"), pytest.mark.requirement("GOV-4")]

TakeAway = Callable[[pytest.MonkeyPatch], None]
PUBLIC = Access(tables=("public.*",))


def load_settings(url: str, **options: Any) -> Settings:
    return Settings(builtin=BuiltinSettings(sql=SqlSettings(url=url, **options)))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def shop(postgres: LocalPostgres) -> Iterator[SqlShop]:
    with make_sql_shop(postgres) as shop:
        yield shop


@pytest.fixture(scope="module")
def database(shop: SqlShop) -> Database:
    return Database(shop.reader, PUBLIC, Limits())


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(
    module_database: str, shop: SqlShop, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[HttpGateway]:
    folder = tmp_path_factory.mktemp("project")
    project_tools = load_project(load_settings(shop.reader, samples=True), folder)
    assert not project_tools.refusals
    options = {"tools": tuple(project_tools.tools)}

    def use_policies(settings: Settings) -> Settings:
        return settings.model_copy(update={"policy": open_policy(folder)})

    async with serve_gateway(module_database, folder, change=use_policies, gateway_options=options) as gateway:
        yield gateway


async def call(gateway: HttpGateway, tool: str, **arguments: Any) -> dict[str, Any]:
    token = gateway.token(scopes=("sql:read",))
    envelope: dict[str, Any] = (await gateway.call(f"sql.{tool}", arguments, token=token, key=uuid.uuid4().hex)).json()
    return envelope


async def run(database: Database, sql: str, *parameters: Any, offset: int = 0, limit: int = 100) -> reading.Rows:
    return await reading.run_query(database, sql, parameters, offset, limit, 30.0)


async def test_tables_are_described_with_keys_and_masked_samples(gateway: HttpGateway) -> None:
    envelope = await call(gateway, "schema", search="ORDER", limit=2)
    assert envelope["state"] == "succeeded", envelope
    lines, orders = envelope["result"]["tables"]
    assert (orders["table"], orders["kind"], orders["estimated_rows"]) == ("public.orders", "table", 200)
    assert orders["columns"][:2] == ["id bigint", "customer integer"]
    assert "note text?" in orders["columns"]
    assert orders["keys"] == ["primary key (id)", "customer > public.customers (id)"]
    assert orders["samples"]["placed"] == ["9999-99-99 99:99:99+99"]
    assert lines["keys"][0] == "primary key (order_id, product)"
    assert envelope["result"]["next_offset"] == 2
    envelope = await call(gateway, "schema")
    names = [each["table"] for each in envelope["result"]["tables"]]
    assert "public.paid_orders" in names
    assert not [each for each in names if not each.startswith("public.")]


async def test_a_query_returns_typed_pages(gateway: HttpGateway) -> None:
    sql = "select id, state, placed, note from orders where customer = any ($1) and placed < $2 order by id"
    arguments = {"sql": sql, "parameters": [[5, 6], "2026-12-01"], "limit": 2}
    first = (await call(gateway, "query", **arguments))["result"]
    assert first["columns"][1] == {"name": "state", "type": "order_state"}
    assert [row[0] for row in first["rows"]] == [4, 5]
    assert first["rows"][0][1:3] == ["paid", "2026-03-02 12:00:00+00"]
    second = (await call(gateway, "query", **arguments, offset=first["next_offset"]))["result"]
    assert [row[0] for row in second["rows"]] == [64, 65]


async def test_a_refusal_names_its_rule_and_a_hint(gateway: HttpGateway) -> None:
    error = (await call(gateway, "query", sql="select pg_sleep(9)"))["error"]
    assert (error["slug"], error["details"]["rule"]) == ("semantic-violation", "functions")
    assert error["details"]["hint"] in error["message"]


async def test_rows_are_checked_by_names_alone(gateway: HttpGateway, shop: SqlShop) -> None:
    checks = [
        {"kind": "complete", "columns": ["id", "placed"]},
        {"kind": "complete", "columns": ["note"]},
        {"kind": "unique", "columns": ["id"]},
        {"kind": "unique", "columns": ["customer", "state"]},
        {"kind": "references", "columns": ["customer"], "to_table": "public.customers", "to_columns": ["id"]},
        {"kind": "references", "columns": ["id"], "to_table": "public.customers", "to_columns": ["id"]},
        {"kind": "fresh", "columns": ["placed"], "max_age_seconds": 2**40},
        {"kind": "fresh", "columns": ["placed"], "max_age_seconds": 1},
    ]
    result = (await call(gateway, "validate", table="public.orders", checks=checks))["result"]
    assert [each["holds"] for each in result["checks"]] == [True, False, True, False, True, False, True, False]
    assert [each["failing_rows"] for each in result["checks"]] == [0, 160, 0, 140, 0, 140, 0, 0]
    assert not result["holds"]
    empty = await call(gateway, "validate", table="public.orders", checks=[])
    assert empty["error"]["slug"] == "schema-violation"


@pytest.mark.parametrize(
    ("table", "columns", "more", "rule"),
    [
        ("private.salaries", ["id"], {"kind": "unique"}, "tables"),
        ("pg_catalog.pg_authid", ["oid"], {"kind": "unique"}, "tables"),
        ("public.customers; drop table orders", ["id"], {"kind": "unique"}, "syntax"),
        ("public.customers", ['id" is null) or pg_sleep(9) is null --'], {"kind": "complete"}, "columns"),
        # A function of the row, which a name after a dot would call.
        ("public.customers", ["label"], {"kind": "complete"}, "columns"),
        (
            "public.orders",
            ["customer"],
            {"kind": "references", "to_table": "public.customers", "to_columns": ["label"]},
            "columns",
        ),
        (
            "public.customers",
            ["id"],
            {"kind": "references", "to_table": "private.salaries", "to_columns": ["id"]},
            "tables",
        ),
        ("public.customers", ["id"], {"kind": "references", "to_table": "public.orders"}, "checks"),
        ("public.orders", ["placed"], {"kind": "fresh"}, "checks"),
        ("public.orders", ["note"], {"kind": "fresh", "max_age_seconds": 1}, "syntax"),
    ],
)
async def test_a_check_of_other_things_is_refused(
    database: Database, table: str, columns: list[str], more: dict[str, Any], rule: str
) -> None:
    with pytest.raises(SemanticViolation) as caught:
        await validate_table(database, table, [Check(columns=columns, **more)], 30.0)
    assert caught.value.details["rule"] == rule, caught.value


async def test_values_are_exact_and_bounded(database: Database) -> None:
    sql = """
        select 1 as a, 2 as a, 9007199254740993, 1.50, 'NaN'::float8, 0.5::float4, true, null, array[1.10, 2],
          '{"a": [1.5]}'::jsonb, '\\x00ff'::bytea, repeat('x', 5000), interval '1 day', date '2026-01-02',
          repeat('x', 5000)::bytea, array(select generate_series(1, 3000))
    """
    page = await run(database, sql)
    (row,) = page.rows
    assert row[:10] == [1, 2, "9007199254740993", "1.50", "NaN", 0.5, True, None, ["1.10", "2"], {"a": [1.5]}]
    assert (row[10], len(row[11]), row[12:14]) == ("AP8=", reading.MAX_TEXT + 1, ["P1D", "2026-01-02"])
    assert page.cut_values == 3
    page = await run(database, "select repeat('x', 3000) from generate_series(1, 1000)", limit=1000)
    assert (len(page.rows), len(page.rows) < 200) == (page.next_offset, True)
    assert (await run(database, "select id from orders order by id", offset=198)).next_offset is None


@pytest.mark.parametrize(
    ("sql", "parameters", "rule"),
    [
        ("select count(*) from orders a, orders b, orders c, orders d, orders e, orders f", [], "cost"),
        (
            "select 1 from orders a join orders b using (id), orders c, orders d, orders e, orders f, orders g",
            [],
            "joins",
        ),
        ("select (select (select (select (select 1))))", [], "nesting"),
        (" union all ".join(["select 1"] * 21), [], "nesting"),
        ("select " + "not " * 2000 + "true", [], "nesting"),
        ("select " + "f(" * 3000 + ")" * 3000, [], "nesting"),
        ("select '" + "x" * 10_000 + "'", [], "length"),
        ("select 1\0", [], "length"),
        ("select '\udce4'", [], "syntax"),
        ("", [], "one-statement"),
        ("selec 1", [], "syntax"),
        ("select nope from orders", [], "syntax"),
        ("select 1 / 0", [], "syntax"),
        ("select", [], "columns"),
        ("select from orders", [], "columns"),
        ("select $1::int", [], "parameters"),
        ("select 1", [1], "parameters"),
        ("select $1::int[]", ["1"], "parameters"),
        ("select $1::int", ["x"], "syntax"),
        ("select $1::customers", ["x"], "parameters"),
    ],
)
async def test_what_is_too_much_or_wrong_is_refused(
    database: Database, sql: str, parameters: list[Any], rule: str
) -> None:
    with pytest.raises(SemanticViolation) as caught:
        await run(database, sql, *parameters)
    assert (caught.value.details["rule"], bool(caught.value.details["hint"])) == (rule, True), caught.value


async def test_what_would_take_the_memory_of_the_server_is_refused(database: Database) -> None:
    for statement in OVERSIZED:
        with pytest.raises(SemanticViolation) as caught:
            await run(database, statement)
        assert caught.value.details["rule"] in ("size", "cost"), statement


async def test_a_plan_tells_steps_costs_and_rows_alone(shop: SqlShop) -> None:
    """Conditions and names of tables behind a view are not for those who may only read the view."""
    database = Database(shop.reader, Access(tables=("public.paid_orders",)), Limits())
    for options in ("", "verbose", "(verbose, format json)", "(format xml, costs off)"):
        plan = await run(database, f"explain {options} select id from paid_orders where id < 5")
        assert [each.name for each in plan.columns] == ["step", "cost", "rows"]
        assert plan.estimated_cost == plan.rows[0][1] > 0
        steps = " ".join(step for step, _, _ in plan.rows)
        assert "Scan" in steps
        assert not [word for word in ("orders", "paid", "state", "id") if word in steps.lower()], steps


async def test_a_statement_that_takes_too_long_is_ended(shop: SqlShop) -> None:
    database = Database(shop.reader, PUBLIC, Limits(seconds=0.3))
    with pytest.raises(SemanticViolation) as caught:
        await run(database, "with recursive x as (select 1 n union all select n + 1 from x) select max(n) from x")
    assert caught.value.details["rule"] == "time"
    watcher = await asyncpg.connect(shop.administrator)
    async with asyncio.timeout(60):
        while True:
            if not await watcher.fetchval("select count(*) from pg_stat_activity where usename = 'shop_reader'"):
                break
            await asyncio.sleep(0.05)
    await watcher.close()


async def test_tables_and_functions_are_those_of_the_settings(shop: SqlShop) -> None:
    access = Access(tables=("public.customers", "private.*"), functions=frozenset({"public.label", "public.vat"}))
    database = Database(shop.reader, access, Limits())
    assert (await run(database, "select label(c) from public.customers c where id = 1")).rows == [
        ["Customer 1 <c1@example.com>"]
    ]
    assert (await run(database, "select c.label, vat(10) from public.customers c where id = 1")).rows[0][1] == "2.0"
    for sql in (
        "select * from orders",
        "select * from public.orders",
        "table only orders",
        # A row without values still has the names of columns.
        "select row_to_json(json_populate_record(null::orders, '{}'))",
        "select json_populate_recordset(null::public._orders, '[]')",
    ):
        with pytest.raises(SemanticViolation) as caught:
            await run(database, sql)
        assert caught.value.details["rule"] == "tables"
    await run(database, "select row_to_json(json_populate_record(null::customers, '{}')), 'open'::order_state::text")
    with pytest.raises(SemanticViolation) as caught:
        await run(database, "select * from private.salaries")
    assert caught.value.details["rule"] == "role"


async def test_honest_statements_are_run(database: Database) -> None:
    honest = build_honest_statements()
    assert len(honest) >= 200
    refused = []
    connections = asyncio.Semaphore(8)

    async def try_statement(sql: str, parameters: list[Any]) -> None:
        try:
            async with connections:
                await run(database, sql, *parameters)
        except SemanticViolation as error:
            refused.append(f"{sql}: {error.details['rule']}")

    await asyncio.gather(*(try_statement(sql, parameters) for sql, parameters in honest))
    assert len(refused) <= len(honest) // 100, refused


class _Writing:
    """A transaction that writes, and is committed where it should be rolled back."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def start(self) -> None:
        await self._connection.execute("begin read write")

    async def rollback(self) -> None:
        await self._connection.execute("commit")

    async def __aenter__(self) -> None:
        await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.rollback()


def take_away_parse(patch: pytest.MonkeyPatch) -> None:
    def admit(sql: str, access: Access) -> Statement:
        return Statement(text=sql, is_explain=sql.startswith("explain"), attributes=frozenset())

    patch.setattr(reading, "admit_statement", admit)


def take_away_transaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(asyncpg.Connection, "transaction", lambda self, **_: _Writing(self))


def take_away_role(patch: pytest.MonkeyPatch) -> None:
    async def accept(*_: object) -> None:
        pass

    patch.setattr(Database, "_require_rights", accept)


async def run_hostile(
    shop: SqlShop, folder: Path, patch: pytest.MonkeyPatch, login: str, layers: tuple[TakeAway, ...], hostile: list[str]
) -> list[str]:
    """Run hostile statements without some layers; list those that ended well, after which nothing had changed."""
    watcher = await asyncpg.connect(shop.administrator)
    heard: list[object] = []
    await watcher.add_listener("orders", lambda *event: heard.append(event))
    database = Database(getattr(shop, login), PUBLIC, Limits(seconds=20.0))
    folder.chmod(0o777)
    file = folder / "stolen"
    before = await watcher.fetchval(STATE)
    ended_well = []
    with patch.context() as context:
        for take_away in layers:
            take_away(context)
        for place, statement in enumerate(hostile, start=1):
            sql = statement.replace("{file}", str(file)).replace("{pid}", str(watcher.get_server_pid()))
            try:
                await run(database, sql)
                ended_well.append(sql)
            except Problem as error:
                if "rule" not in error.details and take_away_parse not in layers:
                    ended_well.append(f"{sql}: {error} names no rule")
            if place % 25 == 0 or place == len(hostile):
                state = await watcher.fetchval(STATE)
                assert (state, file.exists(), heard) == (before, False, []), hostile[max(place - 25, 0) : place]
    await watcher.close()
    return ended_well


@pytest.mark.parametrize(
    ("login", "layers"),
    [
        pytest.param("reader", (), id="with all layers"),
        pytest.param("reader", (take_away_transaction,), id="without the read-only transaction"),
        pytest.param("administrator", (take_away_role,), id="without the role"),
        pytest.param("administrator", (take_away_transaction, take_away_role), id="by the parse alone"),
    ],
)
async def test_hostile_statements_are_refused(
    shop: SqlShop, monkeypatch: pytest.MonkeyPatch, reachable_folder: Path, login: str, layers: tuple[TakeAway, ...]
) -> None:
    assert len(HOSTILE) >= 150
    assert await run_hostile(shop, reachable_folder, monkeypatch, login, layers, HOSTILE) == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("login", "layers"),
    [
        pytest.param("reader", (take_away_parse,), id="without the parse"),
        pytest.param("owner", (take_away_parse, take_away_role), id="by the read-only transaction alone"),
        pytest.param("reader", (take_away_parse, take_away_transaction), id="by the role alone"),
    ],
)
async def test_hostile_statements_change_nothing_without_the_parse(
    shop: SqlShop, monkeypatch: pytest.MonkeyPatch, reachable_folder: Path, login: str, layers: tuple[TakeAway, ...]
) -> None:
    # These would wait, or need no right at all.
    hostile = [each for each in HOSTILE if "sleep" not in each]
    if take_away_transaction in layers:
        hostile = [each for each in hostile if each not in HOSTILE_OF_ANY_LOGIN]
    await run_hostile(shop, reachable_folder, monkeypatch, login, layers, hostile)


async def test_without_all_layers_something_changes(
    shop: SqlShop, monkeypatch: pytest.MonkeyPatch, reachable_folder: Path
) -> None:
    layers = (take_away_parse, take_away_transaction, take_away_role)
    with pytest.raises(AssertionError, match="nextval"):
        await run_hostile(shop, reachable_folder, monkeypatch, "owner", layers, ["select nextval('numbers')"])


@pytest.mark.parametrize(
    ("grant", "right"),
    [
        ("grant insert on customers to {role}", "may change public.customers"),
        ("grant update (name) on customers to {role}", "may change public.customers"),
        ("grant delete on paid_orders to public", "may change public.paid_orders"),
        ("grant truncate on private.salaries to {role}", "may change private.salaries"),
        ("grant usage on sequence numbers to {role}", "may advance sequence public.numbers"),
        ("grant create on schema private to {role}", "may create in schema private"),
        ("grant temp on database {database} to {role}", "may create temporary tables"),
        ("grant create on database {database} to public", "may create schemas"),
        ("alter role {role} superuser", "is a superuser"),
        ("alter role {role} bypassrls", "bypasses row security"),
        ("alter role {role} createrole", "creates roles"),
        ("grant pg_write_all_data to {role}", "is a member of pg_write_all_data"),
        ("grant pg_execute_server_program to {role}", "is a member of pg_execute_server_program"),
        ("grant pg_read_server_files to {role}", "is a member of pg_read_server_files"),
        ("grant shop_owner to {role} with inherit false, set true", "may change"),
        ("alter function ship(bigint) security definer", "may call ship(bigint)"),
        ("alter table customers owner to {role}", "may change public.customers"),
    ],
)
async def test_a_login_that_could_write_is_not_used(shop: SqlShop, tmp_path: Path, grant: str, right: str) -> None:
    administrator = await asyncpg.connect(shop.administrator)
    role = f"probe_{uuid.uuid4().hex[:8]}"
    url = shop.reader.replace("shop_reader:reader", f"{role}:probe")
    database = Database(url, PUBLIC, Limits())
    await administrator.execute(
        f"create role {role} login password 'probe'; grant connect on database {shop.name} to {role}; "
        f"grant usage on schema public to {role}; grant select on all tables in schema public to {role}"
    )
    try:
        assert (await run(database, "select 1")).rows == [[1]]
        await administrator.execute(grant.format(role=role, database=shop.name))
        with pytest.raises(ToolPrecondition) as caught:
            await run(database, "select 1")
        assert right in str(caught.value)
        assert caught.value.details["rule"] == "role"
        project_tools = load_project(load_settings(url), tmp_path)
        (refusal,) = project_tools.refusals
        assert (refusal.what, project_tools.tools) == ("[builtin.sql]", [])
        assert right in refusal.reasons[0]
    finally:
        await administrator.execute(
            f"revoke delete on paid_orders from public; revoke create on database {shop.name} from public; "
            f"alter function ship(bigint) security invoker; alter table customers owner to shop_owner; "
            f"grant select on customers to shop_reader; drop owned by {role}; drop role {role}"
        )
        await administrator.close()


async def test_a_database_that_does_not_answer_is_tried_again_by_each_call(tmp_path: Path) -> None:
    url = "postgresql://nobody@127.0.0.1:9/none"
    assert len(load_project(load_settings(url), tmp_path).tools) == 3
    with pytest.raises(UpstreamUnavailable):
        await run(Database(url, PUBLIC, Limits()), "select 1")


def test_they_are_off_without_settings(tmp_path: Path) -> None:
    assert load_project(Settings(), tmp_path).tools == []
