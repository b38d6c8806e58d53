"""Define `deputize observe FILE`: stand between an agent and what it uses, allow every call and record it.

It is `deputize dev` with the client's servers, HTTP services and a policy that allows everything. No phase of a call is
left out.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.commands.import_servers import (
    collect_servers,
    is_service_document,
    print_servers,
    read_client_file,
    validate_settings,
)
from deputize.interfaces.cli.commands.services import import_document
from deputize.interfaces.cli.local.project_file import SETTINGS_FILE, load_settings
from deputize.interfaces.cli.render.output import Json, exit_with_error, format_count, printer


def start(
    context: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE...",
            help="The client's file with its servers, such as .mcp.json, and OpenAPI documents. Default: what the "
            "project has.",
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="URL of the API. Default: the first server of its OpenAPI document.")
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
    """Allow and record every call to a client's servers and to APIs, until Ctrl-C: observe FILE is short for this.

    In a folder without a project it makes one, with a policy that allows every call. Secrets of the file are not
    copied: the output says what to store with deputize secrets set. Agents connect as to deputize dev.
    """
    from deputize.interfaces.cli.commands.service import dev as development
    from deputize.interfaces.cli.local.observed_project import OBSERVING_POLICY, enter_observed_project
    from deputize.interfaces.cli.local.service_import import ImportOptions

    # Read before a project is made: a mistyped name must leave no project behind.
    sources = [(each.absolute(), None if is_service_document(each) else read_client_file(each)) for each in files or ()]
    if url is not None and [text for _, text in sources].count(None) != 1:
        raise ConfigError(
            "--url is for one OpenAPI document: name exactly one, and import others with deputize import."
        )
    is_new = enter_observed_project()
    if is_new:
        printer.success(f"Created {SETTINGS_FILE} and {OBSERVING_POLICY}")
    for source, text in sources:
        if text is None:
            import_document(str(source), ImportOptions(name=None, url=url, record_arguments=True))
        else:
            _add_servers(text, source)
    settings = load_settings()
    if not settings.servers and not settings.services:
        exit_with_error(
            "There is nothing to observe: name the client's file or an OpenAPI document, as in "
            "deputize observe .mcp.json."
        )
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
