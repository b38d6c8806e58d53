"""Assemble the command line, and turn every expected error into a message and an exit code.

`__main__.py` passes in the function that opens a gateway, so that no interface imports upward.
"""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.main

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.client.refusal import GatewayRefusal
from deputize.interfaces.cli.commands import (
    agents,
    approvals,
    call,
    calls,
    connect,
    contract_tests,
    cost,
    erase,
    flow,
    grants,
    human_tasks,
    import_servers,
    policy,
    revoke,
    sandboxes,
    secrets,
    servers,
    service_levels,
    services,
    switch,
    token,
    tool,
    tool_export,
    tool_versions,
    undo,
    webhooks,
)
from deputize.interfaces.cli.commands.audit import entries
from deputize.interfaces.cli.commands.observe import group as observe
from deputize.interfaces.cli.commands.service import (
    demo,
    doctor,
    drill,
    events,
    init,
    keys,
    login,
    mcp,
    migrate,
    receipt,
    recover,
)
from deputize.interfaces.cli.local.project_file import enter_project, load_settings
from deputize.interfaces.cli.render.help import HELP_OPTIONS, find_help, use_plain_help
from deputize.interfaces.cli.render.output import EXIT_FAILED, EXIT_USAGE, CommandExit, Json, printer
from deputize.interfaces.cli.render.problems import show_problem

app = typer.Typer(
    name="deputize",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": list(HELP_OPTIONS)},
    epilog="Start with: deputize init shop && cd shop && deputize dev",
)
app.command(epilog="Example: deputize demo")(demo.demo)
app.command(epilog="Example: deputize init shop")(init.init)


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"deputize {version('deputize')}")
        raise typer.Exit


@app.callback()
def deputize(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Govern the tool calls of AI agents: policy, approval, audit and durable execution."""


@app.command(epilog="Example: deputize dev --port 8080")
def dev(
    context: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65_535, help="Port of the API; 0 picks a free one. Default: 7070, or the next free port."
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Run everything as this user, in a copy of the project whose changes you confirm. Needs root.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no line for each call.")] = False,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="Apply what the files changed in settings, policies and contracts since the last start, unasked.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Start everything the project needs on this machine: database, keys, token, tools and API. Ctrl-C stops it all."""
    from deputize.interfaces.cli.commands.service import dev as development
    from deputize.interfaces.cli.commands.service import dev_user

    enter_project(is_required=True)
    if user is not None and accept_changes:
        raise ConfigError("--accept-changes is not for --user, where you confirm changes with a code: leave one out.")
    if user is not None:
        dev_user.run_development_as(context.obj, user, port, is_quiet=quiet)
        return
    development.run_development(context.obj, load_settings(), port, is_quiet=quiet, is_confirmed=accept_changes)


@app.command(epilog="Example: deputize serve")
def serve(
    context: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            help="Port of REST, MCP and console; metrics use the next one; 0 picks free ones. Default: server.port.",
        ),
    ] = None,
    no_worker: Annotated[
        bool,
        typer.Option("--no-worker", help="Execute no queued calls in this process: run deputize work beside it."),
    ] = False,
    json: Json = False,
) -> None:
    """Run the gateway and a worker in production, with the database, issuers and keys of deputize.toml.

    It creates none of them. SIGTERM turns it unready, lets calls finish, and stops the worker, then the rest.
    """
    enter_project()
    from deputize.interfaces.cli.commands.service import serve

    serve.run_server(context.obj, load_settings(), port, worker=not no_worker)


@app.command(epilog="Example: deputize work --port 7072")
def work(
    context: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            help="Port of /healthz and /metrics; 0 picks a free one. Default: the metrics port, or the next free one.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run a worker that executes queued calls. Ctrl-C or SIGTERM finishes the running calls and takes no more."""
    enter_project()
    from deputize.interfaces.cli.commands.service import work

    work.run_worker(context.obj, load_settings(), port)


app.command(epilog="Example: deputize migrate --check")(migrate.migrate)
app.command(epilog="Example: deputize doctor")(doctor.doctor)
app.add_typer(keys.group, name="keys", epilog="Example: deputize keys status")
app.add_typer(events.group, name="events", epilog="Example: deputize events status")
app.add_typer(recover.group, name="recover", epilog="Example: deputize recover confirm")
app.add_typer(drill.group, name="drill", epilog="Example: deputize drill restore")
app.command(epilog="Example: deputize login --url https://deputize.example.com")(login.login)
app.command(epilog="Example: deputize logout --url https://deputize.example.com")(login.logout)
app.command(epilog="Example: deputize whoami --url https://deputize.example.com")(login.whoami)
app.add_typer(token.group, name="token")
app.command(epilog="Example: deputize agents")(agents.agents)
app.add_typer(grants.group, name="grants", epilog="Example: deputize grants list")
app.add_typer(revoke.group, name="revoke", epilog="Example: deputize revoke agent notes-bot")
app.add_typer(erase.group, name="erase", epilog="Example: deputize erase user mallory")
tool.group.command("test", epilog="Example: deputize tool test hello.greet")(contract_tests.run_contract_test)
tool.group.command("export", epilog="Example: deputize tool export hello.greet --format anthropic")(
    tool_export.export_tool
)
tool_versions.add_commands(tool.group)
tool.group.command("test-results", epilog="Example: deputize tool test-results hello.greet 0.1.0")(
    contract_tests.show_test_results
)
tool.group.command("service-levels", epilog="Example: deputize tool service-levels hello.greet@0.1.0 --days 30")(
    service_levels.report_service_levels
)
app.command("health", epilog="Example: deputize health --json")(service_levels.report_health)
app.command("cost", epilog="Example: deputize cost --by tool --since 7d")(cost.report_costs)
app.add_typer(tool.group, name="tool", epilog="Example: deputize tool list")
app.command(epilog="Example: deputize call hello.greet name=Ana")(call.call)
app.command(epilog="Example: deputize mcp   (started by a client: claude mcp add shop -- deputize mcp)")(mcp.mcp)
app.command(epilog="Example: deputize connect claude-code")(connect.connect)
app.command(epilog="Example: deputize disconnect claude-code")(connect.disconnect)
app.add_typer(secrets.group, name="secrets", epilog="Example: deputize secrets set crm/api-key")
app.add_typer(switch.group, name="switch", epilog="Example: deputize switch off tool crm.delete_user")
app.add_typer(calls.group, name="calls", epilog="Example: deputize calls")
app.command(epilog="Example: deputize undo --session s_88 --plan")(undo.undo)
app.add_typer(flow.group, name="flow", epilog="Example: deputize flow graph orders.refund")
app.add_typer(entries.group, name="audit", epilog="Example: deputize audit search --from 1h")
app.command(epilog="Example: deputize receipt 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b -o call.receipt")(receipt.receipt)
app.command(epilog="Example: deputize verify call.receipt --key log.key")(receipt.verify)
app.add_typer(approvals.group, name="approvals", epilog="Example: deputize approvals list")
app.add_typer(policy.group, name="policy", epilog="Example: deputize policy check")
app.add_typer(webhooks.group, name="webhooks", epilog="Example: deputize webhooks deadletters")
app.add_typer(human_tasks.group, name="tasks", epilog="Example: deputize tasks list")
app.add_typer(servers.group, name="servers", epilog="Example: deputize servers list")
app.add_typer(services.group, name="services", epilog="Example: deputize services show petstore")
app.add_typer(sandboxes.group, name="sandboxes", epilog="Example: deputize sandboxes check")
app.command("import", epilog="Example: deputize import .mcp.json")(import_servers.import_servers)
app.add_typer(observe.group, name="observe", cls=observe.ObserveGroup, epilog="Example: deputize observe .mcp.json")
use_plain_help(app)
# These start a PostgreSQL of their own.
_LOCAL_COMMANDS = ("deputize dev", "deputize observe", "deputize demo")


def run_cli(open_gateway: object) -> None:
    """Run the command that was typed, and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show ✓ gets a question mark instead of a traceback.
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # absent on replaced streams
    command = typer.main.get_command(app)
    try:
        help_text = find_help(command, sys.argv[1:])
        if help_text is not None:
            typer.echo(help_text)
            return
        _run_command(command, open_gateway)
    except CommandExit as command_exit:
        sys.exit(command_exit.code)
    except ConfigError as error:
        _print_error(error)
        sys.exit(EXIT_USAGE)
    except ModuleNotFoundError as error:
        if (error.name or "deputize").partition(".")[0] == "deputize":
            raise
        _print_error(_explain_missing_gateway(_name_command(command, sys.argv[1:]), error))
        sys.exit(EXIT_USAGE)
    except GatewayRefusal as refusal:
        show_problem(refusal.problem)
        sys.exit(EXIT_FAILED)
    except BrokenPipeError:
        # The reader closed the pipe; Python must not write to it while it shuts down either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)


def _run_command(command: Any, open_gateway: object) -> None:
    """Run the command; print what was typed wrongly as every other error is printed."""
    try:
        code = command(obj=open_gateway, prog_name="deputize", standalone_mode=False)
    except typer.Abort:
        printer.note("Aborted.")
        sys.exit(EXIT_FAILED)
    except Exception as error:
        if getattr(error, "format_message", None) is None:
            raise
        _print_usage_error(error)
        sys.exit(EXIT_USAGE)
    sys.exit(code if isinstance(code, int) else 0)


def _name_command(command: Any, words: Sequence[str]) -> str:
    """Name the command that was typed, without its options and arguments."""
    names = ["deputize"]
    for word in words:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        names.append(word)
    return " ".join(names)


def _explain_missing_gateway(name: str, error: ModuleNotFoundError) -> ConfigError:
    """Say which extra a command needs: what authors install lacks the packages of a gateway."""
    extra = "local" if name.startswith(_LOCAL_COMMANDS) else "gateway"
    return ConfigError(
        f"{name} needs the gateway, which is not installed (no module named {error.name}): "
        f"run pip install 'deputize[{extra}]'."
    )


def _print_usage_error(error: Any) -> None:
    """Print an error of the parser, whose classes are not public: as JSON, or with how the command is written."""
    context, message = getattr(error, "ctx", None), error.format_message()
    if "--json" in sys.argv:
        printer.json({"error": {"message": message}})
    elif type(error).__name__ == "NoArgsIsHelpError":
        # Its message is the help, which the parser has formatted for the terminal.
        error.show()
    else:
        printer.error(message)
        if context is not None:
            printer.note(f"  {context.get_usage()}")
            printer.note(f"  More: {context.command_path} --help")


def _print_error(error: ConfigError) -> None:
    if printer.as_json:
        printer.json({"error": {"message": str(error)}})
    for sentence in str(error).splitlines():
        # An indented line continues the one before it.
        printer.note(f"  {sentence}") if sentence.startswith("  ") else printer.error(sentence)
