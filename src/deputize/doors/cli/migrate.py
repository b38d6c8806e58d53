"""`deputize migrate`: brings a database to this release's schema, forward only."""

from typing import Annotated

import typer

from deputize.core.mistakes import Misconfigured
from deputize.doors.cli.output import REFUSED, Json, give_up, printer
from deputize.doors.cli.project import enter_project, load_settings


def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether it is current; exit 1 when it is not.")
    ] = False,
    json: Json = False,
) -> None:
    """Bring the database of database.url to this release's schema. Safe to repeat, and while gateways run."""
    from deputize.doors.cli import database
    from deputize.store.migrate import newest_revision

    enter_project()
    settings = load_settings()
    dsn = database.direct_dsn(settings) or database.local_dsn(settings.folder)
    if dsn is None:
        raise Misconfigured(
            "No database to migrate: set url under [database] in deputize.toml or DEPUTIZE_DATABASE__URL; "
            "deputize dev migrates its own."
        )
    newest = newest_revision()
    before = database.revision_of(dsn)
    facts = {"database": database.address(dsn), "from": before, "to": newest}
    if check and before != newest:
        stands = f"The schema at {facts['database']} is {before or 'empty'}"
        give_up(f"{stands}, this release needs {newest}: run deputize migrate.", REFUSED, **facts)
    if before != newest:
        with printer.progress(f"migrating {facts['database']} …"):
            database.upgrade(dsn)
    if json:
        printer.json({**facts, "changed": before != newest})
    if before == newest:
        printer.good(f"{facts['database']} is current, at schema {newest}")
    else:
        printer.good(f"{facts['database']} migrated: {before or 'empty'} → {newest}")
