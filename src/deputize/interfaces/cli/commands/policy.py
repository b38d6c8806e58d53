"""Define `deputize policy`: check, test, backtest, activate and explain policies.

`check`, `test` and `explain --tool` work offline on the project's files; the rest needs a running gateway and an
administrator's token.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.client.confirmation import Code, OperatorRequests
from deputize.interfaces.cli.client.refusal import GatewayRefusal
from deputize.interfaces.cli.client.target import (
    Token,
    Url,
    build_call_path,
    complete_tool,
    fetch_servers,
    find_gateway,
)
from deputize.interfaces.cli.render.output import EXIT_FAILED, CommandExit, Json, exit_with_error, format_count, printer

if TYPE_CHECKING:
    from deputize.interfaces.cli.client.rest_client import GatewayClient

group = typer.Typer(no_args_is_help=True, help="Check, test, backtest, activate and explain policies.")

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILES", resolve_path=True, help="Cedar files. Default: those named in deputize.toml."),
]
Since = Annotated[
    str, typer.Option(metavar="TIME", help="Start of the period: 30d, 12h or 45m ago, or a date; in UTC.")
]


@group.command(epilog="Example: deputize policy check policies/*.cedar")
def check(files: Files = None, json: Json = False) -> None:
    """Check policies for syntax errors, type errors and rules that never match. Works offline."""
    from deputize.interfaces.cli.local import offline_policy

    offline_policy.check_policies(files or (), fetch_servers)


@group.command("test", epilog="Example: deputize policy test policies/tests/default.yaml")
def run_cases(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILES",
            resolve_path=True,
            help="Test cases (.yaml) and policies (.cedar). Default: the policies named in deputize.toml, and the "
            "cases in tests/ beside them.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run test cases against policies: who calls what, and the expected decision. Works offline."""
    from deputize.interfaces.cli.local import offline_policy

    offline_policy.run_cases(files or (), fetch_servers)


@group.command(epilog="Example: deputize policy show")
def show(
    text: Annotated[bool, typer.Option("--text", help="Print the files themselves.")] = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Show the active policies, rule by rule."""
    from deputize.interfaces.cli.render.policy import show_policies

    policies = find_gateway(url, token).get("/v1/policies")
    if json:
        printer.json(policies)
    elif text:
        for file in policies["files"]:
            printer.line(f"// {file['path']}")
            printer.line(file["text"].rstrip("\n"))
    else:
        show_policies(policies)


@group.command(epilog="Example: deputize policy usage")
def usage(url: Url = "", token: Token = "", json: Json = False) -> None:
    """Show how many calls each active rule decided in the last day."""
    from deputize.interfaces.cli.render.policy import show_usage

    report = find_gateway(url, token).get("/v1/policies/usage")
    if json:
        printer.json(report)
    else:
        show_usage(report)


@group.command(epilog="Example: deputize policy put --dry-run")
def put(
    files: Files = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: check the policies, and backtest them.")
    ] = False,
    since: Since = "30d",
    code: Code = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Activate policies on every gateway, in place of the current ones, from the next call on. Needs an operator."""
    from deputize.interfaces.cli.local import offline_policy

    gateway = find_gateway(url, token)
    policy_files = offline_policy.read_policy_payload(files or ())
    if not policy_files:
        exit_with_error(
            "No policy files: name some, or list them under [policy] files in deputize.toml. To return to the default "
            "set, use deputize policy reset."
        )
    if dry_run:
        _preview_policies(gateway, policy_files, since)
    else:
        _put_policies(gateway, policy_files, code)


@group.command(epilog="Example: deputize policy confirm sha256:4f7a")
def confirm(
    digest: Annotated[
        str, typer.Argument(metavar="DIGEST", help="The proposal, by its digest or the beginning of it. Default: list.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation on a terminal.")] = False,
    code: Code = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Activate policies that another operator proposed, if the settings ask for two (policy.approvals).

    Shows the difference to the active policies first. Needs an operator.
    """
    from deputize.interfaces.cli.render.policy import show_policy_difference

    gateway = find_gateway(url, token)
    policies = gateway.get("/v1/policies")
    matches = [each for each in policies["proposals"] if each["digest"].startswith(digest)]
    if not digest:
        for each in matches:
            printer.line(f"{each['digest']}  proposed by {to_display_text(each['proposed_by'])}, {each['proposed_at']}")
        if not matches:
            printer.line("No proposals.")
        return
    if len(matches) != 1:
        count = format_count(len(matches), "proposal")
        exit_with_error(f"{count} with this digest. List them: deputize policy confirm", EXIT_FAILED)
    show_policy_difference(policies["files"], matches[0]["files"])
    is_terminal = not json and sys.stdin.isatty() and sys.stderr.isatty()
    if is_terminal and not yes and not typer.confirm("Activate these policies?", err=True):
        exit_with_error("Nothing was changed.", EXIT_FAILED)
    if not is_terminal and digest != matches[0]["digest"]:
        exit_with_error("Without a terminal, name the whole digest of the proposal that you read.")
    _put_policies(gateway, matches[0]["files"], code)


@group.command(epilog="Example: deputize policy reset")
def reset(code: Code = "", url: Url = "", token: Token = "", json: Json = False) -> None:
    """Activate the default policies: allow reads and trusted reversible writes, require approval for the rest.

    Needs an operator.
    """
    gateway = find_gateway(url, token)
    _put_policies(gateway, [], code)
    if _has_policy_files():
        printer.warn("deputize.toml names policy files, which become active again when the gateway starts.")


@group.command(epilog="Example: deputize policy backtest policies/draft.cedar --since 30d")
def backtest(files: Files = None, since: Since = "30d", url: Url = "", token: Token = "", json: Json = False) -> None:
    """List the recorded calls that a draft would decide differently. The draft replaces all policies, as with put."""
    from deputize.interfaces.cli.local import offline_policy
    from deputize.interfaces.cli.render.policy import show_backtest

    gateway = find_gateway(url, token)
    policy_files = offline_policy.read_policy_payload(files or ())
    if not policy_files:
        exit_with_error("No policy files: name the draft's files, or list them under [policy] files in deputize.toml.")
    result = run_backtest(gateway, policy_files, since)
    if json:
        printer.json(result)
    else:
        show_backtest(result)


@group.command(epilog="Example: deputize policy explain 01930000-0000-7000-8000-000000000000")
def explain(
    call_id: Annotated[
        str, typer.Argument(metavar="CALL", help="Id of a recorded call, as printed by deputize call.")
    ] = "",
    tool: Annotated[
        str, typer.Option(autocompletion=complete_tool, help="Explain a hypothetical call of this tool instead.")
    ] = "",
    user: Annotated[str, typer.Option(help="With --tool: the user who calls.")] = "anyone",
    group: Annotated[list[str] | None, typer.Option(help="With --tool: a group of the user; repeat for more.")] = None,
    agent: Annotated[
        list[str] | None, typer.Option(help="With --tool: an agent, the acting one first; repeat for more.")
    ] = None,
    scope: Annotated[list[str] | None, typer.Option(help="With --tool: a scope of the token; repeat for more.")] = None,
    trust: Annotated[str, typer.Option(help="With --tool: untrusted, standard or trusted.")] = "standard",
    task: Annotated[str | None, typer.Option(help="With --tool: the task of the delegation.")] = None,
    arguments: Annotated[str, typer.Option(metavar="JSON", help="With --tool: the arguments, as a JSON object.")] = "",
    environment: Annotated[str, typer.Option(help="With --tool: development, staging or production.")] = "production",
    time: Annotated[
        str, typer.Option(metavar="TIME", help="With --tool: the time, in UTC. Default: a Monday at noon.")
    ] = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Explain which rules decided a call, and what would allow it: a recorded call, or with --tool a hypothetical one.

    --tool works offline, on the project's files.
    """
    from deputize.interfaces.cli.local import offline_policy
    from deputize.interfaces.cli.render.policy import show_decision

    if bool(call_id) == bool(tool):
        exit_with_error(
            "Name one call: the id of a recorded call, or --tool with --user and --arguments for a hypothetical one."
        )
    if tool:
        caller = {
            "user": user, "groups": group or [], "agents": agent or [], "scopes": scope or [], "trust": trust,
            "task": task,
        }  # fmt: skip
        case_fields = {"caller": caller, "tool": tool, "environment": environment} | ({"time": time} if time else {})
        decision = offline_policy.explain_case(case_fields, arguments, fetch_servers)
    else:
        decision = find_gateway(url, token).get(f"{build_call_path(call_id)}/decision")
    if json:
        printer.json(decision)
    else:
        show_decision(decision)


def _put_policies(gateway: "GatewayClient", files: Sequence[dict[str, str]], code: str) -> None:
    answer = OperatorRequests(gateway, code).send("PUT", "/v1/policies", {"files": list(files)})
    if printer.as_json:
        printer.json(answer)
        return
    for each in answer["warnings"]:
        printer.line(f"{each['file']}:{each['line']}: warning: {each['message']}")
    file_names = ", ".join(file["path"] for file in files) or "the default set"
    if answer["state"] == "proposed":
        printer.success(f"Proposed until {answer['expires_at']}: {file_names}. The active policies did not change.")
        printer.note(f"  Another operator confirms it: deputize policy confirm {answer['digest']}")
    elif answer["changed"]:
        printer.success(f"Active since policy epoch {answer['epoch']}: {file_names}")
    else:
        printer.success(f"Already active since policy epoch {answer['epoch']}: {file_names}")


def _preview_policies(gateway: "GatewayClient", files: Sequence[dict[str, str]], since: str) -> None:
    from deputize.interfaces.cli.render.policy import show_backtest, show_findings

    findings = gateway.post("/v1/policies/check", {"files": list(files)}).value
    if findings["errors"]:
        show_findings(findings)
        if printer.as_json:
            printer.json({"check": findings})
        printer.error(
            f"{format_count(len(findings['errors']), 'error')}: the policies are invalid; the previous version stays "
            "active"
        )
        raise CommandExit(EXIT_FAILED)
    result = run_backtest(gateway, files, since)
    if printer.as_json:
        printer.json({"check": findings, "backtest": result})
        return
    show_findings(findings)
    show_backtest(result)
    printer.line("  Nothing was changed. To activate these policies, run the command without --dry-run.")


def run_backtest(gateway: "GatewayClient", files: Sequence[dict[str, str]], since: str) -> dict[str, Any]:
    """Backtest a draft on the calls since a time; without files, the default policies."""
    from deputize.interfaces.cli.client.times import parse_time

    body = {"files": list(files), "since": parse_time(since, "since")}
    with printer.progress_bar("Replaying recorded calls") as show_share:
        for line in gateway.stream_lines("/v1/policies/backtest", body):
            if "progress" in line:
                show_share(line["progress"]["share"])
            elif "result" in line:
                result: dict[str, Any] = line["result"]
                return result
            else:
                raise GatewayRefusal(line["error"])
    exit_with_error("The gateway closed the connection before the result: try again.", EXIT_FAILED)


def _has_policy_files() -> bool:
    from deputize.interfaces.cli.local.project_file import enter_project, load_settings

    return enter_project() and bool(load_settings().policy.files)
