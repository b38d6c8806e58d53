"""Define `deputize services`: import HTTP and gRPC services from their documents, and list their operations."""

import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.local.project_file import SETTINGS_FILE, enter_project, load_settings
from deputize.interfaces.cli.render.output import (
    EXIT_FAILED,
    CommandExit,
    Json,
    exit_with_error,
    format_count,
    printer,
)

if TYPE_CHECKING:
    from deputize.core.contract.command import Command
    from deputize.core.contract.contract import Contract
    from deputize.interfaces.cli.local.service_import import ImportOptions, ImportPlan

group = typer.Typer(no_args_is_help=True, help="Import HTTP and gRPC services, and list their operations.")
# More rows than this are not read in a terminal; --json has all of them.
_MOST_ROWS = 40

_GLOB = "GLOB"

Name = Annotated[str | None, typer.Option(help="Name of the service. Default: from the document's title.")]
ServiceUrl = Annotated[
    str | None, typer.Option("--url", help="URL of the service. Default: the document's first server.")
]
Reads = Annotated[
    list[str] | None, typer.Option(metavar=_GLOB, help="These operations change nothing; repeat for more.")
]
Writes = Annotated[
    list[str] | None, typer.Option(metavar=_GLOB, help="Changes by these operations can be undone; repeat for more.")
]
Security = Annotated[
    str | None, typer.Option(help="Security scheme to use. Default: the one that most operations accept.")
]
AllowRef = Annotated[
    list[str] | None,
    typer.Option(metavar="URL|FOLDER", help="Include documents below it that are referred to; repeat for more."),
]
Plan = Annotated[bool, typer.Option("--plan", help="Print what would be imported, and write nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation of what changes in imported tools.")]


@group.command("import", epilog="Example: deputize services import petstore.yaml --name petstore --writes 'addPet'")
def import_service(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL", help="OpenAPI 3.0 or 3.1, manifest of HTTP tools or commands, or gRPC descriptor set."
        ),
    ],
    name: Name = None,
    service_url: ServiceUrl = None,
    include: Annotated[
        list[str] | None, typer.Option(metavar=_GLOB, help="Import only these operations; repeat for more.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar=_GLOB, help="Leave these operations out; repeat for more.")
    ] = None,
    reads: Reads = None,
    writes: Writes = None,
    security: Security = None,
    allow_ref: AllowRef = None,
    plan: Plan = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Import the operations of an HTTP or gRPC service as tools.

    The document is copied into the project and pinned in deputize.toml: the gateway serves what you reviewed and never
    fetches it again. GET, HEAD, OPTIONS and NO_SIDE_EFFECTS read; all else is destructive until you say otherwise.
    Import again after the service has changed: the output says what changes in each tool, marks with ! what weakens
    it, and asks before anything is written.
    """
    from deputize.interfaces.cli.local.service_import import ImportOptions

    options = ImportOptions(
        name=name, url=service_url, include=tuple(include or ()), exclude=tuple(exclude or ()),
        reads=tuple(reads or ()), writes=tuple(writes or ()), security=security, allow_refs=tuple(allow_ref or ()),
    )  # fmt: skip
    import_document(source, options, plan=plan, yes=yes, json=json)


def import_document(
    source: str, options: "ImportOptions", *, plan: bool = False, yes: bool = False, json: bool = False
) -> None:
    """Import a document into the project, once what it changes is confirmed; with `plan`, only print it."""
    from deputize.interfaces.cli.local.service_import import plan_import, read_source, write_import

    content = read_source(source)
    enter_project(is_required=True)
    import_plan = plan_import(source, content, options)
    if not json:
        _print_plan(import_plan)
    backup = None
    if not plan and import_plan.is_document_changed:
        if import_plan.changes_known_tools and not yes:
            _confirm_changes(import_plan)
        backup = write_import(import_plan)
    if json:
        printer.json({**_describe_plan(import_plan), "written": backup is not None, "backup": backup})
        return
    _print_written(import_plan, backup, "" if import_plan.is_document_changed else "The document is the imported one. ")


def _confirm_changes(plan: "ImportPlan") -> None:
    """Ask on a terminal whether the changes are right; elsewhere the answer must be in the command."""
    if printer.as_json or not sys.stdin.isatty() or not sys.stderr.isatty():
        exit_with_error(
            f"Imported tools of {plan.service.name} would change, which a person has to confirm, and there is no "
            "terminal to ask on: read what changes with --plan, then add --yes. Nothing was written."
        )
    if not typer.confirm(f"Change the tools of {plan.service.name} in this way?", err=True):
        exit_with_error("Nothing was written.", EXIT_FAILED)


@group.command("show", epilog="Example: deputize services show petstore")
def show_service(
    name: Annotated[str, typer.Argument(metavar="SERVICE", help="Name of the service in deputize.toml.")],
    json: Json = False,
) -> None:
    """Show the tools of an imported service and what each does, and the operations that are left out.

    Exits with 1 if the document differs from its digest in deputize.toml: a gateway does not use it then.
    """
    from deputize.interfaces.cli.local.service_import import load_imported_service

    enter_project(is_required=True)
    plan, found_sha256 = load_imported_service(name, load_settings().services)
    is_pinned = found_sha256 == plan.service.sha256
    if json:
        printer.json({**_describe_plan(plan), "found_sha256": found_sha256, "is_pinned": is_pinned})
    else:
        _print_plan(plan)
    if not is_pinned:
        document = plan.service.document
        printer.error(
            f"{document} differs from its digest in {SETTINGS_FILE}, so gateways refuse it: restore the imported "
            f"document, or review it and run deputize services import {document} --name {name}"
        )
        raise CommandExit(EXIT_FAILED)


def _print_written(plan: "ImportPlan", backup: str | None, reason: str) -> None:
    if backup is None:
        printer.line(f"{reason}Nothing was written.")
        return
    printer.success(f"Wrote {plan.service.document} and {SETTINGS_FILE}; the previous settings are {backup}")
    if plan.service.credential == "vault":
        for secret in (plan.service.secret, *plan.service.further_secrets.values()):
            printer.line(f"  Store its credential: deputize secrets set {secret}")
    if plan.service.credential == "link":
        printer.line("  Each user links their own account there, on the accounts page of the console.")
        if plan.service.issuer is None:
            printer.line(f"  Set issuer of {plan.service.name} if the service does not name its authorization server.")
    printer.line(
        "  Next: review both files; deputize dev asks in its terminal whether to use them, deputize serve reads them "
        "when it starts"
    )


def _describe_plan(plan: "ImportPlan") -> dict[str, Any]:
    return {
        "name": plan.service.name,
        "url": plan.service.url,
        "document": str(plan.service.document),
        "sha256": plan.service.sha256,
        "tools": [_describe_tool(key, contract) for key, contract in plan.contents.contracts.items()],
        "left_out": [
            {"operation": each.key, "method": each.method, "path": each.path, "why": each.reason}
            for each in plan.contents.refusals
        ],
        "changes": {
            "added": plan.new_keys,
            "changed": {key: [each.to_json() for each in changes] for key, changes in plan.changes.items()},
            "removed": plan.removed_keys,
        },
        "unknown_globs": plan.unknown_globs,
        "flags": [
            {
                "operation": key,
                "code": each.code,
                "where": each.where,
                "sentence": each.sentence,
                "excerpt": each.excerpt,
            }
            for key, flags in plan.flags.items()
            for each in flags
        ],
    }


def _describe_tool(key: str, contract: "Contract") -> dict[str, Any]:
    request, command = contract.handler.request, contract.handler.command
    native_facts = contract.external_mappings.get("openapi", {})
    return {
        "tool": contract.full_name,
        "operation": key,
        "method": "run" if request is None else request.method,
        "path": request.path if request is not None else _format_command(command),
        "effects": contract.effects.value,
        "credential": contract.auth.credential,
        "repeatable": contract.idempotency.upstream.value,
        "notes": native_facts.get("left_out", []),
    }


def _format_command(command: "Command | None") -> str:
    return "" if command is None else shlex.join((command.program, *command.arguments))


def _print_plan(plan: "ImportPlan") -> None:
    tools = [_describe_tool(key, contract) for key, contract in plan.contents.contracts.items()]
    title = to_display_text(plan.title, 80)
    place = f" at {to_display_text(plan.service.url, 200)}" if plan.service.url else ""
    noun = "operation" if plan.service.url else "command"
    printer.success(
        f"{plan.service.name}: {len(tools)} of {format_count(plan.operation_count, noun)} of {title}{place}"
    )
    rows = [(each["effects"], each["tool"], f"{each['method']} {to_display_text(each['path'], 120)}") for each in tools]
    printer.table(("effects", "tool", "operation"), rows[:_MOST_ROWS])
    if len(rows) > _MOST_ROWS:
        printer.line(f"  and {len(rows) - _MOST_ROWS} more: --json lists all")
    for each in tools[:_MOST_ROWS]:
        for note in each["notes"]:
            printer.warn(f"{each['tool']}: {to_display_text(note, 300)}")
    _print_flags(plan)
    for refusal in plan.contents.refusals[:_MOST_ROWS]:
        printer.warn(f"{to_display_text(refusal.key, 120)} is left out: {to_display_text(refusal.reason, 300)}")
    if len(plan.contents.refusals) > _MOST_ROWS:
        printer.warn(f"{len(plan.contents.refusals) - _MOST_ROWS} more are left out: --json lists all")
    for glob in plan.unknown_globs:
        key = plan.find_key(glob)
        advice = "check its spelling" if key is None else f"write its operation id, {to_display_text(key, 120)}"
        printer.warn(f"{to_display_text(glob, 120)} matches no operation: {advice}")
    if not plan.is_new:
        _print_changes(plan)


def _print_changes(plan: "ImportPlan") -> None:
    """Print what differs from the imported document, field by field; an exclamation mark is before what weakens."""
    for word, keys in (("new", plan.new_keys), ("changed", tuple(plan.changes)), ("removed", plan.removed_keys)):
        if keys:
            printer.line(f"  {word}: {', '.join(to_display_text(key, 80) for key in keys[:_MOST_ROWS])}")
    changes = [(key, each) for key, operation_changes in plan.changes.items() for each in operation_changes]
    # What weakens is never among those that are left out.
    changes.sort(key=lambda pair: not pair[1].is_weaker)
    for key, each in changes[: max(_MOST_ROWS, sum(change.is_weaker for _, change in changes))]:
        sign = "!" if each.is_weaker else "~"
        printer.line(f"  {sign} {to_display_text(key, 80)} {each.path} {to_display_text(each.reason, 300)}")
    if len(changes) > _MOST_ROWS:
        printer.line(f"  {format_count(len(changes), 'change')} in all: --json lists them")


def _print_flags(plan: "ImportPlan") -> None:
    """Print the texts of the document that may be meant to mislead an agent."""
    flags = [(key, each) for key, operation_flags in plan.flags.items() for each in operation_flags]
    for key, each in flags[:_MOST_ROWS]:
        printer.warn(
            f"{to_display_text(key, 120)}: the text at {to_display_text(each.where, 120)} {each.sentence}: "
            f"{to_display_text(each.excerpt, 300)}"
        )
    if len(flags) > _MOST_ROWS:
        printer.warn(f"{len(flags) - _MOST_ROWS} more texts are suspicious: --json lists all")
