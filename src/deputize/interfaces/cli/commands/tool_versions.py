"""Add to `deputize tool` the commands about the life of a version: negotiate, deprecate, usage, retire, undeprecate."""

from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from deputize.interfaces.cli.client.confirmation import Code, OperatorRequests
from deputize.interfaces.cli.client.target import Token, Url, build_tool_path, find_gateway
from deputize.interfaces.cli.commands.tool import Name
from deputize.interfaces.cli.render.output import EXIT_FAILED, CommandExit, Json, exit_with_error, printer

Version = Annotated[str, typer.Argument(metavar="VERSION", help="The exact version, for example 0.1.0.")]


def add_commands(group: typer.Typer) -> None:
    """Add the commands to `deputize tool`."""
    group.command(epilog="Example: deputize tool negotiate hello.greet --version ^0.1 --read /message")(negotiate)
    group.command(epilog="Example: deputize tool deprecate hello.greet 0.1.0 --days 30")(deprecate)
    group.command(epilog="Example: deputize tool usage hello.greet 0.1.0")(usage)
    group.command(epilog="Example: deputize tool retire hello.greet 0.1.0")(retire)
    group.command(epilog="Example: deputize tool undeprecate hello.greet 0.1.0")(undeprecate)


def negotiate(
    name: Name,
    version: Annotated[str, typer.Option(help="The versions that the agent can use, for example ^1; * is any.")] = "*",
    expect: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A JSON file with input, output and effects, as the API takes them."),
    ] = None,
    send: Annotated[
        list[str] | None, typer.Option(metavar="POINTER", help="An argument that the agent sends; repeat for more.")
    ] = None,
    read: Annotated[
        list[str] | None, typer.Option(metavar="POINTER", help="A field that the agent reads; repeat for more.")
    ] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Find the best version that offers what an agent expects, and list what is missing in it.

    Exit codes: 0 all that is required is offered, 1 it is not, 2 the command is wrong.
    """
    body: dict[str, Any] = {"version": version, **({} if expect is None else _read_expectation(expect))}
    for side, pointers in (("input", send), ("output", read)):
        if pointers:
            body[side] = {**body.get(side, {}), "fields": [*body.get(side, {}).get("fields", ()), *pointers]}
    answer = find_gateway(url, token).post(f"{build_tool_path(name)}/negotiation", body).value
    if json:
        printer.json(answer)
    _print_match(answer)
    if answer["match"] == "INCOMPATIBLE":
        raise CommandExit(EXIT_FAILED)


def _read_expectation(file: Path) -> dict[str, Any]:
    import json

    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        exit_with_error(f"{file} cannot be read: {error.strerror}.")
    except ValueError as error:
        exit_with_error(f"{file} is not valid JSON ({error}): write an object with input, output and effects.")
    if not isinstance(value, dict) or not all(isinstance(value.get(side, {}), dict) for side in ("input", "output")):
        exit_with_error(f"{file} must be a JSON object with input and output as objects.")
    return value


def _print_match(answer: dict[str, Any]) -> None:
    what = answer["tool"] if answer["version"] is None else f"{answer['tool']} {answer['version']}"
    match answer["match"]:
        case "FULL":
            printer.success(f"{what} offers all that is expected")
        case "PARTIAL":
            printer.success(f"{what} offers all that is required; optional parts are missing")
        case _:
            printer.error(f"{what} does not offer what is required")
    for each in answer["missing"]:
        kind = "required" if each["required"] else "optional"
        printer.line(f"  {kind}  {each['path'] or '/'} {each['reason']}")


def deprecate(
    name: Name,
    version: Version,
    days: Annotated[
        int | None, typer.Option(min=1, max=3650, help="Days until calls are refused. Default: 90.")
    ] = None,
    removal_date: Annotated[
        str, typer.Option(metavar="DATE", help="The day from which on calls are refused, as in 2030-01-31; in UTC.")
    ] = "",
    successor: Annotated[
        str, typer.Option(metavar="TOOL", help="What to use instead, as in crm.find or crm.find@2.0.0.")
    ] = "",
    migration_guide: Annotated[str, typer.Option(metavar="URL", help="Where callers read how to move on.")] = "",
    code: Code = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Announce the end of a version: calls go on until the removal date, with a warning. Needs an operator."""
    body = {"successor": successor or None, "migration_guide": migration_guide or None}
    if days is not None or removal_date:
        body["removal_date"] = _compute_removal_date(days, removal_date)
    requests = OperatorRequests(find_gateway(url, token), code)
    answer = requests.send("PUT", f"{build_tool_path(name)}/versions/{version}/deprecation", body)
    if json:
        printer.json(answer)
    printer.success(f"Deprecated {answer['name']} {answer['version']}")
    _print_notice(answer["deprecation"])


def _compute_removal_date(days: int | None, removal_date: str) -> str:
    """Compute from when calls are refused: the start of a day, so that a repeated command means the same."""
    if days is not None and removal_date:
        exit_with_error("--days and --removal-date say the same: give one of them.")
    try:
        day = date.fromisoformat(removal_date) if days is None else datetime.now(UTC).date() + timedelta(days=days)
    except ValueError:
        exit_with_error(f"--removal-date {removal_date} is not a date: write it like 2030-01-31.")
    return datetime.combine(day, time(), UTC).isoformat()


def _print_notice(notice: dict[str, Any] | None) -> None:
    if notice is None:
        return
    if notice["removal_date"]:
        printer.line(f"  calls are refused from {notice['removal_date']} on")
    if notice["successor"]:
        printer.line(f"  use {notice['successor']} instead")
    if notice["migration_guide"]:
        printer.line(f"  guide: {notice['migration_guide']}")


def usage(name: Name, version: Version, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Report who called a deprecated version in the last seven days. Needs an administrator."""
    answer = find_gateway(url, token).get(f"{build_tool_path(name)}/versions/{version}/usage")
    if json:
        printer.json(answer)
        return
    printer.line(f"{answer['name']} {answer['version']} ({answer['state']})")
    _print_notice(answer["deprecation"])
    if answer["deprecation"] is None:
        printer.line("  Callers are counted while a version is deprecated.")
    elif not answer["callers"]:
        printer.line(f"  No calls since {answer['since']}. Retire it: deputize tool retire {name} {version}")
    else:
        rows = [
            (each["user"], ", ".join(each["agents"]), str(each["calls"]), each["last_used_at"])
            for each in answer["callers"]
        ]
        printer.table(("user", "agents", "calls", "last used"), rows)
        printer.line(f"  It can be retired from {answer['retirable_at']} on, unless it is used again.")


def retire(
    name: Name,
    version: Version,
    force: Annotated[
        bool, typer.Option("--force", help="Retire a deprecated version although it is still used. Needs an operator.")
    ] = False,
    code: Code = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Retire a version for good: every gateway refuses new calls of it before the command returns.

    Needs an administrator. A deprecated version that was used in the last 24 hours is retired only with --force.
    """
    body = {"state": "retired", "force": force}
    requests = OperatorRequests(find_gateway(url, token), code)
    answer = requests.send("POST", f"{build_tool_path(name)}/versions/{version}/state", body)
    if json:
        printer.json(answer)
    printer.success(f"Retired {answer['name']} {answer['version']}; new calls of it are refused")


def undeprecate(
    name: Name, version: Version, code: Code = "", url: Url = "", token: Token = "", json: Json = False
) -> None:
    """Take a deprecation back: the version is available again, also after its removal date. Needs an operator."""
    requests = OperatorRequests(find_gateway(url, token), code)
    answer = requests.send("DELETE", f"{build_tool_path(name)}/versions/{version}/deprecation", None)
    if json:
        printer.json(answer)
    printer.success(f"{answer['name']} {answer['version']} is available again")
