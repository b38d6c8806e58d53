"""`deputize tool`: what tools there are, what one takes, and for administrators what becomes of it."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from deputize.doors.cli.output import REFUSED, Json, Stopped, counted, flat, give_up, pretty, printer
from deputize.doors.cli.remote import Effect, Token, Url, complete_tool, find_gateway, tool_path

group = typer.Typer(no_args_is_help=True, help="List, search, show, check, register and retire tools.")

Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_tool, help="The tool, as in hello.greet.")]
ToolFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", resolve_path=True, help="A Python file with @tool, or a YAML or JSON manifest."),
]


class Standing(StrEnum):
    LOADED = "loaded"
    DEFERRED = "deferred"
    BLOCKED = "blocked"
    EXCLUDED = "excluded"


@group.command("list", epilog="Example: deputize tool list")
def list_tools(url: Url = "", token: Token = "", json: Json = False) -> None:
    """The tools your token lets you see."""
    gateway = find_gateway(url, token)
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = gateway.get("/v1/tools", after=after, limit=500)
        found += page["tools"]
        after = page["next_after"]
    if json:
        printer.json({"tools": found})
    elif not found:
        printer.line("No tools yet: write one in tools/ and start deputize dev again, or register a manifest.")
    else:
        _table(found)


@group.command(epilog="Example: deputize tool surface --status blocked")
def surface(
    status: Annotated[
        Standing | None,
        typer.Option(help="Only tools that are loaded, deferred, blocked or excluded.", metavar="STATUS"),
    ] = None,
    namespace: Annotated[
        list[str] | None, typer.Option(help="Exclude what is in no such namespace; repeat for more.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Exclude what has no such tag; repeat for more.")] = None,
    worst: Annotated[
        Effect | None, typer.Option(metavar="EFFECT", help="Exclude what does worse than read, write or destructive.")
    ] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Where each tool stands for your token, and why."""
    gateway = find_gateway(url, token)
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = gateway.get("/v1/surface", after=after, limit=500, namespace=namespace, tag=tag, worst=worst)
        found += [each for each in page["tools"] if status in (None, each["status"])]
        after = page["next_after"]
    if json:
        printer.json({**page, "tools": found})
    elif not found:
        printer.line("No tools stand like that for your token.")
    else:
        printer.table(("tool", "version", "status", "reason", "by"), [_standing_row(each) for each in found])


def _standing_row(tool: dict[str, Any]) -> tuple[str, ...]:
    reason = tool["reason"]
    rules = ", ".join(f"{rule['id']} ({rule['where']})" if rule["where"] else rule["id"] for rule in reason["rules"])
    return (tool["name"], tool["version"], tool["status"], f"{reason['code']}: {reason['message']}", rules)


@group.command(epilog="Example: deputize tool search 'greet somebody'")
def search(
    query: Annotated[list[str], typer.Argument(metavar="WORDS", help="What the tool should do, or its name.")],
    limit: Annotated[int, typer.Option(min=1, max=50, help="At most so many, best first.")] = 10,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Tools that fit some words, best first."""
    answer = find_gateway(url, token).get("/v1/tools/search", q=" ".join(query), limit=limit)
    found: list[dict[str, Any]] = answer.get("tools") or answer.get("matches") or []
    if json:
        printer.json(answer)
    elif not found:
        printer.line("Nothing fits. Try fewer or other words, or deputize tool list.")
    else:
        _table(found)


def _table(found: list[dict[str, Any]]) -> None:
    rows = [
        (each["name"], each.get("version", ""), each.get("effects", ""), each.get("state", ""), _first_line(each))
        for each in found
    ]
    printer.table(("tool", "version", "effects", "state", "what it does"), rows)


def _first_line(shown: dict[str, Any]) -> str:
    return str(shown.get("title") or shown.get("description") or "").partition("\n")[0]


@group.command(epilog="Example: deputize tool show hello.greet")
def show(
    name: Name,
    version: Annotated[str | None, typer.Option(help="Version or range; default: the latest.")] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """What a tool does, takes and may change, with a call that works."""
    shown = find_gateway(url, token).get(tool_path(name), version=version)
    if json:
        printer.json(shown)
        return
    contract: dict[str, Any] = shown.get("contract") or {}
    printer.line(f"{shown['name']} {shown['version']} ({shown['state']}, {shown['effects']}, {shown['timeout_class']})")
    printer.line(f"  {shown['description']}")
    _arguments(shown["input_schema"])
    for effect in contract.get("resources") or ():
        printer.line(f"  may {effect['op']} {effect['resource']}/{effect['scope']}")
    if undo := contract.get("undo"):
        printer.line(f"  undo: {undo}")
    if scopes := shown.get("scopes"):
        printer.line(f"  needs: {' '.join(scopes)}")
    auth = contract.get("auth") or {}
    if auth.get("credential") == "vault":
        printer.line(f"  acts with: the secret {auth['secret']}")
    elif auth.get("credential") == "delegated":
        printer.line(f"  acts with: a token of its own for {auth.get('audience')}")
    for example in (shown.get("examples") or ())[:1]:
        printer.line(f"  try: deputize call {shown['name']} {flat(example)}".rstrip())
    printer.line(f"  digest: {shown['digest']}")


def _arguments(schema: dict[str, Any]) -> None:
    required = set(schema.get("required") or ())
    for name, part in (schema.get("properties") or {}).items():
        kind = part.get("type") or "value"
        kinds = " or ".join(kind) if isinstance(kind, list) else str(kind)
        need = "" if name in required else f", default {pretty(part['default'])}" if "default" in part else ", optional"
        printer.line(f"    {name}: {kinds}{need}. {part.get('description', '')}")


@group.command(epilog="Example: deputize tool versions hello.greet")
def versions(name: Name, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Every version of a tool that is registered, newest first."""
    found = find_gateway(url, token).get(f"{tool_path(name)}/versions")
    if json:
        printer.json(found)
        return
    rows = [(each["version"], each["state"], each["effects"], each["digest"][:19]) for each in found["versions"]]
    printer.table(("version", "state", "effects", "digest"), rows)


@group.command(epilog="Example: deputize tool register tools/lookup.yaml")
def register(file: ToolFile, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Register the tools of a file with a running gateway; the functions behind them must be loaded there."""
    gateway = find_gateway(url, token)
    checked = _checked(file)
    if checked.refusals:
        _show_refusals(checked.refusals, json)
        raise Stopped(REFUSED)
    made = [gateway.post("/v1/tools", contract.model_dump(mode="json")).value for contract in checked.contracts]
    if json:
        printer.json({"tools": made})
    for each in made:
        told = "registered" if each["registered"] == "created" else "was registered already, exactly like this"
        printer.good(f"{each['name']} {each['version']} {told}")


@group.command(epilog="Example: deputize tool retire hello.greet 0.1.0")
def retire(
    name: Name,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="The exact version, as in 0.1.0.")],
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Take a version out of use, for good: from the answer on, no call of it begins on any gateway."""
    answer = find_gateway(url, token).post(f"{tool_path(name)}/versions/{version}/state", {"state": "retired"}).value
    if json:
        printer.json(answer)
    printer.good(f"{answer['name']} {answer['version']} is retired; no call of it begins any more")


@group.command(epilog="Example: deputize tool check tools/hello.py")
def check(file: ToolFile, json: Json = False) -> None:
    """Whether the tools of a file would be admitted, with every reason why not. Needs no gateway."""
    checked = _checked(file)
    if json:
        tools = [{"name": each.full_name, "version": each.version} for each in checked.contracts]
        refused = [{"what": each.what, "file": each.file, "reasons": each.reasons} for each in checked.refusals]
        printer.json({"tools": tools, "refused": refused})
    else:
        for each in checked.contracts:
            printer.good(f"{each.full_name} {each.version} ({each.effects}) would be admitted")
        _show_refusals(checked.refusals, json)
    if checked.refusals:
        raise Stopped(REFUSED)
    if not checked.contracts:
        give_up(f"{file.name} declares no tools: put @tool before a function.")


def _checked(file: Path) -> Any:
    from deputize.doors.cli.loading import check_file

    if not file.is_file():
        give_up(f"There is no file {file}: check the name.")
    return check_file(file)


def _show_refusals(refusals: Any, json: bool) -> None:
    from deputize.doors.cli.development import show_refusals

    if json:
        return
    show_refusals(refusals, "would be refused")
    reasons = sum(len(each.reasons) for each in refusals)
    if refusals:
        printer.aside(f"  {counted(reasons, 'reason')}; mend them and check again")
