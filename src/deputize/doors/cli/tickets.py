"""`deputize tickets`: what the gateway could not find out by itself, asked of people."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from deputize.doors.cli.output import Json, pretty, printer
from deputize.doors.cli.remote import Token, Url, find_gateway

group = typer.Typer(no_args_is_help=True, help="See what waits for a person's answer, and answer it.")

TicketId = Annotated[str, typer.Argument(metavar="ID", help="The id that deputize tickets list shows.")]


class Which(StrEnum):
    OPEN = "open"
    RESOLVED = "resolved"
    EXPIRED = "expired"
    ALL = "all"


class Found(StrEnum):
    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"


@group.command("list", epilog="Example: deputize tickets list --state all")
def list_tickets(
    state: Annotated[Which, typer.Option(help="Which ones to show.")] = Which.OPEN,
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most so many, newest first.")] = 20,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Only tickets older than this one.")] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Calls of which nobody knows whether they happened, until somebody finds out."""
    answer = find_gateway(url, token).get("/v1/tickets", state=state.value, limit=limit, before=before)
    found: list[dict[str, Any]] = answer["tickets"]
    if json:
        printer.json(answer)
    elif not found:
        printer.line("No ticket waits for an answer." if state is Which.OPEN else "No such tickets.")
    else:
        rows = [
            (each["ticket_id"], each["state"], each["call"]["tool"]["name"], _when(each), each["question"]["why"])
            for each in found
        ]
        printer.table(("ticket", "state", "tool", "since", "why"), rows)


@group.command(epilog="Example: deputize tickets show 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def show(ticket_id: TicketId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """What is asked, about which call, and what is known of it."""
    value = find_gateway(url, token).get(_path(ticket_id))
    if json:
        printer.json(value)
    else:
        printer.line(pretty(value))


@group.command(
    epilog="Example: deputize tickets resolve 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b happened --reason 'seen in the CRM'"
)
def resolve(
    ticket_id: TicketId,
    outcome: Annotated[Found, typer.Argument(help="What you found out: happened or did_not_happen.")],
    reason: Annotated[str, typer.Option(help="How you know; kept, and told to who made the call.")],
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Settle the call: it happened, or it did not and may be asked for again under the same key."""
    asked = {"outcome": outcome.value, "reason": reason}
    answer = find_gateway(url, token).post(f"{_path(ticket_id)}/resolve", asked).value
    if json:
        printer.json(answer)
    printer.good(f"the call {answer['call']['call_id']} is {answer['call']['state']} now")


def _path(ticket_id: str) -> str:
    from urllib.parse import quote

    return f"/v1/tickets/{quote(ticket_id, safe='')}"


def _when(ticket: dict[str, Any]) -> str:
    return str(ticket["opened_at"]).partition(".")[0].replace("T", " ").removesuffix("+00:00")
