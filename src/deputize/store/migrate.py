"""Migrate a database to this release's schema. Used by `deputize migrate`, by `deputize dev`, and by tests."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from dbos import DBOS
from sqlalchemy import Connection, pool
from sqlalchemy.ext.asyncio import create_async_engine

from deputize.core.config_error import ConfigError
from deputize.core.settings.database_urls import separate_hosts
from deputize.store.schema_revision import (
    current_revision,
    parse_release,
    require_released,
    require_supported_server,
)

_FOLDER = Path(__file__).parent / "migrations"
# One migration at a time. The lock is polled: the engine builds indexes concurrently, which waits for every running
# statement, and would deadlock with one that waits for this lock.
_LOCK = "select pg_try_advisory_lock(hashtextextended('deputize.migrate', 0))"
_LOCK_SECONDS = 0.1
# A revision that gets no lock gives up before the calls that wait behind it time out, and is tried again.
_MAX_ATTEMPTS = 10
_PAUSE_SECONDS = 1.0
_RELEASES_ALIVE = "select release, count(*) from deputize.leases where expires_at > now() group by release order by 1"

# Alembic has one context per process, so that two databases cannot be migrated at once.
_alembic_lock = asyncio.Lock()


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A revision that a database lacks: an `expand` only adds, a `contract` drops what older releases use."""

    revision: str
    kind: str
    oldest_release: str
    """The oldest release that runs on the schema after it."""
    summary: str

    @property
    def is_contract(self) -> bool:
        """Whether it may run only once no older release does."""
        return self.kind == "contract"


def list_steps(current: str | None, config: Config | None = None) -> list[Step]:
    """List the revisions after that of a database, in their order."""
    scripts = ScriptDirectory.from_config(config or alembic_config())
    steps = [
        Step(
            revision=script.revision,
            kind=script.module.kind,
            oldest_release=script.module.oldest_release,
            summary=script.doc,
        )
        for script in scripts.walk_revisions()
        if current is None or script.revision > current
    ]
    return steps[::-1]


async def require_no_older_process(connection: asyncpg.Connection, steps: list[Step]) -> None:
    """Refuse a contract step while a gateway or worker is alive that does not run on the schema after it."""
    contracts = [each for each in steps if each.is_contract]
    if not contracts or not await connection.fetchval("select to_regclass('deputize.leases') is not null"):
        return
    async with connection.transaction():
        await connection.execute("set local role deputize_owner")
        alive = await connection.fetch(_RELEASES_ALIVE)
    for step in contracts:
        older = [f"{count} of {release}" for release, count in alive if _is_older(release, step.oldest_release)]
        if older:
            raise ConfigError(
                f"Nothing was changed: {step.revision} is a contract step, after which only release "
                f"{step.oldest_release} and newer run, but gateways or workers of older ones are alive "
                f"({', '.join(older)}). Replace them with {step.oldest_release} or newer, or stop them, then run "
                "deputize migrate again. One that was killed counts until its lease ends, for some seconds."
            )


def _is_older(release: str, oldest: str) -> bool:
    return parse_release(release) < parse_release(oldest)


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
        current = await current_revision(connection)
        require_released(current)
        await require_no_older_process(connection, list_steps(current))
        await connection.execute((_FOLDER / "roles.sql").read_text())
        await connection.execute("create schema if not exists deputize authorization deputize_owner")
        await _run_revisions(dsn)
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


async def _run_revisions(dsn: str) -> None:
    """Run what the database lacks; what was done before a lock was not to be had is not done again."""
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        try:
            async with _alembic_lock:
                await _run_alembic(dsn)
        except asyncpg.LockNotAvailableError:
            if attempt == _MAX_ATTEMPTS:
                raise
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return


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
