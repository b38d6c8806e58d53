"""Provide the database of `deputize dev`: the configured one, or a local PostgreSQL that stops with the gateway."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from deputize.core.config_error import ConfigError
from deputize.core.settings import Settings
from deputize.interfaces.cli.local import database
from deputize.interfaces.cli.render.output import printer
from deputize.store.local_postgres import LocalPostgres, LocalPostgresError


@contextmanager
def provide_database(
    settings: Settings, claim: Callable[[str], None], before_stop: Callable[[], None]
) -> Iterator[str]:
    """Yield the DSN once `claim` has taken the database; a local server is stopped at the end, after `before_stop`."""
    configured_dsn = database.get_direct_dsn(settings)
    if configured_dsn is not None:
        address = database.describe_dsn(configured_dsn)
        database.read_schema_state(configured_dsn)
        printer.event("postgres", {"address": address, "local": False}, f"PostgreSQL at {address}")
        claim(configured_dsn)
        yield configured_dsn
        return
    server = LocalPostgres(settings.folder)
    with ExitStack() as stack:
        # This project's locks are held, so a server that an earlier process left behind is stopped as well.
        stack.callback(_stop_server, server, before_stop)
        with printer.spinner("Starting PostgreSQL …"):
            try:
                server.start()
            except LocalPostgresError as error:
                raise ConfigError(str(error)) from error
        try:
            claim(server.dsn)
        except ConfigError:
            # It belongs to another development gateway, which must not lose its database.
            stack.pop_all()
            raise
        version = server.run_sql("show server_version").partition(" ")[0]
        facts = {"version": version, "local": True, "pid": server.pid, "adopted": server.is_adopted}
        place = settings.folder if settings.folder.is_absolute() else f"./{settings.folder}"
        message = f"PostgreSQL {version.partition('.')[0]} ready (local, {place})"
        printer.event("postgres", facts, message + (", still running from last time" if server.is_adopted else ""))
        yield server.dsn


def _stop_server(server: LocalPostgres, before_stop: Callable[[], None]) -> None:
    before_stop()
    with printer.spinner("Stopping PostgreSQL …"):
        server.stop()


def prepare_schema(dsn: str) -> None:
    """Bring the database to the newest schema, and print what changed."""
    schema = database.read_schema_state(dsn)
    if schema.is_current or schema.is_newer:
        return
    with printer.spinner("Preparing the schema …"):
        database.upgrade_schema(dsn)
    is_new = schema.current is None
    message = f"schema {schema.newest} created" if is_new else f"schema migrated: {schema.current} → {schema.newest}"
    printer.event("schema", {"from": schema.current, "to": schema.newest}, message)
