"""Run a real PostgreSQL with pgvector for development and tests, from the programs of the `local` extra.

`store/local_postgres_host.py` finds the programs, the account that runs them, and its processes. In production,
`database.url` names a database instead.

One folder holds one server:

    pg/        the data, owned by the server's account, 0700 (elsewhere if that account cannot reach it)
    pg.json    password, port, socket folder and where the data is, 0600
    pg.log     the log of the server, 0600
    pg.lock    locked while a process starts or stops the server

The server outlives the process that started it unless `stop` is called; the next `start` here adopts it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from deputize.store.local_postgres_host import (
    ENVIRONMENT,
    PACKAGE,
    Account,
    LocalPostgresError,
    PostgresInstallation,
    choose_account,
    ensure_private_folder,
    find_free_port,
    find_installation,
    find_processes,
    is_port_free,
    make_shared_path,
    run_as,
    send_signal,
    spawn_as,
    wait_until,
    write_private_file,
)

__all__ = ["LocalPostgres", "LocalPostgresError"]

_USER = "deputize"
_DATABASE = "deputize"
_HOST = "127.0.0.1"
_SETTINGS = {
    "timezone": "UTC",
    "log_timezone": "UTC",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "track_commit_timestamp": "on",
    "log_checkpoints": "off",
}
_READY_SECONDS = 60.0
_STOP_SECONDS = 30.0
_ORPHAN_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _ServerRecord:
    """What `pg.json` stores about a server between starts."""

    password: str
    port: int = 0
    sockets: str = ""
    elsewhere: str | None = None
    """The path of the data, if the server's account cannot reach it in the folder."""


class LocalPostgres:
    """One PostgreSQL in one folder. Several processes may `start` it at once: they share the server."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        package: str = PACKAGE,
    ) -> None:
        self.folder = folder.absolute()
        self.log = self.folder / "pg.log"
        self.is_adopted = False
        """True if `start` found the server running; it then has the settings it was started with."""
        self._wanted_port = port
        self._settings = dict(settings or {})
        self._package = package
        self._programs: PostgresInstallation | None = None
        self._record: _ServerRecord | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    @property
    def dsn(self) -> str:
        """The DSN of the database."""
        return self.dsn_for(_DATABASE)

    @property
    def port(self) -> int:
        """The port of the server."""
        return self._require_record().port

    @property
    def pid(self) -> int:
        """The process id of the postmaster."""
        if self._pid is None:
            raise LocalPostgresError("The local PostgreSQL is not running: call start() first.")
        return self._pid

    @property
    def data(self) -> Path:
        """The folder of the data."""
        elsewhere = self._record.elsewhere if self._record else None
        return Path(elsewhere) if elsewhere else self.folder / "pg"

    def dsn_for(self, database: str) -> str:
        """Build the DSN of a database of this server."""
        record = self._require_record()
        return f"postgresql://{_USER}:{record.password}@{_HOST}:{record.port}/{database}"

    def start(self) -> Self:
        """Start the server, or adopt the one that runs in this folder, and wait until it answers."""
        with self._lock():
            self._record = self._load_record()
            account = choose_account(self.data)
            self._programs = find_installation(account, package=self._package)
            pid = self._find_postmaster(account)
            self.is_adopted = pid is not None and self._wait_until_ready(pid, account)
            if not self.is_adopted:
                self._clear_crash_remains(account)
                self._prepare_record(account)
                if not self.data.exists():
                    self._initialize(account)
                pid = self._launch(account)
            self._pid = pid
            self._ensure_database()
        return self

    def stop(self) -> None:
        """Stop the server cleanly, whichever process started it: disconnect clients and checkpoint the data."""
        with self._lock():
            self._end_postmaster(signal.SIGINT, signal.SIGQUIT)
            if self._record:
                shutil.rmtree(self._record.sockets, ignore_errors=True)

    def kill(self) -> None:
        """Kill the postmaster, as a crash would; `start` recovers."""
        with self._lock():
            self._end_postmaster(signal.SIGKILL)

    def erase(self) -> None:
        """Stop the server and delete its data, password and log."""
        self.stop()
        with self._lock():
            shutil.rmtree(self.data, ignore_errors=True)
            for name in ("pg.json", "pg.log"):
                (self.folder / name).unlink(missing_ok=True)
            self._record = None

    def run_sql(self, text: str, *, database: str = _DATABASE) -> str:
        """Run SQL through psql as the owner and return its bare output; for administration only."""
        command = [self._find_program("psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", "-U", _USER, "-d", database]
        process = subprocess.run(
            [*command, *self._build_connection_options()],
            input=text,
            text=True,
            capture_output=True,
            env={**ENVIRONMENT, "PGPASSWORD": self._require_record().password},
            check=False,
        )
        if process.returncode != 0:
            raise LocalPostgresError(f"The local PostgreSQL refused the statement: {process.stderr.strip()}")
        return process.stdout.strip()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An adopted server belongs to the process that started it.
        if not self.is_adopted:
            self.stop()

    def _require_record(self) -> _ServerRecord:
        if self._record is None:
            raise LocalPostgresError("The local PostgreSQL was not started: call start() first.")
        return self._record

    def _find_program(self, name: str) -> str:
        if self._programs is None:
            raise LocalPostgresError("The local PostgreSQL was not started: call start() first.")
        return self._programs.path(name)

    def _build_connection_options(self) -> list[str]:
        # The socket folder is private, so no other process can answer in place of the server.
        record = self._require_record()
        return ["-h", record.sockets, "-p", str(record.port)]

    @contextmanager
    def _lock(self) -> Iterator[None]:
        try:
            if not self.folder.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                # Root lets the server's account pass through to its data without listing the folder.
                self.folder.chmod(0o711 if os.geteuid() == 0 else 0o700)
            handle = os.open(self.folder / "pg.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise LocalPostgresError(
                f"The folder {self.folder} cannot be written ({error.strerror}): choose another, or run as its owner."
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _load_record(self) -> _ServerRecord | None:
        file = self.folder / "pg.json"
        try:
            return _ServerRecord(**orjson.loads(file.read_bytes()))
        except FileNotFoundError:
            if (self.folder / "pg").exists():
                raise LocalPostgresError(
                    f"{file}, which has the password of the data in {self.folder / 'pg'}, is missing: "
                    "restore it, or delete that data to start with an empty database."
                ) from None
            return None
        except (orjson.JSONDecodeError, TypeError) as error:
            raise LocalPostgresError(f"{file} is damaged ({error}): restore it, or delete it and the data.") from error

    def _save_record(self, record: _ServerRecord) -> None:
        self._record = record
        fresh = self.folder / "pg.json.new"
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(orjson.dumps(asdict(record)))
        fresh.replace(self.folder / "pg.json")

    def _prepare_record(self, account: Account) -> None:
        """Choose the place and the password of the data once, and make sure of the socket folder every time."""
        record = self._record
        if record is None:
            reachable = account.can_reach(self.folder / "pg")
            elsewhere = None if reachable else str(make_shared_path(f"data-{secrets.token_hex(8)}"))
            record = _ServerRecord(password=secrets.token_hex(24), elsewhere=elsewhere)
        self._save_record(replace(record, sockets=str(ensure_private_folder(account, record.sockets))))

    def _get_cluster_name(self) -> str:
        """Return the cluster name in the server's process titles. It contains the inode, so a moved folder keeps it
        and a copy does not.
        """
        facts = self.data.stat()
        return f"deputize-{facts.st_dev:x}-{facts.st_ino:x}"

    def _find_postmaster(self, account: Account) -> int | None:
        """Find the postmaster of this data; None for a stale file, a zombie or a reused pid."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None
        return pid if self._is_running(pid, account) else None

    def _is_running(self, pid: int, account: Account) -> bool:
        if self._child is not None and self._child.pid == pid:
            return self._child.poll() is None
        return pid in find_processes(self._get_cluster_name(), account)

    def _wait_until_ready(self, pid: int, account: Account) -> bool:
        """Wait until the postmaster answers; False when it ended instead."""
        if not wait_until(lambda: self._is_ready() or not self._is_running(pid, account), _READY_SECONDS):
            raise LocalPostgresError(f"PostgreSQL is not ready after {_READY_SECONDS:.0f} s: {self._read_last_error()}")
        return self._is_running(pid, account)

    def _is_ready(self) -> bool:
        command = [self._find_program("pg_isready"), "-q", "-t", "2", *self._build_connection_options()]
        return subprocess.run(command, env=ENVIRONMENT, check=False).returncode == 0

    def _clear_crash_remains(self, account: Account) -> None:
        """Clean up after a crash: end backends without a postmaster, and remove its pid file."""
        if not self.data.exists():
            return
        cluster = self._get_cluster_name()
        for number in (signal.SIGQUIT, signal.SIGKILL):
            for pid in find_processes(cluster, account):
                send_signal(pid, number)
            if wait_until(lambda: not find_processes(cluster, account), _ORPHAN_SECONDS):
                break
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _initialize(self, account: Account) -> None:
        record = self._require_record()
        # Created beside its place and moved when complete, so that an interrupted attempt leaves no partial database.
        new_folder = self.data.with_name(f"{self.data.name}.new")
        shutil.rmtree(new_folder, ignore_errors=True)
        new_folder.mkdir(mode=0o700)
        account.set_owner(new_folder, 0o700)
        password = Path(record.sockets, "password")
        password.unlink(missing_ok=True)
        write_private_file(account, password, record.password)
        command = [self._find_program("initdb"), "-D", str(new_folder), "-U", _USER, "-E", "UTF8", "--locale=C"]
        if self._programs and self._programs.builtin_locale:
            command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        # Not synced: the database is still empty.
        command += ["-A", "scram-sha-256", f"--pwfile={password}", "--no-sync", "--no-instructions"]
        try:
            process = run_as(account, command)
        finally:
            password.unlink()
        if process.returncode != 0:
            raise LocalPostgresError(f"PostgreSQL could not prepare {new_folder}: {process.stderr.strip()}")
        new_folder.rename(self.data)

    def _launch(self, account: Account) -> int:
        for _ in range(3):
            record = self._require_record()
            port = self._pick_port(record.port)
            self._save_record(replace(record, port=port))
            self._child = self._spawn(account)
            if self._wait_until_ready(self._child.pid, account):
                return self._child.pid
            if is_port_free(_HOST, port):
                break
            # Another process took the port before the server could: choose again.
        raise LocalPostgresError(f"PostgreSQL did not start: {self._read_last_error()}")

    def _spawn(self, account: Account) -> subprocess.Popen[bytes]:
        record = self._require_record()
        fixed_settings = {
            "listen_addresses": _HOST,
            "port": str(record.port),
            "unix_socket_directories": record.sockets,
            "unix_socket_permissions": "0700",
            "cluster_name": self._get_cluster_name(),
        }
        command = [self._find_program("postgres"), "-D", str(self.data)]
        for name, value in {**_SETTINGS, **self._settings, **fixed_settings}.items():
            command += ["-c", f"{name}={value}"]
        with open(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            return spawn_as(account, command, log)

    def _pick_port(self, last_port: int) -> int:
        if self._wanted_port is None:
            return last_port if last_port and is_port_free(_HOST, last_port) else find_free_port(_HOST)
        if not is_port_free(_HOST, self._wanted_port):
            raise LocalPostgresError(
                f"Port {self._wanted_port} is in use: stop the process that listens there, or choose another port."
            )
        return self._wanted_port

    def _ensure_database(self) -> None:
        self.run_sql(
            f"select 'create database {_DATABASE}' where not exists "
            f"(select from pg_database where datname = '{_DATABASE}') \\gexec",
            database="postgres",
        )

    def _end_postmaster(self, *signals: signal.Signals) -> None:
        self._record = self._record or self._load_record()
        self._pid = None
        account = choose_account(self.data)
        pid = self._find_postmaster(account)
        if pid is None:
            return
        for number in signals:
            send_signal(pid, number)
            if wait_until(lambda: not self._is_running(pid, account), _STOP_SECONDS):
                return
        raise LocalPostgresError(f"PostgreSQL (process {pid}) does not stop: {self._read_last_error()}")

    def _read_last_error(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        error_lines = [line for line in lines[-50:] if "FATAL" in line or "ERROR" in line]
        return f"{(error_lines or lines or ['its log is empty'])[-1]} (see {self.log})"
