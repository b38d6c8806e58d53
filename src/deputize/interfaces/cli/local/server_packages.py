"""Install an MCP server's package once, into the project, so that its program can be pinned and sandboxed.

Launchers such as npx and uvx fetch a package when they start it, so that nobody can say what will run. Here npm and pip
run in a sandbox that reaches the registry alone and no file of this host, whatever a package makes them do. Of what
they leave, only files are taken over, and used once all are known to come from the registry. Scripts of npm packages
are left out, no dependency is taken from git or an address, and Python packages are wheels.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from configparser import ConfigParser, Error
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pydantic import TypeAdapter, ValidationError

from deputize.core.config_error import ConfigError
from deputize.core.settings import McpServerSettings, Settings
from deputize.core.settings.servers import Target
from deputize.core.value_types import frozen
from deputize.execute.egress_proxy import PROXY_ENVIRONMENT, PROXY_PORT, EgressProxy
from deputize.execute.shared_folders import FolderRefusal, SharedFolders
from deputize.execute.upstreams.program_files import FETCHERS, list_folders
from deputize.interfaces.cli.local.package_registries import (
    Registry,
    is_npm_origin,
    read_npm_registry,
    read_pip_registry,
    read_published_at,
)
from deputize.interfaces.cli.local.program_pins import compute_pins
from deputize.sandboxes.client import SandboxClient, SandboxUnavailable
from deputize.sandboxes.port import Ending, ResultFolder, SandboxFolder, SandboxLimits, SandboxSpec

SERVERS_FOLDER: Final = "servers"
_MARKER: Final = ".installed-by-deputize"
_SECONDS: Final = 900
_FRESH_DAYS: Final = 7
_MAX_OUTPUT_BYTES: Final = 67_108_864
_RESULT_BYTES: Final = 2_147_483_648
_LIMITS: Final = SandboxLimits(
    memory_bytes=4_294_967_296, cpus=4.0, processes=256, storage_bytes=1_073_741_824, open_files=4_096
)
_LOCK_FILE: Final = "package-lock.json"
# Neither git nor an address nor a folder is where a dependency comes from, whichever npm this is: those before 11 know
# no such options, and run no other git than the one that the environment names.
_NPM_OPTIONS: Final = (
    "--save-exact", "--ignore-scripts", "--no-audit", "--no-fund", "--allow-git=none", "--allow-remote=none",
    "--allow-file=none", "--allow-directory=none", "--no-bin-links",
)  # fmt: skip
_NPM_ENVIRONMENT: Final = {
    "npm_config_git": "/bin/false", "npm_config_update_notifier": "false", "npm_config_cache": "/tmp/cache",  # its own
    "npm_config_userconfig": "/tmp/user", "npm_config_globalconfig": "/tmp/global",  # its own
}  # fmt: skip
# The last command says of all packages whether their registry signed them.
_NPM_SCRIPT: Final = """\
node=$1 npm=$2
shift 2
echo '{"private": true}' > package.json
"$node" "$npm" install "$@" >&2
"$node" "$npm" audit signatures --json --fetch-retries=0 || true
"""
_WHEELS_FILE: Final = "/tmp/wheels.txt"  # its own
_PIP_SCRIPT: Final = f'cat > {_WHEELS_FILE}; "$1" -m venv --without-pip "$2"; shift 2; exec "$@"'
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
    published_at: datetime | None = None
    signatures: str = ""

    def describe_origin(self, now: datetime) -> tuple[str, bool]:
        """Describe how old this version is and who signed it, and tell whether that calls for a second look."""
        days = None if self.published_at is None else (now - self.published_at).days
        is_fresh = days is not None and days < _FRESH_DAYS
        age = (
            "Its registry does not say when this version was published"
            if self.published_at is None
            else f"This version was published {days} day{'' if days == 1 else 's'} ago, on {self.published_at:%Y-%m-%d}"
        )
        hint = ": a stolen account is mostly noticed within days, so wait or review it first" if is_fresh else ""
        return f"{age}{hint}. {self.signatures}.", is_fresh


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


def install_package(
    package: ServerPackage, name: str, program: str | None, supervisor: Path | None = None
) -> InstalledServer:
    """Install a package into `servers/NAME`, and find its program. What an interrupted installation left is removed.

    `supervisor` is the folder of this host's supervisor of sandboxes, if it is not the usual one.
    """
    folder = Path(SERVERS_FOLDER, name)
    if folder.exists() and not (folder / _MARKER).is_file():
        raise ConfigError(f"{folder} is there already and is not from here: choose another --name, or move it away.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o755)
    (folder / _MARKER).write_text(f"{package}\n")
    # It is installed on each machine, and belongs to no repository.
    (folder / ".gitignore").write_text("*\n")
    install = _install_npm if package.registry == "npm" else _install_pypi
    # The operator's own npm and pip, one at a time, are what runs there: any sandbox is better than none.
    sandboxes = SandboxClient(supervisor, accept_weak_limits=True, accept_shared_user=True)
    installed, registry = install(package, folder, program, sandboxes)
    published_at = read_published_at(registry, package.registry, package.name, installed.version)
    return replace(installed, published_at=published_at)


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
    private_hosts: Sequence[str] = (),
) -> dict[str, Any]:
    """Build the settings of an installed server: pinned by the digests of its files, and in a sandbox."""
    folders = _list_folders(readable, writable)
    table: dict[str, Any] = {
        "name": name,
        "command": [*installed.command, *arguments],
        "folder": ".",
        **({"folders": folders} if folders else {}),
        **({"hosts": list(hosts)} if hosts else {}),
        **({"private_hosts": list(private_hosts)} if private_hosts else {}),
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


def _install_npm(
    package: ServerPackage, folder: Path, program: str | None, sandboxes: SandboxClient
) -> tuple[InstalledServer, Registry]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise ConfigError("npm is not installed, and the package comes from it: install Node.js with npm.")
    node, npm = os.path.realpath(node), os.path.realpath(npm)
    registry = read_npm_registry([node, npm], folder)
    wanted = f"{package.name}@{package.version or 'latest'}"
    output = _run(
        package,
        sandboxes,
        registry,
        ("/bin/sh", "-ec", _NPM_SCRIPT, "sh", node, npm, *_NPM_OPTIONS, wanted),
        programs=(*_list_parts(node), os.path.dirname(os.path.dirname(npm))),
        environment={**_NPM_ENVIRONMENT, "PATH": f"{os.path.dirname(node)}:/usr/local/bin:/usr/bin:/bin"},
        target=folder,
    )
    require_npm_registry(package, json.loads((folder / _LOCK_FILE).read_text(encoding="utf-8")), registry)
    modules = folder / "node_modules"
    manifest = json.loads((modules / package.name / "package.json").read_text(encoding="utf-8"))
    listed = manifest.get("bin") or {}
    short_name = package.name.rpartition("/")[2]
    programs = {short_name: listed} if isinstance(listed, str) else dict(listed)
    script = programs[choose_program(package, programs, program)]
    installed = InstalledServer(
        version=str(manifest["version"]),
        command=("node", os.path.normpath(modules / package.name / script)),
        code_folder=str(modules),
        signatures=_read_signatures(package, output),
    )
    return installed, registry


def require_npm_registry(package: ServerPackage, lock: Mapping[str, Any], registry: Registry) -> None:
    """Refuse what npm's own record does not name as one of the registry."""
    for path, entry in lock["packages"].items():
        origin = str(entry.get("resolved", ""))
        # What is bundled is in the package above it.
        is_known = registry.has(origin) or is_npm_origin(origin) or (entry.get("inBundle") and not origin)
        if path and (entry.get("link") or not is_known):
            raise _build_origin_refusal(package, path.rpartition("node_modules/")[2], origin)


def _build_origin_refusal(package: ServerPackage, name: str, origin: str) -> ConfigError:
    return ConfigError(
        f"{package} was not installed: it needs {name[:200]}, which comes from {origin[:200] or 'elsewhere'} and not "
        "from the registry. Such code is neither versioned nor signed; choose another package."
    )


def _read_signatures(package: ServerPackage, output: bytes) -> str:
    """Read what npm says of the signatures, which not every registry has; refuse wrong ones."""
    try:
        result = json.loads(output)
        invalid, missing = result["invalid"], result["missing"]
    except (ValueError, KeyError, TypeError):
        return "Its signatures could not be checked, because npm did not get the keys of this registry"
    if invalid:
        raise ConfigError(
            f"{package} was not installed: the signature of {str(invalid[0].get('name'))[:200]} is not that of the "
            "registry, so its files may have been changed on the way. Report it to the registry."
        )
    return f"{len(missing)} of its packages have no signature" if missing else "All its packages have valid signatures"


def _install_pypi(
    package: ServerPackage, folder: Path, program: str | None, sandboxes: SandboxClient
) -> tuple[InstalledServer, Registry]:
    wanted = f"{package.name}=={package.version}" if package.version else package.name
    # The pip of another environment, so that nothing is left of it here. This interpreter is not started again: at each
    # start, it executes lines of the .pth files that packages bring.
    with tempfile.TemporaryDirectory(prefix="deputize-pip-") as installer:
        # The user of sandboxes reads it.
        os.chmod(installer, 0o755)
        subprocess.run([sys.executable, "-m", "venv", installer], check=True, capture_output=True, timeout=_SECONDS)
        command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        pip = (f"{installer}/bin/python", "-m", "pip")
        registry = read_pip_registry(pip, Path(installer))
        python = os.path.realpath(sys.executable)
        programs = (*_list_parts(python), installer)
        # Code that a dependency by address brings could run in this one, which leaves nothing but its answer.
        report = _run(
            package, sandboxes, registry,
            (*pip, "install", "--quiet", "--dry-run", "--report", "-", "--only-binary", ":all:", wanted),
            programs=programs,
        )  # fmt: skip
        target = str(folder.resolve())
        _run(
            package, sandboxes, registry,
            (
                "/bin/sh", "-ec", _PIP_SCRIPT, "sh", python, target, *pip, "--python", f"{target}/bin/python",
                "install", "--quiet", "--no-deps", "--only-binary", ":all:", "-r", _WHEELS_FILE,
            ),
            programs=programs, target=folder, stdin=lock_wheels(package, report, registry),
        )  # fmt: skip
    metadata = next(
        each
        for each in folder.glob("lib/python*/site-packages/*.dist-info")
        if _normalize(each.name.split("-")[0]) == _normalize(package.name)
    )
    entry_points = ConfigParser(delimiters=("=",))
    entry_points.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        entry_points.read(metadata / "entry_points.txt", encoding="utf-8")
        scripts = dict(entry_points["console_scripts"]) if "console_scripts" in entry_points else {}
    except Error:
        scripts = {}
    script = choose_program(package, scripts, program)
    version = metadata.name.removesuffix(".dist-info").partition("-")[2]
    installed = InstalledServer(
        version=version, command=(str(folder / "bin" / script),), code_folder=str(folder / "lib"),
        signatures="No index signs Python packages",
    )  # fmt: skip
    return installed, registry


def lock_wheels(package: ServerPackage, report: bytes, registry: Registry) -> bytes:
    """Build the requirements of what pip resolved, by versions, and refuse what is no wheel of the index."""
    lines = []
    try:
        for each in json.loads(report)["install"]:
            name, version = each["metadata"]["name"], each["metadata"]["version"]
            origin = each["download_info"]["url"]
            if not (_PYPI_NAME.fullmatch(name) and _VERSION.fullmatch(version)):
                raise ValueError(name)
            is_wheel = unquote(urlsplit(origin).path).endswith(".whl")
            if each["is_direct"] or not is_wheel or not registry.has(origin):
                raise _build_origin_refusal(package, name, origin)
            lines.append(f"{name}=={version}\n")
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{package} could not be installed: pip does not say what it would install.") from error
    return "".join(lines).encode()


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


def _list_parts(program: str) -> list[str]:
    """List what an interpreter needs beside itself, where it is not in the base of every sandbox."""
    prefix = os.path.dirname(os.path.dirname(program))
    parts = [os.path.join(prefix, each) for each in ("bin", "lib", "lib64")]
    return [] if prefix == "/usr" else [each for each in parts if os.path.isdir(each)]


def _run(
    package: ServerPackage,
    sandboxes: SandboxClient,
    registry: Registry,
    command: Sequence[str],
    *,
    programs: Sequence[str],
    environment: Mapping[str, str] | None = None,
    target: Path | None = None,
    stdin: bytes = b"",
) -> bytes:
    """Run npm or pip where it reaches its registry and nothing else, and take over the files that it left."""
    shown = [each for each in (*programs, *registry.folders) if not each.startswith("/usr/") and os.path.exists(each)]
    folder = "/tmp" if target is None else str(target.resolve())  # its own
    spec = SandboxSpec(
        command=tuple(command),
        seconds=_SECONDS,
        folders=tuple(SandboxFolder(path=each) for each in dict.fromkeys(shown)),
        working_folder=folder,
        proxy_port=PROXY_PORT,
        environment={**PROXY_ENVIRONMENT, **registry.environment, **(environment or {})},
        limits=_LIMITS,
        result_folder=None if target is None else ResultFolder(path=folder, size_bytes=_RESULT_BYTES),
    )
    return asyncio.run(_run_sandbox(package, sandboxes, registry, spec, stdin, target))


async def _run_sandbox(
    package: ServerPackage,
    sandboxes: SandboxClient,
    registry: Registry,
    spec: SandboxSpec,
    stdin: bytes,
    target: Path | None,
) -> bytes:
    refusals: dict[str, str] = {}

    def note_attempt(host: str, reason: str | None) -> None:
        if reason is not None:
            refusals[host] = reason

    proxy = EgressProxy(frozenset(), note_attempt, private_hosts=registry.targets, plain_hosts=registry.plain_targets)
    try:
        sandbox = await sandboxes.start(spec)
    except SandboxUnavailable as error:
        raise ConfigError(
            f"{package} was not installed: npm and pip run in a sandbox, and this host can start none: {error}. Run "
            "deputize sandboxes check, which says what to change."
        ) from error
    try:
        async with contextlib.aclosing(sandbox):
            if sandbox.listener is not None:
                proxy.start(sandbox.listener)
            result = await sandbox.finish(stdin, max_output_bytes=_MAX_OUTPUT_BYTES)
            if result.end.ending is not Ending.EXIT or result.end.exit_code:
                raise _explain_failure(package, result.end.ending, result.end.note, result.stderr, refusals)
            if target is not None:
                if sandbox.result_folder is None:
                    raise ConfigError(f"{package} could not be installed: {result.end.note or 'its files are lost'}")
                await asyncio.to_thread(_take_over, str(sandbox.result_folder), str(target))
            return result.stdout
    except (OSError, RecursionError) as error:
        raise ConfigError(f"{package} could not be installed: its files cannot be copied ({error}).") from error
    finally:
        await proxy.aclose()
        await sandboxes.aclose()


def _take_over(source: str, target: str) -> None:
    """Copy the files of a sandbox. What is there already stays; links, pipes and special modes are left out."""
    for entry in os.scandir(source):
        path, facts = os.path.join(target, entry.name), entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(facts.st_mode) and not os.path.islink(path):
            os.makedirs(path, mode=0o755, exist_ok=True)
            _take_over(entry.path, path)
        elif stat.S_ISREG(facts.st_mode) and not os.path.lexists(path):
            shutil.copyfile(entry.path, path)
            os.chmod(path, 0o755 if facts.st_mode & stat.S_IXUSR else 0o644)


def _explain_failure(
    package: ServerPackage, ending: Ending, note: str, stderr: bytes, refusals: Mapping[str, str]
) -> ConfigError:
    output = stderr.decode(errors="replace")
    if ending is Ending.DEADLINE:
        return ConfigError(f"{package} was not installed within {_SECONDS // 60} minutes: try again.")
    if ending is not Ending.EXIT:
        return ConfigError(f"{package} could not be installed: its sandbox ended by {ending.value}. {note}".rstrip())
    if refusals:
        host, reason = next(iter(refusals.items()))
        return ConfigError(
            f"{package} was not installed: it wanted to connect to {host[:300] or 'a host'}, which is refused: "
            f"{reason}. Only the registry that npm or pip is configured to is reached: choose a package whose "
            "dependencies are all there."
        )
    if "EALLOW" in output or "Refusing to fetch" in output:
        return ConfigError(
            f"{package} was not installed: it needs a package from git, an address or a folder, which is neither "
            "versioned nor signed; choose another package."
        )
    if "E404" in output or "ETARGET" in output or "No matching distribution" in output:
        return ConfigError(f"{package} was not found: no package, version or wheel has this name.")
    lines = [each.strip() for each in output.splitlines() if each.strip()]
    told = next((each for each in lines if "error" in each.lower()), note or "it said nothing")
    return ConfigError(f"{package} could not be installed: {told[:300]}")
