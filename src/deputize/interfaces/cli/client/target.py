"""Choose the gateway and the token of a command, from its options, the environment or a running `deputize dev`."""

import contextlib
import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlsplit

import typer

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.client.refusal import GatewayRefusal
from deputize.interfaces.cli.local.project_file import (
    AGENT_TOKEN_FILE,
    TOKEN_FILE,
    enter_project,
    find_dev_gateway,
    find_state_folder,
    is_client_folder,
    read_saved_token,
)

if TYPE_CHECKING:
    from deputize.interfaces.cli.client.rest_client import GatewayClient

_TOKEN_VARIABLE = "DEPUTIZE_TOKEN"


def _require_non_empty_token(context: typer.Context, value: str) -> str:
    """Refuse an empty token, which must not silently become the development token."""
    source = context.get_parameter_source("token")
    if not value and source is not None and source.name == "COMMANDLINE":
        raise ConfigError(
            "--token is empty: pass a token, or omit --token to use the development token of this project."
        )
    if not value and os.environ.get(_TOKEN_VARIABLE) == "":
        raise ConfigError(f"{_TOKEN_VARIABLE} is set but empty: set it to a token, or unset it.")
    return value


Url = Annotated[
    str,
    typer.Option(envvar="DEPUTIZE_URL", help="URL of the gateway. Default: the running deputize dev of this project."),
]
Token = Annotated[
    str,
    typer.Option(
        envvar=_TOKEN_VARIABLE,
        callback=_require_non_empty_token,
        help="Bearer token. Default: that of deputize login, else the development token of this project.",
    ),
]
AgentToken = Annotated[
    str,
    typer.Option(
        envvar=_TOKEN_VARIABLE,
        callback=_require_non_empty_token,
        help="Bearer token. Default: the token for agents of this project.",
    ),
]
OperatorToken = Annotated[
    str,
    typer.Option(
        envvar=_TOKEN_VARIABLE,
        callback=_require_non_empty_token,
        help="Bearer token of an operator. Needed in production, where there is no default; not used in development.",
    ),
]


class EffectOption(StrEnum):
    """Effects of a tool, from harmless to worst; repeated here so that help does not load contracts."""

    READ = "read"
    WRITE = "write"
    DESTRUCTIVE = "destructive"


def find_gateway(url: str = "", token: str = "", *, for_agent: bool = False) -> "GatewayClient":
    """Return a client for the gateway that options, the environment or a running `deputize dev` name, in this order.

    The token is the one of `--token`, of the environment, of `deputize login`, or of `deputize dev`, in this order.

    With `for_agent`, the token of `deputize dev` is the one for agents, which administers nothing.
    """
    from deputize.interfaces.cli.client.rest_client import GatewayClient

    folder = find_state_folder() if enter_project() else None
    dev_gateway = find_dev_gateway(folder) if folder else None
    gateway_url = url or (dev_gateway.url if dev_gateway else "")
    if not gateway_url:
        raise ConfigError(
            "No gateway is running for this folder: start one with deputize dev in another terminal, "
            "or name one with --url or DEPUTIZE_URL."
        )
    plain_url = parse_gateway_url(gateway_url)
    # Never send the development token to another gateway.
    is_dev_gateway = dev_gateway is not None and gateway_url.rstrip("/") == dev_gateway.url.rstrip("/")
    # A gateway that runs as another user leaves no token for its developer where agents can read it.
    file = AGENT_TOKEN_FILE if for_agent or (folder and is_client_folder(folder)) else TOKEN_FILE
    # An agent gets a token of its own: what it may do is not what the person who signed in may do.
    token = token or ("" if for_agent else _find_login_token(plain_url))
    token = token or (read_saved_token(folder, file) if folder and is_dev_gateway else None) or ""
    if not token:
        sign_in = "" if for_agent else f"run deputize login --url {plain_url}, or "
        raise ConfigError(
            f"No token: {sign_in}set DEPUTIZE_TOKEN or --token. In development, deputize token creates one."
        )
    if "${" in token:
        raise ConfigError(
            f"The token contains {token[token.index('${') :][:20]!r}, which was not expanded: set that variable."
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            "The token contains invalid characters: copy it again, without spaces, quotes or line breaks."
        )
    return GatewayClient(url=plain_url, token=token)


def parse_gateway_url(url: str) -> str:
    """Return the URL of a gateway as tokens are stored for it; refuse what is no URL of a gateway."""
    if not _is_gateway_url(url):
        raise ConfigError(f"{url} is not a gateway URL: write it like http://127.0.0.1:7070.")
    return url.rstrip("/").removesuffix("/v1")


def _find_login_token(url: str) -> str:
    from deputize.interfaces.cli.local.stored_tokens import load_token

    if load_token(url) is None:
        return ""
    from deputize.interfaces.cli.client.sign_in.session import find_stored_token

    return find_stored_token(url) or ""


def _is_gateway_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def build_tool_path(name: str) -> str:
    """Build the API path of a tool."""
    return f"/v1/tools/{quote(name, safe='')}"


def build_call_path(call_id: str) -> str:
    """Build the API path of a call."""
    return f"/v1/calls/{quote(call_id, safe='')}"


def fetch_servers() -> list[dict[str, Any]] | None:
    """Ask the running gateway for its servers with their pinned tools; return None if it cannot be asked."""
    with contextlib.suppress(ConfigError, GatewayRefusal):
        gateway = find_gateway(os.environ.get("DEPUTIZE_URL", ""), os.environ.get(_TOKEN_VARIABLE, ""))
        return [
            {**each, "tools": gateway.get(f"/v1/servers/{quote(each['name'], safe='')}/tools")["tools"]}
            for each in gateway.get("/v1/servers")["servers"]
        ]
    return None


def fetch_active_policies() -> dict[str, str] | None:
    """Ask the running gateway for the text of its active policies by file; return None if it cannot be asked."""
    with contextlib.suppress(ConfigError, GatewayRefusal):
        gateway = find_gateway(os.environ.get("DEPUTIZE_URL", ""), os.environ.get(_TOKEN_VARIABLE, ""))
        return {each["path"]: each["text"] for each in gateway.get("/v1/policies")["files"]}
    return None


def complete_tool(incomplete: str) -> list[str]:
    """Complete a tool's name in the shell; return nothing if no gateway answers."""
    with contextlib.suppress(ConfigError, GatewayRefusal, KeyError, TypeError):
        page = find_gateway(os.environ.get("DEPUTIZE_URL", ""), os.environ.get("DEPUTIZE_TOKEN", "")).get("/v1/tools")
        return [each["name"] for each in page["tools"] if each["name"].startswith(incomplete)]
    return []
