"""The gateway as commands reach it: over HTTP like anybody else, with the token of the person at the keyboard.

Decides where and as whom; `exchange.py` does the asking.
"""

import contextlib
import os
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlsplit

import typer

from deputize.core.mistakes import Misconfigured
from deputize.doors.cli.project import enter_project, running_gateway, saved_token, state_folder

if TYPE_CHECKING:
    from deputize.doors.cli.exchange import Gateway

_TOKEN_VARIABLE = "DEPUTIZE_TOKEN"


def _not_empty(context: typer.Context, value: str) -> str:
    """An empty token is most often one that could not be had; it must not turn into the developer's own."""
    source = context.get_parameter_source("token")
    if not value and source is not None and source.name == "COMMANDLINE":
        raise Misconfigured("--token is empty: give it a token, or leave it out for the one of this project.")
    if not value and os.environ.get(_TOKEN_VARIABLE) == "":
        raise Misconfigured(f"{_TOKEN_VARIABLE} is set and empty: put a token there, or unset it.")
    return value


Url = Annotated[str, typer.Option(envvar="DEPUTIZE_URL", help="Gateway to ask; default: the one of deputize dev here.")]
Token = Annotated[
    str,
    typer.Option(
        envvar=_TOKEN_VARIABLE,
        callback=_not_empty,
        help="Bearer token; default: the development token of this project.",
    ),
]


class Effect(StrEnum):
    """What a tool does to the world, from harmless to worst; spelt here so that help needs no contracts."""

    READ = "read"
    WRITE = "write"
    DESTRUCTIVE = "destructive"


class Refused(Exception):
    """The gateway answered with a problem; its JSON says everything."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        super().__init__(problem.get("title"))
        self.problem = problem

    @property
    def slug(self) -> str:
        return str(self.problem.get("error", {}).get("slug", ""))


def find_gateway(url: str = "", token: str = "") -> "Gateway":
    """Where options, the environment or a running `deputize dev` point to, in this order."""
    from deputize.doors.cli.exchange import Gateway

    folder = state_folder() if enter_project() else None
    running = running_gateway(folder) if folder else None
    chosen = url or (running.url if running else "")
    if not chosen:
        raise Misconfigured(
            "No gateway runs for this folder: start one with deputize dev in another terminal, "
            "or say where one is with --url or DEPUTIZE_URL."
        )
    if urlsplit(chosen).scheme not in ("http", "https") or not urlsplit(chosen).hostname:
        raise Misconfigured(f"{chosen} is no address of a gateway: write it like http://127.0.0.1:7070.")
    # The development token goes to the development gateway alone: an address from elsewhere gets its own.
    ours = running is not None and chosen.rstrip("/") == running.url.rstrip("/")
    token = token or (saved_token(folder) if folder and ours else None) or ""
    if not token:
        raise Misconfigured(
            "No token to show: set DEPUTIZE_TOKEN or --token; in development, deputize token makes one."
        )
    if "${" in token:
        raise Misconfigured(
            f"The token contains {token[token.index('${') :][:20]!r}, which nobody expanded: set that variable."
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Misconfigured(
            "The token holds characters that no token has: copy it again, without quotes or line breaks."
        )
    return Gateway(url=chosen.rstrip("/").removesuffix("/v1"), token=token)


def tool_path(name: str) -> str:
    return f"/v1/tools/{quote(name, safe='')}"


def call_path(call_id: str) -> str:
    return f"/v1/calls/{quote(call_id, safe='')}"


def complete_tool(incomplete: str) -> list[str]:
    """Names for the shell's Tab key, from whatever gateway answers at once; a completion never complains."""
    with contextlib.suppress(Misconfigured, Refused, KeyError, TypeError):
        page = find_gateway(os.environ.get("DEPUTIZE_URL", ""), os.environ.get("DEPUTIZE_TOKEN", "")).get("/v1/tools")
        return [each["name"] for each in page["tools"] if each["name"].startswith(incomplete)]
    return []
