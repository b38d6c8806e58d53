"""Describe the MCP clients that `deputize connect` configures: where their files are, and what an entry looks like.

The formats are those that the clients publish. An entry never contains a token.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

TOKEN_VARIABLE: Final = "DEPUTIZE_TOKEN"
MCP_PATH: Final = "/mcp"


class ClientName(StrEnum):
    """Clients by the names that people type."""

    CLAUDE_CODE = "claude-code"
    CLAUDE_DESKTOP = "claude-desktop"
    CURSOR = "cursor"
    VSCODE = "vscode"
    GEMINI_CLI = "gemini-cli"
    CODEX = "codex"
    JSON = "json"


class ConfigScope(StrEnum):
    """Where a client's configuration applies: in one project, or everywhere for one person."""

    PROJECT = "project"
    USER = "user"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientFormat:
    """A client's files and the shape of its entries.

    `token_reference` is how the client writes a variable of its environment; None if it expands none.
    """

    title: str
    section: str
    project_file: str | None
    user_file: str | None
    token_reference: str | None
    url_key: str = "url"
    has_type: bool = False

    @property
    def is_toml(self) -> bool:
        """Tell whether the client's file is TOML instead of JSON."""
        return (self.user_file or "").endswith(".toml")

    @property
    def default_scope(self) -> ConfigScope:
        """Return the scope that is used if none is chosen."""
        return ConfigScope.PROJECT if self.project_file and not self.is_toml else ConfigScope.USER


CLIENTS: Final[Mapping[ClientName, ClientFormat]] = {
    ClientName.CLAUDE_CODE: ClientFormat(
        title="Claude Code",
        section="mcpServers",
        project_file=".mcp.json",
        user_file="{claude}/.claude.json",
        token_reference=f"${{{TOKEN_VARIABLE}}}",
        has_type=True,
    ),
    ClientName.CLAUDE_DESKTOP: ClientFormat(
        title="Claude Desktop",
        section="mcpServers",
        project_file=None,
        user_file="{applications}/Claude/claude_desktop_config.json",
        token_reference=None,
    ),
    ClientName.CURSOR: ClientFormat(
        title="Cursor",
        section="mcpServers",
        project_file=".cursor/mcp.json",
        user_file="{home}/.cursor/mcp.json",
        token_reference=f"${{env:{TOKEN_VARIABLE}}}",
    ),
    ClientName.VSCODE: ClientFormat(
        title="VS Code",
        section="servers",
        project_file=".vscode/mcp.json",
        user_file="{applications}/Code/User/mcp.json",
        token_reference=f"${{env:{TOKEN_VARIABLE}}}",
        has_type=True,
    ),
    ClientName.GEMINI_CLI: ClientFormat(
        title="Gemini CLI",
        section="mcpServers",
        project_file=".gemini/settings.json",
        user_file="{home}/.gemini/settings.json",
        token_reference=f"${{{TOKEN_VARIABLE}}}",
        url_key="httpUrl",
    ),
    ClientName.CODEX: ClientFormat(
        title="Codex",
        section="mcp_servers",
        project_file=".codex/config.toml",
        user_file="{codex}/config.toml",
        token_reference=TOKEN_VARIABLE,
    ),
    ClientName.JSON: ClientFormat(
        title="JSON",
        section="mcpServers",
        project_file=None,
        user_file=None,
        token_reference=f"${{{TOKEN_VARIABLE}}}",
        has_type=True,
    ),
}


def locate_client_file(client: ClientFormat, scope: ConfigScope, folder: Path) -> Path | None:
    """Locate the file of a scope; None if the client has none."""
    if scope is ConfigScope.PROJECT:
        return folder / client.project_file if client.project_file else None
    if client.user_file is None:
        return None
    home = Path.home()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    return Path(
        client.user_file.format(
            home=home,
            claude=os.environ.get("CLAUDE_CONFIG_DIR") or home,
            codex=os.environ.get("CODEX_HOME") or home / ".codex",
            applications=home / "Library" / "Application Support" if sys.platform == "darwin" else config,
        )
    )


def build_program_entry(client: ClientFormat, command: Sequence[str]) -> dict[str, Any]:
    """Build an entry that starts a program, which finds its token by itself."""
    kind = {"type": "stdio"} if client.has_type else {}
    return {**kind, "command": command[0], "args": list(command[1:])}


def build_http_entry(client: ClientFormat, url: str) -> dict[str, Any]:
    """Build an entry with a URL, and with a reference to the variable that holds the token."""
    kind = {"type": "http"} if client.has_type else {}
    entry = {**kind, client.url_key: f"{url}{MCP_PATH}"}
    if client.is_toml:
        return {**entry, "bearer_token_env_var": client.token_reference}
    return {**entry, "headers": {"Authorization": f"Bearer {client.token_reference}"}}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientEntry:
    """Entry as a client reads it: a program to start, or the URL of a gateway and its token reference."""

    command: tuple[str, ...] = ()
    url: str = ""
    token_reference: str = ""

    @property
    def is_ours(self) -> bool:
        """Tell whether `deputize connect` wrote the entry, or could have."""
        program = Path(self.command[0]).name if self.command else ""
        return (program == "deputize" and self.command[1:2] == ("mcp",)) or TOKEN_VARIABLE in self.token_reference


def read_entry(client: ClientFormat, entry: Any) -> ClientEntry:
    """Read an entry of a client's file; what is not understood is left empty."""
    if not isinstance(entry, dict):
        return ClientEntry()
    program, words = entry.get("command"), entry.get("args", [])
    if isinstance(program, str) and isinstance(words, list):
        return ClientEntry(command=(program, *map(str, words)))
    headers = entry.get("headers")
    header = str(headers.get("Authorization", "")) if isinstance(headers, dict) else ""
    reference = str(entry.get("bearer_token_env_var", "")) if client.is_toml else header.removeprefix("Bearer ")
    return ClientEntry(url=str(entry.get(client.url_key, "")), token_reference=reference)
