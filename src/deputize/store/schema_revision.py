"""Compare a database's schema revision with the one this release needs, without loading the migration tools."""

import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import asyncpg

from deputize.core.config_error import ConfigError

_VERSIONS = Path(__file__).parent / "migrations" / "versions"

# As `server_version_num` has it.
MIN_SERVER_VERSION: Final = 160_000

# By way of JSON, because a database that no migration of 0.2.0 has touched lacks the column.
_OLDEST_RELEASE = "select to_jsonb(v) ->> 'oldest_release' from deputize.schema_version v"

# The version of the durable engine's schema that this release needs. Importing the engine to ask takes half a second.
ENGINE_VERSION: Final = 123


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaState:
    """Revision of a database's schema and version of the durable engine's beside it; None for one that is missing."""

    current: str | None
    engine_version: int | None
    oldest_release: str | None = None
    """The oldest release that runs on the schema; None if no migration has said so yet."""

    @property
    def newest(self) -> str:
        """The revision that this release needs."""
        return newest_revision()

    @property
    def is_current(self) -> bool:
        """Whether both are those that this release needs."""
        return self.current == self.newest and self.has_current_engine

    @property
    def has_current_engine(self) -> bool:
        """Whether the engine's schema can be used: the next release may have migrated it already."""
        return self.engine_version is not None and self.engine_version >= ENGINE_VERSION

    @property
    def is_newer(self) -> bool:
        """Whether a newer release has migrated it: this one can be started on it again, and cannot migrate it."""
        return self.current is not None and self.current > self.newest and self.has_current_engine

    @property
    def serves_this_release(self) -> bool:
        """Whether this release runs on it: a contract step may have dropped what this release uses."""
        return self.oldest_release is None or parse_release(version("deputize")) >= parse_release(self.oldest_release)

    def describe(self) -> str:
        """Name what the database has, for a message that goes on with what this release needs."""
        if self.current is None or self.has_current_engine:
            return self.current or "empty"
        version = "missing" if self.engine_version is None else f"at version {self.engine_version} of {ENGINE_VERSION}"
        return f"{self.current} with the schema of the durable engine (dbos) {version}"


async def read_schema_state(connection: asyncpg.Connection) -> SchemaState:
    """Read the revisions a database stands at."""
    engine_version: int | None = None
    if await connection.fetchval("select to_regclass('dbos.dbos_migrations') is not null"):
        engine_version = await connection.fetchval("select max(version) from dbos.dbos_migrations")
    current, oldest_release = await current_revision(connection), None
    if current is not None:
        oldest_release = await connection.fetchval(_OLDEST_RELEASE)
    return SchemaState(current=current, engine_version=engine_version, oldest_release=oldest_release)


async def require_supported_server(connection: asyncpg.Connection) -> None:
    """Refuse a PostgreSQL that is too old, before anything in it is changed."""
    number: int = await connection.fetchval("select current_setting('server_version_num')::integer")
    require_supported_version(number, await connection.fetchval("show server_version"))


def require_supported_version(number: int, name: str) -> None:
    """Refuse a version of PostgreSQL that is too old, with the reason."""
    if number < MIN_SERVER_VERSION:
        raise ConfigError(
            f"This database runs on PostgreSQL {name.partition(' ')[0]}, but Deputize needs 16 or newer: before 16, "
            "every login that may create roles can make itself an owner of the audit. Nothing was changed. Upgrade "
            "the server, or create the database on a newer one and correct database.url."
        )


def newest_revision() -> str:
    """Return the revision this release expects: that of the last migration, which bears its name."""
    return max(_list_revisions())


async def current_revision(connection: asyncpg.Connection) -> str | None:
    """Return the revision a database stands at, or None for one that was never migrated."""
    if not await connection.fetchval("select to_regclass('deputize.schema_version') is not null"):
        return None
    revision: str | None = await connection.fetchval("select version_num from deputize.schema_version")
    return revision


def is_from_development(revision: str | None) -> bool:
    """True if a development version before the first release made the database."""
    return revision is not None and revision < min(_list_revisions())


def require_released(revision: str | None) -> None:
    """Refuse a database that a development version made: no migration leads from there to a release."""
    if is_from_development(revision):
        raise ConfigError(
            "The database was created by a development version of Deputize before the first release (schema "
            f"{revision}), and no migration leads from there to this release. Export what you need, create a new "
            "database, set database.url to it and run deputize migrate. To recreate the local database of deputize "
            "dev, delete pg, pg.json and lineage in the folder .deputize."
        )


def require_served(schema: SchemaState, address: str) -> None:
    """Refuse a database from which a newer release has dropped what this one uses."""
    if not schema.serves_this_release:
        raise ConfigError(
            f"The schema at {address} is {schema.current}, of a newer release, and no longer serves release "
            f"{version('deputize')}: start release {schema.oldest_release} or newer. Migrations only go forward."
        )


def parse_release(release: str) -> tuple[int, ...]:
    """Parse the number of a release, to compare it; one that is none is older than every other."""
    match = re.match(r"\d+(\.\d+)*", release)
    return tuple(map(int, match[0].split("."))) if match else ()


def _list_revisions() -> list[str]:
    names = [path.stem for path in _VERSIONS.glob("*.py")]
    if not names:
        raise RuntimeError("the package carries no migrations; reinstall deputize")
    return names
