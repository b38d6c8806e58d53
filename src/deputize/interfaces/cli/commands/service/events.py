"""Define `deputize events`: how far events have reached their receivers, and the one that a receiver refuses."""

import sys
from typing import Annotated
from uuid import UUID

import typer

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.client.target import OperatorToken
from deputize.interfaces.cli.local.project_file import enter_project, load_settings
from deputize.interfaces.cli.render.output import Json, printer

group = typer.Typer(
    no_args_is_help=True, help="Show the event sinks, and skip what one refuses. For the operator, at the database."
)


@group.callback()
def _events() -> None:
    """Show the event sinks, and skip what one refuses. For the operator, at the database."""


@group.command(epilog="Example: deputize events status")
def status(json: Json = False) -> None:
    """Show how many events each sink has got, how many wait and since when, and the last error."""
    from deputize.interfaces.cli.local.event_status import load_sink_status

    enter_project()
    sinks = load_sink_status(load_settings())
    if json:
        printer.json({"sinks": sinks})
        return
    if not sinks:
        printer.line("No event sink is configured: add [[events.sinks]] to deputize.toml.")
        return
    rows = [
        (
            each["name"],
            each["kind"] or "",
            each["state"],
            str(each["sent"]),
            "" if each["waiting"] is None else str(each["waiting"]),
            "" if each["lag_seconds"] is None else f"{each['lag_seconds']:.1f} s",
        )
        for each in sinks
    ]
    printer.table(("sink", "kind", "state", "sent", "waiting", "lag"), rows)
    for each in sinks:
        if each["last_error"]:
            printer.line(f"{each['name']}: last error at {each['last_error_at']}: {each['last_error']}")


@group.command(epilog="Example: deputize events skip siem --tenant acme --event 0199d8a0-5b1e-7c3a-9f21-0a1b2c3d4e5f")
def skip(
    sink: Annotated[str, typer.Argument(help="The sink whose receiver refuses the event.")],
    tenant: Annotated[str, typer.Option(help="The tenant whose event it is.")],
    event: Annotated[UUID, typer.Option(help="The id of the event; deputize events status shows it.")],
    token: OperatorToken = "",
    json: Json = False,
) -> None:
    """Skip an event that a receiver refuses for good: it never gets it, and the tenant's next events are sent.

    Only the next event of the tenant can be skipped. The audit log records it, and who did it. In production with the
    token of an operator who signed in within the last minutes; in development at the terminal.
    """
    from deputize.interfaces.cli.local.event_skip import skip_next_event

    enter_project()
    skip_next_event(load_settings(), sink, tenant, str(event), token=token, confirm=_require_yes)
    if json:
        printer.json({"sink": sink, "tenant": tenant, "skipped": str(event)})
    printer.success(f"Skipped: {sink} never gets event {event} of {tenant}. The next ones are sent within seconds.")


def _require_yes() -> None:
    if not sys.stdin.isatty():
        raise ConfigError("A person has to confirm this: run deputize events skip in a terminal.")
    if typer.prompt("Type skip to leave out this event", default="", show_default=False) != "skip":
        raise ConfigError("Nothing was skipped.")
