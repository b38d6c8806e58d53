"""Define `deputize secrets`: store, list and delete the secrets that tools use.

A value is typed or piped, never an argument, because arguments show in the shell's history and the process list.
"""

import sys
from typing import Annotated, Any

import typer

from deputize.interfaces.cli.client.confirmation import Code, OperatorRequests
from deputize.interfaces.cli.client.target import Token, Url, find_gateway
from deputize.interfaces.cli.local.standard_input import read_standard_input
from deputize.interfaces.cli.render.output import Json, exit_with_error, printer

group = typer.Typer(no_args_is_help=True, help="Store, list and delete the secrets that tools use.")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the secret in tool contracts, for example crm/api-key.")
]


@group.command("set", epilog="Example: deputize secrets set crm/api-key < key.txt")
def set_secret(name: Name, code: Code = "", url: Url = "", token: Token = "", json: Json = False) -> None:
    """Store or replace a secret. Prompts for the value, or reads it from a pipe. Needs an operator."""
    gateway = find_gateway(url, token)
    answer = OperatorRequests(gateway, code).send("POST", "/v1/secrets", {"name": name, "value": _read_value(name)})
    if json:
        printer.json(answer)
    action = "Stored" if answer["put"] == "created" else "Replaced"
    printer.success(f"{action} {answer['name']}; the next call that needs it uses it")


def _read_value(name: str) -> str:
    if sys.stdin.isatty():
        answer: str = typer.prompt(
            f"Value of {name}", hide_input=True, confirmation_prompt="Repeat the value", err=True
        )
        return answer
    value = read_standard_input("The value")
    # echo and editors add a final line break that is not part of the secret.
    value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        exit_with_error(
            "No value was piped in: run the command in a terminal to type it, or pipe it, as in "
            "deputize secrets set NAME < file."
        )
    return value


@group.command("list", epilog="Example: deputize secrets list")
def list_secrets(url: Url = "", token: Token = "", json: Json = False) -> None:
    """List the names of your tenant's secrets. Values are never shown."""
    answer = find_gateway(url, token).get("/v1/secrets")
    secrets: list[dict[str, Any]] = answer["secrets"]
    if json:
        printer.json(answer)
    elif not secrets:
        printer.line("No secrets yet. Store one: deputize secrets set NAME")
    else:
        rows = [
            (each["name"], each["updated_at"].partition(".")[0].replace("T", " "), each["updated_by"])
            for each in secrets
        ]
        printer.table(("secret", "updated", "by"), rows)


@group.command(epilog="Example: deputize secrets delete crm/api-key")
def delete(name: Name, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Delete a secret. Calls that need it are then refused before they start."""
    from urllib.parse import quote

    answer = find_gateway(url, token).send("DELETE", f"/v1/secrets?name={quote(name, safe='')}").value
    if json:
        printer.json(answer)
    printer.success(f"Deleted {answer['name']}; calls that need it are refused from now on")
