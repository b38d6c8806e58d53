"""Define `deputize erase`: delete what is stored about a person."""

import sys
from typing import Annotated, Any
from urllib.parse import quote

import typer

from deputize.interfaces.cli.client.confirmation import Code, OperatorRequests
from deputize.interfaces.cli.client.target import Token, Url, find_gateway
from deputize.interfaces.cli.render.output import EXIT_FAILED, Json, exit_with_error, format_count, printer

group = typer.Typer(no_args_is_help=True, help="Erase what is stored about a person.")


@group.command(epilog="Example: deputize erase user mallory")
def user(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user's subject, as calls and grants show it.")],
    issuer: Annotated[str, typer.Option(help="The user's issuer, if it is not the tenant's primary one.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation on a terminal.")] = False,
    code: Code = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Erase a user: calls and grants become anonymous, what they contained is deleted. Needs an operator."""
    gateway = find_gateway(url, token)
    if not yes and not json and sys.stdin.isatty() and sys.stderr.isatty():
        printer.note("Their calls, approvals, delegations and linked accounts are erased. This cannot be undone.")
        if not typer.confirm(f"Erase the user {name}?", err=True):
            exit_with_error("Nothing was erased.", EXIT_FAILED)
    body = {"user": name, **({"issuer": issuer} if issuer else {})}
    answer = OperatorRequests(gateway, code).send("POST", "/v1/erasures", body)
    if json:
        printer.json(answer)
        return
    if answer["revoked_grants"]:
        printer.note(f"  {format_count(answer['revoked_grants'], 'active delegation')} ended with it")
    if answer["unlinked_servers"]:
        printer.note(f"  unlinked from {', '.join(answer['unlinked_servers'])}")
    _print_state(answer)


@group.command(epilog="Example: deputize erase status 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def status(
    erasure_id: Annotated[str, typer.Argument(metavar="ID", help="The id that deputize erase user printed.")],
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Show how far an erasure is."""
    answer = find_gateway(url, token).get(f"/v1/erasures/{quote(erasure_id, safe='')}")
    if json:
        printer.json(answer)
    else:
        _print_state(answer)


def _print_state(answer: dict[str, Any]) -> None:
    if answer["state"] == "done":
        printer.success(f"Erased. Their calls and delegations now show erased={answer['erasure_id']}")
        return
    calls_text = f", {format_count(answer['calls_left'], 'call')} to go" if answer["calls_left"] else ""
    printer.success(f"Erasing in the background{calls_text}: deputize erase status {answer['erasure_id']}")
