"""Compare a database's schema revision with the one this release needs, without loading the migration tools."""

from pathlib import Path
from typing import Final

import asyncpg

from deputize.core.config_error import ConfigError

_VERSIONS = Path(__file__).parent / "migrations" / "versions"
# The revisions of development versions, which `0001_initial` replaced: see docs/decisions/0035.
_DEVELOPMENT_REVISIONS: Final = frozenset(f"{number:04}" for number in range(1, 18))


def newest_revision() -> str:
    """Return the revision this release expects: that of the last migration, which bears its name."""
    names = [path.stem for path in _VERSIONS.glob("*.py") if path.stem != "__init__"]
    if not names:
        raise RuntimeError("the package carries no migrations; reinstall deputize")
    return max(names)


async def current_revision(connection: asyncpg.Connection) -> str | None:
    """Return the revision a database stands at, or None for one that was never migrated."""
    if not await connection.fetchval("select to_regclass('deputize.schema_version') is not null"):
        return None
    revision: str | None = await connection.fetchval("select version_num from deputize.schema_version")
    return revision


def is_from_development(revision: str | None) -> bool:
    """True if a development version before the first release made the database."""
    return revision in _DEVELOPMENT_REVISIONS


def require_released(revision: str | None) -> None:
    """Refuse a database that a development version made: no migration leads from there to a release."""
    if is_from_development(revision):
        raise ConfigError(
            "The database was created by a development version of Deputize before the first release (schema "
            f"{revision}), and no migration leads from there to this release. Export what you need, create a new "
            "database, set database.url to it and run deputize migrate. To recreate the local database of deputize "
            "dev, delete pg and pg.json in the folder .deputize."
        )
