"""Check what surrounds a gateway, for `deputize doctor`: variables that were not expanded, tokens in clients' files,
and the Node and Python that programs of servers need.
"""

import asyncio
import contextlib
import os
import re
import shutil
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from deputize.core.config_error import ConfigError
from deputize.core.settings import Settings
from deputize.interfaces.cli.diagnostics.finding import Finding
from deputize.interfaces.cli.local.client_setup.clients import CLIENTS, TOKEN_VARIABLE, ClientFormat, ClientName
from deputize.interfaces.cli.local.client_setup.json_text import parse_json_text
from deputize.interfaces.cli.local.client_setup.toml_text import parse_toml_text
from deputize.interfaces.cli.local.project_file import SETTINGS_FILE

_LITERAL: Final = re.compile(r"\$\{(?:env:)?[A-Za-z_][A-Za-z0-9_]*(?::-[^}]*)?\}")
_JWT: Final = re.compile(r"eyJ[\w-]{8,}\.[\w-]+\.[\w-]+")
_VERSION: Final = re.compile(r"(\d+)\.(\d+)")
_VERSION_SECONDS: Final = 10.0
# The oldest versions that the official SDKs of MCP support.
_RUNTIMES: Final[Mapping[str, tuple[str, tuple[int, int]]]] = {
    "node": ("node", (18, 0)),
    "npx": ("node", (18, 0)),
    "npm": ("node", (18, 0)),
    "python": ("python", (3, 10)),
    "python3": ("python3", (3, 10)),
}


async def check_environment(settings: Settings) -> AsyncIterator[Finding]:
    """Check variables, clients' files and runtimes; what is in order is not listed."""
    for each in (*_check_variables(), *_check_client_files(Path.cwd())):
        yield each
    runtimes: dict[str, list[str]] = {}
    for server in settings.servers:
        if server.command and "PATH" not in server.env and server.command[0] in _RUNTIMES:
            runtimes.setdefault(server.command[0], []).append(server.name)
    for program, names in runtimes.items():
        finding = await _check_runtime(program, names)
        if finding is not None:
            yield finding


def _check_variables() -> Iterator[Finding]:
    """Find `${VAR}` in settings: neither deputize.toml nor a variable of the environment expands it."""
    document: Any = {}
    with contextlib.suppress(OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        document = tomllib.loads(Path(SETTINGS_FILE).read_text(encoding="utf-8"))
    places = [f"{path} in {SETTINGS_FILE}" for path, text in _list_texts(document) if _LITERAL.search(text)]
    places += [name for name, value in os.environ.items() if name.startswith("DEPUTIZE_") and _LITERAL.search(value)]
    for place in places:
        yield Finding(
            check="variables",
            status="broken",
            summary=f"{place} contains ${{…}}, which is not expanded",
            todo="write the value, or set it with a variable such as DEPUTIZE_DATABASE__URL where the program starts",
        )


def _list_texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _list_texts(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for each in value:
            yield from _list_texts(each, path)


def _check_client_files(folder: Path) -> Iterator[Finding]:
    """Find tokens in the clients' files of a project, and references that the client does not expand."""
    for name, client in CLIENTS.items():
        path = folder / client.project_file if client.project_file else None
        if path is not None and path.is_file():
            yield from _check_client_file(name, client, path)


def _check_client_file(name: ClientName, client: ClientFormat, path: Path) -> Iterator[Finding]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        document = parse_toml_text(text) if client.is_toml else parse_json_text(text)
    except (OSError, UnicodeDecodeError, ConfigError):
        return  # the client says so
    for place, value in _list_texts(document.get(client.section)):
        if _JWT.search(value):
            yield Finding(
                check="clients",
                status="warning",
                summary=f"{client.project_file} contains a token ({place})",
                todo=f"remove it and revoke it, then run deputize connect {name}, which writes none",
            )
        elif TOKEN_VARIABLE in value and "${" in value and (client.token_reference or "") not in value:
            yield Finding(
                check="clients",
                status="broken",
                summary=f"{client.title} does not expand {value.removeprefix('Bearer ')} ({place})",
                todo=f"write {client.token_reference} in {client.project_file}, or run deputize connect {name}",
            )


async def _check_runtime(program: str, servers: list[str]) -> Finding | None:
    runtime, minimum = _RUNTIMES[program]
    requirement = f"{runtime} {'.'.join(map(str, minimum))} or newer, which {', '.join(servers)} needs"
    path = shutil.which(runtime)
    if path is None:
        return Finding(check=runtime, status="broken", summary="not found", todo=f"install {requirement}")
    version = await _read_version(path)
    if version is None:
        return Finding(
            check=runtime, status="warning", summary=f"{path} names no version", todo=f"install {requirement}"
        )
    summary = f"{'.'.join(map(str, version))} at {path}"
    if version < minimum:
        return Finding(check=runtime, status="broken", summary=summary, todo=f"install {requirement}")
    return Finding(check=runtime, status="good", summary=summary)


async def _read_version(path: str) -> tuple[int, int] | None:
    """Read the version of an interpreter from the PATH of this command; programs of projects are never started."""
    try:
        process = await asyncio.create_subprocess_exec(
            path, "--version", stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
    except OSError:
        return None
    try:
        async with asyncio.timeout(_VERSION_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    match = _VERSION.search(output.decode(errors="replace"))
    return (int(match[1]), int(match[2])) if match else None
