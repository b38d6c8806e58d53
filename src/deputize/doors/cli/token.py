"""`deputize token`: tokens of the development issuer for one machine, and a token in hand lent to an agent."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from deputize.doors.cli.output import Json, counted, give_up, lasting, printer, require_behind
from deputize.doors.cli.project import enter_project, load_settings
from deputize.doors.cli.remote import Effect, Refused, Token, Url, find_gateway, tool_path

if TYPE_CHECKING:
    from deputize.doors.cli.exchange import Gateway

group = typer.Typer(invoke_without_command=True, help="Make a token for deputize dev, or lend the one in hand.")

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
Scope = Annotated[list[str] | None, typer.Option(help="A scope it carries; repeat for more.")]
Tool = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME[@RANGE]", help="A tool it is limited to; repeat for more. None limits nothing."),
]


@group.callback(epilog="Example: deputize token --agent billing-bot --scope notes:write --tool 'hello.remember@^0.1'")
def token(
    context: typer.Context,
    user: Annotated[str, typer.Option(help="Whose authority it is.")] = "developer",
    agent: Annotated[str | None, typer.Option(help="Who acts for that user.")] = None,
    scope: Scope = None,
    tool: Tool = None,
    minutes: Annotated[int, typer.Option(min=1, max=43_200, help="How long it is valid.")] = 60,
    tenant: Annotated[str | None, typer.Option(help="The tenant it speaks for; default: the one of [tools].")] = None,
    json: Json = False,
) -> None:
    """Make a token for deputize dev, signed with this project's own key. deputize serve refuses it."""
    if context.invoked_subcommand is not None:
        require_behind(context)
        return
    from deputize.doors.cli.development import make_folder
    from deputize.govern.identity.development import mint

    enter_project(required=True)
    settings = load_settings()
    scopes = _scopes(scope)
    make_folder(settings.folder)
    made = mint(
        settings.folder,
        subject=user,
        agent=agent,
        scopes=scopes,
        tools=dict(_capability(each) for each in tool) if tool else None,
        tenant=tenant or settings.tools.tenant,
        lifetime=minutes * 60,
    )
    if json:
        printer.json({"token": made, "user": user, "agent": agent, "scopes": scopes, "minutes": minutes})
    printer.line(made)
    who = f"{agent} for {user}" if agent else user
    printer.aside(f"  for {who}, {counted(minutes, 'minute')}, {_carries(scopes)}")
    printer.aside("  a development token: deputize dev takes it, deputize serve refuses it")


@group.command(epilog="Example: deputize token exchange --agent billing-bot --scope notes:write --lifetime 15m")
def exchange(
    agent: Annotated[str, typer.Option(help="Who receives it; you vouch for the name.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="A scope it carries; repeat for more. Default: all of yours but admin.")
    ] = None,
    tool: Tool = None,
    ceiling: Annotated[
        Effect | None, typer.Option(metavar="EFFECT", help="The worst it may do: read, write or destructive.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="What it is for; it stays with the token.")] = None,
    lifetime: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long, as in 90s, 15m or 2h; never longer than your token.")
    ] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Lend an agent part of what your token may do. Taken back with deputize grants revoke."""
    from json import dumps

    scopes = _scopes(scope)
    tools = [{"tool_id": name, "version_range": versions} for name, versions in map(_capability, tool or ())]
    seconds = None if lifetime is None else _seconds(lifetime)
    gateway = find_gateway(url, token)
    asked = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": gateway.token,
        "subject_token_type": _ACCESS_TOKEN,
        "agent": agent,
        "scope": " ".join(scopes) or None,
        "tools": dumps(tools) if tools else None,
        "ceiling": ceiling,
        "task": task,
        "lifetime": None if seconds is None else str(seconds),
    }
    answer = gateway.form("/oauth/token", {name: value for name, value in asked.items() if value is not None})
    if json:
        printer.json(answer)
    printer.line(answer["access_token"])
    lasts = lasting(answer["expires_in"])
    printer.aside(f"  for {agent}, {lasts}, {_carries(answer['scope'].split())}")
    if seconds is not None and answer["expires_in"] < seconds:
        printer.warn(f"it lasts {lasts}, not {lasting(seconds)}: your own token or this gateway allows no more")
    _warn_of_unseen(gateway, [each["tool_id"] for each in tools])
    printer.aside(f"  taken back with: deputize grants revoke {answer['grant_id']}")


def _warn_of_unseen(gateway: "Gateway", names: list[str]) -> None:
    """A tool may come later, so a name that nobody knows yet can be lent; most often it is misspelt."""
    for name in names:
        try:
            gateway.get(tool_path(name))
        except Refused as refused:
            if refused.slug == "tool-not-found":
                printer.warn(f"it is lent all the same, but {refused.problem.get('detail', f'{name} is not there')}")


def _carries(scopes: list[str]) -> str:
    return f"scopes {' '.join(scopes)}" if scopes else "no scopes, so it may call only tools that need none"


def _scopes(given: list[str] | None) -> list[str]:
    scopes = sorted(set(given or ()))
    for each in scopes:
        if not each.isascii() or not each.isprintable() or " " in each or not each:
            give_up(f"{each!r} cannot be a scope: use printable characters without spaces, as in notes:write.")
    return scopes


def _seconds(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text.strip())
    if match is None:
        give_up(f"--lifetime {text}: write it like 90s, 15m, 2h or 1d.")
    return int(match[1]) * _SECONDS[match[2]]


def _capability(text: str) -> tuple[str, str]:
    from deputize.catalog.versions import NotARange, parse_range
    from deputize.core.contract import inward

    name, _, versions = text.partition("@")
    try:
        parse_range(versions or "*")
    except NotARange as error:
        give_up(f"--tool {text}: {error}.")
    return inward(name), versions or "*"
