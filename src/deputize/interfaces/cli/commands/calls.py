"""Define `deputize calls`: list, show, audit, watch, cancel, retry and roll back calls."""

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deputize.interfaces.cli.client.refusal import GatewayRefusal
from deputize.interfaces.cli.client.target import Token, Url, build_call_path, find_gateway
from deputize.interfaces.cli.render.audit import describe_call, describe_entry
from deputize.interfaces.cli.render.output import (
    EXIT_FAILED,
    CommandExit,
    Json,
    exit_with_error,
    format_json,
    printer,
    require_options_after_subcommand,
)

if TYPE_CHECKING:
    from deputize.interfaces.cli.client.rest_client import GatewayClient

group = typer.Typer(
    invoke_without_command=True, help="List your calls; show, audit, watch, cancel, retry or roll back one."
)

_REFUSED_STATES = ("denied", "blocked")

CallId = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the call, as printed by deputize call; last means the newest.")
]
Limit = Annotated[int, typer.Option(min=1, max=200, help="Show at most this many, newest first.")]


@group.callback(epilog="Example: deputize calls")
def calls(context: typer.Context, url: Url = "", token: Token = "", json: Json = False) -> None:
    if context.invoked_subcommand is not None:
        require_options_after_subcommand(context)
        return
    _print_calls(find_gateway(url, token), 20, None)


@group.command("list", epilog="Example: deputize calls list --limit 5")
def list_calls(
    limit: Limit = 20,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Show only calls older than this one.")] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """List your writes and queued calls, newest first. Other reads have only an audit entry: use calls show."""
    _print_calls(find_gateway(url, token), limit, before)


def _print_calls(gateway: "GatewayClient", limit: int, before: str | None) -> None:
    answer = gateway.get("/v1/calls", limit=limit, before=before)
    entries: list[dict[str, Any]] = answer["calls"]
    if printer.as_json:
        printer.json(answer)
        return
    if not entries:
        printer.line("No writes or queued calls yet. Other reads are not listed: use deputize calls show ID.")
        return
    rows = [
        (
            each["call_id"],
            each["state"],
            f"{each['tool']['name']} {each['tool']['version']}",
            _format_time(each),
            _describe_caller(each),
        )
        for each in entries
    ]
    printer.table(("call", "state", "tool", "created", "caller"), rows)


def _format_time(facts: dict[str, Any]) -> str:
    return str(facts.get("created_at", "")).partition(".")[0].replace("T", " ").removesuffix("+00:00")


def _describe_caller(facts: dict[str, Any]) -> str:
    user, agent = str(facts.get("user") or ""), facts.get("agent")
    return f"{agent} for {user}" if agent else user


def resolve_call_id(gateway: "GatewayClient", call_id: str) -> str:
    """Return the id of a call; `last` is the newest one."""
    if call_id != "last":
        return call_id
    newest: list[dict[str, Any]] = gateway.get("/v1/calls", limit=1)["calls"]
    if not newest:
        exit_with_error("There are no calls yet: make one with deputize call.", EXIT_FAILED)
    return str(newest[0]["call_id"])


@group.command(epilog="Example: deputize calls show 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def show(call_id: CallId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Show the outcome of a call; for a running call or a read, what is recorded so far."""
    gateway = find_gateway(url, token)
    path = build_call_path(resolve_call_id(gateway, call_id))
    value = gateway.get(path)
    if json:
        printer.json(value)
        return
    for line in describe_call(value):
        printer.line(line)
    if value.get("state") in _REFUSED_STATES:
        from deputize.interfaces.cli.render.policy import show_decision

        # What the caller may see of the decision; a refusal before the policies has none.
        with contextlib.suppress(GatewayRefusal):
            show_decision(gateway.get(f"{path}/decision"))


@group.command(epilog="Example: deputize calls export last")
def export(call_id: CallId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Write a call as objects of the tool standard: invocation, decision, progress, result, error and events."""
    gateway = find_gateway(url, token)
    value = gateway.get(f"{build_call_path(resolve_call_id(gateway, call_id))}/export")
    if json:
        printer.json(value)
    else:
        printer.line(format_json(value))


@group.command(epilog="Example: deputize calls audit last")
def audit(call_id: CallId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Show the audit entries of a call: its states, who decided by which rules, and how it was executed."""
    gateway = find_gateway(url, token)
    answer = gateway.get(f"{build_call_path(resolve_call_id(gateway, call_id))}/audit")
    if json:
        printer.json(answer)
        return
    for each in answer["entries"]:
        for line in describe_entry(each):
            printer.line(line)


@group.command(epilog="Example: deputize calls watch last")
def watch(call_id: CallId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Follow a call and its progress until it ends. Exits with 1 if it does not succeed.

    Ctrl-C stops watching, but not the call.
    """
    from deputize.interfaces.cli.client.follow import follow_call

    gateway = find_gateway(url, token)
    if follow_call(gateway, resolve_call_id(gateway, call_id)) != "succeeded":
        raise CommandExit(EXIT_FAILED)


@group.command(epilog="Example: deputize calls cancel 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def cancel(call_id: CallId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Cancel a call, if it can still be stopped."""
    gateway = find_gateway(url, token)
    answer = gateway.post(f"{build_call_path(resolve_call_id(gateway, call_id))}/cancel").value
    if json:
        printer.json(answer)
    result_text = "Canceled" if answer.get("cancel") == "canceled" else "Cancellation requested"
    printer.success(f"{result_text}: {answer.get('detail', answer.get('state'))}")


@group.command(epilog="Example: deputize calls retry 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b --wait")
def retry(
    call_id: CallId,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the call, and print its result.")] = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Retry a failed call. A call that may have taken effect is not repeated."""
    from deputize.interfaces.cli.commands.call import show_accepted_call

    gateway = find_gateway(url, token)
    call_id = resolve_call_id(gateway, call_id)
    answer = gateway.post(f"{build_call_path(call_id)}/retry").value
    new_call_id = answer["call_id"]
    if wait or answer.get("approval"):
        show_accepted_call(gateway, answer, None, json=json, wait=wait)
        return
    if json:
        printer.json(answer)
    origin = "" if new_call_id == call_id else f", which replaces call {call_id}"
    printer.success(f"{answer['state']}: call {new_call_id}{origin}")


@group.command(epilog="Example: deputize calls rollback last half")
def rollback(
    call_id: CallId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the checkpoint, as set by the tool.")],
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Resume a call from an earlier checkpoint. Effects since then are not undone."""
    gateway = find_gateway(url, token)
    answer = gateway.post(f"{build_call_path(resolve_call_id(gateway, call_id))}/rollback", {"checkpoint": name}).value
    if json:
        printer.json(answer)
    printer.success(f"{answer['state']}: call {answer['call_id']} resumes from checkpoint {answer['checkpoint']}")
