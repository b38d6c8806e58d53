"""Define `deputize mcp`: serve the gateway's tools to MCP clients that use stdio."""

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.client.target import AgentToken, Url, find_gateway
from deputize.interfaces.cli.render.output import Json, printer


def mcp(
    context: typer.Context,
    project: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Use the gateway of this project and its token for agents, whatever the environment says.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read the token from this file, whatever the environment says."),
    ] = None,
    url: Url = "",
    token: AgentToken = "",
    json: Json = False,
) -> None:
    """Speak MCP on stdin and stdout, for clients that start a program; every message goes to the gateway's /mcp.

    deputize connect writes a client's configuration, with the options that it needs. Clients that speak HTTP do not
    need this command.
    """
    for name, conflicts in (("project", ("url", "token", "token_file")), ("token_file", ("token",))):
        if context.params[name] is not None:
            _require_absent(context, name, conflicts)
    if project is not None:
        url = token = ""
        _enter_folder(project)
    if token_file is not None:
        from deputize.interfaces.cli.local.client_setup.agent_token_file import read_agent_token

        token = read_agent_token(token_file)
    import asyncio
    from functools import partial

    from deputize.interfaces.cli.client.mcp_bridge import run_bridge

    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        find = partial(find_gateway, url, token, for_agent=True)
        # The gateway of a project may be started later; one that was named must be right now.
        asyncio.run(run_bridge(find, printer.error, follows_project=not url))
    # The reading thread may still block on stdin, which would keep the process alive.
    os._exit(0)


def _require_absent(context: typer.Context, name: str, conflicts: tuple[str, ...]) -> None:
    for other in conflicts:
        source = context.get_parameter_source(other)
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"--{name} and --{other} exclude each other: leave one out.".replace("_", "-"))


def _enter_folder(folder: Path) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be entered ({error.strerror}): run deputize connect again.") from None
