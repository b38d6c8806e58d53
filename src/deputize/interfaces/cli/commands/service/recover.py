"""Define `deputize recover`: go on with a database that was restored to an earlier time."""

import sys
from typing import TYPE_CHECKING, Any

import typer

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.client.target import OperatorToken
from deputize.interfaces.cli.local.project_file import enter_project, load_settings
from deputize.interfaces.cli.render.output import Json, format_count, printer

if TYPE_CHECKING:
    from deputize.interfaces.cli.local.recovery import RestoredDatabase

group = typer.Typer(
    no_args_is_help=True, help="Go on with a database that was restored to an earlier time. For the operator."
)

_CONSEQUENCES = (
    "Whatever gateways did in the time that is lost stays done, and the database does not know of it:",
    "- revocations, switches, policies and approvals of that time are gone: repeat them first, or right after;",
    "- open calls get the outcome UNKNOWN, open approval requests are void, tokens that gateways issued are refused;",
    "- for each tool's idempotency window, a write with a key that is not on record is answered with 409 restored,",
    "  until its caller states that it did not happen (did_not_happen).",
)


@group.command(epilog="Example: deputize recover confirm")
def confirm(token: OperatorToken = "", json: Json = False) -> None:
    """Confirm that the database is to be used although it went back in time. Gateways then go on by themselves.

    In production with the token of an operator who signed in within the last minutes; in development at the terminal.
    """
    from deputize.interfaces.cli.local.recovery import run_recovery

    enter_project()
    settings = load_settings()

    async def act(target: "RestoredDatabase") -> dict[str, Any]:
        if target.state.loss is None:
            return {"confirmed": False, "lineage": target.state.lineage}
        person, rule = await target.identify_person(token)
        _describe_loss(target)
        if person is None:
            _require_yes()
        recovery = await target.confirm(person, rule)
        if recovery is None:
            raise ConfigError("Nothing was changed: another operator has confirmed it meanwhile.")
        return {
            "confirmed": True,
            "lineage": recovery.lineage,
            "unknown_calls": recovery.unknown_calls,
            "void_approvals": recovery.void_approvals,
        }

    answer = run_recovery(settings, act)
    if json:
        printer.json(answer)
    if not answer["confirmed"]:
        printer.success("Nothing to confirm: the database has everything that this machine knows of")
        return
    printer.success(
        f"Lineage {answer['lineage']} has begun: {format_count(answer['unknown_calls'], 'call')} UNKNOWN, "
        f"{format_count(answer['void_approvals'], 'approval request')} void. Gateways go on within a second."
    )


def _describe_loss(target: "RestoredDatabase") -> None:
    printer.warn(f"The database at {target.address} went back in time: {target.state.loss}")
    for line in _CONSEQUENCES:
        printer.note(f"  {line}")


def _require_yes() -> None:
    if not sys.stdin.isatty():
        raise ConfigError("A person has to confirm this: run deputize recover confirm in a terminal.")
    if typer.prompt("Type recover to go on with this database", default="", show_default=False) != "recover":
        raise ConfigError("Nothing was changed: gateways stay stopped.")
