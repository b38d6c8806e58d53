"""`deputize calls`: looking back at calls, watching one, asking one to stop."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deputize.doors.cli.output import Json, dim, give_up, pretty, printer, require_behind
from deputize.doors.cli.remote import Token, Url, call_path, find_gateway

if TYPE_CHECKING:
    from deputize.doors.cli.exchange import Gateway

group = typer.Typer(invoke_without_command=True, help="Look back at calls, watch one, ask one to stop.")

CallId = Annotated[str, typer.Argument(metavar="ID", help="The id that deputize call printed.")]
Limit = Annotated[int, typer.Option(min=1, max=200, help="At most so many, newest first.")]


@group.callback(epilog="Example: deputize calls")
def calls(context: typer.Context, url: Url = "", token: Token = "", json: Json = False) -> None:
    if context.invoked_subcommand is not None:
        require_behind(context)
        return
    _list(find_gateway(url, token), 20, None)


@group.command("list", epilog="Example: deputize calls list --limit 5")
def list_calls(
    limit: Limit = 20,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Only calls older than this one.")] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Writes you made, newest first. Reads leave an audit entry only, so they are shown by id."""
    _list(find_gateway(url, token), limit, before)


def _list(gateway: "Gateway", limit: int, before: str | None) -> None:
    answer = gateway.get("/v1/calls", limit=limit, before=before)
    found: list[dict[str, Any]] = answer["calls"]
    if printer.as_json:
        printer.json(answer)
        return
    if not found:
        printer.line("No writes yet. Reads are not listed; deputize calls show ID knows them too.")
        return
    rows = [
        (each["call_id"], each["state"], f"{each['tool']['name']} {each['tool']['version']}", _when(each), _who(each))
        for each in found
    ]
    printer.table(("call", "state", "tool", "when", "who"), rows)


def _when(facts: dict[str, Any]) -> str:
    return str(facts.get("created_at", "")).partition(".")[0].replace("T", " ").removesuffix("+00:00")


def _who(facts: dict[str, Any]) -> str:
    user, agent = str(facts.get("user") or ""), facts.get("agent")
    return f"{agent} for {user}" if agent else user


@group.command(epilog="Example: deputize calls show 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def show(call_id: CallId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """How a call ended, as it was answered; of one still running or a read, what is known of it."""
    value = find_gateway(url, token).get(call_path(call_id))
    if json:
        printer.json(value)
    else:
        printer.line(pretty(value))


@group.command(epilog="Example: deputize calls watch 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def watch(call_id: CallId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Follow a call until it ends. Ctrl-C stops the watching, never the call."""
    gateway = find_gateway(url, token)
    try:
        for name, facts in gateway.events(f"{call_path(call_id)}/events"):
            if json:
                printer.json({"event": name, **facts})
            printer.line(f"{facts.get('state', '?'):<12} {dim(name, sys.stdout)}")
    except KeyboardInterrupt:
        give_up("Stopped watching; the call goes on without you.", 1)


@group.command(epilog="Example: deputize calls cancel 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def cancel(call_id: CallId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Ask a call to stop; what cannot be stopped any more says so."""
    answer = find_gateway(url, token).post(f"{call_path(call_id)}/cancel").value
    if json:
        printer.json(answer)
    printer.good(f"asked {answer.get('call_id', call_id)} to stop: {answer.get('detail', answer.get('state'))}")
