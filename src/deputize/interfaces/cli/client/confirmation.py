"""Send administrative requests that an operator confirms with a code from the terminal of `deputize dev`."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.client.refusal import GatewayRefusal
from deputize.interfaces.cli.render.output import exit_with_error, printer

if TYPE_CHECKING:
    from deputize.interfaces.cli.client.rest_client import GatewayClient

_SLUG, _RULE = "operator-confirmation-required", "operator-terminal-code"

Code = Annotated[
    str,
    typer.Option(metavar="CODE", help="In development: the code that the terminal of deputize dev shows for this act."),
]


class OperatorRequests:
    """Requests that an operator confirms. The code that was given confirms one of them; a terminal asks for more."""

    def __init__(self, gateway: "GatewayClient", code: str) -> None:
        self._gateway = gateway
        self._code = code.strip()
        if not self._code.isascii() or not self._code.isprintable():
            exit_with_error(
                "The code is invalid: it has eight letters and digits, as the terminal of deputize dev shows."
            )

    def send(self, method: str, path: str, body: Any) -> Any:
        """Send a request and return its value. If it needs a code, send it again with the code.

        The first request shows the code in the terminal of `deputize dev`, which is valid for this request only.
        """
        try:
            return self._gateway.send(method, path, body).value
        except GatewayRefusal as refusal:
            code, self._code = self._code, ""
            if not _needs_code(refusal):
                raise
            if not code and not printer.as_json and sys.stdin.isatty() and sys.stderr.isatty():
                printer.note(f"  {_describe_act(refusal)}")
                code = typer.prompt("Code shown in the terminal of deputize dev", err=True).strip()
            if not code:
                raise
        return self._gateway.send(method, path, body, {"Deputize-Confirmation": code}).value


def _describe_act(refusal: GatewayRefusal) -> str:
    """Describe the act as the terminal of `deputize dev` does, so that a person can compare the two."""
    details = refusal.problem["error"]["details"]
    return f"Confirm {details.get('command')} {to_display_text(str(details.get('subject')))}"


def _needs_code(refusal: GatewayRefusal) -> bool:
    details = refusal.problem.get("error", {}).get("details") or {}
    return refusal.slug == _SLUG and details.get("rule") == _RULE and "confirmation_id" in details
