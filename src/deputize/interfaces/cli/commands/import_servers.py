"""Define `deputize import`: copy the MCP servers of another client into deputize.toml.

The previous file is kept as a backup. No server is started, and no secret is copied. Programs are pinned by the digests
of their files.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deputize.core.config_error import ConfigError
from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.project.project_file import SETTINGS_FILE, enter_project
from deputize.interfaces.cli.render.output import Json, exit_with_error, format_count, printer

if TYPE_CHECKING:
    from deputize.interfaces.cli.project.client_configs import ImportedServer, SkippedServer

# Folders inside a project where clients keep their files.
_CLIENT_FOLDERS = frozenset({".vscode", ".cursor", ".claude", ".gemini", ".windsurf"})

_MAX_FILE_BYTES = 1_048_576


def import_servers(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The client's file: .mcp.json, .vscode/mcp.json, .cursor/mcp.json."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be added, and write nothing.")] = False,
    json: Json = False,
) -> None:
    """Import the MCP servers of another client into deputize.toml.

    Environment variables are not read: ${VAR:-default} becomes its default, and a server with ${VAR} in its URL or
    command is left out. Values of env are treated as secrets and not copied, except a few such as LOG_LEVEL: the
    output says what to store with deputize secrets set. Every imported tool counts as destructive until deputize.toml
    says what it does.
    """
    text, source = _read_client_file(file), file.absolute()
    enter_project(is_required=True)
    target = Path(SETTINGS_FILE)
    old_text = _read_settings(target)
    servers, skipped_servers = _collect_servers(text, source, old_text)
    new_text = "".join(_render_table(each.table) for each in servers)
    backup = None
    if servers:
        _validate_settings(old_text + new_text)
        backup = None if dry_run else _write_settings(target, old_text, new_text)
    if json:
        printer.json(
            {
                "taken": [
                    {"name": each.name, "called": each.original_name, **_describe_server(each)} for each in servers
                ],
                "left_out": [{"called": each.original_name, "why": each.reason} for each in skipped_servers],
                "written": SETTINGS_FILE if backup else None,
                "backup": backup,
            }
        )
        return
    _print_summary(servers, skipped_servers, new_text, backup, dry_run=dry_run)


def _read_client_file(file: Path) -> str:
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


def _read_settings(target: Path) -> str:
    try:
        return target.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{SETTINGS_FILE} cannot be read ({error.strerror}): check its permissions.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{SETTINGS_FILE} is not UTF-8 text: save it as UTF-8.") from None


def _collect_servers(text: str, file: Path, settings_text: str) -> "tuple[list[ImportedServer], list[SkippedServer]]":
    from deputize.interfaces.cli.project.client_configs import ImportedServer, read_servers

    project_folder = file.parent.parent if file.parent.name in _CLIENT_FOLDERS else file.parent
    folder = "." if project_folder == Path.cwd() else str(project_folder)
    results = list(
        read_servers(
            text,
            folder=folder,
            existing_names=_list_server_names(settings_text),
            exists=lambda each: (project_folder / each).is_file(),
        )
    )
    servers = [_pin_program(each) for each in results if isinstance(each, ImportedServer)]
    return servers, [each for each in results if not isinstance(each, ImportedServer)]


def _pin_program(server: "ImportedServer") -> "ImportedServer":
    """Add the digests of the program, its interpreter and its script, as they are now."""
    from pydantic import ValidationError

    from deputize.core.settings import McpServerSettings
    from deputize.interfaces.cli.project.server_files import compute_pins

    if "command" not in server.table:
        return server
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
    return replace(server, table=table, notes=(*server.notes, *notes))


def _list_server_names(text: str) -> frozenset[str]:
    try:
        servers = tomllib.loads(text).get("servers", [])
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{SETTINGS_FILE} is not valid TOML: {str(error).lower()}; fix it first.") from None
    return frozenset(str(each.get("name")) for each in servers if isinstance(each, dict))


def _render_table(table: Mapping[str, Any]) -> str:
    from deputize.interfaces.cli.project.server_files import render_toml_value

    rows = "".join(f"{key} = {render_toml_value(value)}\n" for key, value in table.items())
    return f"\n[[servers]]\n{rows}"


def _validate_settings(text: str) -> None:
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


def _write_settings(target: Path, old_text: str, new_text: str) -> str:
    """Write the settings in one step, and return the name of the backup."""
    try:
        backup = next(
            name
            for number in range(1, 1000)
            if not (name := target.with_name(f"{SETTINGS_FILE}.{number}.bak")).exists()
        )
        _write_private_file(backup, old_text)
        draft = target.with_name(f".{SETTINGS_FILE}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        _write_private_file(draft, old_text.rstrip("\n") + "\n" + new_text)
        draft.replace(target)
    except OSError as error:
        exit_with_error(
            f"{SETTINGS_FILE} cannot be written ({error.strerror}): check its permissions and its folder's."
        )
    return backup.name


def _write_private_file(path: Path, text: str) -> None:
    """Create a file that only its owner can read; never follow a link or reuse a file that is there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _describe_server(server: "ImportedServer") -> dict[str, Any]:
    return {"secret": server.secret, "notes": list(server.notes)}


def _print_summary(
    servers: "list[ImportedServer]",
    skipped_servers: "list[SkippedServer]",
    new_text: str,
    backup: str | None,
    *,
    dry_run: bool,
) -> None:
    for each in servers:
        target = each.table.get("url") or " ".join(each.table["command"])
        alias = f" (imported from {to_display_text(each.original_name, 80)})" if each.original_name != each.name else ""
        printer.success(f"{each.name}{alias}: {to_display_text(target, 200)}")
        for note in each.notes:
            printer.line(f"  {to_display_text(note, 200)}")
        if each.secret:
            printer.line(f"  Store its credential: deputize secrets set {each.secret}")
    for skipped_server in skipped_servers:
        printer.warn(
            f"{to_display_text(skipped_server.original_name, 80)} was not imported: "
            f"{to_display_text(skipped_server.reason, 400)}"
        )
    if dry_run and servers:
        printer.line(new_text.rstrip("\n"))
        return
    if backup is None:
        printer.line("Nothing was written.")
        return
    printer.success(f"Added {format_count(len(servers), 'server')} to {SETTINGS_FILE}; the previous file is {backup}")
    printer.line(f'  Every tool counts as destructive until {SETTINGS_FILE} says what it does, e.g. reads = ["get_*"].')
    printer.line("  Next: deputize dev")
