"""A SQLite database is described, queried and validated, and nothing in a statement reaches beyond its tables."""

import asyncio
import hashlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from deputize import SemanticViolation, ToolContext, ToolPrecondition
from deputize.core.errors import ServiceBusy
from deputize.core.settings import Settings
from deputize.core.settings.builtin import BuiltinSettings, SqlSettings
from deputize.execute.job_processes import JobProcesses
from deputize.interfaces.cli.local.builtin_tools import share_database
from deputize.interfaces.cli.local.project_gateway import load_project
from deputize.tools.sql import reading, sqlite
from deputize.tools.sql.database import Limits
from deputize.tools.sql.sqlite import SqliteDatabase
from deputize.tools.sql.sqlite_job import SQLITE_FUNCTIONS
from deputize.tools.sql.statements import Access, Statement
from deputize.tools.sql.validation import Check
from tests.support.sql_statements import HOSTILE

pytestmark = [pytest.mark.requirement("EXE-4"), pytest.mark.requirement("GOV-4")]

_TABLES = """
create table customers (id integer primary key, name text not null, email text unique, profile text);
create table orders (id integer primary key, customer integer references customers (id), total real, placed text,
  picture blob);
create table secrets (id integer primary key, word text);
create view big_orders as select id, total from orders where total > 50;
create view told as select word from secrets;
insert into secrets values (1, 'hidden');
"""
# Each stands for a thing that only this database has.
_OF_SQLITE: Final = """
select * from sqlite_master
select * from sqlite_schema
select sql from main.sqlite_master
select * from pragma_table_info('customers')
select * from pragma_database_list
select * from dbstat
select load_extension('x')
select * from secrets
select word from main.secrets
select readfile('/etc/passwd')
select writefile('{file}', 'x')
select edit('x')
select fts3_tokenizer('simple')
select sqlite_log(1, 'x')
select sqlite_compileoption_get(1)
select last_insert_rowid()
select changes()
select randomblob(9)
select zeroblob(1000000000)
attach database '{file}' as other
detach database main
pragma query_only = off
pragma writable_schema = on
pragma database_list
vacuum into '{file}'
vacuum
reindex
analyze
replace into customers values (1, 'x')
insert or ignore into customers values (1, 'x')
begin immediate
create virtual table x using fts5 (a)
create temp table x (a int)
create trigger x after insert on orders
select 1; attach '{file}' as other
select * from temp.sqlite_master
select * from temp.customers
select name from customers union select word from secrets
select (select word from secrets)
with secrets as (select 1) select * from main.secrets
select * from customers, secrets
select exists (select 1 from secrets)
select count(*) from secrets
explain select * from customers
with big_orders as (select word from secrets) select * from big_orders
select word from told
select * from secrets as customers
select * from json_each((select word from secrets))
""".strip().splitlines()
_jobs = JobProcesses()
_HONEST: tuple[tuple[str, list[Any]], ...] = (
    ("select id, name from customers where id = $1", [7]),
    ("select c.name, sum(o.total) from customers c join orders o on o.customer = c.id group by c.name", []),
    ("select strftime('%Y-%m', placed) as month, count(*) from orders group by 1 order by 1", []),
    ("select json_extract(profile, '$.age') from customers where profile ->> '$.age' > $1", [25]),
    ("select e.value from customers c, json_each(c.profile, '$.likes') e", []),
    ("with recursive n (i) as (select 1 union all select i + 1 from n where i < 9) select sum(i) from n", []),
    ("select id, row_number() over (partition by customer order by total) from orders", []),
    ("select name from customers where name like 'C%' and email is not null limit 3 offset 1", []),
    ("select * from big_orders where total between $1 and $2", [60, 90]),
    ("select ifnull(email, '-'), upper(name), length(name), round(2.5), date('now', '-1 day') from customers", []),
    ("select id from customers intersect select customer from orders", []),
    ("values (1, 'a'), (2, 'b')", []),
    ("select case when total > 50 then 'big' else 'small' end, count(*) from orders group by 1", []),
    ("select count(*) filter (where total > 50), group_concat(id, ',') from orders", []),
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(_TABLES)
        connection.executemany(
            "insert into customers values (?, ?, ?, ?)",
            [(n, f"Customer {n}", f"c{n}@x.com" if n % 2 else None, f'{{"age": {20 + n}, "likes": ["tea"]}}')
             for n in range(1, 31)],
        )  # fmt: skip
        connection.executemany(
            "insert into orders values (?, ?, ?, ?, ?)",
            [(n, 1 + n % 30, n * 1.5, f"2026-01-{1 + n % 28:02}", b"\0\xff") for n in range(1, 101)],
        )
    connection.close()
    return path


@pytest_asyncio.fixture(scope="module", autouse=True)
async def _end_processes() -> AsyncIterator[None]:
    yield
    await _jobs.aclose()


async def run_job(job: Callable[[bytes], bytes], payload: bytes, seconds: int) -> bytes | None:
    return await _jobs.run_job("acme", job, payload, seconds=seconds)


def open_database(file: Path, *tables: str, seconds: float = 5.0) -> SqliteDatabase:
    access = Access(
        tables=tables or ("main.customers", "main.orders", "main.big_orders", "main.told"),
        builtin_functions=SQLITE_FUNCTIONS,
    )
    return SqliteDatabase(file, access, Limits(seconds=seconds), run_job)


async def run(database: SqliteDatabase, sql: str, *parameters: Any, offset: int = 0, limit: int = 100) -> reading.Rows:
    return await database.run_query(sql, parameters, offset, limit, 30.0)


async def test_tables_are_described(file: Path) -> None:
    found = await open_database(file).describe_tables("orders", 0, 5, 30.0, shows_samples=True)
    view, orders = found.tables
    assert (view.table, view.kind) == ("main.big_orders", "view")
    assert (orders.estimated_rows, orders.columns[:2]) == (100, ["id integer", "customer integer?"])
    assert orders.keys == ["primary key (id)", "customer > main.customers (id)"]
    assert orders.samples["placed"] == ["9999-99-99"]


async def test_pages_have_types_and_exact_values(file: Path) -> None:
    database = open_database(file)
    first = await run(database, "select id, name, email from customers order by id", limit=2)
    assert (first.rows, first.next_offset) == ([[1, "Customer 1", "c1@x.com"], [2, "Customer 2", None]], 2)
    assert [each.type for each in first.columns] == ["integer", "text", "text"]
    (row,) = (await run(database, "select 9007199254740993, 1e999, picture, 0.5 from orders where id = 1")).rows
    assert row == ["9007199254740993", "inf", "AP8=", 0.5]
    assert (await run(database, "select id from customers order by id", offset=29)).next_offset is None


@pytest.mark.parametrize(("sql", "parameters"), _HONEST)
async def test_honest_statements_are_run(file: Path, sql: str, parameters: list[Any]) -> None:
    assert (await run(open_database(file), sql, *parameters)).rows


async def test_hostile_statements_change_and_read_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = [*_OF_SQLITE, *HOSTILE]
    await require_refused(file, hostile)
    # By the authorizer alone.
    monkeypatch.setattr(
        sqlite, "admit_statement", lambda sql, _: Statement(text=sql, is_explain=False, attributes=frozenset())
    )
    await require_refused(file, hostile)


async def require_refused(file: Path, hostile: list[str]) -> None:
    database, before = open_database(file), hashlib.sha256(file.read_bytes()).hexdigest()
    stolen = file.with_name("stolen")
    for statement in hostile:
        rule, shown = "", ""
        try:
            shown = str((await run(database, statement.replace("{file}", str(stolen)))).rows)
        except SemanticViolation as error:
            rule = error.details["rule"]
        # A few statements of the other database mean something harmless here, such as a column in quotes.
        assert rule or statement in HOSTILE, statement
        assert "hidden" not in shown, statement
    assert hashlib.sha256(file.read_bytes()).hexdigest() == before
    assert {each.name for each in file.parent.iterdir()} == {file.name}


async def test_a_statement_that_takes_too_long_is_ended(file: Path) -> None:
    database = open_database(file, seconds=0.3)
    with pytest.raises(SemanticViolation) as caught:
        await run(database, "with recursive n (i) as (select 1 union all select i + 1 from n) select max(i) from n")
    assert caught.value.details["rule"] == "time"


async def test_a_step_that_nothing_can_interrupt_ends_with_its_process(file: Path) -> None:
    database = open_database(file, seconds=0.3)
    with pytest.raises(SemanticViolation) as caught:
        await run(database, "select instr(printf('%.*c', 4000000, 'a'), printf('%.*c', 2000000, 'a') || 'b')")
    assert caught.value.details["rule"] == "time"
    assert (await run(database, "select count(*) from customers")).rows == [[30]]


@pytest.mark.parametrize(
    "sql",
    [
        "select length(p) from (select printf('%1000000d', a.id) p from orders a, orders b order by p desc) limit 1",
        "select count(*) from (select distinct printf('%100000d', a.id * 1000 + b.id) from orders a, orders b)",
        "select length(group_concat(printf('%4000000d', id))) from orders",
    ],
)
async def test_what_is_sorted_and_gathered_takes_no_file_and_little_memory(file: Path, sql: str) -> None:
    database = open_database(file, seconds=20.0)
    with pytest.raises(SemanticViolation) as caught:
        await run(database, sql)
    assert caught.value.details["rule"] in ("memory", "syntax"), caught.value


async def test_statements_of_one_process_keep_nothing_of_each_other(file: Path) -> None:
    """A thread of the gateway is never used: what a statement does there is done to everybody."""
    threads = threading.active_count()
    many = [run(open_database(file), "select count(*) from orders a, orders b") for _ in range(10)]
    assert [each.rows for each in await asyncio.gather(*many)] == [[[10_000]]] * 10
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("sql", "parameters", "rule"),
    [
        ("select $1", [], "parameters"),
        ("select 1", [1], "parameters"),
        ("select nope from customers", [], "syntax"),
        ("select * from nope", [], "tables"),
        ("select (select (select (select (select 1))))", [], "nesting"),
        ("select 1; select 2", [], "one-statement"),
        ("select lower(name) from customers where name regexp 'x'", [], "syntax"),
    ],
)
async def test_what_is_wrong_is_refused(file: Path, sql: str, parameters: list[Any], rule: str) -> None:
    with pytest.raises(SemanticViolation) as caught:
        await run(open_database(file), sql, *parameters)
    assert (caught.value.details["rule"], bool(caught.value.details["hint"])) == (rule, True), caught.value


async def test_users_take_turns_and_who_waits_too_long_is_told() -> None:
    use_database = share_database(2)

    def ask(user: str, seconds: float = 60.0) -> AbstractAsyncContextManager[float]:
        return use_database(
            ToolContext(
                call_id="1", tenant="acme", user=user, agent="bot", session=None, key="k", attempt=1,
                seconds_left=seconds, traceparent=None,
            )
        )  # fmt: skip

    async def take_turn() -> float:
        async with ask("ada") as seconds_left:
            return seconds_left

    async with ask("ada"):
        waiting = asyncio.create_task(take_turn())
        await asyncio.sleep(0)
        with pytest.raises(ServiceBusy, match="the database by ada"):
            await ask("ada", 0.2).__aenter__()
        async with ask("bob"):
            assert not waiting.done()
    assert 0 < await waiting < 60


async def test_rows_are_checked(file: Path) -> None:
    checks = [
        Check(kind="complete", columns=["email"]),
        Check(kind="unique", columns=["name"]),
        Check(kind="fresh", columns=["profile"], max_age_seconds=1),
    ]
    database = open_database(file)
    found = await database.validate_table("main.customers", checks, 30.0)
    assert [(each.holds, each.failing_rows) for each in found.checks] == [(False, 15), (True, 0), (False, 0)]
    refers = Check(kind="references", columns=["customer"], to_table="main.customers", to_columns=["id"])
    assert (await database.validate_table("main.orders", [refers], 30.0)).holds
    for table, column in (("main.secrets", "id"), ("main.customers", "word"), ("temp.customers", "id")):
        with pytest.raises(SemanticViolation):
            await database.validate_table(table, [Check(kind="unique", columns=[column])], 30.0)


def test_it_is_named_by_its_url(file: Path, tmp_path: Path) -> None:
    def load(url: str, **options: Any) -> Any:
        return load_project(Settings(builtin=BuiltinSettings(sql=SqlSettings(url=url, **options))), tmp_path)  # type: ignore[arg-type]

    assert len(load("sqlite:///shop.db").tools) == 3
    assert len(load(f"sqlite:///{file}").tools) == 3
    (refusal,) = load("sqlite:///none.db").refusals
    assert "cannot be used" in refusal.reasons[0]
    with pytest.raises(ValueError, match="only read"):
        load("sqlite:///shop.db", change_url="postgresql://x", change_tables=("public.x",))


async def test_another_file_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database" * 1_000)
    with pytest.raises(ToolPrecondition):
        await run(open_database(tmp_path / "text"), "select 1 from customers")
