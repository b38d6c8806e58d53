"""The database as commands meet it: its address without the password, and what its refusals mean in a sentence."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Settings
from deputize.doors.cli.project import running_gateway
from deputize.store import migrate
from deputize.store.local import LocalPostgres

UNREACHABLE = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError, ValueError)


def address(dsn: str) -> str:
    """`host:port/database`: enough to recognise it, nothing to steal."""
    try:
        parts = urlsplit(dsn)
        return f"{parts.hostname or 'local socket'}:{parts.port or 5432}{parts.path or '/'}"
    except ValueError:
        return "the configured address"


def direct_dsn(settings: Settings) -> str | None:
    """The connection that migrations and checks use: not through a pooler where there is another way."""
    url = settings.database.direct_url or settings.database.url
    return url.get_secret_value() if url else None


def local_dsn(folder: Path) -> str | None:
    """The database of the `deputize dev` that runs here now, if one does."""
    if running_gateway(folder) is None or not (folder / "pg.json").exists():
        return None
    return LocalPostgres(folder).start().dsn


def explain(error: BaseException, dsn: str) -> Misconfigured:
    """Why the database did not answer, and what to do about it."""
    place = address(dsn)
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            why = f"The database at {place} refuses this user or password: correct database.url."
        case asyncpg.InvalidCatalogNameError():
            host, _, name = place.partition("/")
            why = f"There is no database {name} at {host}: create it, or correct database.url."
        case asyncpg.InsufficientPrivilegeError():
            why = f"The user of database.url may not do this at {place} ({error}): grant it, or use the owner."
        case asyncpg.CannotConnectNowError():
            why = f"The database at {place} is just starting or stopping: try again in a moment."
        case asyncpg.TooManyConnectionsError():
            why = f"The database at {place} has no connection left: raise its max_connections, or stop something."
        case TimeoutError():
            why = f"The database at {place} does not answer in time: check the address, the network and its firewall."
        case ConnectionRefusedError():
            why = f"Nothing listens at {place}: start the database, or correct database.url."
        case OSError():
            why = f"The database at {place} cannot be reached ({error.strerror or error}): check database.url."
        case asyncpg.ClientConfigurationError() | ValueError():
            why = "database.url is not understood: write it like postgresql://user:password@host:5432/database."
        case _:
            why = f"The database at {place} answers with an error ({type(error).__name__}: {error}): see its log."
    return Misconfigured(why)


def revision_of(dsn: str) -> str | None:
    """The schema a database stands at, or the sentence that says why it cannot be asked."""

    async def ask() -> str | None:
        connection: asyncpg.Connection = await asyncpg.connect(dsn, timeout=10)
        try:
            return await migrate.current_revision(connection)
        finally:
            await connection.close()

    try:
        return asyncio.run(ask())
    except UNREACHABLE as error:
        raise explain(error, dsn) from error


def upgrade(dsn: str) -> None:
    try:
        migrate.upgrade(dsn)
    except UNREACHABLE as error:
        raise explain(error, dsn) from error
