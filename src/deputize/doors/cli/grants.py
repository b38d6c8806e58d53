"""`deputize grants`: what was lent to agents, and taking it back."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from deputize.doors.cli.output import Json, pretty, printer
from deputize.doors.cli.remote import Token, Url, find_gateway

group = typer.Typer(no_args_is_help=True, help="List what was lent to agents, and take it back.")

GrantId = Annotated[str, typer.Argument(metavar="ID", help="The id that deputize token exchange printed.")]


@group.command("list", epilog="Example: deputize grants list")
def list_grants(
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most so many, newest first.")] = 20,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """What you lent and what came of it, newest first; administrators see everybody's."""
    answer = find_gateway(url, token).get("/v1/grants", limit=limit)
    found: list[dict[str, Any]] = answer["grants"]
    if json:
        printer.json(answer)
    elif not found:
        printer.line("Nothing was lent yet: deputize token exchange --agent NAME lends something.")
    else:
        rows = [(each["grant_id"], each["state"], _who(each), _until(each), _what(each)) for each in found]
        printer.table(("grant", "state", "who", "until", "what"), rows)


def _who(grant: dict[str, Any]) -> str:
    return " for ".join((*grant["agents"], grant["user"]))


def _until(grant: dict[str, Any]) -> str:
    return str(grant["not_after"]).partition("+")[0].partition(".")[0].replace("T", " ")


def _what(grant: dict[str, Any]) -> str:
    tools = grant["tools"]
    named = "" if tools is None else f", {' '.join(each['tool_id'] for each in tools) or 'no tools'}"
    ceiling = f", at most {grant['ceiling']}" if grant["ceiling"] else ""
    task = f", task {grant['task']}" if grant["task"] else ""
    return f"{' '.join(grant['scopes']) or 'no scopes'}{named}{ceiling}{task}"


@group.command(epilog="Example: deputize grants show 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def show(grant_id: GrantId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Everything that is kept of one delegation."""
    value = find_gateway(url, token).get(_path(grant_id))
    if json:
        printer.json(value)
    else:
        printer.line(pretty(value))


@group.command(epilog="Example: deputize grants revoke 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def revoke(grant_id: GrantId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Take a delegation back, with everything made from it: from the answer on, nothing begins on it anywhere."""
    answer = find_gateway(url, token).send("DELETE", _path(grant_id)).value
    if json:
        printer.json(answer)
    printer.good(f"{answer['grant_id']} is taken back, with everything that was made from it")


def _path(grant_id: str) -> str:
    return f"/v1/grants/{quote(grant_id, safe='')}"
