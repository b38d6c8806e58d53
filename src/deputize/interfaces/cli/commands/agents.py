"""Define `deputize agents`: list the agents that this gateway knows."""

from typing import Annotated, Any

import typer

from deputize.interfaces.cli.client.target import Token, Url, find_gateway
from deputize.interfaces.cli.render.output import Json, printer


def agents(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Show at most this many, by name.")] = 50,
    after: Annotated[str, typer.Option(metavar="NAME", help="Show only agents after this name.")] = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """List agents: whom they act for, their delegations, their last call, and whether they are revoked or off.

    You see those you delegated to and those that acted for you; administrators see all.
    """
    answer = find_gateway(url, token).get("/v1/agents", limit=limit, after=after)
    if json:
        printer.json(answer)
        return
    if not answer["agents"]:
        printer.line("No agents yet. Delegate to one: deputize token exchange --agent NAME")
        return
    rows = [
        (
            each["name"],
            ", ".join(_list_users(each)),
            str(each["active_grants"]),
            _describe_last_call(each["last_call"]),
            _describe_end(each),
        )
        for each in answer["agents"]
    ]
    printer.table(("agent", "acts for", "grants", "last call", ""), rows)
    if answer["next_after"]:
        printer.note(f"More: deputize agents --after {answer['next_after']}")


def _list_users(agent: dict[str, Any]) -> list[str]:
    last_user = (agent["last_call"] or {}).get("user")
    return list(dict.fromkeys([*agent["users"], *([last_user] if last_user else [])]))


def _describe_end(agent: dict[str, Any]) -> str:
    """Say what keeps the agent from acting: its revocation, or a kill switch, by whom and why."""
    if agent["revoked"]:
        return "revoked"
    switch = agent["switched_off"]
    if switch is None:
        return ""
    return f"off, by {switch['by']}" + (f": {switch['reason']}" if switch["reason"] else "")


def _describe_last_call(last_call: dict[str, Any] | None) -> str:
    if last_call is None:
        return "-"
    when = str(last_call["time"]).partition(".")[0].replace("T", " ")
    is_dry_run = last_call["dry_run"] and last_call["outcome"] == "succeeded"
    outcome = "dry run" if is_dry_run else last_call["outcome"]
    return " ".join(part for part in (when, last_call["tool"], outcome) if part)
