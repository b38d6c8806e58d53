"""A migration waits for no one for long, and no one for it: what is refused, and what the helpers do."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import asyncpg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from checks import migrations
from deputize.core.config_error import ConfigError
from deputize.core.contract.timing import TimeoutClass
from deputize.interfaces.cli.local import database
from deputize.store import migrate, schema_revision
from deputize.store.migrations import LOCK_TIMEOUT_SECONDS

CALL = """
    insert into deputize.calls (tenant, id, state, tool, version, tool_digest, mutation_class, caller_user,
        caller_agent, fingerprint, owner, deadline_at, window_seconds, trace)
    values ('t', overlay(deputize.first_uuid_of_day(current_date)::text
            placing right(gen_random_uuid()::text, 12) from 25)::uuid, 'queued', 'a.b', '1.0.0', '',
        'write', 'ana', '', '', gen_random_uuid(), now(), 60, '')
"""
REVISION = """
    from deputize.store.migrations import create_index_concurrently, run_sql, run_sql_files, set_lock_timeout
    revision = "9999_next"
    down_revision = "{newest}"
    kind = "expand"
    oldest_release = "0.1.0"

    def upgrade():
        {body}
"""


def _revision(folder: Path, body: str) -> Path:
    path = folder / "9999_next.py"
    path.write_text(dedent(REVISION).format(body=body, newest=schema_revision.newest_revision()))
    return folder


def test_the_revisions_of_this_package_keep_the_rules() -> None:
    assert migrations.find_faults(migrations.FOLDER) == []


def test_the_revisions_of_this_package_are_one_line() -> None:
    assert migrations.find_chain_faults(migrations.FOLDER) == []
    assert migrations.find_release_faults(migrations.FOLDER) == []


@pytest.mark.parametrize(
    ("kind", "oldest", "sql", "fault"),
    [
        ("expand", "0.1.0", "alter table t add column a text", None),
        ("contract", "0.2.0", "alter table t drop column a", None),
        ("grow", "0.1.0", "", "kind is neither"),
        ("expand", "0.1", "", "oldest_release is no release"),
        ("expand", "0.2.0", "", "only a contract raises it"),
        ("contract", "0.0.9", "", "only a contract raises it"),
        ("expand", "0.1.0", "-- drop table t\nalter table t drop  column a", "drop column takes away"),
        ("expand", "0.1.0", "alter table t rename column a to b", "rename column a to takes away"),
    ],
)
def test_a_revision_says_which_releases_run_after_it(
    kind: str, oldest: str, sql: str, fault: str | None, tmp_path: Path
) -> None:
    (tmp_path / "0001_a.py").write_text('kind = "expand"\noldest_release = "0.1.0"\n')
    (tmp_path / "0002_b.py").write_text(f"kind = {kind!r}\noldest_release = {oldest!r}\n")
    (tmp_path / "0002_b.sql").write_text(sql)
    faults = migrations.find_release_faults(tmp_path)
    assert len(faults) == (fault is not None)
    assert fault is None or fault in faults[0]


def test_two_revisions_that_follow_the_same_one_are_refused(tmp_path: Path) -> None:
    for name, before in (("0001_a", "None"), ("0002_b", "'0001_a'"), ("0003_c", "'0001_a'"), ("0004_d", "'0003_c'")):
        (tmp_path / f"{name}.py").write_text(f"revision = {name.replace('_d', '_e')!r}\ndown_revision = {before}\n")
    assert migrations.find_chain_faults(tmp_path) == [
        "0003_c.py: does not follow the revision before it: write down_revision = '0002_b'",
        "0004_d.py: revision is not the name of the file: write revision = '0004_d'",
    ]


def test_a_revision_without_a_lock_timeout_is_refused(tmp_path: Path) -> None:
    (fault,) = migrations.find_faults(_revision(tmp_path, 'run_sql("select 1"); set_lock_timeout()'))
    assert fault == "9999_next.py: upgrade() does not begin with set_lock_timeout(): add it"


@pytest.mark.parametrize(
    "statement",
    [
        "create index late on deputize.calls (trace)",
        "CREATE UNIQUE INDEX IF NOT EXISTS late ON deputize.runs (id)",
        "create table deputize.fresh (id uuid);\ncreate index late\n  on deputize.human_tasks (id)",
    ],
)
def test_a_plain_index_on_a_table_that_exists_is_refused(tmp_path: Path, statement: str) -> None:
    _revision(tmp_path, f"set_lock_timeout(); run_sql({statement!r})")
    (fault,) = migrations.find_faults(tmp_path)
    assert "use create_index_concurrently" in fault
    _revision(tmp_path, "set_lock_timeout(); run_sql_files(revision)")
    (tmp_path / "9999_next.sql").write_text(statement)
    assert len(migrations.find_faults(tmp_path)) == 1


def test_an_index_on_a_table_of_the_same_revision_is_not(tmp_path: Path) -> None:
    _revision(tmp_path, "set_lock_timeout(); run_sql_files(revision)")
    (tmp_path / "9999_next.sql").write_text(
        "-- not like this: create index late on deputize.calls (trace)\n"
        "create table deputize.fresh (id uuid);\ncreate index fresh_by_id on deputize.fresh (id);"
    )
    assert migrations.find_faults(tmp_path) == []


@pytest.mark.parametrize("other", ["run_sql('select 1')", "run_sql_files(revision)"])
def test_a_revision_that_does_more_than_build_indexes_concurrently_is_refused(tmp_path: Path, other: str) -> None:
    """What it did before is committed already if it ends while it builds them: it could not be repeated."""
    index = "create_index_concurrently('calls_late', 'calls', '(trace)')"
    assert migrations.find_faults(_revision(tmp_path, f"set_lock_timeout(); {index}")) == []
    (fault,) = migrations.find_faults(_revision(tmp_path, f"set_lock_timeout(); {other}; {index}"))
    assert fault == (
        "9999_next.py: create_index_concurrently commits what was done before it, so that the revision cannot be "
        "repeated: build the index in a revision of its own"
    )


def _config_with(folder: Path) -> Config:
    """Configure the revisions of another folder after those of the package."""
    config = migrate.alembic_config()
    config.set_main_option("version_locations", f"{migrations.FOLDER} {folder}")
    config.set_main_option("path_separator", "space")
    return config


async def _upgrade(dsn: str, folder: Path) -> None:
    config = _config_with(folder)

    def up(connection: Connection) -> None:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")

    engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(dsn))
    try:
        async with engine.connect() as opened:
            await opened.exec_driver_sql("set role deputize_owner")
            await opened.commit()
            await opened.run_sync(up)
    finally:
        await engine.dispose()


async def _until_it_waits(connection: asyncpg.Connection) -> None:
    waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    async with asyncio.timeout(60):
        while not await connection.fetchval(waits):  # noqa: ASYNC110 -- it shows only in the database
            await asyncio.sleep(0.02)


async def test_a_revision_gives_up_rather_than_wait_for_a_lock(fresh_database: str, tmp_path: Path) -> None:
    sql = "alter table deputize.grants add column late text"
    _revision(tmp_path, f"set_lock_timeout(0.2); run_sql({sql!r})")
    busy = await asyncpg.connect(fresh_database)
    under_way = busy.transaction()
    await under_way.start()
    await busy.execute("lock table deputize.grants in access share mode")
    with pytest.raises(asyncpg.LockNotAvailableError):
        await _upgrade(fresh_database, tmp_path)
    await under_way.commit()
    assert await schema_revision.current_revision(busy) == schema_revision.newest_revision()
    await _upgrade(fresh_database, tmp_path)
    assert await schema_revision.current_revision(busy) == "9999_next"
    await busy.close()


@pytest.mark.requirement("EXE-6")
async def test_a_revision_that_got_no_lock_is_tried_again(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _revision(tmp_path, "set_lock_timeout(); run_sql('alter table deputize.grants add column late text')")
    config, busy = _config_with(tmp_path), await asyncpg.connect(fresh_database)
    monkeypatch.setattr(migrate, "alembic_config", lambda: config)
    under_way = busy.transaction()
    await under_way.start()
    await busy.execute("lock table deputize.grants in access share mode")
    upgrading = asyncio.create_task(migrate.upgrade_async(fresh_database))
    waiting = await asyncpg.connect(fresh_database)
    await _until_it_waits(waiting)
    # Behind it, calls wait for less than the shortest timeout of a class of tools.
    await waiting.execute("set lock_timeout = '5s'")
    async with asyncio.timeout(5):
        assert await waiting.fetchval("select count(*) from deputize.grants") == 0
    assert not upgrading.done()
    await under_way.commit()
    await upgrading
    assert min(each.seconds for each in TimeoutClass) > LOCK_TIMEOUT_SECONDS
    assert await schema_revision.current_revision(busy) == "9999_next"
    for connection in (busy, waiting):
        await connection.close()


@pytest.fixture
def index_migration(tmp_path: Path) -> Path:
    return _revision(
        tmp_path,
        "set_lock_timeout(0.2);"
        " create_index_concurrently('calls_late', 'calls', \"(trace) where state = 'queued'\");"
        " create_index_concurrently('runs_late', 'runs', '(release)')",
    )


async def test_calls_are_written_while_an_index_is_built(fresh_database: str, index_migration: Path) -> None:
    busy, other = await asyncpg.connect(fresh_database), await asyncpg.connect(fresh_database)
    await other.execute(CALL)
    under_way = busy.transaction()
    await under_way.start()
    await busy.execute("update deputize.calls set session = 's'")
    migrating = asyncio.create_task(_upgrade(fresh_database, index_migration))
    # It waits for that transaction, however long it takes, and holds up no other.
    await _until_it_waits(other)
    await other.execute("set lock_timeout = '30s'")
    await other.execute(CALL)
    # Longer than the revision's lock timeout, which is not for this.
    await asyncio.sleep(0.3)
    assert not migrating.done()
    await under_way.commit()
    await migrating
    parts = "from pg_index i join pg_class c on c.oid = i.indexrelid where c.relname like '%\\_late'"
    assert await other.fetchval(f"select bool_and(i.indisvalid) {parts}")
    partitions = "select count(*) from pg_inherits where inhparent = 'deputize.calls'::regclass"
    assert await other.fetchval(f"select count(*) {parts}") == await other.fetchval(partitions) + 2
    for connection in (busy, other):
        await connection.close()


async def test_an_index_that_was_left_unfinished_is_built_anew(fresh_database: str, index_migration: Path) -> None:
    owner = await asyncpg.connect(fresh_database)
    await owner.execute("create index runs_late on deputize.runs (release)")
    await owner.execute("update pg_index set indisvalid = false where indexrelid = 'deputize.runs_late'::regclass")
    await _upgrade(fresh_database, index_migration)
    assert await owner.fetchval("select indisvalid from pg_index where indexrelid = 'deputize.runs_late'::regclass")
    await owner.close()


@pytest.fixture
def contract_migration(tmp_path: Path) -> Path:
    folder = _revision(tmp_path, "set_lock_timeout(0.2); run_sql('alter table deputize.grants drop column late')")
    path = folder / "9999_next.py"
    path.write_text(path.read_text().replace('"expand"', '"contract"').replace('"0.1.0"', '"99.0.0"'))
    return folder


@pytest.mark.requirement("EXE-6")
async def test_a_contract_waits_until_no_older_process_is_alive(fresh_database: str, contract_migration: Path) -> None:
    steps = migrate.list_steps(schema_revision.newest_revision(), _config_with(contract_migration))
    assert [(each.revision, each.kind, each.oldest_release) for each in steps] == [("9999_next", "contract", "99.0.0")]
    connection = await asyncpg.connect(fresh_database)
    lease = "insert into deputize.leases (boot, expires_at, release) values (gen_random_uuid(), now() + $2, $1)"
    for release, seconds in (("99.0.0", 60), ("100.1.0", 60), ("0.1.0", -1)):
        await connection.execute(lease, release, timedelta(seconds=seconds))
    await migrate.require_no_older_process(connection, steps)
    await connection.execute(lease, "0.2.0", timedelta(seconds=60))
    with pytest.raises(ConfigError, match=r"9999_next is a contract step.* 99\.0\.0 .*\(1 of 0\.2\.0\)"):
        await migrate.require_no_older_process(connection, steps)
    # An expand runs beside them.
    await migrate.require_no_older_process(connection, [replace(steps[0], kind="expand")])
    await connection.close()


@pytest.mark.requirement("EXE-6")
async def test_an_older_release_does_not_start_after_a_contract(fresh_database: str, contract_migration: Path) -> None:
    connection = await asyncpg.connect(fresh_database)
    state = await schema_revision.read_schema_state(connection)
    assert (state.oldest_release, state.serves_this_release) == ("0.1.0", True)
    await connection.execute("alter table deputize.grants add column late text")
    await _upgrade(fresh_database, contract_migration)
    state = await schema_revision.read_schema_state(connection)
    assert (state.oldest_release, state.is_newer, state.serves_this_release) == ("99.0.0", True, False)
    with pytest.raises(ConfigError, match=r"9999_next, of a newer release.*start release 99\.0\.0 or newer"):
        await asyncio.to_thread(database.require_current_schema, fresh_database)
    # A database that no migration has written this to yet.
    await connection.execute("alter table deputize.schema_version drop column oldest_release")
    assert (await schema_revision.read_schema_state(connection)).serves_this_release
    await connection.close()
