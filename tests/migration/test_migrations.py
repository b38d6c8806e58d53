"""A database is brought to this release's schema from anywhere, once, anyone who asks and however many ask at once."""

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from dbos._migration import get_dbos_migrations
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local import database
from deputize.store import migrate, schema_revision
from deputize.store.local_postgres import LocalPostgres
from deputize.store.pool import READER, WRITER, connect_with_role

SCHEMA_QUERY = """
    select c.relname || '.' || a.attname || ':' || format_type(a.atttypid, a.atttypmod) || ':' || a.attnotnull
    from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
    where c.relnamespace = 'deputize'::regnamespace and not c.relispartition and not a.attisdropped order by 1
"""


@pytest.fixture
def make_empty_database(postgres: LocalPostgres) -> Iterator[Callable[[str], str]]:
    """Makes databases no one ever migrated, and drops them afterwards."""
    made = []

    def create(name: str) -> str:
        postgres.run_sql(f"create database {name}", database="postgres")
        made.append(name)
        return postgres.dsn_for(name)

    yield create
    for name in made:
        postgres.run_sql(f"drop database if exists {name} with (force)", database="postgres")


async def _fetch_revision(dsn: str) -> str | None:
    connection = await asyncpg.connect(dsn)
    try:
        return await schema_revision.current_revision(connection)
    finally:
        await connection.close()


async def _fetch_schema(dsn: str) -> list[str]:
    connection = await asyncpg.connect(dsn)
    try:
        return [row[0] for row in await connection.fetch(SCHEMA_QUERY)]
    finally:
        await connection.close()


async def test_an_empty_database_is_brought_to_the_newest_revision(make_empty_database: Callable[[str], str]) -> None:
    dsn = make_empty_database("from_empty")
    assert await _fetch_revision(dsn) is None
    await migrate.upgrade_async(dsn)
    assert await _fetch_revision(dsn) == schema_revision.newest_revision()


async def test_migrating_again_changes_nothing(make_empty_database: Callable[[str], str]) -> None:
    dsn = make_empty_database("twice")
    await migrate.upgrade_async(dsn)
    before = await _fetch_schema(dsn)
    await migrate.upgrade_async(dsn)
    assert await _fetch_schema(dsn) == before
    assert len(before) > 50


async def test_one_process_can_migrate_two_databases_at_once(make_empty_database: Callable[[str], str]) -> None:
    dsns = [make_empty_database("one_of_two"), make_empty_database("two_of_two")]
    await asyncio.gather(*map(migrate.upgrade_async, dsns))
    assert {await _fetch_revision(dsn) for dsn in dsns} == {schema_revision.newest_revision()}


def test_processes_that_migrate_at_once_do_it_once(make_empty_database: Callable[[str], str]) -> None:
    dsn = make_empty_database("at_once")
    program = "import sys; from deputize.store.migrate import upgrade; upgrade(sys.argv[1])"
    running = [subprocess.Popen([sys.executable, "-c", program, dsn], stderr=subprocess.PIPE) for _ in range(3)]
    ended = [(each.communicate(timeout=300)[1], each.returncode) for each in running]
    assert [code for _, code in ended] == [0, 0, 0], ended
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, _fetch_revision(dsn)).result() == schema_revision.newest_revision()


async def test_there_is_no_way_back(make_empty_database: Callable[[str], str]) -> None:
    dsn = make_empty_database("no_way_back")
    await migrate.upgrade_async(dsn)
    config: Config = migrate.alembic_config()

    def back(connection: Connection) -> None:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")

    engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(dsn))
    with pytest.raises(RuntimeError, match="only go forward"):
        async with engine.begin() as connection:
            await connection.run_sync(back)
    await engine.dispose()
    assert await _fetch_revision(dsn) == schema_revision.newest_revision()


async def test_a_migration_that_fails_half_way_leaves_nothing_behind(
    make_empty_database: Callable[[str], str], postgres: LocalPostgres
) -> None:
    await migrate.upgrade_async(make_empty_database("roles_first"))  # creates the roles of the server
    dsn = make_empty_database("half_way")
    in_the_way = "create table deputize.server_pins (tenant text)"
    postgres.run_sql(f"create schema deputize authorization deputize_owner; {in_the_way}", database="half_way")
    with pytest.raises(asyncpg.PostgresError):
        await migrate.upgrade_async(dsn)
    assert postgres.run_sql("select count(*) from pg_tables where schemaname = 'deputize'", database="half_way") == "1"
    postgres.run_sql("drop table deputize.server_pins", database="half_way")
    await migrate.upgrade_async(dsn)
    assert await _fetch_revision(dsn) == schema_revision.newest_revision()


async def test_a_database_of_a_development_version_is_refused_with_the_way_out(
    make_empty_database: Callable[[str], str], postgres: LocalPostgres
) -> None:
    dsn = make_empty_database("from_development")
    postgres.run_sql(
        "create schema deputize; create table deputize.schema_version (version_num varchar(32) primary key);"
        " insert into deputize.schema_version values ('0031_erasure_entries');"
        " create table deputize.places (tenant text)",
        database="from_development",
    )
    with pytest.raises(ConfigError, match="before the first release") as refusal:
        await migrate.upgrade_async(dsn)
    assert "0031_erasure_entries" in str(refusal.value)
    assert "Export what you need, create a new database" in str(refusal.value)
    # Nothing was touched.
    assert await _fetch_revision(dsn) == "0031_erasure_entries"
    tables = "select count(*) from pg_tables where schemaname = 'deputize'"
    assert postgres.run_sql(tables, database="from_development") == "2"
    with ThreadPoolExecutor(1) as pool, pytest.raises(ConfigError, match="before the first release"):
        # What `deputize dev` and `deputize serve` read before anything else.
        pool.submit(database.read_schema_state, dsn).result()


@pytest.mark.parametrize("revision", [None, "0032_release", "0033_topic"])
def test_only_revisions_of_development_versions_are_refused(revision: str | None) -> None:
    schema_revision.require_released(revision)
    for older in ("0001_initial", "0017"):
        assert schema_revision.is_from_development(older)


async def test_a_dsn_may_say_how_to_connect(make_empty_database: Callable[[str], str]) -> None:
    dsn = make_empty_database("with_options") + "?sslmode=prefer&application_name=migrating"
    await migrate.upgrade_async(dsn)
    assert await _fetch_revision(dsn) == schema_revision.newest_revision()


@pytest.fixture
def plain_login(postgres: LocalPostgres) -> Iterator[str]:
    """A login that is no superuser, as production has one: it may make roles and owns its database."""
    postgres.run_sql(
        "create role plain login createrole password 'plain'; create database plain owner plain", database="postgres"
    )
    yield postgres.dsn_for("plain").replace(postgres.dsn_for("plain").split("//")[1].split("@")[0], "plain:plain")
    postgres.run_sql("drop database plain with (force)", database="postgres")
    postgres.run_sql("drop owned by plain; drop role plain", database="postgres")


async def test_a_login_that_was_granted_the_roles_can_migrate_and_serve(
    plain_login: str, postgres: LocalPostgres
) -> None:
    postgres.run_sql("grant deputize_owner, deputize_writer, deputize_reader to plain", database="postgres")
    await migrate.upgrade_async(plain_login)
    for role in (READER, WRITER):
        connection = await connect_with_role(plain_login, role)
        await connection.execute("set deputize.tenant = 'acme'")
        assert await connection.fetch("select * from deputize.calls") == []
        await connection.close()


async def test_a_login_without_the_roles_learns_what_to_ask_for(plain_login: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="deputize_owner"):
        await migrate.upgrade_async(plain_login)


def test_a_login_that_makes_the_roles_itself_may_also_take_them(reachable_server: LocalPostgres) -> None:
    reachable_server.run_sql(
        "create role plain login createrole password 'plain'; create database plain owner plain", database="postgres"
    )
    dsn = reachable_server.dsn_for("plain")
    dsn = dsn.replace(dsn.split("//")[1].split("@")[0], "plain:plain")

    async def migrate_and_serve() -> None:
        await migrate.upgrade_async(dsn)
        for role in (READER, WRITER):
            connection = await connect_with_role(dsn, role)
            await connection.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, migrate_and_serve()).result()


@pytest.fixture
def reachable_server(reachable_folder: Path) -> Iterator[LocalPostgres]:
    """A server whose roles no one made yet."""
    with LocalPostgres(reachable_folder / "db", settings={"fsync": "off"}) as server:
        yield server


def test_the_newest_revision_is_the_head_of_the_migrations() -> None:
    """It is read from the names of the files, so that a gateway starts without the migration tools."""
    assert ScriptDirectory.from_config(migrate.alembic_config()).get_heads() == [schema_revision.newest_revision()]


async def test_a_url_with_two_hosts_migrates_our_schema_and_the_engines(
    make_empty_database: Callable[[str], str],
) -> None:
    dsn = make_empty_database("two_hosts")
    login, _, place = dsn.partition("@")
    # Nothing listens at the first host, as after a failover.
    two_hosts = f"{login}@127.0.0.1:1,{place}?target_session_attrs=read-write"
    await migrate.upgrade_async(two_hosts)
    with ThreadPoolExecutor() as pool:
        assert pool.submit(database.read_schema_state, two_hosts).result().is_current
    assert database.describe_dsn(two_hosts) == f"127.0.0.1:1,{place}"


async def test_a_migration_that_ended_before_the_engines_schema_is_not_done(
    make_empty_database: Callable[[str], str],
) -> None:
    dsn = make_empty_database("half_migrated")
    await migrate.upgrade_async(dsn)
    connection = await asyncpg.connect(dsn)
    for damage, name in (
        ("update dbos.dbos_migrations set version = 122", "at version 122 of"),
        ("drop schema dbos cascade", "missing"),
    ):
        await connection.execute(damage)
        with ThreadPoolExecutor() as pool:
            schema = pool.submit(database.read_schema_state, dsn).result()
            assert not schema.is_current
            assert f"the schema of the durable engine (dbos) {name}" in schema.describe()
            with pytest.raises(ConfigError, match=rf"\(dbos\) {name}.*run deputize migrate"):
                pool.submit(database.require_current_schema, dsn).result()
    await connection.close()
    await migrate.upgrade_async(dsn)
    with ThreadPoolExecutor() as pool:
        assert pool.submit(database.read_schema_state, dsn).result().is_current


def test_the_engine_has_the_version_that_commands_expect() -> None:
    assert len(get_dbos_migrations("dbos", use_listen_notify=True)) == schema_revision.ENGINE_VERSION


@pytest.mark.requirement("EXE-6")
async def test_a_newer_schema_is_named_and_left_alone_by_an_older_release(
    make_empty_database: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = make_empty_database("newer")
    await asyncio.to_thread(migrate.upgrade, dsn)
    connection = await asyncpg.connect(dsn)
    await connection.execute("update deputize.schema_version set version_num = '9999_later'")
    await connection.close()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEPUTIZE_DATABASE__URL", dsn)
    (tmp_path / "deputize.toml").write_text("")
    for words in (["migrate"], ["migrate", "--check"], ["doctor"]):
        run = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-m", "deputize", *words], capture_output=True, text=True, check=False
        )
        output = run.stdout + run.stderr
        assert "9999_later" in output, output
        assert "newer release" in output
        assert "run deputize migrate" not in output
        assert run.returncode == 0 or words == ["doctor"], output
    assert await _fetch_revision(dsn) == "9999_later"


# Of the release before: its functions are called with the parameters by name.
COMMIT_CALLS_0_1_0 = """
    select * from deputize.commit_calls(tenants => $1, boot => $2, closings_tenant => $1, closings_call_id => $3,
        closings_epoch => $4, closings_state => $1, closings_error => $1, closings_release => $5,
        closings_ciphertext => $6, closings_entry_id => $3, closings_entry => $6, closings_salt => $6)
"""
SETTLE_UNKNOWN_CALL_0_1_0 = """
    select deputize.settle_unknown_call(closing_tenant => 'a', closing_call_id => $1, closing_epoch => 1,
        closing_state => 'failed', closing_error => 'x', closing_release => true, closing_ciphertext => null,
        closing_entry_id => $1, closing_entry => '', closing_salt => '')
"""


@pytest.mark.requirement("EXE-6")
async def test_the_release_before_commits_calls_while_and_after_the_schema_is_migrated(
    make_empty_database: Callable[[str], str],
) -> None:
    dsn = make_empty_database("rolling")
    connection = await asyncpg.connect(dsn)
    await connection.execute((Path(migrate.__file__).with_name("migrations") / "roles.sql").read_text())
    await connection.execute("create schema if not exists deputize authorization deputize_owner")
    config: Config = migrate.alembic_config()

    def upgrade_to_release(sync_connection: Connection) -> None:
        config.attributes["connection"] = sync_connection
        command.upgrade(config, "0032_release")

    engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(dsn))
    async with engine.connect() as engine_connection:
        await engine_connection.exec_driver_sql("set role deputize_owner")
        await engine_connection.commit()
        await engine_connection.run_sync(upgrade_to_release)
    await engine.dispose()
    some_id = uuid.uuid4()
    commits = await connection.prepare(COMMIT_CALLS_0_1_0)
    settles = await connection.prepare(SETTLE_UNKNOWN_CALL_0_1_0)
    for _ in range(2):
        assert await commits.fetch([], some_id, [], [], [], []) == []
        assert await settles.fetchval(some_id) is False
        assert await connection.fetch(COMMIT_CALLS_0_1_0, [], some_id, [], [], [], []) == []
        await migrate.upgrade_async(dsn)
    await connection.close()
