"""Migrate a database to this release's schema. Used by `deputize migrate`, by `deputize dev`, and by tests."""

import asyncio
from pathlib import Path

import asyncpg
from alembic import command
from alembic.config import Config
from dbos import DBOS
from sqlalchemy import Connection, pool
from sqlalchemy.ext.asyncio import create_async_engine

from deputize.core.config_error import ConfigError
from deputize.core.settings.database_urls import separate_hosts
from deputize.store.schema_revision import current_revision, require_released, require_supported_server

_FOLDER = Path(__file__).parent / "migrations"
# One migration at a time. The lock is polled: the engine builds indexes concurrently, which waits for every running
# statement, and would deadlock with one that waits for this lock.
_LOCK = "select pg_try_advisory_lock(hashtextextended('deputize.migrate', 0))"
_LOCK_SECONDS = 0.1

# Alembic has one context per process, so that two databases cannot be migrated at once.
_alembic_lock = asyncio.Lock()


def upgrade(dsn: str) -> None:
    """Migrate forward to the newest revision; do nothing when there is nothing to do."""
    asyncio.run(upgrade_async(dsn))


async def upgrade_async(dsn: str) -> None:
    """Migrate forward, on the running event loop."""
    connection = await asyncpg.connect(dsn)
    try:
        await require_supported_server(connection)
        while not await connection.fetchval(_LOCK):  # noqa: ASYNC110 -- another process holds the lock
            await asyncio.sleep(_LOCK_SECONDS)
        require_released(await current_revision(connection))
        await connection.execute((_FOLDER / "roles.sql").read_text())
        await connection.execute("create schema if not exists deputize authorization deputize_owner")
        async with _alembic_lock:
            await _run_alembic(dsn)
        await _prepare_engine(dsn, connection)
    finally:
        await connection.close()


async def _prepare_engine(dsn: str, connection: asyncpg.Connection) -> None:
    """Migrate the durable engine's schema, beside ours. Only the owner of ours and the engine itself may touch it."""
    try:
        await asyncio.to_thread(DBOS.migrate, separate_hosts(dsn), schema="dbos")
    except Exception as error:  # the engine and its drivers raise whatever they like
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise ConfigError(
            f"The schema is migrated, but that of the durable engine beside it is not ({reason}): remove the cause and "
            "run deputize migrate again."
        ) from error
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
