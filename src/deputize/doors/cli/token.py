"""`deputize token`: tokens of the development issuer, for one machine and its `deputize dev`."""

from typing import Annotated

import typer

from deputize.doors.cli.output import Json, counted, give_up, printer
from deputize.doors.cli.project import enter_project, load_settings


def token(
    user: Annotated[str, typer.Option(help="Whose authority it is.")] = "developer",
    agent: Annotated[str | None, typer.Option(help="Who acts for that user.")] = None,
    scope: Annotated[list[str] | None, typer.Option(help="A scope it carries; repeat for more.")] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[@RANGE]", help="A tool it is limited to; repeat for more. None limits nothing."),
    ] = None,
    minutes: Annotated[int, typer.Option(min=1, max=43_200, help="How long it is valid.")] = 60,
    tenant: Annotated[str | None, typer.Option(help="The tenant it speaks for; default: the one of [tools].")] = None,
    json: Json = False,
) -> None:
    """Make a token for deputize dev, signed with this project's own key. deputize serve refuses it."""
    from deputize.doors.cli.development import make_folder
    from deputize.govern.identity.development import mint

    enter_project(required=True)
    settings = load_settings()
    scopes = sorted(set(scope or ()))
    for each in scopes:
        if not each.isascii() or not each.isprintable() or " " in each or not each:
            give_up(f"{each!r} cannot be a scope: use printable characters without spaces, as in notes:write.")
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
    carries = f"scopes {' '.join(scopes)}" if scopes else "no scopes, so it may call only tools that need none"
    printer.aside(f"  for {who}, {counted(minutes, 'minute')}, {carries}")
    printer.aside("  a development token: deputize dev takes it, deputize serve refuses it")


def _capability(text: str) -> tuple[str, str]:
    from deputize.catalog.versions import NotARange, parse_range
    from deputize.core.contract import inward

    name, _, versions = text.partition("@")
    try:
        parse_range(versions or "*")
    except NotARange as error:
        give_up(f"--tool {text}: {error}.")
    return inward(name), versions or "*"
