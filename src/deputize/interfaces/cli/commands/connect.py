"""Define `deputize connect` and `deputize disconnect`: write the configuration of an MCP client, and take it back.

No token is written into a client's file. Gateways of a project are reached through `deputize mcp`, which reads the
agents' token when it starts; others through a variable of the client's environment, or a private file of the user.
"""

import os
import re
import shlex
import tomllib
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from deputize.core.config_error import ConfigError
from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.client.target import AgentToken, Url, parse_gateway_url
from deputize.interfaces.cli.local.client_setup.clients import (
    CLIENTS,
    MCP_PATH,
    TOKEN_VARIABLE,
    ClientFormat,
    ClientName,
    ConfigScope,
    build_http_entry,
    build_program_entry,
    locate_client_file,
    read_entry,
)
from deputize.interfaces.cli.local.project_file import enter_project
from deputize.interfaces.cli.render.output import EXIT_FAILED, Json, exit_with_error, format_count, printer

if TYPE_CHECKING:
    from deputize.interfaces.cli.local.client_setup.client_file import ClientFile

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_TOKEN_FILE_OPTION: Final = "--token-file"

Client = Annotated[ClientName, typer.Argument(metavar="CLIENT", help=f"One of {', '.join(ClientName)}.")]
Name = Annotated[str, typer.Option(metavar="NAME", help="Name of the server in the client. Default: the project's.")]
InProject = Annotated[bool, typer.Option("--project", help="Use the client's file in this folder.")]
ForUser = Annotated[bool, typer.Option("--user", help="Use the client's file for all your projects.")]


def connect(
    client: Client,
    project: InProject = False,
    user: ForUser = False,
    name: Name = "",
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be written, and write nothing.")] = False,
    url: Url = "",
    token: AgentToken = "",
    json: Json = False,
) -> None:
    """Write a client's configuration, then try it as the client would, and print how many tools are visible.

    Without --url, the client starts deputize mcp, which reads this project's token for agents. With --url, it reads
    an agent's token from DEPUTIZE_TOKEN; Claude Desktop, which expands no variables, from a private file. The previous
    file is kept beside it. json prints an entry for other clients.
    """
    target, folder = CLIENTS[client], _find_folder(is_required=not url)
    server = _choose_name(name, folder)
    gateway = parse_gateway_url(url) if url else ""
    token_file = _locate_token_file(target, client, gateway, server)
    entry = _build_entry(target, gateway, folder, token_file)
    file = _open_file(target, _choose_scope(target, project, user), folder, server)
    if plan or (file is None and not json):
        _print_plan(target, file, server, entry)
    if plan:
        return
    if gateway:
        _require_agent_token(token)
    if file is not None:
        _require_free_name(target, file, server)
    # The entry first: where the client's file is refused, no token stays behind.
    facts = {} if file is None else _write_entry(target, file, server, entry)
    if token_file is not None:
        from deputize.interfaces.cli.local.client_setup.agent_token_file import save_agent_token

        save_agent_token(token_file, token)
    if file is not None and not gateway:
        _warn_of_bypass(file)
    _try_entry(target, server, entry if file is None else file.find_entry(), token, facts)


def disconnect(
    client: Client, project: InProject = False, user: ForUser = False, name: Name = "", json: Json = False
) -> None:
    """Restore a client's configuration as it was before deputize connect.

    If the file was edited since, only the entry is removed, and the backup stays.
    """
    target, folder = CLIENTS[client], _find_folder(is_required=False)
    server = _choose_name(name, folder)
    file = _open_file(target, _choose_scope(target, project, user), folder, server)
    if file is None:
        exit_with_error("deputize connect json writes no file, so there is nothing to restore.")
    entry = file.find_entry()
    if entry is not None and not read_entry(target, entry).is_ours:
        exit_with_error(
            f"The server {server} in {file.path} is not one of deputize connect, so it was left as it is: "
            "choose another with --name.",
            EXIT_FAILED,
        )
    removal = file.remove_entry()
    _delete_token_file(read_entry(target, removal.entry).command)
    backup = None if removal.backup is None else str(removal.backup)
    if json:
        printer.json(
            {
                "client": client,
                "name": server,
                "file": str(file.path),
                "removed": removal.entry is not None,
                "restored": removal.is_restored,
                "backup": backup,
            }
        )
    elif removal.entry is None:
        printer.line(f"{target.title} has no server {server} in {file.path}: nothing was changed.")
    elif removal.is_restored:
        printer.success(f"{target.title}: {file.path} is as it was before")
    else:
        printer.success(f"{target.title}: removed {server} from {file.path}, which was edited since")
        if backup:
            printer.line(f"  What was there before deputize connect is in {backup}")


def _find_folder(*, is_required: bool) -> Path:
    """Enter the project; without a URL there must be one, whose gateway is meant."""
    enter_project(is_required=is_required)
    return Path.cwd()


def _choose_name(name: str, folder: Path) -> str:
    server = name or re.sub(r"[^A-Za-z0-9_-]+", "-", folder.name).strip("-_")[:40]
    if _NAME.fullmatch(server) is None:
        if name:
            exit_with_error(f"--name {name} is invalid: use at most 40 letters, digits, - and _, with a letter first.")
        return "deputize"
    return server


def _choose_scope(client: ClientFormat, project: bool, user: bool) -> ConfigScope:
    if project and user:
        exit_with_error("--project and --user exclude each other: choose one.")
    if client.user_file is not None and client.project_file is None and project:
        exit_with_error(f"{client.title} has no file for one project: leave out --project.")
    if project or user:
        return ConfigScope.PROJECT if project else ConfigScope.USER
    return client.default_scope


def _open_file(client: ClientFormat, scope: ConfigScope, folder: Path, server: str) -> "ClientFile | None":
    from deputize.interfaces.cli.local.client_setup.client_file import ClientFile

    path = locate_client_file(client, scope, folder)
    inside = folder if scope is ConfigScope.PROJECT else None
    return None if path is None else ClientFile(client, path, server, inside=inside)


def _locate_token_file(client: ClientFormat, name: ClientName, gateway: str, server: str) -> Path | None:
    if not gateway or client.token_reference is not None:
        return None
    from deputize.interfaces.cli.local.client_setup.agent_token_file import locate_agent_token

    return locate_agent_token(gateway, name, server)


def _build_entry(client: ClientFormat, gateway: str, folder: Path, token_file: Path | None) -> dict[str, Any]:
    if gateway and token_file is None:
        return build_http_entry(client, gateway)
    from deputize.interfaces.cli.client.round_trip import find_program

    where = ["--url", gateway, _TOKEN_FILE_OPTION, str(token_file)] if token_file else ["--project", str(folder)]
    return build_program_entry(client, [find_program(), "mcp", *where])


def _require_agent_token(token: str) -> None:
    """Refuse a token that is not an agent's: a client acts with all of its authority."""
    from deputize.core.caller import ADMIN_SCOPE, OPERATE_SCOPE
    from deputize.interfaces.cli.client.sign_in.session import read_claims

    remedy = (
        f"set {TOKEN_VARIABLE} to an agent's token. deputize token exchange --agent NAME makes one from yours, "
        "or the identity provider issues one."
    )
    if not token:
        raise ConfigError(f"No token to try the connection with: {remedy}")
    claims = read_claims(token)
    is_agent = bool(claims.get("act")) or claims.get("sub") in (claims.get("client_id", ""), claims.get("azp", ""))
    if not is_agent:
        raise ConfigError(f"This is not an agent's token, so no client gets it: {remedy}")
    scopes = f"{claims.get('scope', '')} {claims.get('scp', '')}"
    for scope in (ADMIN_SCOPE, OPERATE_SCOPE):
        if scope in scopes:
            raise ConfigError(f"This token can administer the gateway ({scope}), so no client gets it: {remedy}")


def _require_free_name(client: ClientFormat, file: "ClientFile", server: str) -> None:
    entry = file.find_entry()
    if entry is not None and not read_entry(client, entry).is_ours:
        exit_with_error(
            f"{file.path} has another server named {server}, which was left as it is: choose another name with --name.",
            EXIT_FAILED,
        )


def _print_plan(client: ClientFormat, file: "ClientFile | None", server: str, entry: dict[str, Any]) -> None:
    if printer.as_json:
        printer.json({"name": server, "file": file and str(file.path), "entry": entry, "written": False})
    if file is not None:
        printer.line(f"{client.title} would get this server in {file.path}:")
    if client.is_toml:
        from deputize.interfaces.cli.local.client_setup.toml_text import set_toml_table

        printer.line(set_toml_table("", client.section, server, entry).rstrip())
    else:
        printer.line(dumps({client.section: {server: entry}}, indent=2, ensure_ascii=False))


def _write_entry(client: ClientFormat, file: "ClientFile", server: str, entry: dict[str, Any]) -> dict[str, Any]:
    change = file.add_entry(entry)
    backup = None if change.backup is None else str(change.backup)
    if not change.is_changed:
        printer.success(f"{client.title}: {server} is in {file.path} already; nothing was changed")
    else:
        backup_note = f"; the previous file is {backup}" if backup else ""
        printer.success(f"{client.title}: wrote {server} to {file.path}{backup_note}")
    return {"file": str(file.path), "backup": backup, "written": change.is_changed}


def _warn_of_bypass(file: "ClientFile") -> None:
    """Name the servers of the client that the gateway of this project serves, too."""
    from deputize.interfaces.cli.local.settings_text import read_settings_text

    try:
        servers = tomllib.loads(read_settings_text()).get("servers", ())
    except (ConfigError, tomllib.TOMLDecodeError):
        # What is wrong with the settings is said when the client's entry is tried.
        return
    own_names = {each.get("name") for each in servers if isinstance(each, dict)}
    for name in file.list_other_names():
        if name in own_names:
            printer.warn(f"{file.path} still has {name}, whose calls bypass the gateway: delete it there.")


def _try_entry(client: ClientFormat, server: str, entry: Any, token: str, facts: dict[str, Any]) -> None:
    """List the tools with what the file has now."""
    from deputize.interfaces.cli.client.round_trip import RoundTripError, list_tools_at_url, list_tools_of_program

    start = read_entry(client, entry)
    try:
        with printer.spinner("Listing the tools as the client does …"):
            names = (
                list_tools_of_program(start.command)
                if start.command
                else list_tools_at_url(start.url.removesuffix(MCP_PATH), token)
            )
    except RoundTripError as error:
        reason = to_display_text(str(error).removeprefix("✗ "), 400)
        undo = f" Undo it with deputize disconnect {_find_key(client)}." if facts else ""
        exit_with_error(
            f"The client would see no tools: {reason}\nCorrect that and run the same command again.{undo}",
            EXIT_FAILED,
            **facts,
            name=server,
            entry=entry,
        )
    if printer.as_json:
        printer.json({"name": server, **facts, "entry": entry, "tools": len(names)})
    note = printer.note if not facts else printer.success
    tried = f"Tried as {client.title} does" if facts else "Tried this entry as a client would"
    note(f"{tried}: {format_count(len(names), 'tool')} visible")
    if start.url and os.environ.get(TOKEN_VARIABLE) != token:
        printer.note(f"  Set {TOKEN_VARIABLE} to this token where the client starts; the file only refers to it.")
    if start.command and facts:
        printer.line(f"  It starts {shlex.join(start.command)}")


def _find_key(client: ClientFormat) -> str:
    return next(key for key, each in CLIENTS.items() if each is client)


def _delete_token_file(command: tuple[str, ...]) -> None:
    if _TOKEN_FILE_OPTION in command[:-1]:
        from deputize.interfaces.cli.local.client_setup.agent_token_file import delete_agent_token

        delete_agent_token(Path(command[command.index(_TOKEN_FILE_OPTION) + 1]))
