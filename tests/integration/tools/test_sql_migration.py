"""Migrations are planned by trying them on a scratch database; the real one and the scratch one stay as they are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from deputize import SemanticViolation, ToolPrecondition
from deputize.core.settings import Settings
from deputize.core.settings.builtin import BuiltinSettings, SqlSettings
from deputize.interfaces.cli.local.project_gateway import load_project
from deputize.store.local_postgres import LocalPostgres
from deputize.tools.sql.database import Database, Limits
from deputize.tools.sql.migration import Plan, plan_migration
from deputize.tools.sql.statements import Access
from tests.support.sql_shop import SqlShop, make_sql_shop

pytestmark = [pytest.mark.requirement("EXE-4"), pytest.mark.requirement("GOV-4")]

PUBLIC = Access(tables=("public.*",))


@pytest.fixture(scope="module")
def shop(postgres: LocalPostgres) -> Iterator[SqlShop]:
    with make_sql_shop(postgres) as shop:
        yield shop


@pytest.fixture(scope="module")
def scratch(postgres: LocalPostgres) -> Iterator[SqlShop]:
    with make_sql_shop(postgres) as shop:
        yield shop


async def plan(shop: SqlShop, scratch: SqlShop, up: str, down: str = "") -> Plan:
    target = Database(shop.reader, PUBLIC, Limits())
    return await plan_migration(target, Database(scratch.owner, PUBLIC, Limits(), is_scratch=True), up, down, 30.0)


async def test_each_statement_is_tried_and_described(shop: SqlShop, scratch: SqlShop) -> None:
    before = await read_schema(scratch)
    found = await plan(
        shop,
        scratch,
        "alter table customers alter column city set not null; alter table orders alter column note type varchar(20); "
        "create index placed_at on order_lines (amount); create table new (id int primary key); "
        "comment on column orders.note is 'short'",
        "drop table new; drop index placed_at; alter table orders alter column note type text; "
        "alter table customers alter column city drop not null",
    )
    check, rewrite, index, new, _ = found.up
    assert (check.locks, check.reads_all_of) == (["ACCESS EXCLUSIVE in public.customers"], ["public.customers"])
    assert (rewrite.writes_anew, bool(rewrite.loses)) == (["public.orders"], True)
    assert (index.locks, index.reads_all_of) == (["SHARE in public.order_lines"], ["public.order_lines"])
    assert (new.locks, new.loses) == ([], [])
    assert (found.is_schema_restored, found.left_over, found.is_data_restored) == (True, [], False)
    assert found.tables["public.order_lines"].startswith("about 600 rows")
    assert found.differences == []
    assert await read_schema(scratch) == before


async def test_what_a_way_back_leaves_over_is_named(shop: SqlShop, scratch: SqlShop) -> None:
    found = await plan(
        shop, scratch, "alter table orders drop column note", "alter table orders add column note varchar(9)"
    )
    assert not found.is_schema_restored
    assert found.left_over == [
        "+ column public.orders.note character varying(9)", "- column public.orders.note text"
    ]  # fmt: skip
    # A foreign key locks what it refers to.
    (step,) = (await plan(shop, scratch, "drop table order_lines")).up
    assert {"ACCESS EXCLUSIVE in public.orders", "ACCESS EXCLUSIVE in public.order_lines"} <= set(step.locks)


async def test_a_scratch_database_of_another_schema_is_told(shop: SqlShop, scratch: SqlShop) -> None:
    owner = await asyncpg.connect(shop.owner)
    await owner.execute("alter table customers add column phone text")
    found = await plan(shop, scratch, "create table new (id int)")
    await owner.execute("alter table customers drop column phone")
    await owner.close()
    assert found.differences == ["+ column public.customers.phone text"]


@pytest.mark.parametrize(
    ("up", "rule"),
    [
        ("delete from orders", "statements"),
        ("create table x (id int); drop table x; delete from orders", "statements"),
        ("select 1", "statements"),
        ("create table x as select * from orders", "statements"),
        ("copy orders to program 'true'", "statements"),
        ("alter system set work_mem = '1GB'", "statements"),
        ("create role stolen superuser", "statements"),
        ("create extension dblink", "statements"),
        ("create function x() returns int language sql as 'select 1'", "statements"),
        ("alter table orders owner to shop_reader", "statements"),
        ("alter table orders disable trigger all", "statements"),
        ("drop schema public", "statements"),
        ("drop table orders cascade", "cascade"),
        ("alter table orders drop column customer cascade", "cascade"),
        ("create index concurrently x on orders (id)", "concurrently"),
        ("alter table orders add column x int default ship(1)", "functions"),
        ("alter table orders add check (pg_sleep(9) is null)", "functions"),
        ("create view x as select pg_read_file('/etc/passwd')", "functions"),
        ("create view x as select * from pg_catalog.pg_authid", "tables"),
        ("alter table private.salaries add column x int", "tables"),
        ("drop table private.salaries", "tables"),
        ("comment on table private.salaries is 'x'", "tables"),
        ("drop table orders", "dry-run"),
        ("alter table nope add column x int", "dry-run"),
        (";".join(["create table x (id int)"] * 21), "statements"),
        ("alter table", "syntax"),
        ("-- nothing", "statements"),
    ],
)
async def test_what_is_no_definition_is_refused(shop: SqlShop, scratch: SqlShop, up: str, rule: str) -> None:
    with pytest.raises(SemanticViolation) as caught:
        await plan(shop, scratch, up)
    assert (caught.value.details["rule"], bool(caught.value.details["hint"])) == (rule, True), caught.value


async def test_the_database_itself_is_never_the_scratch_database(shop: SqlShop) -> None:
    with pytest.raises(ToolPrecondition, match="names the database itself"):
        await plan(shop, shop, "create table new (id int)")


def test_a_login_that_reaches_beyond_its_database_is_not_used(shop: SqlShop, scratch: SqlShop, tmp_path: Path) -> None:
    def load(url: str) -> Any:
        sql = SqlSettings(url=shop.reader, scratch_url=url)  # type: ignore[arg-type]
        return load_project(Settings(builtin=BuiltinSettings(sql=sql)), tmp_path)

    assert len(load(scratch.owner).tools) == 4
    (refusal,) = load(scratch.administrator).refusals
    assert "scratch_url" in refusal.reasons[0]


async def read_schema(shop: SqlShop) -> str:
    connection = await asyncpg.connect(shop.administrator)
    text: str = await connection.fetchval(
        "select string_agg(x::text, '' order by x::text) from (select oid, relname, relfilenode, relnatts from "
        "pg_class where relnamespace = 'public'::regnamespace) x"
    )
    await connection.close()
    return text
