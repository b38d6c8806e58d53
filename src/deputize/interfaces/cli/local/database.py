"""Connect commands to the database: describe it without its password, read and upgrade its schema, explain errors."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from deputize.core.config_error import ConfigError
from deputize.core.settings import Settings
from deputize.core.settings.database_urls import list_hosts
from deputize.interfaces.cli.local.project_file import find_dev_gateway
from deputize.store import logins, schema_revision
from deputize.store.database_checks import check_prepared_statements
from deputize.store.instance_lock import is_development_database
from deputize.store.local_postgres import LocalPostgres
from deputize.store.restore_guard.lineage import WentBackError
from deputize.store.schema_revision import SchemaState

CONNECTION_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError, ValueError)


def describe_dsn(dsn: str) -> str:
    """Format `host:port/database`: enough to recognise it, without a secret."""
    try:
        hosts = ",".join(f"{host}:{port}" for host, port in list_hosts(dsn))
        return f"{hosts or 'local socket:5432'}{urlsplit(dsn).path or '/'}"
    except ValueError:
        return "the configured address"


def get_direct_dsn(settings: Settings) -> str | None:
    """Return the connection for checks, which bypasses a pooler if the settings name a way."""
    url = settings.database.direct_url or settings.database.url
    return url.get_secret_value() if url else None


def get_migration_dsn(settings: Settings) -> str | None:
    """Return the connection for migrations: that of the schema's owner, if it has a login of its own."""
    url = settings.database.migration_url
    return url.get_secret_value() if url else get_direct_dsn(settings)


def find_local_dsn(folder: Path) -> str | None:
    """Return the database of the `deputize dev` that is running for this folder, if any."""
    if find_dev_gateway(folder) is None or not (folder / "pg.json").exists():
        return None
    return LocalPostgres(folder).start().dsn


def require_dsn(settings: Settings) -> str:
    """Return the database of the settings, or else of the `deputize dev` that is running; explain if there is none."""
    dsn = get_direct_dsn(settings) or find_local_dsn(settings.folder)
    if dsn is None:
        raise ConfigError(
            "No database is configured: set url under [database] in deputize.toml, or DEPUTIZE_DATABASE__URL. In "
            "development, start deputize dev first: this command uses its database while it runs."
        )
    return dsn


def locate_local_lineage(folder: Path) -> Path:
    """Locate the records of the local database. They are apart from those of a configured one, which `deputize serve`
    uses in the same folder: neither knows the other's entries.
    """
    return folder / "local-lineage"


def locate_lineage(settings: Settings) -> Path:
    """Locate the records of the database of the settings, or of the local one if they name none."""
    if get_direct_dsn(settings) is None:
        return locate_local_lineage(settings.folder)
    return settings.database.lineage_folder or settings.folder / "lineage"


def explain_error(error: BaseException, dsn: str) -> ConfigError:
    """Explain why the database did not answer, and what to do about it."""
    address = describe_dsn(dsn)
    match error:
        case WentBackError():
            message = f"At {address}, {error}. Once you know what was lost, run deputize recover confirm."
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            message = f"The database at {address} refuses this user or password: correct database.url."
        case asyncpg.InvalidCatalogNameError():
            host, _, name = address.partition("/")
            message = f"There is no database {name} at {host}: create it, or correct database.url."
        case asyncpg.InsufficientPrivilegeError():
            message = (
                f"The login of the database lacks a privilege at {address} ({error.args[0]}). The SQL that deputize "
                "migrate --print-roles prints creates the logins with all rights they need: run it as an administrator."
            )
        case asyncpg.InvalidSQLStatementNameError() | asyncpg.DuplicatePreparedStatementError():
            message = (
                f"The connection pooler at {address} loses prepared statements, which gateways need: use "
                "PgBouncer 1.21 or newer with max_prepared_statements of at least 100, or pool_mode = session."
            )
        case asyncpg.CannotConnectNowError():
            message = f"The database at {address} is starting or stopping: try again in a moment."
        case asyncpg.TooManyConnectionsError():
            message = (
                f"The database at {address} has no free connection: raise its max_connections, or close connections."
            )
        case asyncpg.LockNotAvailableError():
            message = (
                f"Another transaction at {address} holds a lock that the migration needs. The step that needs it "
                "changed nothing, and those before it stay: try again when the transaction has ended, or end it "
                "(pg_stat_activity shows it)."
            )
        case TimeoutError():
            message = (
                f"The database at {address} does not answer in time: check the address, the network and its firewall."
            )
        case ConnectionRefusedError():
            message = f"Nothing listens at {address}: start the database, or correct database.url."
        case OSError():
            message = f"The database at {address} cannot be reached ({error.strerror or error}): check database.url."
        case asyncpg.ClientConfigurationError() | ValueError():
            message = "database.url is not a valid URL: write it like postgresql://user:password@host:5432/database."
        case _:
            message = f"The database at {address} reported an error ({type(error).__name__}: {error}): see its log."
    return ConfigError(message)


def read_schema_state(dsn: str) -> SchemaState:
    """Read the revisions a database is at; refuse a database that this release cannot use."""

    async def read_state() -> SchemaState:
        connection: asyncpg.Connection = await asyncpg.connect(dsn, timeout=10)
        try:
            await schema_revision.require_supported_server(connection)
            return await schema_revision.read_schema_state(connection)
        finally:
            await connection.close()

    try:
        schema = asyncio.run(read_state())
    except CONNECTION_ERRORS as error:
        raise explain_error(error, dsn) from error
    schema_revision.require_released(schema.current)
    schema_revision.require_served(schema, describe_dsn(dsn))
    return schema


def require_current_schema(dsn: str) -> None:
    """Refuse a database whose schema, or that of the durable engine beside it, is older than this release."""
    schema = read_schema_state(dsn)
    if schema.current is None or schema.current < schema.newest or not schema.has_current_engine:
        raise ConfigError(
            f"The schema at {describe_dsn(dsn)} is {schema.describe()}, but this release needs "
            f"{schema.newest}: run deputize migrate first."
        )


def has_dev_gateway(dsn: str) -> bool:
    """Tell whether `deputize dev` runs on a database, by the lock it holds there: a file could be planted."""
    try:
        return asyncio.run(is_development_database(dsn))
    except CONNECTION_ERRORS as error:
        raise explain_error(error, dsn) from error


def require_no_dev_gateway(dsn: str) -> None:
    """Refuse a database on which `deputize dev` runs: it trusts an issuer whose key lies in a project's folder."""
    if has_dev_gateway(dsn):
        raise ConfigError(
            f"deputize dev is running on the database at {describe_dsn(dsn)}: stop it first, or use another database "
            "for production."
        )


def read_login_statements() -> str:
    """Read the SQL that creates the logins of a production database."""
    return logins.read_login_statements()


def require_gateway_login(settings: Settings) -> None:
    """Refuse logins that could rewrite the audit: an attacker in the gateway would control the evidence."""
    if settings.database.migration_url is not None:
        raise ConfigError(
            "migration_url under [database] is the login of the schema's owner, which a gateway must not be able to "
            "read: set DEPUTIZE_DATABASE__MIGRATION_URL only in the environment of deputize migrate."
        )
    for name in ("url", "direct_url"):
        url = getattr(settings.database, name)
        if url is None:
            continue
        dsn = url.get_secret_value()
        try:
            login, powers = asyncio.run(_read_login_powers(dsn))
        except CONNECTION_ERRORS as error:
            raise explain_error(error, dsn) from error
        if powers:
            raise ConfigError(
                f"The login {login} of database.{name} could rewrite the audit: {', '.join(powers)}. Create a login "
                "for gateways with the SQL that deputize migrate --print-roles prints, and use it here."
            )


def require_prepared_statements(settings: Settings) -> None:
    """Refuse a connection pooler that loses prepared statements: calls would fail at random with a driver's error."""
    if settings.database.url is None:
        return
    dsn = settings.database.url.get_secret_value()
    try:
        asyncio.run(check_prepared_statements(dsn))
    except CONNECTION_ERRORS as error:
        raise explain_error(error, dsn) from error


async def _read_login_powers(dsn: str) -> tuple[str, tuple[str, ...]]:
    connection: asyncpg.Connection = await asyncpg.connect(dsn, timeout=10)
    try:
        login: str = await connection.fetchval("select session_user::text")
        return login, await logins.list_login_powers(connection)
    finally:
        await connection.close()


def list_migration_steps(schema: SchemaState) -> list[dict[str, str]]:
    """List the steps from a schema to the newest: what each is, and the oldest release that runs after it."""
    from deputize.store.migrate import list_steps

    return [asdict(each) for each in list_steps(schema.current)]


def upgrade_schema(dsn: str) -> None:
    """Bring the schema to the newest revision."""
    from deputize.store.migrate import upgrade

    try:
        upgrade(dsn)
    except CONNECTION_ERRORS as error:
        raise explain_error(error, dsn) from error
