"""`deputize switch`: the kill switch. What is off begins nothing, on any gateway, until it is turned on again."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from deputize.doors.cli.output import Json, give_up, printer
from deputize.doors.cli.remote import Token, Url, find_gateway

group = typer.Typer(no_args_is_help=True, help="Switch a tool, an agent or the whole tenant off, and on again.")


class Kind(StrEnum):
    TOOL = "tool"
    AGENT = "agent"
    TENANT = "tenant"


What = Annotated[Kind, typer.Argument(metavar="KIND", help="What it is: tool, agent or tenant.")]
Value = Annotated[
    str, typer.Argument(metavar="NAME", help="Its name, as in crm.delete_user; your own tenant needs none.")
]


@group.command(epilog="Example: deputize switch off tool crm.delete_user --reason 'it deletes the wrong ones'")
def off(
    kind: What,
    name: Value = "",
    reason: Annotated[str, typer.Option(help="Told to everybody who is refused because of it.")] = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Switch it off: from the answer on, no call of it, or by it, begins on any gateway."""
    answer = _turn(url, token, kind, name, off=True, reason=reason)
    if json:
        printer.json(answer)
    printer.good(f"the {answer['kind']} {answer['value']} is off; turn it on with {_back(answer)}")


@group.command(epilog="Example: deputize switch on tool crm.delete_user")
def on(kind: What, name: Value = "", url: Url = "", token: Token = "", json: Json = False) -> None:
    """Switch it on again; what is on already stays on."""
    answer = _turn(url, token, kind, name, off=False)
    if json:
        printer.json(answer)
    printer.good(f"the {answer['kind']} {answer['value']} is on")


@group.command("list", epilog="Example: deputize switch list")
def list_switches(url: Url = "", token: Token = "", json: Json = False) -> None:
    """What is off now, who turned it off, and why."""
    answer = find_gateway(url, token).get("/v1/switches")
    found: list[dict[str, Any]] = answer["switches"]
    if json:
        printer.json(answer)
    elif not found:
        printer.line("Nothing is switched off.")
    else:
        rows = [
            (each["kind"], each["value"], each["since"].partition("+")[0].replace("T", " "), each["by"], each["reason"])
            for each in found
        ]
        printer.table(("kind", "name", "since", "by", "reason"), rows)


def _turn(url: str, token: str, kind: Kind, name: str, *, off: bool, reason: str = "") -> dict[str, Any]:
    if not name and kind is not Kind.TENANT:
        give_up(f"Which {kind}? Name it, as in deputize switch {'off' if off else 'on'} {kind} NAME.")
    asked = {"kind": kind, "value": name, "off": off, "reason": reason}
    turned: dict[str, Any] = find_gateway(url, token).post("/v1/switches", asked).value
    return turned


def _back(answer: dict[str, Any]) -> str:
    name = "" if answer["kind"] == "tenant" else f" {answer['value']}"
    return f"deputize switch on {answer['kind']}{name}"
