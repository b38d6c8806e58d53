"""`deputize secrets`: what tools act with, put where only they get at it. A value is typed or piped, never an argument:
arguments stand in the shell's history and in the list of processes.
"""

import sys
from typing import Annotated, Any

import typer

from deputize.doors.cli.output import Json, give_up, printer
from deputize.doors.cli.remote import Token, Url, find_gateway

group = typer.Typer(no_args_is_help=True, help="Put, list and delete secrets that tools act with.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="What contracts name it by, as in crm/api-key.")]


@group.command("set", epilog="Example: deputize secrets set crm/api-key < key.txt")
def put(name: Name, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Put a secret there, or another in its place. Asks for the value, or reads it from a pipe."""
    gateway = find_gateway(url, token)
    answer = gateway.post("/v1/secrets", {"name": name, "value": _value(name)}).value
    if json:
        printer.json(answer)
    told = "is there" if answer["put"] == "created" else "was replaced"
    printer.good(f"{answer['name']} {told}; the next call that needs it gets it")


def _value(name: str) -> str:
    if sys.stdin.isatty():
        typed: str = typer.prompt(f"Value of {name}", hide_input=True, confirmation_prompt="Once more", err=True)
        return typed
    value = sys.stdin.read()
    # echo and editors end a file with a line break that is not part of it.
    value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        give_up("Nothing was piped in: type the value when asked, or pipe it, as in deputize secrets set NAME < file.")
    return value


@group.command("list", epilog="Example: deputize secrets list")
def list_secrets(url: Url = "", token: Token = "", json: Json = False) -> None:
    """The names of your tenant's secrets. Nobody is shown a value."""
    answer = find_gateway(url, token).get("/v1/secrets")
    found: list[dict[str, Any]] = answer["secrets"]
    if json:
        printer.json(answer)
    elif not found:
        printer.line("No secrets yet: put one there with deputize secrets set NAME.")
    else:
        rows = [
            (each["name"], each["updated_at"].partition(".")[0].replace("T", " "), each["updated_by"]) for each in found
        ]
        printer.table(("secret", "put there", "by"), rows)


@group.command(epilog="Example: deputize secrets delete crm/api-key")
def delete(name: Name, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Take a secret away: from the answer on, calls that need it fail before they do anything."""
    from urllib.parse import quote

    answer = find_gateway(url, token).send("DELETE", f"/v1/secrets?name={quote(name, safe='')}").value
    if json:
        printer.json(answer)
    printer.good(f"{answer['name']} is deleted; calls that need it fail from now on")
