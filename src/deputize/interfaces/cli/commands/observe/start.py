"""Define `deputize observe FILE`: stand between an agent and its servers, allow every call and record it.

It is `deputize dev` with the client's servers and a policy that allows everything. No phase of a call is left out.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from deputize.interfaces.cli.commands.import_servers import (
    collect_servers,
    print_servers,
    read_client_file,
    validate_settings,
)
from deputize.interfaces.cli.local.project_file import SETTINGS_FILE, load_settings
from deputize.interfaces.cli.render.output import Json, exit_with_error, format_count, printer


def start(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="The client's file with its servers, such as .mcp.json. Default: those of the project."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65_535, help="Port of the API; 0 picks a free one. Default: 7070, or the next free port."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no line for each call.")] = False,
    json: Json = False,
) -> None:
    """Allow and record every call to the servers of another client, until Ctrl-C: observe FILE is short for this.

    In a folder without a project it makes one, with a policy that allows every call. Secrets of the file are not
    copied: the output says what to store with deputize secrets set. Agents connect as to deputize dev.
    """
    from deputize.interfaces.cli.commands.service import dev as development
    from deputize.interfaces.cli.local.observed_project import OBSERVING_POLICY, enter_observed_project

    text, source = (None, None) if file is None else (read_client_file(file), file.absolute())
    is_new = enter_observed_project()
    if is_new:
        printer.success(f"Created {SETTINGS_FILE} and {OBSERVING_POLICY}")
    if text is not None and source is not None:
        _add_servers(text, source)
    settings = load_settings()
    if not settings.servers and not settings.services:
        exit_with_error("There is nothing to observe: name the client's file, as in deputize observe .mcp.json.")
    printer.warn(f"Observing: policies ask for nothing and deny nothing ({OBSERVING_POLICY}). Every call is recorded.")
    printer.line("  Read what happened: deputize observe report")
    development.run_development(context.obj, settings, port, is_quiet=quiet)


def _add_servers(text: str, source: Path) -> None:
    """Add the servers of a client's file to the settings, with every argument recorded; leave those that are there."""
    from deputize.interfaces.cli.local.settings_text import read_settings_text, render_table, write_settings_text

    old_text = read_settings_text()
    found_servers = collect_servers(text, source, old_text)
    servers = [replace(each, table={**each.table, "record_arguments": True}) for each in found_servers.servers]
    print_servers(servers, found_servers.skipped_servers)
    if servers:
        new_text = old_text.rstrip("\n") + "\n" + "".join(render_table("servers", each.table) for each in servers)
        validate_settings(new_text)
        backup = write_settings_text(old_text, new_text)
        count = format_count(len(servers), "server")
        printer.success(f"Added {count} to {SETTINGS_FILE}; the previous file is {backup}")
