"""Migrate a database to this release's schema. Used by `deputize migrate`, by `deputize dev`, and by tests."""

import asyncio
from pathlib import Path

import asyncpg
from alembic import command
from alembic.config import Config
from dbos import run_dbos_database_migrations
from sqlalchemy import Connection, pool
from sqlalchemy.ext.asyncio import create_async_engine

from deputize.store.schema_revision import current_revision, require_released

_FOLDER = Path(__file__).parent / "migrations"
# One migration at a time. The lock is polled: the engine builds indexes concurrently, which waits for every running
# statement, and would deadlock with one that waits for this lock.
_LOCK = "select pg_try_advisory_lock(hashtextextended('deputize.migrate', 0))"
_LOCK_SECONDS = 0.1


def upgrade(dsn: str) -> None:
    """Migrate forward to the newest revision; do nothing when there is nothing to do."""
    asyncio.run(upgrade_async(dsn))


async def upgrade_async(dsn: str) -> None:
    """Migrate forward, on the running event loop."""
    connection = await asyncpg.connect(dsn)
    try:
        while not await connection.fetchval(_LOCK):  # noqa: ASYNC110 -- another process holds the lock
            await asyncio.sleep(_LOCK_SECONDS)
        require_released(await current_revision(connection))
        await connection.execute((_FOLDER / "roles.sql").read_text())
        await connection.execute("create schema if not exists deputize authorization deputize_owner")
        await _run_alembic(dsn)
        await _prepare_engine(dsn, connection)
    finally:
        await connection.close()


async def _prepare_engine(dsn: str, connection: asyncpg.Connection) -> None:
    """Migrate the durable engine's schema, beside ours. Only the owner of ours and the engine itself may touch it."""
    await asyncio.to_thread(run_dbos_database_migrations, dsn, schema="dbos")
    await connection.execute((_FOLDER / "login_privileges.sql").read_text())


async def _run_alembic(dsn: str) -> None:
    # asyncpg parses the DSN: SQLAlchemy does not support all of its options (sslmode, several hosts).
    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(dsn), poolclass=pool.NullPool
    )
    try:
        async with engine.connect() as connection:
            # Whichever role logs in, one role owns everything, so functions with their owner's rights have no more.
            await connection.exec_driver_sql("set role deputize_owner")
            await connection.commit()
            # Each migration commits by itself, so that its locks do not block gateways while later ones run.
            await connection.run_sync(_upgrade_on)
    finally:
        await engine.dispose()


def _upgrade_on(connection: Connection) -> None:
    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def alembic_config() -> Config:
    """Return Alembic's configuration for the migrations of this package."""
    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    return config
