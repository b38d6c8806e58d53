"""`deputize webhooks`: what could not be delivered, trying it again, and the key that receivers check with."""

from typing import Annotated, Any

import typer

from deputize.doors.cli.output import Json, printer
from deputize.doors.cli.remote import Token, Url, find_gateway

group = typer.Typer(no_args_is_help=True, help="See callbacks that failed, try one again, show the signing key.")


@group.command(epilog="Example: deputize webhooks deadletters")
def deadletters(
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most so many, newest first.")] = 50,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Deliveries that were tried often enough, and given up. Of each address only the host is shown."""
    answer = find_gateway(url, token).get("/v1/webhooks/deadletters", limit=limit)
    found: list[dict[str, Any]] = answer["deadletters"]
    if json:
        printer.json(answer)
    elif not found:
        printer.line("No dead letters: everybody who asked to be called back was reached, or is still being tried.")
    else:
        rows = [
            (each["id"], each["call_id"], each["state"], each["host"], str(each["attempts"]), each["problem"] or "")
            for each in found
        ]
        printer.table(("delivery", "call", "state", "host", "tries", "problem"), rows)


@group.command(epilog="Example: deputize webhooks retry 5c6f4e0a-8d0b-4c7e-9f1a-2b3c4d5e6f70")
def retry(
    delivery_id: Annotated[str, typer.Argument(metavar="ID", help="The delivery, as deadletters lists it.")],
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Try a delivery again, with as many attempts as a new one."""
    from urllib.parse import quote

    path = f"/v1/webhooks/deadletters/{quote(delivery_id, safe='')}/retry"
    answer = find_gateway(url, token).post(path).value
    if json:
        printer.json(answer)
    printer.good(f"due again: the end of call {answer['call_id']}")


@group.command(epilog="Example: deputize webhooks key billing")
def key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which key: the secret that callbacks name.")] = "default",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """The key to check signatures with, as Standard Webhooks write it. That it was shown is on record."""
    answer = find_gateway(url, token).get("/v1/webhooks/key", name=name)
    if json:
        printer.json(answer)
    else:
        printer.line(answer["secret"])
