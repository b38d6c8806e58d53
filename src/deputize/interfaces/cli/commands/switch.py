"""Define `deputize switch`: the kill switch for tools, agents and tenants."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from deputize.interfaces.cli.client.confirmation import Code, OperatorRequests
from deputize.interfaces.cli.client.target import Token, Url, find_gateway
from deputize.interfaces.cli.render.output import Json, exit_with_error, printer

group = typer.Typer(no_args_is_help=True, help="Switch a tool, an agent or the whole tenant off and on.")


class SwitchKindOption(StrEnum):
    """Kinds of things that can be switched off."""

    TOOL = "tool"
    AGENT = "agent"
    TENANT = "tenant"


KindArgument = Annotated[
    SwitchKindOption, typer.Argument(metavar="KIND", help="What to switch: tool, agent or tenant.")
]
NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the tool or agent, for example crm.delete_user; not needed for your tenant."
    ),
]


@group.command(epilog="Example: deputize switch off tool crm.delete_user --reason 'it deletes the wrong users'")
def off(
    kind: KindArgument,
    name: NameArgument = "",
    reason: Annotated[str, typer.Option(help="Shown to every caller who is refused because of it.")] = "",
    unknown: Annotated[
        bool, typer.Option("--unknown", help="Switch off an agent of this name although none has acted here.")
    ] = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Refuse new calls of a tool, or by an agent or tenant, on every gateway before the command returns."""
    answer = _set_switch(url, token, kind, name, off=True, reason=reason, unknown=unknown)
    if json:
        printer.json(answer)
    printer.success(f"{answer['kind']} {answer['value']} is off. Switch it on: {_format_restore_command(answer)}")


@group.command(epilog="Example: deputize switch on tool crm.delete_user")
def on(
    kind: KindArgument,
    name: NameArgument = "",
    code: Code = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Allow calls again. Needs an operator."""
    answer = _set_switch(url, token, kind, name, off=False, code=code)
    if json:
        printer.json(answer)
    printer.success(f"{answer['kind']} {answer['value']} is on")


@group.command("list", epilog="Example: deputize switch list")
def list_switches(url: Url = "", token: Token = "", json: Json = False) -> None:
    """List what is switched off, by whom and why."""
    answer = find_gateway(url, token).get("/v1/switches")
    switches: list[dict[str, Any]] = answer["switches"]
    if json:
        printer.json(answer)
    elif not switches:
        printer.line("Nothing is switched off.")
    else:
        rows = [
            (each["kind"], each["value"], each["since"].partition("+")[0].replace("T", " "), each["by"], each["reason"])
            for each in switches
        ]
        printer.table(("kind", "name", "since", "by", "reason"), rows)


def _set_switch(
    url: str,
    token: str,
    kind: SwitchKindOption,
    name: str,
    *,
    off: bool,
    reason: str = "",
    code: str = "",
    unknown: bool = False,
) -> dict[str, Any]:
    if not name and kind is not SwitchKindOption.TENANT:
        exit_with_error(f"The {kind} is not named: write deputize switch {'off' if off else 'on'} {kind} NAME.")
    body = {"kind": kind, "value": name, "off": off, "reason": reason, **({"unknown": True} if unknown else {})}
    answer: dict[str, Any] = OperatorRequests(find_gateway(url, token), code).send("POST", "/v1/switches", body)
    return answer


def _format_restore_command(answer: dict[str, Any]) -> str:
    name = "" if answer["kind"] == "tenant" else f" {answer['value']}"
    return f"deputize switch on {answer['kind']}{name}"
