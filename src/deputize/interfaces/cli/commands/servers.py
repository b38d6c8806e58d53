"""Define `deputize servers`: list, show and test upstream MCP servers, review their changes, confirm their effects.

The gateway makes hidden characters in a server's text visible before it sends them here.
"""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from deputize.core.config_error import ConfigError
from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.client.confirmation import Code, OperatorRequests
from deputize.interfaces.cli.client.target import Token, Url, find_gateway
from deputize.interfaces.cli.local.project_file import enter_project, load_settings
from deputize.interfaces.cli.render.circuits import format_time, print_circuits
from deputize.interfaces.cli.render.output import (
    NO,
    NOTE,
    OK,
    Json,
    colour_text,
    dim_text,
    exit_with_error,
    format_count,
    printer,
    style_sign,
)

group = typer.Typer(
    no_args_is_help=True,
    help="List and test upstream MCP servers, review their changes, and confirm what their tools do.",
)

_SANDBOX_TEXTS = {
    None: "", "none": ", without a sandbox", "namespaces": ", in a sandbox (namespaces)",
    "gvisor": ", in a sandbox (gVisor)",
}  # fmt: skip
_STATUS_SIGNS = {"connected": OK, "unavailable": NO, "unseen": NOTE}
_CHANGE_TEXTS = {"same": "", "changed": "changed since", "removed": "no longer offered", None: ""}
_TOOL_PREFIX = "tool:"

Server = Annotated[str, typer.Argument(metavar="SERVER", help="Name of the server in deputize.toml.")]
_ITEM_HELP = "tool:NAME, NAME, resource:URI, prompt:NAME, a pattern such as 'get_*', or instructions; repeat for more."


@group.command("list", epilog="Example: deputize servers list")
def list_servers(url: Url = "", token: Token = "", json: Json = False) -> None:
    """List the servers of the settings with their status, number of tools, and changes to review."""
    answer = find_gateway(url, token).get("/v1/servers")
    servers: list[dict[str, Any]] = answer["servers"]
    if json:
        printer.json(answer)
    elif not servers:
        printer.line("No servers. Add one under [[servers]] in deputize.toml, or import those of another client with")
        printer.line("deputize import .mcp.json")
    else:
        rows = [
            (
                _STATUS_SIGNS[each["status"]], each["name"], each["status"], str(each["tools"]), str(each["changes"]),
                format_time(each["since"]), each["why"] or each["title"] or "",
            )
            for each in servers
        ]  # fmt: skip
        printer.table(("", "server", "status", "tools", "to review", "since", ""), rows)


@group.command(epilog="Example: deputize servers show shop")
def show(server: Server, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Show a server's status and its pinned definitions."""
    details = find_gateway(url, token).get(_build_server_path(server))
    printer.json(details) if json else _print_server(details)


@group.command("pin", epilog="Example: deputize servers pin orders lib/")
def pin_program(
    server: Server,
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH]...", help="Files and folders that the program loads.")
    ] = None,
    json: Json = False,
) -> None:
    """Print the digests of a server's program, interpreter, script and listed files, for deputize.toml.

    Review the files first: the gateway starts the program only from files with the digests in its settings.
    """
    from deputize.interfaces.cli.local.program_pins import (
        compute_pins,
        find_program_server,
        list_differences,
        render_toml_value,
    )

    enter_project(is_required=True)
    server_settings = find_program_server(load_settings(), server)
    pins, unpinned_files = compute_pins(server_settings, paths or ())
    differences = list_differences(server_settings, pins)
    if json:
        printer.json({"name": server, **pins, "changed": differences, "unpinned": unpinned_files})
        return
    for each in differences:
        printer.warn(f"{to_display_text(each, 400)} changed since it was pinned")
    for each in unpinned_files:
        printer.warn(f"Not pinned: {to_display_text(each, 400)}")
    if unpinned_files:
        printer.warn(
            f"deputize serve will not start it. Pin a file or folder with deputize servers pin {server} PATH; write a "
            "command that names the program and its script, without a launcher or code in it; or, if these are data "
            'or you trust whatever runs, add accept_risk = ["unpinned"].'
        )
    printer.line(f"# For the [[servers]] table of {server} in deputize.toml; restart the gateway afterwards")
    for key, value in pins.items():
        printer.line(f"{key} = {render_toml_value(value)}")


@group.command("install", epilog="Example: deputize servers install npm:@acme/notes-mcp --write notes -- notes")
def install_server(
    package: Annotated[str, typer.Argument(metavar="PACKAGE", help="npm:NAME or pypi:NAME, with @VERSION if wanted.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARG]...", help="Arguments of the server's program.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the server. Default: from the package's name.")] = None,
    program: Annotated[
        str | None, typer.Option(help="Program to run, if the package has several. Default: the one named like it.")
    ] = None,
    read: Annotated[
        list[str] | None, typer.Option("--read", metavar="PATH", help="A folder it may read; repeat for more.")
    ] = None,
    write: Annotated[
        list[str] | None, typer.Option("--write", metavar="PATH", help="A folder it may change; repeat for more.")
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="A host it may connect to; repeat for more.")
    ] = None,
    private_host: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="One that may be in your network; repeat for more.")
    ] = None,
    json: Json = False,
) -> None:
    """Install a server from npm or PyPI into the project, pinned and in a sandbox, and add it to deputize.toml.

    npm and pip run in a sandbox that reaches their registry alone. The server then sees its own files and the folders
    and hosts that you name, and no others. npx and uvx would fetch a package at each start, which cannot be pinned.
    """
    from deputize.interfaces.cli.commands.import_servers import validate_settings
    from deputize.interfaces.cli.local.server_packages import (
        build_server_table,
        holds_home,
        install_package,
        parse_package,
        remove_package,
        require_hosts,
        require_server_name,
        require_shareable_folders,
    )
    from deputize.interfaces.cli.local.settings_text import read_settings_text, render_table, write_settings_text

    wanted = parse_package(package)
    enter_project(is_required=True)
    server_name = wanted.server_name if name is None else name
    require_server_name(server_name)
    settings = load_settings()
    if any(each.name == server_name for each in settings.servers):
        raise ConfigError(
            f"deputize.toml has a server named {server_name}: choose another --name, or remove its table to install it "
            "anew."
        )
    require_hosts((*(host or ()), *(private_host or ())))
    require_shareable_folders(server_name, read or (), write or (), settings)
    for each in (*(read or ()), *(write or ())):
        if holds_home(each):
            printer.warn(
                f"{each} holds your home folder, with the keys and passwords that other programs keep there: the "
                "server sees them all. A folder in it would show less."
            )
    printer.note(f"Installing {wanted} into servers/{server_name}")
    try:
        installed = install_package(wanted, server_name, program, settings.sandboxes.folder)
        folders, hosts = (read or (), write or ()), (host or (), private_host or ())
        table = build_server_table(server_name, installed, arguments or (), *folders, *hosts)
        old_text = read_settings_text()
        new_text = old_text.rstrip("\n") + "\n" + render_table("servers", table)
        validate_settings(new_text)
    except ConfigError:
        remove_package(server_name)
        raise
    backup = write_settings_text(old_text, new_text)
    origin, is_fresh = installed.describe_origin(datetime.now(UTC))
    if json:
        published_at = None if installed.published_at is None else installed.published_at.isoformat()
        details = {"version": installed.version, "published_at": published_at, "signatures": installed.signatures}
        printer.json({"server": table, **details, "backup": backup})
        return
    printer.success(f"Installed {wanted.name} {installed.version} as {server_name}: pinned, and in a sandbox")
    printer.warn(origin) if is_fresh else printer.line(origin)
    printer.line(render_table("servers", table).strip())
    printer.line(f"Restart the gateway, then: deputize servers test {server_name}")


@group.command("circuits", epilog="Example: deputize servers circuits")
def list_circuits(url: Url = "", token: Token = "", json: Json = False) -> None:
    """List external services whose calls failed lately: which are paused, since when and why, and the last changes."""
    answer = find_gateway(url, token).get("/v1/circuits")
    if json:
        printer.json(answer)
        return
    if not answer["circuits"]:
        printer.line("No call failed because of its service in the last day.")
        return
    print_circuits(answer["circuits"])
    changes = [
        (format_time(each["at"]), each["service"], f"{each['before']} to {each['state']}".replace("_", " "))
        for each in answer["transitions"]
    ]
    if changes:
        printer.table(("at", "service", "change"), changes)


@group.command("test", epilog="Example: deputize servers test shop")
def probe_server(server: Server, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Connect to a server now. New tools are registered, and changed ones wait for review, as always."""
    details = find_gateway(url, token).post(f"{_build_server_path(server)}/test").value
    if json:
        printer.json(details)
        return
    _print_server(details)
    for name in details["registered_tools"]:
        printer.success(f"Registered {name}")
    if details["new_changes"]:
        printer.warn(f"{format_count(details['new_changes'], 'new change')} found")


def _print_server(server: Mapping[str, Any]) -> None:
    state = f"{style_sign(_STATUS_SIGNS[server['status']], sys.stdout)} {server['name']} is {server['status']}"
    since = f" since {format_time(server['since'])}" if server["since"] else ""
    printer.line(f"{state}{since}{': ' + server['why'] if server['why'] else ''}")
    title = " ".join(each for each in (server["title"], server["version"]) if each)
    protocol = f"MCP {server['protocol']}" if server["protocol"] else ""
    place = f"{server['kind']} {server['address']}{_SANDBOX_TEXTS[server.get('sandbox')]}"
    for line in (place, ", ".join(each for each in (title, protocol) if each)):
        if line:
            printer.line(f"  {line}")
    rows = [
        (
            to_display_text(each["item"], 120), f"{each['tool']} {each['version']}" if each["tool"] else "",
            each["accepted_by"], format_time(each["accepted_at"]), _CHANGE_TEXTS[each["now"]],
        )
        for each in server["pins"]
    ]  # fmt: skip
    if rows:
        printer.table(("pinned", "registered as", "by", "at", ""), rows)
    for each in server["left_out"]:
        printer.warn(f"not registered: {each}")
    for each in server.get("refused_hosts", ()):
        printer.warn(
            f'it may not connect to {each}: add "{each}" to its hosts in deputize.toml if it should, or to its '
            "private_hosts if that is in your network"
        )
    if server["changes"]:
        printer.warn(f"{format_count(server['changes'], 'change')} to review: deputize servers review {server['name']}")


@group.command(epilog="Example: deputize servers review shop --accept get_order")
def review(
    server: Server,
    accept: Annotated[list[str] | None, typer.Option(metavar="ITEM", help=f"Accept the change of {_ITEM_HELP}")] = None,
    reject: Annotated[list[str] | None, typer.Option(metavar="ITEM", help=f"Reject the change of {_ITEM_HELP}")] = None,
    reason: Annotated[str, typer.Option(help="Recorded with the decision; required to reject.")] = "",
    code: Code = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Show how a server's definitions differ from the pinned ones, and accept or reject the changes.

    An accepted tool is registered as its next major version. Until then, and after a rejection, a read keeps its old
    definition, and every other tool is refused. Accepting needs an operator.
    """
    gateway = find_gateway(url, token)
    changes: list[dict[str, Any]] = gateway.get(f"{_build_server_path(server)}/changes")["changes"]
    if not accept and not reject:
        printer.json({"changes": changes}) if json else _print_changes(server, changes)
        return
    if reject and not reason:
        exit_with_error("--reject needs --reason: the reason is recorded with the decision.")
    decisions = [(each, "accept") for each in _select_changes(changes, accept or ())]
    decisions += [(each, "reject") for each in _select_changes(changes, reject or ())]
    conflicts = {each["item"] for each, decision in decisions if decision == "accept"} & {
        each["item"] for each, word in decisions if word == "reject"
    }
    if conflicts:
        exit_with_error(
            f"{to_display_text(sorted(conflicts)[0], 120)} cannot be both accepted and rejected: name it once."
        )
    results, requests = [], OperatorRequests(gateway, code)
    for each, word in decisions:
        # The digest of what was shown: the gateway refuses the decision if the server has changed it since.
        body = {"item": each["item"], "digest": each["digest"], "decision": word, "reason": reason}
        result = requests.send("POST", f"{_build_server_path(server)}/changes/decide", body)
        results.append(result)
        registration_text = f": {result['registered_tool']}" if result["registered_tool"] else ""
        printer.success(f"{each['display_item']} {word}ed{registration_text}")
    if json:
        printer.json({"decided": results})


@group.command(epilog="Example: deputize servers effects shop --set list_orders=read")
def effects(
    server: Server,
    set_effects: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="TOOL=EFFECTS", help="Say what a tool does: read, write, destructive; repeatable."
        ),
    ] = None,
    accept: Annotated[bool, typer.Option("--accept", help="Confirm what is proposed for every other tool.")] = False,
    code: Code = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Show what a server's tools do, and confirm it. On a terminal, the command asks.

    A tool that neither deputize.toml nor an operator has described counts as destructive. Proposals come from the
    server's annotations and the names. A confirmation is for one definition: a changed one counts as destructive again.
    """
    from deputize.interfaces.cli.render.server_effects import (
        ask_effects,
        list_unconfirmed_tools,
        parse_choices,
        show_effects,
    )

    gateway = find_gateway(url, token)
    tools: list[dict[str, Any]] = gateway.get(f"{_build_server_path(server)}/tools")["tools"]
    if set_effects or accept:
        choices = parse_choices(tools, set_effects or (), accept=accept)
    elif json:
        printer.json({"tools": tools})
        return
    else:
        show_effects(server, tools)
        is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        choices = ask_effects(tools) if is_terminal and list_unconfirmed_tools(tools) else {}
        if is_terminal and list_unconfirmed_tools(tools) and not choices:
            printer.line("Nothing was changed.")
    if not choices:
        printer.json({"tools": []}) if json else None
        return
    digests = {each["name"]: each["digest"] for each in tools}
    body = [{"tool": name, "digest": digests[name], "effects": each} for name, each in choices.items()]
    result = OperatorRequests(gateway, code).send("POST", f"{_build_server_path(server)}/effects", {"tools": body})
    if json:
        printer.json(result)
    for each in result["tools"]:
        version = f": {each['registered_tool']}" if each["registered_tool"] else ""
        printer.success(f"{to_display_text(each['tool'], 120)} is {each['effects']}{version}")


@group.command("export", epilog="Example: deputize servers export")
def export_servers(url: Url = "", token: Token = "", json: Json = False) -> None:
    """Write what the servers declare to servers.json, so that deputize policy check and test know their tools offline.

    Commit the file beside deputize.toml, and write it again when a change of a server was accepted.
    """
    from deputize.core.clock import Clock
    from deputize.interfaces.cli.local.exported_servers import SERVERS_FILE, write_servers_file

    gateway = find_gateway(url, token)
    enter_project(is_required=True)
    servers = [
        {**each, "tools": gateway.get(f"{_build_server_path(each['name'])}/tools")["tools"]}
        for each in gateway.get("/v1/servers")["servers"]
    ]
    write_servers_file(Path.cwd(), servers, Clock())
    count = sum(len(each["tools"]) for each in servers)
    if json:
        printer.json({"written": SERVERS_FILE, "servers": [each["name"] for each in servers], "tools": count})
    printer.success(f"Wrote {format_count(count, 'tool')} of {format_count(len(servers), 'server')} to {SERVERS_FILE}")


def _select_changes(changes: Sequence[dict[str, Any]], patterns: Sequence[str]) -> list[dict[str, Any]]:
    """Select the changes that match the patterns, each once."""
    from deputize.core.patterns import matches_glob

    selection: list[dict[str, Any]] = []
    for name in patterns:
        matches = [
            each
            for each in changes
            if name in (each["item"], each["item"].removeprefix(_TOOL_PREFIX))
            or matches_glob(each["item"].removeprefix(_TOOL_PREFIX), name.removeprefix(_TOOL_PREFIX))
        ]
        if not matches:
            pending = ", ".join(each["display_item"] for each in changes) or "none"
            exit_with_error(f"{to_display_text(name, 120)} has no change to review. Changes to review: {pending}.")
        selection += [each for each in matches if each not in selection]
    return selection


def _print_changes(server: str, changes: Sequence[Mapping[str, Any]]) -> None:
    if not changes:
        printer.line("No changes to review.")
        return
    for each in changes:
        pin_text = f"   pinned as {each['tool']} {each['version']}" if each["tool"] else ""
        printer.line(f"{style_sign(NOTE, sys.stdout)} {each['display_item']}   {each['kind']}{pin_text}")
        for flag in each["flags"]:
            where = f" at {flag['where']}" if flag["where"] else ""
            printer.line(f"  {colour_text(flag['code'], 'yellow', sys.stdout)}{where}: {flag['sentence']}")
            if flag["excerpt"]:
                printer.line(f"      {flag['excerpt']}")
        for difference in each["differences"]:
            printer.line(f"  {dim_text(difference['where'] or '/', sys.stdout)}")
            for sign, text, colour in (("-", difference["before"], "red"), ("+", difference["after"], "green")):
                for line in () if text is None else text.splitlines():
                    printer.line("  " + colour_text(f"{sign} {line}", colour, sys.stdout))
    first = changes[0]["item"].removeprefix(_TOOL_PREFIX)
    item = first if first.replace("_", "a").replace("-", "a").isalnum() and first.isascii() else "ITEM"
    printer.note(f"  Accept: deputize servers review {server} --accept {item}")
    printer.note(f"  Reject: deputize servers review {server} --reject {item} --reason '…'")


def _build_server_path(server: str) -> str:
    from urllib.parse import quote

    return f"/v1/servers/{quote(server, safe='')}"
