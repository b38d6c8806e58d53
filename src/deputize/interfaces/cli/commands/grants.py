"""Define `deputize grants`: list, show and revoke delegations to agents."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from deputize.interfaces.cli.client.target import Token, Url, find_gateway
from deputize.interfaces.cli.render.output import Json, format_json, printer

group = typer.Typer(no_args_is_help=True, help="List, show and revoke delegations to agents.")

GrantId = Annotated[str, typer.Argument(metavar="ID", help="Id of the grant, as printed by deputize token exchange.")]


@group.command("list", epilog="Example: deputize grants list")
def list_grants(
    limit: Annotated[int, typer.Option(min=1, max=200, help="Show at most this many, newest first.")] = 20,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """List your delegations and those derived from them, newest first. Administrators see all."""
    answer = find_gateway(url, token).get("/v1/grants", limit=limit)
    grants: list[dict[str, Any]] = answer["grants"]
    if json:
        printer.json(answer)
    elif not grants:
        printer.line("No delegations yet. Create one: deputize token exchange --agent NAME")
    else:
        rows = [
            (each["grant_id"], each["state"], _describe_caller(each), _format_expiry(each), _describe_authority(each))
            for each in grants
        ]
        printer.table(("grant", "state", "delegated to", "expires", "authority"), rows)


def _describe_caller(grant: dict[str, Any]) -> str:
    return " for ".join((*grant["agents"], grant["user"]))


def _format_expiry(grant: dict[str, Any]) -> str:
    return str(grant["not_after"]).partition("+")[0].partition(".")[0].replace("T", " ")


def _describe_authority(grant: dict[str, Any]) -> str:
    tools = grant["tools"]
    tool_list = "" if tools is None else f", {' '.join(each['tool_id'] for each in tools) or 'no tools'}"
    max_effect = f", at most {grant['ceiling']}" if grant["ceiling"] else ""
    task = f", task {grant['task']}" if grant["task"] else ""
    return f"{' '.join(grant['scopes']) or 'no scopes'}{tool_list}{max_effect}{task}"


@group.command(epilog="Example: deputize grants show 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def show(grant_id: GrantId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Show everything recorded about a delegation."""
    value = find_gateway(url, token).get(_build_grant_path(grant_id))
    if json:
        printer.json(value)
    else:
        printer.line(format_json(value))


@group.command(epilog="Example: deputize grants revoke 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def revoke(grant_id: GrantId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Revoke a delegation and all derived from it. Takes effect on every gateway before the command returns."""
    answer = find_gateway(url, token).send("DELETE", _build_grant_path(grant_id)).value
    if json:
        printer.json(answer)
    printer.success(f"Revoked {answer['grant_id']} and all grants derived from it")


def _build_grant_path(grant_id: str) -> str:
    return f"/v1/grants/{quote(grant_id, safe='')}"
