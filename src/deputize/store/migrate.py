"""Brings a database to this release's schema. Used by `deputize migrate`, by `deputize dev`, and by tests."""

import asyncio
from pathlib import Path

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from dbos import run_dbos_database_migrations
from sqlalchemy import Connection, pool
from sqlalchemy.ext.asyncio import create_async_engine

_FOLDER = Path(__file__).parent / "migrations"
# One migrator at a time, whatever starts at once. Tried again and again: the engine builds indexes concurrently, which
# waits for every statement that is under way, and for one that waits for this lock it would wait for ever.
_LOCK = "select pg_try_advisory_lock(hashtextextended('deputize.migrate', 0))"
_LOCK_SECONDS = 0.1


def upgrade(dsn: str) -> None:
    """Migrates forward to the newest revision; does nothing when there is nothing to do."""
    asyncio.run(upgrade_async(dsn))


async def upgrade_async(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        while not await connection.fetchval(_LOCK):  # noqa: ASYNC110 -- who holds it is another process
            await asyncio.sleep(_LOCK_SECONDS)
        await connection.execute((_FOLDER / "versions" / "0001_roles.sql").read_text())
        await connection.execute("create schema if not exists deputize authorization deputize_owner")
        await _run_alembic(dsn)
        await _prepare_engine(dsn, connection)
    finally:
        await connection.close()


async def _prepare_engine(dsn: str, connection: asyncpg.Connection) -> None:
    """The durable engine's schema, beside ours. Nobody but the owner of ours may touch it, and the engine itself."""
    await asyncio.to_thread(run_dbos_database_migrations, dsn, schema="dbos")
    await connection.execute((_FOLDER / "versions" / "engine_rights.sql").read_text())


async def _run_alembic(dsn: str) -> None:
    # asyncpg reads the DSN itself: SQLAlchemy would not understand all that one may say (sslmode, several hosts).
    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(dsn), poolclass=pool.NullPool
    )
    try:
        async with engine.connect() as connection:
            # Whoever logs in, everything belongs to one role, and what runs with its maker's rights has no more.
            await connection.exec_driver_sql("set role deputize_owner")
            await connection.commit()
            # No transaction around all of it: each migration commits by itself, so that none holds back whoever is
            # served meanwhile with the locks of another.
            await connection.run_sync(_upgrade_on)
    finally:
        await engine.dispose()


def _upgrade_on(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def newest_revision() -> str:
    """The revision this release expects."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    if head is None:
        raise RuntimeError("the package carries no migrations; reinstall deputize")
    return head


async def current_revision(connection: asyncpg.Connection) -> str | None:
    """The revision a database stands at, or None for one that was never migrated."""
    if not await connection.fetchval("select to_regclass('deputize.schema_version') is not null"):
        return None
    revision: str | None = await connection.fetchval("select version_num from deputize.schema_version")
    return revision


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    return config
