"""Install an MCP server's package once, into the project, so that its program can be pinned and sandboxed.

Launchers such as npx and uvx fetch a package when they start it, so that nobody can say what will run. Here nothing of
the package runs during its installation: scripts of npm packages are left out, and Python packages are wheels.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from configparser import ConfigParser, Error
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from deputize.core.config_error import ConfigError
from deputize.core.settings import McpServerSettings, Settings
from deputize.core.settings.servers import Target
from deputize.core.value_types import frozen
from deputize.execute.shared_folders import FolderRefusal, SharedFolders
from deputize.execute.upstreams.program_files import FETCHERS, list_folders
from deputize.interfaces.cli.local.program_pins import compute_pins

SERVERS_FOLDER: Final = "servers"
_MARKER: Final = ".installed-by-deputize"
_SECONDS: Final = 900
_NPM_NAME: Final = re.compile(r"(@[a-z0-9~][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*")
_PYPI_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]*")


@frozen
class ServerPackage:
    """A package of npm or PyPI; without a version, the newest is installed, and pinned."""

    registry: str
    name: str
    version: str | None = None

    def __str__(self) -> str:
        return f"{self.registry}:{self.name}{f'@{self.version}' if self.version else ''}"

    @property
    def server_name(self) -> str:
        """The name of a server of this package: without what every such package is called."""
        words = re.split(r"[^a-z0-9]+", self.name.rpartition("/")[2].lower())
        own_words = [each for each in words if each not in ("", "mcp", "server")] or ["server"]
        name = "_".join(own_words)[:48].rstrip("_")
        return name if name[0].isalpha() else f"s{name}"[:48]


@frozen
class InstalledServer:
    """An installed package: the command of its server, and the folder that has all of its code."""

    version: str
    command: tuple[str, ...]
    code_folder: str


def parse_package(text: str) -> ServerPackage:
    """Parse `npm:NAME[@VERSION]` or `pypi:NAME[@VERSION]`."""
    registry, _, rest = text.partition(":")
    split_at = rest.rfind("@")
    name, version = (rest[:split_at], rest[split_at + 1 :]) if split_at > 0 else (rest, None)
    pattern = {"npm": _NPM_NAME, "pypi": _PYPI_NAME}.get(registry)
    is_version_good = version is None or _VERSION.fullmatch(version)
    if pattern is None or not pattern.fullmatch(name) or len(name) > 214 or not is_version_good:
        raise ConfigError(
            f"{text[:200]!r} is not a package: write npm:NAME or pypi:NAME, with @VERSION behind it if not the newest "
            "version is meant."
        )
    return ServerPackage(registry=registry, name=name, version=version)


def find_launched_package(command: Sequence[str]) -> tuple[ServerPackage, tuple[str, ...]] | None:
    """Find the package that a launcher's command fetches and starts, and the arguments of its program."""
    registry = FETCHERS.get(os.path.basename(command[0])) if command else None
    words = [each for each in command[1:] if each not in ("-y", "--yes")]
    if registry is None or not words or words[0].startswith("-"):
        return None
    try:
        package = parse_package(f"{registry}:{words[0].removesuffix('@latest')}")
    except ConfigError:
        return None
    return package, tuple(words[1:])


def require_server_name(name: str) -> None:
    """Refuse what is no name of a server, before it is the name of a folder."""
    try:
        McpServerSettings.model_validate({"name": name, "command": [sys.executable]})
    except ValidationError:
        raise ConfigError(
            f"{name[:100]!r} is no name of a server: it starts with a small letter, and has small letters, digits and "
            "single underscores, 48 at most."
        ) from None


def require_hosts(hosts: Sequence[str]) -> None:
    """Refuse what is no host with a port, before anything is fetched."""
    for each in hosts:
        try:
            TypeAdapter(Target).validate_python(each)
        except ValidationError:
            raise ConfigError(f"--host {each[:300]} is no host: write HOST:PORT, as api.example.com:443.") from None


def require_shareable_folders(name: str, readable: Sequence[str], writable: Sequence[str], settings: Settings) -> None:
    """Refuse folders that the gateway would not show to the server in its sandbox, before anything is fetched."""
    table = {"name": name, "command": [sys.executable], "folder": ".", "folders": _list_folders(readable, writable)}
    server = McpServerSettings.model_validate(table)
    shared_folders = SharedFolders(settings.model_copy(update={"servers": (*settings.servers, server)}))
    for each, path in list_folders(server):
        try:
            shared_folders.require_shareable(path, is_written=each.write)
        except FolderRefusal as refusal:
            raise ConfigError(
                f"{'--write' if each.write else '--read'} {each.path} would not be shown to the server, because "
                f"{refusal.reason}: {refusal.todo}."
            ) from None


def holds_home(path: str) -> bool:
    """Check whether this person's home folder would be shown, with what other programs keep there."""
    try:
        home = Path.home().resolve()
    except RuntimeError:  # a user without an account has none
        return False
    return home.is_relative_to(Path(path).expanduser().resolve())


def install_package(package: ServerPackage, name: str, program: str | None) -> InstalledServer:
    """Install a package into `servers/NAME`, and find its program. What an interrupted installation left is removed."""
    folder = Path(SERVERS_FOLDER, name)
    if folder.exists() and not (folder / _MARKER).is_file():
        raise ConfigError(f"{folder} is there already and is not from here: choose another --name, or move it away.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o755)
    (folder / _MARKER).write_text(f"{package}\n")
    # It is installed on each machine, and belongs to no repository.
    (folder / ".gitignore").write_text("*\n")
    return (_install_npm if package.registry == "npm" else _install_pypi)(package, folder, program)


def remove_package(name: str) -> None:
    """Remove an installation that no settings name, and nothing else that is in its place."""
    folder = Path(SERVERS_FOLDER, name)
    if (folder / _MARKER).is_file():
        shutil.rmtree(folder, ignore_errors=True)


def build_server_table(
    name: str,
    installed: InstalledServer,
    arguments: Sequence[str],
    readable: Sequence[str],
    writable: Sequence[str],
    hosts: Sequence[str],
) -> dict[str, Any]:
    """Build the settings of an installed server: pinned by the digests of its files, and in a sandbox."""
    folders = _list_folders(readable, writable)
    table: dict[str, Any] = {
        "name": name,
        "command": [*installed.command, *arguments],
        "folder": ".",
        **({"folders": folders} if folders else {}),
        **({"hosts": list(hosts)} if hosts else {}),
    }
    try:
        server = McpServerSettings.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(each) for each in first["loc"])
        raise ConfigError(f"{where or 'The server'} is not valid: {first['msg']}.") from None
    pins, unpinned_files = compute_pins(server, [installed.code_folder])
    if unpinned_files:
        raise ConfigError(
            f"{unpinned_files[0]} is in no folder that the server may use: name it with --read or --write, or leave it "
            "out of the arguments."
        )
    return {**table, **pins}


def _list_folders(readable: Sequence[str], writable: Sequence[str]) -> list[dict[str, Any]]:
    return [{"path": each} for each in readable] + [{"path": each, "write": True} for each in writable]


def _install_npm(package: ServerPackage, folder: Path, program: str | None) -> InstalledServer:
    if shutil.which("npm") is None:
        raise ConfigError("npm is not installed, and the package comes from it: install Node.js with npm.")
    wanted = f"{package.name}@{package.version or 'latest'}"
    # Its own project: npm must not look for one above.
    (folder / "package.json").write_text('{"private": true}\n')
    _run(
        package,
        [
            "npm",
            "install",
            "--prefix",
            str(folder),
            "--save-exact",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            wanted,
        ],
    )
    modules = folder / "node_modules"
    manifest = json.loads((modules / package.name / "package.json").read_text(encoding="utf-8"))
    listed = manifest.get("bin") or {}
    short_name = package.name.rpartition("/")[2]
    programs = {short_name: listed} if isinstance(listed, str) else dict(listed)
    script = programs[choose_program(package, programs, program)]
    path = os.path.normpath(modules / package.name / script)
    return InstalledServer(version=str(manifest["version"]), command=("node", path), code_folder=str(modules))


def _install_pypi(package: ServerPackage, folder: Path, program: str | None) -> InstalledServer:
    wanted = f"{package.name}=={package.version}" if package.version else package.name
    # The pip of another environment, so that nothing is left of it here. This interpreter is not started again: at each
    # start, it executes lines of the .pth files that packages bring.
    with tempfile.TemporaryDirectory(prefix="deputize-pip-") as installer:
        _run(package, [sys.executable, "-m", "venv", installer])
        _run(package, [sys.executable, "-m", "venv", "--without-pip", str(folder)])
        pip = [f"{installer}/bin/python", "-m", "pip", "--python", str(folder / "bin" / "python")]
        _run(package, [*pip, "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:", wanted])
    metadata = next(
        each
        for each in folder.glob("lib/python*/site-packages/*.dist-info")
        if _normalize(each.name.split("-")[0]) == _normalize(package.name)
    )
    entry_points = ConfigParser(delimiters=("=",))
    entry_points.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        entry_points.read(metadata / "entry_points.txt", encoding="utf-8")
        programs = dict(entry_points["console_scripts"]) if "console_scripts" in entry_points else {}
    except Error:
        programs = {}
    script = choose_program(package, programs, program)
    version = metadata.name.removesuffix(".dist-info").partition("-")[2]
    return InstalledServer(version=version, command=(str(folder / "bin" / script),), code_folder=str(folder / "lib"))


def choose_program(package: ServerPackage, programs: Mapping[str, str], wanted: str | None) -> str:
    """Choose a program of a package: the wanted one, the only one, or the one that is named like the package."""
    names = sorted(programs)
    if wanted is not None and wanted not in programs:
        raise ConfigError(f"{package} has no program {wanted!r}: it has {', '.join(names) or 'none'}.")
    short_name = package.name.rpartition("/")[2]
    chosen = wanted or (names[0] if len(names) == 1 else short_name if short_name in programs else None)
    if chosen is None:
        hint = f"choose one with --program: {', '.join(names)}" if names else "it is no server that can be started"
        raise ConfigError(f"{package} has {len(names) or 'no'} programs: {hint}.")
    return chosen


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _run(package: ServerPackage, command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{package} was not installed within {_SECONDS // 60} minutes: try again.") from None
    if done.returncode:
        output = done.stderr or done.stdout
        if "E404" in output or "ETARGET" in output or "No matching distribution" in output:
            raise ConfigError(f"{package} was not found: no package, version or wheel has this name.")
        lines = [each.strip() for each in output.splitlines() if each.strip()]
        told = next((each for each in lines if "error" in each.lower()), "it said nothing")
        raise ConfigError(f"{package} could not be installed: {told[:300]}")
