"""Define `deputize webhooks`: list and retry failed deliveries, and show the signing key."""

from typing import Annotated, Any

import typer

from deputize.interfaces.cli.client.confirmation import Code, OperatorRequests
from deputize.interfaces.cli.client.target import Token, Url, find_gateway
from deputize.interfaces.cli.render.output import Json, printer

group = typer.Typer(no_args_is_help=True, help="List and retry failed callbacks, and show the signing key.")


@group.command(epilog="Example: deputize webhooks deadletters")
def deadletters(
    limit: Annotated[int, typer.Option(min=1, max=200, help="Show at most this many, newest first.")] = 50,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """List deliveries that failed after all retries. Only the host of each URL is shown."""
    answer = find_gateway(url, token).get("/v1/webhooks/deadletters", limit=limit)
    deliveries: list[dict[str, Any]] = answer["deadletters"]
    if json:
        printer.json(answer)
    elif not deliveries:
        printer.line("No dead letters: every callback was delivered, or is still being retried.")
    else:
        rows = [
            (each["id"], each["call_id"], each["state"], each["host"], str(each["attempts"]), each["problem"] or "")
            for each in deliveries
        ]
        printer.table(("delivery", "call", "state", "host", "attempts", "problem"), rows)


@group.command(epilog="Example: deputize webhooks retry 5c6f4e0a-8d0b-4c7e-9f1a-2b3c4d5e6f70")
def retry(
    delivery_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the delivery, as shown by deputize webhooks deadletters.")
    ],
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Retry a delivery, with as many attempts as a new one."""
    from urllib.parse import quote

    path = f"/v1/webhooks/deadletters/{quote(delivery_id, safe='')}/retry"
    answer = find_gateway(url, token).post(path).value
    if json:
        printer.json(answer)
    printer.success(f"Delivery queued again: the outcome of call {answer['call_id']}")


@group.command(epilog="Example: deputize webhooks key --host billing.example.com")
def key(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of the key: the secret of callbacks, the name of an event sink, or approvals."
        ),
    ] = "default",
    host: Annotated[str, typer.Option(help="Host of the receiver, for the key of callbacks to it.")] = "",
    code: Code = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Print the key that verifies signatures, in the format of Standard Webhooks. Needs an operator; recorded."""
    from urllib.parse import urlencode

    requests = OperatorRequests(find_gateway(url, token), code)
    query = urlencode({"name": name, "host": host} if host else {"name": name})
    answer = requests.send("GET", f"/v1/webhooks/key?{query}", None)
    if json:
        printer.json(answer)
    else:
        printer.line(answer["secret"])
