"""Define `deputize tool`: list, search, show, write, check, compare, register and retire tools."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deputize.interfaces.cli.client.confirmation import Code, OperatorRequests
from deputize.interfaces.cli.client.target import EffectOption, Token, Url, build_tool_path, complete_tool, find_gateway
from deputize.interfaces.cli.render.contract import render_promises
from deputize.interfaces.cli.render.output import (
    EXIT_FAILED,
    CommandExit,
    Json,
    exit_with_error,
    format_arguments,
    format_count,
    format_json,
    printer,
)

if TYPE_CHECKING:
    from deputize.interfaces.cli.local.tool_diff import ToolDiff
    from deputize.interfaces.cli.local.tool_loader import ToolFileCheck

group = typer.Typer(no_args_is_help=True, help="Write, check, list, search, show, compare, register and retire tools.")

Name = Annotated[
    str, typer.Argument(metavar="NAME", autocompletion=complete_tool, help="The tool, for example hello.greet.")
]
ToolFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", resolve_path=True, help="A Python file with @tool, or a YAML or JSON manifest."),
]
_SHORTEST_DESCRIPTION = 10
SurfaceStatus = Literal["loaded", "deferred", "blocked", "excluded"]


@group.command("list", epilog="Example: deputize tool list")
def list_tools(url: Url = "", token: Token = "", json: Json = False) -> None:
    """List the tools that your token can see."""
    gateway = find_gateway(url, token)
    tools: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = gateway.get("/v1/tools", after=after, limit=500)
        tools += page["tools"]
        after = page["next_after"]
    if json:
        printer.json({"tools": tools})
    elif not tools:
        printer.line(
            "No tools. Write one in tools/, as deputize tool new does: deputize dev loads it when it is saved."
        )
    else:
        _print_tools(tools)


@group.command(epilog="Example: deputize tool surface --status blocked")
def surface(
    status: Annotated[
        SurfaceStatus | None,
        typer.Option(help="Show only tools that are loaded, deferred, blocked or excluded.", metavar="STATUS"),
    ] = None,
    namespace: Annotated[
        list[str] | None, typer.Option(help="Include only tools of this namespace; repeat for more.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Include only tools with this tag; repeat for more.")] = None,
    worst: Annotated[
        EffectOption | None,
        typer.Option(metavar="EFFECT", help="Include only tools up to this effect: read, write or destructive."),
    ] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Show for each tool whether your token can call it, and why."""
    gateway = find_gateway(url, token)
    tools: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = gateway.get("/v1/surface", after=after, limit=500, namespace=namespace, tag=tag, worst=worst)
        tools += [each for each in page["tools"] if status in (None, each["status"])]
        after = page["next_after"]
    if json:
        printer.json({**page, "tools": tools})
    elif not tools:
        printer.line("No matching tools.")
    else:
        printer.table(("tool", "version", "status", "reason", "rules"), [_make_surface_row(each) for each in tools])


def _make_surface_row(tool: dict[str, Any]) -> tuple[str, ...]:
    reason = tool["reason"]
    rules = ", ".join(f"{rule['id']} ({rule['where']})" if rule["where"] else rule["id"] for rule in reason["rules"])
    return (tool["name"], tool["version"], tool["status"], f"{reason['code']}: {reason['message']}", rules)


@group.command(epilog="Example: deputize tool search 'greet a person'")
def search(
    query: Annotated[list[str], typer.Argument(metavar="WORDS", help="What the tool should do, or its name.")],
    limit: Annotated[int, typer.Option(min=1, max=50, help="Show at most this many, best first.")] = 10,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Search tools by words, best match first."""
    answer = find_gateway(url, token).get("/v1/tools/search", q=" ".join(query), limit=limit)
    tools: list[dict[str, Any]] = answer.get("tools") or answer.get("matches") or []
    if json:
        printer.json(answer)
    elif not tools:
        printer.line("No matching tools. Try fewer or other words, or deputize tool list.")
    else:
        _print_tools(tools)


def _print_tools(tools: list[dict[str, Any]]) -> None:
    rows = [
        (each["name"], each.get("version", ""), each.get("effects", ""), each.get("state", ""), _summarize_tool(each))
        for each in tools
    ]
    printer.table(("tool", "version", "effects", "state", "description"), rows)


def _summarize_tool(tool: dict[str, Any]) -> str:
    return str(tool.get("title") or tool.get("description") or "").partition("\n")[0]


@group.command(epilog="Example: deputize tool show hello.greet")
def show(
    name: Name,
    version: Annotated[str | None, typer.Option(help="Version or range. Default: the latest.")] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Show a tool's description, arguments and effects, with an example call."""
    tool = find_gateway(url, token).get(build_tool_path(name), version=version)
    if json:
        printer.json(tool)
        return
    contract: dict[str, Any] = tool.get("contract") or {}
    printer.line(f"{tool['name']} {tool['version']} ({tool['state']}, {tool['effects']}, {tool['timeout_class']})")
    printer.line(f"  {tool['description']}")
    _print_arguments(tool["input_schema"])
    for effect in contract.get("resources") or ():
        printer.line(f"  may {effect['op']} {effect['resource']}/{effect['scope']}")
    if undo := contract.get("undo"):
        printer.line(f"  undo: {undo}")
    for line in render_promises(contract):
        printer.line(f"  {line}")
    if scopes := tool.get("scopes"):
        printer.line(f"  scopes: {' '.join(scopes)}")
    auth = contract.get("auth") or {}
    if auth.get("credential") == "vault":
        is_kept = tool.get("credential_lifetime") == "program"
        lifetime = ", which its program keeps in its environment for as long as it runs" if is_kept else ""
        printer.line(f"  credential: the secret {auth['secret']}{lifetime}")
    elif auth.get("credential") == "delegated":
        printer.line(f"  credential: a delegated token for {auth.get('audience')}")
    for example in (tool.get("examples") or ())[:1]:
        printer.line(f"  example: deputize call {tool['name']} {format_arguments(example)}".rstrip())
    printer.line(f"  digest: {tool['digest']}")


def _print_arguments(schema: dict[str, Any]) -> None:
    required_names = set(schema.get("required") or ())
    for name, part in (schema.get("properties") or {}).items():
        kind = part.get("type") or "value"
        kinds = " or ".join(kind) if isinstance(kind, list) else str(kind)
        suffix = (
            ""
            if name in required_names
            else f", default {format_json(part['default'])}"
            if "default" in part
            else ", optional"
        )
        printer.line(f"    {name}: {kinds}{suffix}. {part.get('description', '')}")


@group.command(epilog="Example: deputize tool versions hello.greet")
def versions(name: Name, url: Url = "", token: Token = "", json: Json = False) -> None:
    """List the registered versions of a tool, newest first."""
    answer = find_gateway(url, token).get(f"{build_tool_path(name)}/versions")
    if json:
        printer.json(answer)
        return
    rows = [(each["version"], each["state"], each["effects"], each["digest"][:19]) for each in answer["versions"]]
    printer.table(("version", "state", "effects", "digest"), rows)


@group.command(epilog="Example: deputize tool register tools/lookup.yaml")
def register(file: ToolFile, code: Code = "", url: Url = "", token: Token = "", json: Json = False) -> None:
    """Register the tools of a file with a running gateway that has loaded their functions. Needs an operator."""
    gateway = find_gateway(url, token)
    file_check = _check_file(file)
    if file_check.refusals:
        _print_check(file_check, json)
        raise CommandExit(EXIT_FAILED)
    requests = OperatorRequests(gateway, code)
    results = [requests.send("POST", "/v1/tools", each.model_dump(mode="json")) for each in file_check.contracts]
    if json:
        printer.json({"tools": results})
    for each in results:
        action = "Registered" if each["registration"] == "created" else "Already registered, unchanged:"
        printer.success(f"{action} {each['name']} {each['version']}")
        for warning in each.get("warnings") or ():
            printer.warn(warning)


@group.command(epilog="Example: deputize tool check tools/hello.py")
def check(
    file: ToolFile,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix", help="Write missing docstring lines and examples into the file, with CHANGEME for texts."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Check whether deputize dev and deputize serve register the tools of a file, and list every reason why not.

    Works offline, with all tool files of the project. Exits with 1 for what only deputize serve refuses, too.

    --fix writes what can be inferred and leaves everything else as it is; it never writes effects or scopes.
    """
    file_check = _check_file(file)
    if fix and file_check.source_gaps:
        file_check = _fix_file(file, file_check)
    _print_check(file_check, json)
    if file_check.refusals or file_check.gaps:
        raise CommandExit(EXIT_FAILED)
    if not file_check.contracts:
        exit_with_error(f"{file.name} declares no tools: write @tool above a function.")


@group.command("new", epilog="Example: deputize tool new stock.count --effects read")
def new_tool(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Namespace and name, for example stock.count.")],
    effects: Annotated[
        EffectOption | None,
        typer.Option(metavar="EFFECT", help="What it does to data: read, write (reversible) or destructive."),
    ] = None,
    description: Annotated[str, typer.Option(help="What it does, in one sentence.")] = "",
    json: Json = False,
) -> None:
    """Write a new tool into tools/NAMESPACE.py of this project. Asks what is not given; never overwrites a file."""
    from deputize.interfaces.cli.local.project_file import enter_project
    from deputize.interfaces.cli.local.tool_source.template import parse_tool_name, write_tool_file

    enter_project(is_required=True)
    parse_tool_name(name)
    effects = effects or _ask_effects()
    if not description and sys.stdin.isatty():
        description = typer.prompt("What does it do, in one sentence", default=f"Return {name}", show_default=False)
    if len(description) < _SHORTEST_DESCRIPTION:
        exit_with_error(
            f"--description is missing or has fewer than {_SHORTEST_DESCRIPTION} characters: say what it does."
        )
    file = write_tool_file(Path.cwd(), name, effects, description)
    path = str(file.relative_to(Path.cwd()))
    if json:
        printer.json({"tool": name, "file": path})
    printer.success(f"Created {path}: write what {name} does, then try deputize call {name} item=apple")


def _ask_effects() -> EffectOption:
    if not sys.stdin.isatty():
        exit_with_error("--effects is missing: write --effects read, write (a tool reverses it) or destructive.")
    printer.note(
        "What does it do to data? read: nothing. write: something that a tool reverses. destructive: the rest."
    )
    answer = typer.prompt("Effects (read, write, destructive)")
    for each in EffectOption:
        if answer.strip() == each:
            return each
    exit_with_error(f"{answer} is not one of read, write and destructive.")


@group.command(epilog="Example: deputize tool diff old/crm.yaml tools/crm.yaml")
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A tool file; or the name of a registered tool.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="A newer tool file; or the tool's older version.")],
    version: Annotated[str, typer.Argument(metavar="VERSION", help="The tool's newer version.")] = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Compare two versions for their callers: what breaks, what is added, and which number fits.

    Two files are compared offline. With a name and two versions, the gateway's own are compared.

    Exit codes: 0 the number fits, 1 the new version would be refused, 2 the command is wrong.
    """
    removed_names: list[str] = []
    new_names: list[str] = []
    if version:
        diffs = [_diff_versions(old, new, version, url, token)]
    else:
        diffs, removed_names, new_names = _diff_files(Path(old).resolve(), Path(new).resolve(), json)
    if json:
        tools = [each.to_json() for each in diffs]
        printer.json({"tools": tools, "only_old": removed_names, "only_new": new_names})
    for each in diffs:
        _print_diff(each)
    for name in removed_names:
        printer.note(f"  {name} is only in the old file: its registered versions stay until they are retired")
    for name in new_names:
        printer.note(f"  {name} is only in the new file")
    if any(each.refusal for each in diffs):
        raise CommandExit(EXIT_FAILED)


def _diff_versions(name: str, old: str, new: str, url: str, token: str) -> "ToolDiff":
    from deputize.interfaces.cli.local.tool_diff import diff_contracts, parse_shown_contract

    gateway, path = find_gateway(url, token), build_tool_path(name)
    before, after = (parse_shown_contract(gateway.get(path, version=version)) for version in (old, new))
    return diff_contracts(before, after)


def _diff_files(old: Path, new: Path, json: bool) -> "tuple[list[ToolDiff], list[str], list[str]]":
    from deputize.interfaces.cli.local.tool_diff import diff_files

    contracts = []
    for file in (old, new):
        file_check = _check_file(file)
        if file_check.refusals:
            _print_check(file_check, json)
            raise CommandExit(EXIT_FAILED)
        contracts.append(file_check.contracts)
    diffs, removed_names, new_names = diff_files(*contracts)
    if not diffs:
        exit_with_error(f"{old.name} and {new.name} have no tool in common: compare two files of the same tool.")
    return diffs, removed_names, new_names


def _print_diff(tool_diff: "ToolDiff") -> None:
    title = f"{tool_diff.name} {tool_diff.old} → {tool_diff.new}"
    what = f"a {tool_diff.level} change" if tool_diff.changes else "no change for callers"
    if tool_diff.refusal:
        printer.error(f"{title}: {what}; it would be refused")
        printer.note(f"  {tool_diff.refusal}")
    else:
        printer.success(f"{title}: {what}; the number fits")
    for each in tool_diff.changes:
        printer.line(f"  {each.level.label}  {each.path} {each.reason}")


def _check_file(file: Path) -> "ToolFileCheck":
    from deputize.interfaces.cli.local.tool_loader import check_tool_file

    if not file.is_file():
        what = "is not a file" if file.exists() else "does not exist"
        exit_with_error(f"{file} {what}: check the file name.")
    return check_tool_file(file)


def _fix_file(file: Path, file_check: "ToolFileCheck") -> "ToolFileCheck":
    from deputize.interfaces.cli.local.tool_source.source_edit import SourceNotEdited, edit_tool_file

    try:
        is_written = edit_tool_file(file, file_check.source_gaps)
    except SourceNotEdited as error:
        exit_with_error(f"{file.name} was not changed: {error}.", EXIT_FAILED)
    if not is_written:
        return file_check
    printer.success(f"Wrote missing lines into {file.name}: replace each CHANGEME, and check the rest")
    return _check_file(file)


def _print_check(file_check: "ToolFileCheck", json: bool) -> None:
    from deputize.interfaces.cli.local.tool_loader import print_reasons, print_refusals

    if json:
        tools = [{"name": each.full_name, "version": each.version} for each in file_check.contracts]
        refusals, gaps = (
            [{"what": each.what, "file": each.file, "reasons": each.reasons} for each in group]
            for group in (file_check.refusals, file_check.gaps)
        )
        printer.json({"tools": tools, "refused": refusals, "incomplete": gaps})
        return
    incomplete_tools = {each.what for each in file_check.gaps}
    for each in file_check.contracts:
        if f"{each.full_name} {each.version}" not in incomplete_tools:
            printer.success(f"{each.full_name} {each.version} ({each.effects}) can be registered")
    for gap in file_check.gaps:
        printer.warn(f"{gap.what} ({gap.file}) is incomplete: a warning in deputize dev, refused by deputize serve:")
        print_reasons(gap)
    print_refusals(file_check.refusals, "cannot be registered")
    reasons = sum(len(each.reasons) for each in (*file_check.refusals, *file_check.gaps))
    if reasons:
        printer.note(f"  Fix the {format_count(reasons, 'problem')}, then check again.")
