"""Define `deputize migrate`: bring a database to this release's schema, forward only."""

from typing import Annotated, Any

import typer

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.project_file import enter_project, load_settings
from deputize.interfaces.cli.render.output import EXIT_FAILED, Json, exit_with_error, printer


def migrate(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit with 1 if the schema is older.")] = False,
    print_roles: Annotated[
        bool,
        typer.Option(
            "--print-roles", help="Print the SQL that creates the logins of migrations, gateways and readers."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Migrate the database to this release's schema. Safe to repeat, and while gateways run.

    Says of each step whether it is an expand, which only adds, or a contract, which drops what older releases use. A
    contract is refused while gateways or workers of those are alive.

    Uses database.migration_url, the login of the schema's owner, or database.url if there is none.
    """
    from deputize.interfaces.cli.local import database

    if print_roles:
        printer.line(database.read_login_statements().rstrip())
        return
    enter_project()
    settings = load_settings()
    dsn = database.get_migration_dsn(settings) or database.find_local_dsn(settings.folder)
    if dsn is None:
        raise ConfigError(
            "No database is configured: set DEPUTIZE_DATABASE__MIGRATION_URL, or url under [database] in "
            "deputize.toml. "
            "deputize dev migrates its own database."
        )
    schema = database.read_schema_state(dsn)
    facts: dict[str, Any] = {"database": database.describe_dsn(dsn), "from": schema.current, "to": schema.newest}
    if schema.is_newer:
        # After a rollback: each migration works with the release before it, and none leads back.
        if json:
            printer.json({**facts, "changed": False})
        printer.success(
            f"{facts['database']} is at schema {schema.current} of a newer release, which serves the release before "
            f"it: nothing to migrate to {schema.newest}"
        )
        return
    steps = database.list_migration_steps(schema)
    # On an empty database no release runs yet.
    for step in steps if schema.current else ():
        runs = f"Release {step['oldest_release']} and newer run on the schema after it."
        printer.note(f"{step['revision']} ({step['kind']}): {step['summary']} {runs}")
    facts["steps"] = steps
    if check and not schema.is_current:
        state_text = f"The schema at {facts['database']} is {schema.describe()}"
        message = f"{state_text}, but this release needs {schema.newest}: run deputize migrate."
        exit_with_error(message, EXIT_FAILED, **facts)
    if not schema.is_current:
        with printer.spinner(f"Migrating {facts['database']} …"):
            database.upgrade_schema(dsn)
    if json:
        printer.json({**facts, "changed": not schema.is_current})
    if schema.is_current:
        printer.success(f"{facts['database']} is up to date at schema {schema.newest}")
    else:
        printer.success(f"{facts['database']} migrated: {schema.describe()} → {schema.newest}")
