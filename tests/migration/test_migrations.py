"""A database is brought to this release's schema from anywhere, once, whoever asks and however many ask at once."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from deputize.store import migrate
from deputize.store.local import LocalPostgres
from deputize.store.pool import READER, WRITER, connect

SHAPE = """
    select c.relname || '.' || a.attname || ':' || format_type(a.atttypid, a.atttypmod) || ':' || a.attnotnull
    from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
    where c.relnamespace = 'deputize'::regnamespace and not c.relispartition and not a.attisdropped order by 1
"""


@pytest.fixture
def empty(postgres: LocalPostgres) -> Iterator[Callable[[str], str]]:
    """Makes databases nobody ever migrated, and drops them afterwards."""
    made = []

    def make(name: str) -> str:
        postgres.sql(f"create database {name}", database="postgres")
        made.append(name)
        return postgres.dsn_for(name)

    yield make
    for name in made:
        postgres.sql(f"drop database if exists {name} with (force)", database="postgres")


async def _revision(dsn: str) -> str | None:
    connection = await asyncpg.connect(dsn)
    try:
        return await migrate.current_revision(connection)
    finally:
        await connection.close()


async def _shape(dsn: str) -> list[str]:
    connection = await asyncpg.connect(dsn)
    try:
        return [row[0] for row in await connection.fetch(SHAPE)]
    finally:
        await connection.close()


async def test_an_empty_database_is_brought_to_the_newest_revision(empty: Callable[[str], str]) -> None:
    dsn = empty("from_empty")
    assert await _revision(dsn) is None
    await migrate.upgrade_async(dsn)
    assert await _revision(dsn) == migrate.newest_revision()


async def test_migrating_again_changes_nothing(empty: Callable[[str], str]) -> None:
    dsn = empty("twice")
    await migrate.upgrade_async(dsn)
    before = await _shape(dsn)
    await migrate.upgrade_async(dsn)
    assert await _shape(dsn) == before
    assert len(before) > 50


def test_processes_that_migrate_at_once_do_it_once(empty: Callable[[str], str]) -> None:
    dsn = empty("at_once")
    program = "import sys; from deputize.store.migrate import upgrade; upgrade(sys.argv[1])"
    running = [subprocess.Popen([sys.executable, "-c", program, dsn], stderr=subprocess.PIPE) for _ in range(3)]
    ended = [(each.communicate(timeout=60)[1], each.returncode) for each in running]
    assert [code for _, code in ended] == [0, 0, 0], ended
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, _revision(dsn)).result() == migrate.newest_revision()


async def test_there_is_no_way_back(empty: Callable[[str], str]) -> None:
    dsn = empty("no_way_back")
    await migrate.upgrade_async(dsn)
    config: Config = migrate._config()

    def back(connection: Connection) -> None:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")

    engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(dsn))
    with pytest.raises(RuntimeError, match="only go forward"):
        async with engine.begin() as connection:
            await connection.run_sync(back)
    await engine.dispose()
    assert await _revision(dsn) == migrate.newest_revision()


async def _upgraded_to(dsn: str, revision: str) -> None:
    """As an earlier release left it."""
    config: Config = migrate._config()

    def up(connection: Connection) -> None:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)

    connection = await asyncpg.connect(dsn)
    await connection.execute("create schema if not exists deputize authorization deputize_owner")
    await connection.close()
    engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(dsn))
    async with engine.connect() as opened:
        await opened.exec_driver_sql("set role deputize_owner")
        await opened.commit()
        await opened.run_sync(up)
    await engine.dispose()


async def test_each_migration_commits_by_itself_and_whole(empty: Callable[[str], str], postgres: LocalPostgres) -> None:
    dsn = empty("one_by_one")
    # In the way of the second file of 0007.
    block = "deputize.put_back(p_tenant text, p_id uuid, p_delay float8, p_unable boolean)"
    postgres.sql(
        f"create schema deputize authorization deputize_owner; "
        f"create function {block} returns boolean language sql as 'select true'",
        database="one_by_one",
    )
    with pytest.raises(asyncpg.PostgresError):
        await migrate.upgrade_async(dsn)
    assert await _revision(dsn) == "0006"
    assert not any(line.startswith("places.") for line in await _shape(dsn))
    postgres.sql(f"drop function {block}", database="one_by_one")
    await migrate.upgrade_async(dsn)
    assert await _revision(dsn) == migrate.newest_revision()


CALL = """
    insert into deputize.calls (tenant, id, state, tool, version, tool_digest, mutation_class, caller_user,
        caller_agent, fingerprint, owner, deadline_at, window_seconds, trace)
    values ('t', deputize.day_floor(current_date + $1::integer), $2, 'a.b', '1.0.0', '', 'write', 'ana', '', '',
        gen_random_uuid(), now(), 60, '')
"""


async def test_calls_are_written_while_what_reads_all_of_them_is_migrated(empty: Callable[[str], str]) -> None:
    dsn = empty("beside_calls")
    await _upgraded_to(dsn, "0008")
    busy, other = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    # Unknown since before anybody looked into it, and a call that takes its time meanwhile.
    await other.execute(CALL, 0, "unknown")
    under_way = busy.transaction()
    await under_way.start()
    await busy.execute("update deputize.calls set session = 's'")
    migrating = asyncio.create_task(migrate.upgrade_async(dsn))
    waits = "select count(*) from pg_stat_activity where datname = 'beside_calls' and wait_event_type = 'Lock'"
    async with asyncio.timeout(90):
        while not await other.fetchval(waits):  # noqa: ASYNC110 -- it shows only in the database
            await asyncio.sleep(0.02)
    await other.execute("set lock_timeout = '2s'")
    await other.execute(CALL, 1, "queued")
    await under_way.commit()
    await migrating
    looked_into = "select count(*) from deputize.reconciliations r join deputize.calls k on k.id = r.id"
    assert await other.fetchval(looked_into) == 1
    parts = "from pg_index i join pg_class c on c.oid = i.indexrelid where c.relname like 'calls%queued'"
    assert await other.fetchval(f"select bool_and(i.indisvalid) {parts}")
    partitions = "select count(*) from pg_inherits where inhparent = 'deputize.calls'::regclass"
    assert await other.fetchval(f"select count(*) {parts}") == await other.fetchval(partitions) + 1
    for connection in (busy, other):
        await connection.close()


async def test_a_migration_that_fails_half_way_leaves_nothing_behind(
    empty: Callable[[str], str], postgres: LocalPostgres
) -> None:
    dsn = empty("half_way")
    stumbling_block = "create function deputize.hold_barrier(tenants text[]) returns void language sql as 'select'"
    postgres.sql(f"create schema deputize authorization deputize_owner; {stumbling_block}", database="half_way")
    with pytest.raises(asyncpg.PostgresError):
        await migrate.upgrade_async(dsn)
    assert postgres.sql("select count(*) from pg_tables where schemaname = 'deputize'", database="half_way") == "0"
    postgres.sql("drop function deputize.hold_barrier", database="half_way")
    await migrate.upgrade_async(dsn)
    assert await _revision(dsn) == migrate.newest_revision()


async def test_a_dsn_may_say_how_to_connect(empty: Callable[[str], str]) -> None:
    dsn = empty("with_options") + "?sslmode=prefer&application_name=migrating"
    await migrate.upgrade_async(dsn)
    assert await _revision(dsn) == migrate.newest_revision()


@pytest.fixture
def plain_login(postgres: LocalPostgres) -> Iterator[str]:
    """A login that is no superuser, as production has one: it may make roles and owns its database."""
    postgres.sql(
        "create role plain login createrole password 'plain'; create database plain owner plain", database="postgres"
    )
    yield postgres.dsn_for("plain").replace(postgres.dsn_for("plain").split("//")[1].split("@")[0], "plain:plain")
    postgres.sql("drop database plain with (force)", database="postgres")
    postgres.sql("drop owned by plain; drop role plain", database="postgres")


async def test_a_login_that_was_granted_the_roles_can_migrate_and_serve(
    plain_login: str, postgres: LocalPostgres
) -> None:
    postgres.sql("grant deputize_owner, deputize_writer, deputize_reader to plain", database="postgres")
    await migrate.upgrade_async(plain_login)
    for role in (READER, WRITER):
        connection = await connect(plain_login, role)
        await connection.execute("set deputize.tenant = 'acme'")
        assert await connection.fetch("select * from deputize.calls") == []
        await connection.close()


async def test_a_login_without_the_roles_is_told_what_to_ask_for(plain_login: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="deputize_owner"):
        await migrate.upgrade_async(plain_login)


def test_a_login_that_makes_the_roles_itself_may_also_take_them(reachable_server: LocalPostgres) -> None:
    reachable_server.sql(
        "create role plain login createrole password 'plain'; create database plain owner plain", database="postgres"
    )
    dsn = reachable_server.dsn_for("plain")
    dsn = dsn.replace(dsn.split("//")[1].split("@")[0], "plain:plain")

    async def migrate_and_serve() -> None:
        await migrate.upgrade_async(dsn)
        for role in (READER, WRITER):
            connection = await connect(dsn, role)
            await connection.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, migrate_and_serve()).result()


@pytest.fixture
def reachable_server(reachable_folder: Path) -> Iterator[LocalPostgres]:
    """A server whose roles nobody made yet."""
    with LocalPostgres(reachable_folder / "db", settings={"fsync": "off"}) as server:
        yield server
