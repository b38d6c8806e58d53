"""Define `deputize import`: copy the MCP servers of another client, or an OpenAPI service, into deputize.toml.

The previous file is kept as a backup. No server is started, and no secret is copied. Programs are pinned by the digests
of their files.
"""

import os
import re
import shlex
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deputize.core.config_error import ConfigError
from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.commands.services import (
    AllowRef,
    Name,
    Plan,
    Reads,
    Security,
    ServiceUrl,
    Writes,
    Yes,
    import_service,
)
from deputize.interfaces.cli.local.client_setup.clients import CLIENTS, ClientName, ConfigScope, locate_client_file
from deputize.interfaces.cli.local.project_file import SETTINGS_FILE, enter_project
from deputize.interfaces.cli.render.output import Json, exit_with_error, format_count, format_json, printer

if TYPE_CHECKING:
    from deputize.interfaces.cli.local.client_configs import ImportedServer, SkippedServer
    from deputize.interfaces.cli.local.server_changes import ServerChange

# Folders inside a project where clients keep their files.
_CLIENT_FOLDERS = frozenset({".vscode", ".cursor", ".claude", ".gemini", ".windsurf"})

_UNSANDBOXED_NOTE = (
    "it runs without a sandbox, as in the client: to put it in one, remove sandbox = false, and list the folders and "
    "hosts that it needs"
)
_MAX_FILE_BYTES = 1_048_576
_HEAD_BYTES = 65_536
# The first key of an OpenAPI document, or a later one on a line of its own, or the request of an HTTP tool in a
# manifest, as JSON or YAML; or the command of a tool as YAML, because clients list commands of servers as JSON.
_SERVICE_DOCUMENT = re.compile(
    rb"""^[ \t{]*["']?openapi["']?[ \t]*:[ \t]*["']?3\.|\A\s*\{[^{}\[\]]{0,2000}"openapi"\s*:"""
    rb"""|^[ \t{-]*["']?http["']?[ \t]*:[ \t]*["']?[A-Z]{3,7} /|^[ \t-]*command[ \t]*:[ \t]*(\[|$)""",
    re.MULTILINE,
)


def import_servers(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL|CLIENT",
            help="A client's file such as .mcp.json, an OpenAPI document, a manifest of HTTP tools, or a client: "
            "claude-desktop, cursor, vscode.",
        ),
    ],
    # `import openapi URL`, as in the help of others: the kind says nothing that the document does not.
    document: Annotated[str | None, typer.Argument(hidden=True, help="The document, after openapi.")] = None,
    name: Name = None,
    url: ServiceUrl = None,
    include: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Import only these servers or operations; repeat for more.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Leave these servers or operations out; repeat for more.")
    ] = None,
    reads: Reads = None,
    writes: Writes = None,
    security: Security = None,
    allow_ref: AllowRef = None,
    update: Annotated[
        bool, typer.Option("--update", help="Take over what changed in servers that were imported before.")
    ] = False,
    plan: Plan = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Import MCP servers of another client, an OpenAPI document, or a manifest, into deputize.toml.

    Environment variables are not read: ${VAR:-default} becomes its default, and a server with ${VAR} in its URL or
    command is left out. Values of env are treated as secrets and not copied, except a few such as LOG_LEVEL: the
    output says what to store with deputize secrets set. Every imported tool counts as destructive until you say what it
    does: deputize servers effects. Import again to see what changed. An OpenAPI document is imported as deputize
    services import does, to which --name, --url, --reads, --writes, --security, --allow-ref and --yes belong.
    """
    if document is not None and file != "openapi":
        raise ConfigError(f"Import one file at a time: {to_display_text(document, 200)} is a second one.")
    file = document or file
    path = None if document is not None else _locate_source(file)
    if path is None:
        if update:
            raise ConfigError("An OpenAPI document is compared and updated without --update: leave it out.")
        import_service(
            file, name=name, service_url=url, include=include, exclude=exclude, reads=reads, writes=writes,
            security=security, allow_ref=allow_ref, plan=plan, yes=yes, json=json,
        )  # fmt: skip
        return
    if any((name, url, reads, writes, security, allow_ref, yes)):
        raise ConfigError(
            f"{to_display_text(file, 200)} is not the document of a service, and --name, --url, --reads, --writes, "
            "--security, --allow-ref and --yes are for one: leave them out."
        )
    name_filter = NameFilter(include=tuple(include or ()), exclude=tuple(exclude or ()))
    _import_client_file(path, name_filter, is_plan=plan, is_updated=update, file=file)


def _import_client_file(path: Path, name_filter: "NameFilter", *, is_plan: bool, is_updated: bool, file: str) -> None:
    from deputize.interfaces.cli.local.settings_text import read_settings_text, render_table, write_settings_text

    text, source = read_client_file(path), path.absolute()
    enter_project(is_required=True)
    old_text = read_settings_text()
    found_servers = collect_servers(text, source, old_text, name_filter)
    new_tables = "".join(render_table("servers", each.table) for each in found_servers.servers)
    new_text = _apply_changes(old_text, found_servers.changes) if is_updated else old_text
    if found_servers.servers:
        new_text = new_text.rstrip("\n") + "\n" + new_tables
    backup = None
    if new_text != old_text:
        validate_settings(new_text)
        backup = None if is_plan else write_settings_text(old_text, new_text)
    if printer.as_json:
        printer.json(_describe_import(found_servers, backup, is_updated=is_updated))
        return
    _print_summary(found_servers, new_tables, backup, is_plan=is_plan, is_updated=is_updated, file=file)


@dataclass(frozen=True, kw_only=True, slots=True)
class NameFilter:
    """Globs over the names that servers have in the client's file."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def is_chosen(self, name: str) -> bool:
        """Tell whether a server is imported."""
        from deputize.core.patterns import matches_glob

        is_included = not self.include or any(matches_glob(name, glob) for glob in self.include)
        return is_included and not any(matches_glob(name, glob) for glob in self.exclude)


_ALL_NAMES = NameFilter()


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundServers:
    """Servers of a client's file: new ones, those that changed, those that did not, and those that are left out."""

    servers: "list[ImportedServer]"
    changes: "list[ServerChange]"
    unchanged_names: list[str]
    skipped_servers: "list[SkippedServer]"


def _locate_source(file: str) -> Path | None:
    """Locate the client's file that is meant; None for the document of a service."""
    if file.startswith(("https://", "http://")):
        return None
    path = Path(file)
    if not path.exists() and file in list(ClientName):
        enter_project()
        client = CLIENTS[ClientName(file)]
        places = [locate_client_file(client, scope, Path.cwd()) for scope in ConfigScope]
        existing_files = [each for each in places if each is not None and each.is_file()]
        if not existing_files or client.is_toml:
            names = ", ".join(str(each) for each in places if each is not None)
            exit_with_error(f"{file} has no configuration that can be imported ({names}): name the file.")
        path = existing_files[0]
        printer.note(f"  from {path}")
    return None if is_service_document(path) else path


def is_service_document(path: Path) -> bool:
    """Tell whether a file is an OpenAPI document or a manifest; a client's file has no such key."""
    try:
        # A named pipe must not block.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            head = stream.read(_HEAD_BYTES) or b""
    except OSError:
        return False
    return _SERVICE_DOCUMENT.search(head) is not None


def read_client_file(file: Path) -> str:
    """Read a client's file, within limits, or end the command."""
    try:
        # A named pipe must not block, and a device must not be read without end.
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            content = stream.read(_MAX_FILE_BYTES + 1) or b""
        if len(content) > _MAX_FILE_BYTES:
            exit_with_error(f"{file} is larger than {_MAX_FILE_BYTES // 1_048_576} MB: name the client's own file.")
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not a text file"
        exit_with_error(f"{file} cannot be read ({why}): name the file that lists the client's servers.")


def collect_servers(text: str, file: Path, settings_text: str, name_filter: NameFilter = _ALL_NAMES) -> FoundServers:
    """Convert the servers of a client's file, pin their programs, and compare them with those in the settings."""
    from deputize.interfaces.cli.local.client_configs import ImportedServer, read_servers
    from deputize.interfaces.cli.local.server_changes import compare_server

    project_folder = file.parent.parent if file.parent.name in _CLIENT_FOLDERS else file.parent
    folder = "." if project_folder == Path.cwd() else str(project_folder)
    tables = _read_server_tables(settings_text)
    results = [
        each
        for each in read_servers(
            text,
            folder=folder,
            existing_names=frozenset(tables),
            exists=lambda each: (project_folder / each).is_file(),
        )
        if name_filter.is_chosen(each.original_name)
    ]
    servers = [_pin_program(each) for each in results if isinstance(each, ImportedServer)]
    comparisons = {each.name: compare_server(each, tables[each.name]) for each in servers if each.is_known}
    return FoundServers(
        servers=[each for each in servers if not each.is_known],
        changes=[each for each in comparisons.values() if each is not None],
        unchanged_names=[name for name, each in comparisons.items() if each is None],
        skipped_servers=[each for each in results if not isinstance(each, ImportedServer)],
    )


def _apply_changes(text: str, changes: "list[ServerChange]") -> str:
    from deputize.interfaces.cli.local.server_changes import apply_changes

    return apply_changes(text, changes)


def _pin_program(server: "ImportedServer") -> "ImportedServer":
    """Add the digests of the program, its interpreter and its script, as they are now."""
    from pydantic import ValidationError

    from deputize.core.settings import McpServerSettings
    from deputize.interfaces.cli.local.program_pins import compute_pins
    from deputize.interfaces.cli.local.server_packages import find_launched_package

    if "command" not in server.table:
        return server
    if launched := find_launched_package(server.table["command"]):
        package, arguments = launched
        rest = f" -- {shlex.join(arguments)}" if arguments else ""
        note = (
            "it is not pinned, because it is fetched at each start: to pin it and run it in a sandbox, remove its "
            f"table and run deputize servers install {package} --name {server.name}{rest}"
        )
        return replace(server, notes=(*server.notes, note))
    try:
        pins, unpinned_files = compute_pins(McpServerSettings.model_validate(server.table))
        notes = tuple(
            f'its program is not pinned, because {each} has no digest: deputize serve needs accept_risk = ["unpinned"]'
            for each in unpinned_files
        )
    except (ConfigError, ValidationError):
        # Settings that are not valid are refused below, with the reason.
        pins, unpinned_files, notes = (
            {},
            [],
            (f"it is not pinned, because its program was not found: deputize servers pin {server.name}",),
        )
    table = {**server.table, **({} if unpinned_files else pins)}
    sandbox_notes = () if server.is_known else (_UNSANDBOXED_NOTE,)
    return replace(server, table=table, notes=(*server.notes, *notes, *sandbox_notes))


def _read_server_tables(text: str) -> dict[str, dict[str, Any]]:
    try:
        servers = tomllib.loads(text).get("servers", [])
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{SETTINGS_FILE} is not valid TOML: {str(error).lower()}; fix it first.") from None
    return {str(each.get("name")): each for each in servers if isinstance(each, dict)}


def validate_settings(text: str) -> None:
    """Check the new settings before they are written, so that the file stays readable."""
    from pydantic import ValidationError

    from deputize.core.settings import McpServerSettings

    try:
        for each in tomllib.loads(text)["servers"]:
            McpServerSettings.model_validate(each)
    except tomllib.TOMLDecodeError:
        raise ConfigError(
            f"{SETTINGS_FILE} lists its servers as an inline array: rewrite them as [[servers]] tables first."
        ) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"An imported server has an invalid setting ({place}: {first['msg']}): correct it in the client's file."
        ) from None


def _describe_import(found_servers: FoundServers, backup: str | None, *, is_updated: bool) -> dict[str, Any]:
    return {
        "taken": [
            {"name": each.name, "called": each.original_name, "secret": each.secret, "notes": list(each.notes)}
            for each in found_servers.servers
        ],
        "changed": [
            {"name": each.server.name, "before": each.before, "after": each.after, "updated": is_updated}
            for each in found_servers.changes
        ],
        "unchanged": found_servers.unchanged_names,
        "left_out": [{"called": each.original_name, "why": each.reason} for each in found_servers.skipped_servers],
        "written": SETTINGS_FILE if backup else None,
        "backup": backup,
    }


def _print_summary(
    found_servers: FoundServers, new_tables: str, backup: str | None, *, is_plan: bool, is_updated: bool, file: str
) -> None:
    print_servers(found_servers.servers, found_servers.skipped_servers)
    for change in found_servers.changes:
        _print_change(change)
    if found_servers.unchanged_names:
        printer.line(f"Not changed since the last import: {', '.join(found_servers.unchanged_names)}")
    if is_plan and new_tables:
        printer.line(new_tables.rstrip("\n"))
    if backup is None:
        printer.line("Nothing was written.")
    else:
        updated_count = len(found_servers.changes) if is_updated else 0
        actions = [f"Added {format_count(len(found_servers.servers), 'server')} to"] if found_servers.servers else []
        actions += [f"updated {format_count(updated_count, 'server')} in"] if updated_count else []
        sentence = " and ".join(actions)
        printer.success(f"{sentence[:1].upper()}{sentence[1:]} {SETTINGS_FILE}; the previous file is {backup}")
    if found_servers.changes and not is_updated:
        printer.line(f"  Take over what changed: deputize import {to_display_text(file, 200)} --update")
    if backup is not None and found_servers.servers:
        printer.line("  Every tool counts as destructive until you say what it does.")
        printer.line(f"  Next: deputize dev, and then deputize servers effects {found_servers.servers[0].name}")


def print_servers(servers: "list[ImportedServer]", skipped_servers: "list[SkippedServer]") -> None:
    """Print what is imported from a client's file, with what to do about it, and what is not."""
    for each in servers:
        target = each.table.get("url") or " ".join(each.table["command"])
        alias = f" (imported from {to_display_text(each.original_name, 80)})" if each.original_name != each.name else ""
        printer.success(f"{each.name}{alias}: {to_display_text(target, 200)}")
        _print_notes(each)
    for skipped_server in skipped_servers:
        printer.warn(
            f"{to_display_text(skipped_server.original_name, 80)} was not imported: "
            f"{to_display_text(skipped_server.reason, 400)}"
        )


def _print_notes(server: "ImportedServer") -> None:
    for note in server.notes:
        printer.line(f"  {to_display_text(note, 200)}")
    if server.secret:
        printer.line(f"  Store its credential: deputize secrets set {server.secret}")


def _print_change(change: "ServerChange") -> None:
    printer.line(f"{change.server.name} differs from {SETTINGS_FILE}:")
    for key in change.after:
        for sign, value in (("-", change.before[key]), ("+", change.after[key])):
            if value is not None:
                printer.line(f"  {sign} {key} = {to_display_text(format_json(value), 300)}")
    _print_notes(change.server)
