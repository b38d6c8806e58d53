"""The command line put together: every command in its place, and every mistake told in one sentence.

`__main__.py` hands in how a gateway is opened, so that no door imports upward. Exit codes: 0 well, 1 refused or
failed, 2 a command or configuration that cannot be carried out, 3 a call that waits for people.
"""

import contextlib
import os
import sys
from typing import Annotated

import typer

from deputize.core.mistakes import Misconfigured
from deputize.doors.cli import (
    approvals,
    call,
    calls,
    doctor,
    grants,
    importing,
    init,
    mcp,
    migrate,
    policy,
    secrets,
    servers,
    switch,
    tickets,
    token,
    tool,
    webhooks,
)
from deputize.doors.cli.output import MISUSED, REFUSED, Json, Stopped, printer
from deputize.doors.cli.problems import show_problem
from deputize.doors.cli.project import enter_project, load_settings
from deputize.doors.cli.remote import Refused

app = typer.Typer(
    name="deputize",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Begin with: deputize init shop && cd shop && deputize dev",
)
app.command(epilog="Example: deputize init shop")(init.init)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"deputize {version('deputize')}")
        raise typer.Exit


@app.callback()
def deputize(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The governed execution layer for agent tools."""


@app.command(epilog="Example: deputize dev --port 8080")
def dev(
    context: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Port of the API; 0 picks a free one. Default: 7070 or the next free."),
    ] = None,
    json: Json = False,
) -> None:
    """Start everything this project needs on one machine: database, keys, token, tools, API. Ctrl-C stops it all."""
    enter_project(required=True)
    from deputize.doors.cli import dev as development

    development.run(context.obj, load_settings(), port)


@app.command(epilog="Example: deputize serve")
def serve(context: typer.Context, json: Json = False) -> None:
    """Serve in production: on the database, issuers and keys of deputize.toml, none of which it makes up."""
    enter_project()
    from deputize.doors.cli import serving

    serving.run(context.obj, load_settings())


@app.command(epilog="Example: deputize work --port 7072")
def work(
    context: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Port of /healthz and /metrics; 0 picks any. Default: metrics_port."),
    ] = None,
    json: Json = False,
) -> None:
    """Carry calls that outlive their request. Ctrl-C or SIGTERM: takes no more, and waits for what runs."""
    enter_project()
    from deputize.doors.cli import working

    working.run(context.obj, load_settings(), port)


app.command(epilog="Example: deputize migrate --check")(migrate.migrate)
app.command(epilog="Example: deputize doctor")(doctor.doctor)
app.add_typer(token.group, name="token")
app.add_typer(grants.group, name="grants", epilog="Example: deputize grants list")
app.add_typer(tool.group, name="tool", epilog="Example: deputize tool list")
app.command(epilog="Example: deputize call hello.greet name=Ana")(call.call)
app.command(epilog="Example: deputize mcp   (a client starts it: claude mcp add shop -- deputize mcp)")(mcp.mcp)
app.add_typer(secrets.group, name="secrets", epilog="Example: deputize secrets set crm/api-key")
app.add_typer(switch.group, name="switch", epilog="Example: deputize switch off tool crm.delete_user")
app.add_typer(calls.group, name="calls", epilog="Example: deputize calls")
app.add_typer(approvals.group, name="approvals", epilog="Example: deputize approvals list")
app.add_typer(policy.group, name="policy", epilog="Example: deputize policy check")
app.add_typer(webhooks.group, name="webhooks", epilog="Example: deputize webhooks deadletters")
app.add_typer(tickets.group, name="tickets", epilog="Example: deputize tickets list")
app.add_typer(servers.group, name="servers", epilog="Example: deputize servers list")
app.command("import", epilog="Example: deputize import .mcp.json")(importing.import_servers)


def run(open_gateway: object) -> None:
    """Carry out what was typed, and end the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show ✓ shows a question mark, not a traceback.
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # absent on replaced streams
    try:
        _carry_out(open_gateway)
    except Stopped as stopped:
        sys.exit(stopped.code)
    except Misconfigured as mistake:
        _tell(mistake)
        sys.exit(MISUSED)
    except Refused as refused:
        show_problem(refused.problem)
        sys.exit(REFUSED)
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing may be written while Python shuts down either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(REFUSED)


def _carry_out(open_gateway: object) -> None:
    """For people a misspelt option is told in a frame, by typer itself; whoever asked for JSON hears of it in JSON."""
    for_people = "--json" not in sys.argv
    try:
        code = app(obj=open_gateway, prog_name="deputize", standalone_mode=for_people)
    except typer.Abort:
        sys.exit(REFUSED)
    except Exception as error:
        told = getattr(error, "format_message", None)
        if told is None:
            raise
        printer.json({"error": {"message": told()}})
        sys.exit(MISUSED)
    sys.exit(code if isinstance(code, int) else 0)


def _tell(mistake: Misconfigured) -> None:
    if printer.as_json:
        printer.json({"error": {"message": str(mistake)}})
    for sentence in str(mistake).splitlines():
        # What is indented belongs to the sentence before it.
        printer.aside(f"  {sentence}") if sentence.startswith("  ") else printer.bad(sentence)
