"""Compute the digests that pin the program of a server, and render them as settings."""

import os
from collections.abc import Iterable, Mapping
from json import dumps
from typing import Any

from deputize.core.config_error import ConfigError
from deputize.core.settings import McpServerSettings, Settings
from deputize.execute.upstreams.program_files import (
    ProgramFileError,
    compute_digest,
    find_pin,
    list_unpinned_files,
    resolve_command,
    resolve_path,
)


def find_program_server(settings: Settings, name: str, tenant: str | None = None) -> McpServerSettings:
    """Find the server of a name that has a program."""
    for server in settings.servers:
        if server.name == name and server.command and tenant in (None, server.tenant or settings.tools.tenant):
            return server
    raise ConfigError(f"deputize.toml has no server named {name} with a command: check the names under [[servers]].")


def compute_pins(server: McpServerSettings, paths: Iterable[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """Compute `sha256` and `files` of a server as they are now; also list what its command runs and they do not cover.

    `paths` are files and folders to pin besides those that the settings list already.
    """
    try:
        command = resolve_command(server, server.env.get("PATH", os.environ.get("PATH", os.defpath)))
        listed_paths = {resolve_path(server, path): path for path in (*server.files, *paths)}
        listed_digests = dict.fromkeys(listed_paths, "")
        for each in command.required_files[1:]:
            if find_pin(each, listed_digests) is None:
                listed_paths[each] = _shorten_path(server, each)
        files = {name: compute_digest(path) for path, name in listed_paths.items()}
        pins: dict[str, Any] = {"sha256": compute_digest(command.program)}
    except ProgramFileError as error:
        raise ConfigError(
            f"The program of the server {server.name} cannot be pinned: {error.path} {error.reason}."
        ) from None
    digests = {command.program: pins["sha256"], **{resolve_path(server, name): each for name, each in files.items()}}
    return pins | ({"files": files} if files else {}), list_unpinned_files(server, command, digests)


def list_differences(server: McpServerSettings, pins: Mapping[str, Any]) -> list[str]:
    """List the files whose digests differ from those in the settings."""
    differences = [] if server.sha256 in (None, pins["sha256"]) else [server.command[0]]
    files = pins.get("files", {})
    return differences + [path for path, digest in server.files.items() if files.get(path) != digest]


def render_toml_value(value: Any) -> str:
    """Render a string, a boolean, or a list or table, as TOML, whose strings differ from JSON's in one character."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(render_toml_value, value))}]"
    rows = (f"{render_toml_value(key)} = {render_toml_value(each)}" for key, each in value.items())
    return "{ " + ", ".join(rows) + " }"


def _shorten_path(server: McpServerSettings, path: str) -> str:
    base = resolve_path(server, "")
    return os.path.relpath(path, base) if path.startswith(f"{base.rstrip('/')}/") else path
