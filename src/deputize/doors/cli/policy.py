"""`deputize policy`: for whoever writes policy. Checked and tried here, tried on real calls, put in force, explained.

What needs no gateway works on the files and tools of the project alone; `policy_local.py` does that. The rest asks a
running gateway as an administrator.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deputize.doors.cli.output import REFUSED, Json, Stopped, counted, give_up, printer
from deputize.doors.cli.remote import Refused, Token, Url, call_path, complete_tool, find_gateway

if TYPE_CHECKING:
    from deputize.doors.cli.exchange import Gateway

group = typer.Typer(no_args_is_help=True, help="Check, test, backtest, put and explain policies.")

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILES", resolve_path=True, help="Cedar files; default: those deputize.toml names."),
]
Since = Annotated[str, typer.Option(metavar="TIME", help="How far to look back: 30d, 12h, 45m, or a date.")]


@group.command(epilog="Example: deputize policy check policies/*.cedar")
def check(files: Files = None, json: Json = False) -> None:
    """Whether policies could take force: read, type-checked, and searched for rules that can never speak. Offline."""
    from deputize.doors.cli import policy_local

    policy_local.check(files or ())


@group.command("test", epilog="Example: deputize policy test policies/tests/default.yaml")
def try_cases(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILES",
            resolve_path=True,
            help="Cases (.yaml) and the policies to try (.cedar); default: what deputize.toml names, and the cases "
            "in tests/ beside it.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Try policies on cases: who calls what, and what the answer has to be. Offline."""
    from deputize.doors.cli import policy_local

    policy_local.try_cases(files or ())


@group.command(epilog="Example: deputize policy show")
def show(
    text: Annotated[bool, typer.Option("--text", help="Print the files themselves.")] = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """The policies in force, rule by rule."""
    from deputize.doors.cli.policy_shown import show_policies

    shown = find_gateway(url, token).get("/v1/policies")
    if json:
        printer.json(shown)
    elif text:
        for file in shown["files"]:
            printer.line(f"// {file['path']}")
            printer.line(file["text"].rstrip("\n"))
    else:
        show_policies(shown)


@group.command(epilog="Example: deputize policy put --dry-run")
def put(
    files: Files = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check, and say which calls would change.")] = False,
    since: Since = "30d",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Put policies in force, in place of those before: the next call is decided by them, on every gateway."""
    from deputize.doors.cli import policy_local

    gateway = find_gateway(url, token)
    sent = policy_local.chosen(files or ())
    if not sent:
        give_up("No policies to put: name files, or list them under [policy] files; deputize policy reset needs none.")
    if dry_run:
        _try_out(gateway, sent, since)
    else:
        _put(gateway, sent)


@group.command(epilog="Example: deputize policy reset")
def reset(url: Url = "", token: Token = "", json: Json = False) -> None:
    """Put the default set in force: reads are free, what can be taken back is for trusted callers, the rest asks."""
    gateway = find_gateway(url, token)
    _put(gateway, [])
    if _named_in_settings():
        printer.warn("deputize.toml names policy files, which are put in force again when the gateway starts")


@group.command(epilog="Example: deputize policy backtest policies/draft.cedar --since 30d")
def backtest(files: Files = None, since: Since = "30d", url: Url = "", token: Token = "", json: Json = False) -> None:
    """Which recorded calls a draft would answer otherwise, by tool and caller. The draft is a whole set, as for put."""
    from deputize.doors.cli import policy_local
    from deputize.doors.cli.policy_shown import show_backtest

    gateway = find_gateway(url, token)
    sent = policy_local.chosen(files or ())
    if not sent:
        give_up("No draft to try: name its files, or list them under [policy] files in deputize.toml.")
    result = _backtest(gateway, sent, since)
    if json:
        printer.json(result)
    else:
        show_backtest(result)


@group.command(epilog="Example: deputize policy explain 01930000-0000-7000-8000-000000000000")
def explain(
    call_id: Annotated[str, typer.Argument(metavar="CALL", help="The id that deputize call printed.")] = "",
    tool: Annotated[
        str, typer.Option(autocompletion=complete_tool, help="Instead of a recorded call: the tool one would call.")
    ] = "",
    user: Annotated[str, typer.Option(help="… and who would call it.")] = "somebody",
    group: Annotated[list[str] | None, typer.Option(help="A group of the caller; may be repeated.")] = None,
    agent: Annotated[list[str] | None, typer.Option(help="An agent acting, nearest first; may be repeated.")] = None,
    scope: Annotated[list[str] | None, typer.Option(help="A scope of the token; may be repeated.")] = None,
    trust: Annotated[str, typer.Option(help="untrusted, standard or trusted.")] = "standard",
    task: Annotated[str | None, typer.Option(help="What the delegation is for.")] = None,
    arguments: Annotated[str, typer.Option(metavar="JSON", help="The arguments, as a JSON object.")] = "",
    environment: Annotated[str, typer.Option(help="development, staging or production.")] = "production",
    time: Annotated[str, typer.Option(metavar="TIME", help="When, in UTC; default: a Monday at noon.")] = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Which rules answered a call, why, and what would allow it: a recorded call, or with --tool one to be."""
    from deputize.doors.cli import policy_local
    from deputize.doors.cli.policy_shown import show_decision

    if bool(call_id) == bool(tool):
        give_up("Say which call: the id of a recorded one, or --tool with --user and --arguments for one to be.")
    if tool:
        caller = {
            "user": user, "groups": group or [], "agents": agent or [], "scopes": scope or [], "trust": trust,
            "task": task,
        }  # fmt: skip
        asking = {"caller": caller, "tool": tool, "environment": environment} | ({"time": time} if time else {})
        told = policy_local.explain(asking, arguments)
    else:
        told = find_gateway(url, token).get(f"{call_path(call_id)}/decision")
    if json:
        printer.json(told)
    else:
        show_decision(told)


def _put(gateway: "Gateway", files: Sequence[dict[str, str]]) -> None:
    answer = gateway.send("PUT", "/v1/policies", {"files": list(files)}).value
    if printer.as_json:
        printer.json(answer)
        return
    for each in answer["warnings"]:
        printer.line(f"{each['file']}:{each['line']}: warning: {each['message']}")
    named = ", ".join(file["path"] for file in files) or "the default set"
    if answer["changed"]:
        printer.good(f"in force since policy epoch {answer['epoch']}: {named}")
    else:
        printer.good(f"in force already, since policy epoch {answer['epoch']}: {named}")


def _try_out(gateway: "Gateway", files: Sequence[dict[str, str]], since: str) -> None:
    from deputize.doors.cli.policy_shown import show_backtest, show_findings

    found = gateway.post("/v1/policies/check", {"files": list(files)}).value
    if found["errors"]:
        show_findings(found)
        if printer.as_json:
            printer.json({"check": found})
        printer.bad(f"{counted(len(found['errors']), 'mistake')}; nothing was changed")
        raise Stopped(REFUSED)
    result = _backtest(gateway, files, since)
    if printer.as_json:
        printer.json({"check": found, "backtest": result})
        return
    show_findings(found)
    show_backtest(result)
    printer.line("  nothing was changed; without --dry-run it would be")


def _backtest(gateway: "Gateway", files: Sequence[dict[str, str]], since: str) -> dict[str, Any]:
    from deputize.doors.cli.policy_local import moment

    asked = {"files": list(files), "since": moment(since)}
    with printer.bar("replaying recorded calls") as show_share:
        for line in gateway.lines("/v1/policies/backtest", asked):
            if "progress" in line:
                show_share(line["progress"]["share"])
            elif "result" in line:
                result: dict[str, Any] = line["result"]
                return result
            else:
                raise Refused(line["error"])
    give_up("The gateway ended the stream before the result: try again.", REFUSED)


def _named_in_settings() -> bool:
    from deputize.doors.cli.project import enter_project, load_settings

    return enter_project() and bool(load_settings().policy.files)
