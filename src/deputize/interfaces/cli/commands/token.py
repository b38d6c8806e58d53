"""Define `deputize token`: create development tokens, and delegate a token's authority to an agent."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deputize.interfaces.cli.client.refusal import GatewayRefusal
from deputize.interfaces.cli.client.target import (
    EffectOption,
    Token,
    Url,
    build_tool_path,
    find_gateway,
)
from deputize.interfaces.cli.local.project_file import (
    enter_project,
    find_state_folder,
    is_client_folder,
    load_settings,
)
from deputize.interfaces.cli.render.output import (
    Json,
    exit_with_error,
    format_count,
    format_duration,
    printer,
    require_options_after_subcommand,
)

if TYPE_CHECKING:
    from deputize.interfaces.cli.client.rest_client import GatewayClient

group = typer.Typer(
    invoke_without_command=True, help="Create a token for deputize dev, or delegate your token to an agent."
)

_UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
Scope = Annotated[list[str] | None, typer.Option(help="A scope of the token; repeat for more.")]
Tool = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME[@RANGE]", help="Limit the token to this tool; repeat for more. Default: no limit."),
]


@group.callback(epilog="Example: deputize token --agent billing-bot --scope notes:write --tool 'hello.remember@^0.1'")
def token(
    context: typer.Context,
    user: Annotated[str, typer.Option(help="The user.")] = "developer",
    agent: Annotated[str | None, typer.Option(help="An agent that acts for the user.")] = None,
    scope: Scope = None,
    tool: Tool = None,
    minutes: Annotated[int, typer.Option(min=1, max=43_200, help="Minutes until the token expires.")] = 60,
    tenant: Annotated[str | None, typer.Option(help="The tenant. Default: tools.tenant of deputize.toml.")] = None,
    json: Json = False,
) -> None:
    """Create a token for deputize dev, signed with this project's key. deputize serve refuses it."""
    if context.invoked_subcommand is not None:
        require_options_after_subcommand(context)
        return
    from deputize.interfaces.cli.local.dev_tokens import mint_token

    enter_project(is_required=True)
    folder = find_state_folder()
    if is_client_folder(folder):
        exit_with_error(
            "The gateway of this project runs as another user, who keeps the key that signs tokens: run this as root, "
            "or use the token for agents with deputize call and deputize mcp."
        )
    settings = load_settings().model_copy(update={"folder": folder})
    scopes = _parse_scopes(scope)
    tools = dict(_parse_tools(tool)) if tool else None
    new_token = mint_token(settings, user=user, agent=agent, scopes=scopes, tools=tools, tenant=tenant, minutes=minutes)
    if json:
        printer.json({"token": new_token, "user": user, "agent": agent, "scopes": scopes, "minutes": minutes})
    printer.line(new_token)
    who = f"{agent} for {user}" if agent else user
    printer.note(f"  for {who}, {format_count(minutes, 'minute')}, {_describe_scopes(scopes)}")
    printer.note("  Only deputize dev accepts this development token.")


@group.command(epilog="Example: deputize token exchange --agent billing-bot --scope notes:write --lifetime 15m")
def exchange(
    agent: Annotated[str, typer.Option(help="Name of the agent that receives the token; you are responsible for it.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(help="A scope of the new token; repeat for more. Default: all of yours except admin."),
    ] = None,
    tool: Tool = None,
    max_effect: Annotated[
        EffectOption | None,
        typer.Option("--ceiling", metavar="EFFECT", help="Worst effect allowed: read, write or destructive."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="What the token is for; recorded with it.")] = None,
    constraints: Annotated[
        str | None, typer.Option(metavar="JSON", help="Conditions that each call must satisfy, as a JSON object.")
    ] = None,
    lifetime: Annotated[
        str | None, typer.Option(metavar="TIME", help="For example 90s, 15m or 2h; never longer than your token.")
    ] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Delegate part of your token's authority to an agent. Revoke it with deputize grants revoke."""
    from json import dumps

    scopes = _parse_scopes(scope)
    tools = [{"tool_id": name, "version_range": versions} for name, versions in _parse_tools(tool or ())]
    seconds = None if lifetime is None else _parse_seconds(lifetime)
    gateway = find_gateway(url, token)
    fields = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": gateway.token,
        "subject_token_type": _ACCESS_TOKEN,
        "agent": agent,
        "scope": " ".join(scopes) or None,
        "tools": dumps(tools) if tools else None,
        "ceiling": max_effect,
        "task": task,
        "constraints": constraints,
        "lifetime": None if seconds is None else str(seconds),
    }
    answer = gateway.post_form("/oauth/token", {name: value for name, value in fields.items() if value is not None})
    if json:
        printer.json(answer)
    printer.line(answer["access_token"])
    _describe_delegation(agent, answer, seconds)
    _warn_unknown_tools(gateway, [each["tool_id"] for each in tools])
    printer.note(f"  Revoke it: deputize grants revoke {answer['grant_id']}")


def _describe_delegation(agent: str, answer: dict[str, Any], seconds: int | None) -> None:
    duration = format_duration(answer["expires_in"])
    printer.note(f"  for {agent}, {duration}, {_describe_scopes(answer['scope'].split())}")
    if seconds is not None and answer["expires_in"] < seconds:
        printer.warn(
            f"The token is valid for {duration}, not {format_duration(seconds)}: your own token or this gateway "
            "allows no more."
        )


def _warn_unknown_tools(gateway: "GatewayClient", names: list[str]) -> None:
    """Warn about tools that are not registered: the name may be misspelt, although the tool may also come later."""
    for name in names:
        try:
            gateway.get(build_tool_path(name))
        except GatewayRefusal as error:
            if error.slug == "tool-not-found":
                detail = error.problem.get("detail", f"{name} is not registered")
                printer.warn(f"The token was created, but check the tool's name: {detail}")


def _describe_scopes(scopes: list[str]) -> str:
    return f"scopes {' '.join(scopes)}" if scopes else "no scopes: it can call only tools that need none"


def _parse_scopes(values: list[str] | None) -> list[str]:
    scopes = sorted(set(values or ()))
    for each in scopes:
        if not each.isascii() or not each.isprintable() or " " in each or not each:
            exit_with_error(f"--scope {each!r} is invalid: use printable characters without spaces, as in notes:write.")
    return scopes


def _parse_seconds(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text.strip())
    if match is None:
        exit_with_error(f"--lifetime {text} is not a duration: write it like 90s, 15m, 2h or 1d.")
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def _parse_tools(values: Iterable[str]) -> list[tuple[str, str]]:
    from deputize.interfaces.cli.local.arguments import ArgumentSyntaxError, parse_tool_range

    try:
        return [parse_tool_range(each) for each in values]
    except ArgumentSyntaxError as error:
        exit_with_error(str(error))
