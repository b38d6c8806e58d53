"""Define `deputize sandboxes`: try the sandboxes of this host, and serve them to its gateways."""

from typing import Annotated

import typer

from deputize.interfaces.cli.local.project_file import enter_project, load_settings
from deputize.interfaces.cli.render.output import (
    EXIT_FAILED,
    NO,
    NOTE,
    OK,
    CommandExit,
    Json,
    exit_with_error,
    printer,
)

group = typer.Typer(no_args_is_help=True, help="Isolate programs that nobody vouches for.")
_STATUS_SIGNS = {"good": OK, "warning": NOTE, "broken": NO, "skipped": "·"}


@group.command(epilog="Example: deputize sandboxes check")
def check(json: Json = False) -> None:
    """Start a real sandbox, try a dozen ways out of it, and print what to change on this host.

    Exits with 1 if programs cannot be isolated here, or if one way out succeeded.
    """
    import asyncio

    from deputize.interfaces.cli.diagnostics.sandbox_checks import check_sandboxes

    enter_project()
    settings = load_settings()
    with printer.spinner("Trying a sandbox …"):
        findings = asyncio.run(check_sandboxes(settings))
    failed = any(each.status == "broken" for each in findings)
    if json:
        printer.json({"ok": not failed, "findings": [each.to_json() for each in findings]})
    else:
        printer.table(
            ("", "check", "found", "what to do"),
            [(_STATUS_SIGNS[each.status], each.check, each.summary, each.todo) for each in findings],
        )
        printer.error("Sandboxes do not work here yet") if failed else printer.success("Sandboxes work here")
    if failed:
        raise CommandExit(EXIT_FAILED)


@group.command(epilog="Example: deputize sandboxes serve --allow 999")
def serve(
    uid_range: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST:COUNT",
            help="Users that programs run as, each one's own, if this is started by root: 200000:4096, for example. "
            "By default some that no account has.",
        ),
    ] = None,
    allow: Annotated[
        list[int] | None, typer.Option(metavar="UID", help="User of a gateway that may start sandboxes; repeatable.")
    ] = None,
    json: Json = False,
) -> None:
    """Start sandboxes for all gateways of this host, until it is stopped.

    Without it, gateways start it when they need it, with their own rights.
    """
    import os
    import sys

    from deputize.interfaces.cli.diagnostics.sandbox_checks import find_folder, is_user_range

    if uid_range is not None and not is_user_range(uid_range):
        exit_with_error("--uid-range must be FIRST:COUNT, such as 200000:4096, of two users or more, without root.")
    enter_project()
    words = ["-m", "deputize.sandboxes.supervisor", str(find_folder(load_settings())), "--stay"]
    words += ["--uid-range", uid_range] if uid_range else []
    os.execv(sys.executable, [sys.executable, *words, "--allow", *map(str, allow or ())])  # no shell
