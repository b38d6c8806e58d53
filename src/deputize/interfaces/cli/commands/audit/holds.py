"""Define `deputize audit hold`: keep data from being erased or deleted, for as long as the law requires."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from deputize.interfaces.cli.client.confirmation import Code, OperatorRequests
from deputize.interfaces.cli.client.target import Token, Url, find_gateway
from deputize.interfaces.cli.client.times import parse_time
from deputize.interfaces.cli.render.output import Json, exit_with_error, printer

group = typer.Typer(no_args_is_help=True, help="Keep data from being erased or deleted.")


@group.command(epilog="Example: deputize audit hold add --user mallory --reason 'case 4711'")
def add(
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why it is held; shown by deputize audit hold list.")],
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Hold the data of this user, as calls show them.")
    ] = None,
    issuer: Annotated[
        str | None, typer.Option(help="The user's issuer, if it is not the tenant's primary one.")
    ] = None,
    call: Annotated[str | None, typer.Option(metavar="ID", help="Hold the data of this call.")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Hold what happened since: 7d or 2026-11-16T08:00:00Z; without a zone it is UTC.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="The end of that period; without it, it has none.")
    ] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Place a legal hold: on a user, a call or a period. Needs an administrator."""
    if sum(each is not None for each in (user, call, since)) != 1:
        exit_with_error("Name what to hold with one of --user, --call and --from.")
    times = {name: parse_time(text, name) for name, text in (("from", since), ("to", until)) if text}
    options = {"user": user, "issuer": issuer, "call_id": call, **times}
    body = {"reason": reason, **{name: value for name, value in options.items() if value is not None}}
    answer = find_gateway(url, token).send("POST", "/v1/holds", body).value
    if json:
        printer.json(answer)
        return
    printer.success(f"Held: {describe_scope(answer)}. Neither erasure nor retention deletes it.")
    printer.note(f"End it with: deputize audit hold remove {answer['hold_id']}")


@group.command("list", epilog="Example: deputize audit hold list")
def list_holds(url: Url = "", token: Token = "", json: Json = False) -> None:
    """List legal holds, newest first."""
    answer = find_gateway(url, token).get("/v1/holds")
    if json:
        printer.json(answer)
    elif not answer["holds"]:
        printer.line("There are no legal holds.")
    else:
        rows = [
            (each["hold_id"], describe_scope(each), each["placed_at"][:10], each["placed_by"], each["reason"])
            for each in answer["holds"]
        ]
        printer.table(("hold", "what", "placed", "by", "reason"), rows)


@group.command(epilog="Example: deputize audit hold remove 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def remove(
    hold_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the hold, as printed by hold list.")],
    code: Code = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Remove a legal hold. Needs an operator."""
    requests = OperatorRequests(find_gateway(url, token), code)
    answer = requests.send("DELETE", f"/v1/holds/{quote(hold_id, safe='')}", None)
    if json:
        printer.json(answer)
        return
    printer.success(f"Removed the hold {hold_id}: what it covered may be erased, and deleted when its time is over.")


def describe_scope(hold: dict[str, Any]) -> str:
    """Describe what a hold covers."""
    if hold["user"] is not None:
        return f"user {hold['user']}"
    if hold["call_id"] is not None:
        return f"call {hold['call_id']}"
    if hold["to"] is None:
        return f"from {hold['from'][:19]} on"
    return f"from {hold['from'][:19]} to {hold['to'][:19]}"
