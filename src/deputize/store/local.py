"""A real PostgreSQL with pgvector for development and tests, started by us from the `local` extra's programs.

Above: `deputize dev` and the tests, which need a DSN and nothing else. Below: `store/local_host.py`, which
finds the programs, the account that runs them, and its processes. Production brings its own DSN instead.

One folder holds one server:

    pg/        the data, owned by the server's account, 0700 (elsewhere if that account cannot reach it)
    pg.json    password, port, socket folder and where the data is, 0600
    pg.log     what the server says, 0600
    pg.lock    held while somebody starts or stops it

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

from deputize.store.local_host import (
    ENVIRONMENT,
    PACKAGE,
    Account,
    LocalPostgresError,
    Programs,
    choose_account,
    find_programs,
    free_port,
    port_is_free,
    private_folder,
    processes,
    run_as,
    send_signal,
    shelter_for,
    spawn_as,
    wait_until,
    write_private,
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
class _Memory:
    """What a folder remembers of its server between starts; lives in `pg.json`."""

    password: str
    port: int = 0
    sockets: str = ""
    elsewhere: str | None = None
    """The data's path when the server's account could not reach it in the folder."""


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
        self.adopted = False
        """Whether `start` found the server running; its settings are then whatever it was started with."""
        self._wanted_port = port
        self._settings = dict(settings or {})
        self._package = package
        self._programs: Programs | None = None
        self._memory: _Memory | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    @property
    def dsn(self) -> str:
        return self.dsn_for(_DATABASE)

    @property
    def port(self) -> int:
        return self._known().port

    @property
    def pid(self) -> int:
        if self._pid is None:
            raise LocalPostgresError("The local PostgreSQL is not running: call start() first.")
        return self._pid

    @property
    def data(self) -> Path:
        elsewhere = self._memory.elsewhere if self._memory else None
        return Path(elsewhere) if elsewhere else self.folder / "pg"

    def dsn_for(self, database: str) -> str:
        memory = self._known()
        return f"postgresql://{_USER}:{memory.password}@{_HOST}:{memory.port}/{database}"

    def start(self) -> Self:
        """Return with a server that answers: the one already running in this folder, or a new one."""
        with self._lock():
            self._memory = self._recall()
            account = choose_account(self.data)
            self._programs = find_programs(account, package=self._package)
            pid = self._living(account)
            self.adopted = pid is not None and self._becomes_ready(pid, account)
            if not self.adopted:
                self._clear_remains(account)
                self._settle(account)
                if not self.data.exists():
                    self._initialize(account)
                pid = self._launch(account)
            self._pid = pid
            self._ensure_database()
        return self

    def stop(self) -> None:
        """End the server cleanly, whoever started it: clients are disconnected, the data is checkpointed."""
        with self._lock():
            self._end(signal.SIGINT, signal.SIGQUIT)
            if self._memory:
                shutil.rmtree(self._memory.sockets, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL the postmaster, as a crash would; `start` recovers."""
        with self._lock():
            self._end(signal.SIGKILL)

    def erase(self) -> None:
        """Stop the server and delete its data, password and log."""
        self.stop()
        with self._lock():
            shutil.rmtree(self.data, ignore_errors=True)
            for name in ("pg.json", "pg.log"):
                (self.folder / name).unlink(missing_ok=True)
            self._memory = None

    def sql(self, text: str, *, database: str = _DATABASE) -> str:
        """Run SQL through psql as the owner and return its bare output; for administration only."""
        command = [self._program("psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", "-U", _USER, "-d", database]
        done = subprocess.run(
            [*command, *self._address()],
            input=text,
            text=True,
            capture_output=True,
            env={**ENVIRONMENT, "PGPASSWORD": self._known().password},
            check=False,
        )
        if done.returncode != 0:
            raise LocalPostgresError(f"The local PostgreSQL refused: {done.stderr.strip()}")
        return done.stdout.strip()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An adopted server belongs to whoever started it, and may be serving them now.
        if not self.adopted:
            self.stop()

    def _known(self) -> _Memory:
        if self._memory is None:
            raise LocalPostgresError("The local PostgreSQL was not started: call start() first.")
        return self._memory

    def _program(self, name: str) -> str:
        if self._programs is None:
            raise LocalPostgresError("The local PostgreSQL was not started: call start() first.")
        return self._programs.path(name)

    def _address(self) -> list[str]:
        # The socket folder is private, so nobody else can answer in the server's place.
        memory = self._known()
        return ["-h", memory.sockets, "-p", str(memory.port)]

    @contextmanager
    def _lock(self) -> Iterator[None]:
        try:
            if not self.folder.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                # Root lets the server's account pass through to its data, and see nothing on the way.
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

    def _recall(self) -> _Memory | None:
        file = self.folder / "pg.json"
        try:
            return _Memory(**orjson.loads(file.read_bytes()))
        except FileNotFoundError:
            if (self.folder / "pg").exists():
                raise LocalPostgresError(
                    f"{file}, which holds the password of the data in {self.folder / 'pg'}, is gone: "
                    "restore it, or delete that data to begin anew."
                ) from None
            return None
        except (orjson.JSONDecodeError, TypeError) as error:
            raise LocalPostgresError(f"{file} is damaged ({error}): restore it, or delete it and the data.") from error

    def _remember(self, memory: _Memory) -> None:
        self._memory = memory
        fresh = self.folder / "pg.json.new"
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(orjson.dumps(asdict(memory)))
        fresh.replace(self.folder / "pg.json")

    def _settle(self, account: Account) -> None:
        """Decide once where the data lives and its password; make sure of the socket folder every time."""
        memory = self._memory
        if memory is None:
            reachable = account.can_reach(self.folder / "pg")
            elsewhere = None if reachable else str(shelter_for(f"data-{secrets.token_hex(8)}"))
            memory = _Memory(password=secrets.token_hex(24), elsewhere=elsewhere)
        self._remember(replace(memory, sockets=str(private_folder(account, memory.sockets))))

    def _cluster(self) -> str:
        """A name each process of this server shows: by inode, so a moved folder keeps it, a copy does not."""
        facts = self.data.stat()
        return f"deputize-{facts.st_dev:x}-{facts.st_ino:x}"

    def _living(self, account: Account) -> int | None:
        """The postmaster of this data, if there is one: a stale file, a zombie or a reused pid is none."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None
        return pid if self._runs(pid, account) else None

    def _runs(self, pid: int, account: Account) -> bool:
        if self._child is not None and self._child.pid == pid:
            return self._child.poll() is None
        return pid in processes(self._cluster(), account)

    def _becomes_ready(self, pid: int, account: Account) -> bool:
        """Wait until the postmaster answers; False when it ended instead."""
        if not wait_until(lambda: self._answers() or not self._runs(pid, account), _READY_SECONDS):
            raise LocalPostgresError(f"PostgreSQL is not ready after {_READY_SECONDS:.0f} s: {self._last_words()}")
        return self._runs(pid, account)

    def _answers(self) -> bool:
        asked = [self._program("pg_isready"), "-q", "-t", "2", *self._address()]
        return subprocess.run(asked, env=ENVIRONMENT, check=False).returncode == 0

    def _clear_remains(self, account: Account) -> None:
        """After a crash: end backends without a postmaster, forget its pid, which another may bear now."""
        if not self.data.exists():
            return
        cluster = self._cluster()
        for number in (signal.SIGQUIT, signal.SIGKILL):
            for pid in processes(cluster, account):
                send_signal(pid, number)
            if wait_until(lambda: not processes(cluster, account), _ORPHAN_SECONDS):
                break
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _initialize(self, account: Account) -> None:
        memory = self._known()
        # Made beside its place and moved when whole: an interrupted attempt leaves no half a database.
        making = self.data.with_name(f"{self.data.name}.new")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(mode=0o700)
        account.own(making, 0o700)
        password = Path(memory.sockets, "password")
        password.unlink(missing_ok=True)
        write_private(account, password, memory.password)
        command = [self._program("initdb"), "-D", str(making), "-U", _USER, "-E", "UTF8", "--locale=C"]
        if self._programs and self._programs.builtin_locale:
            command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        # Not synced: a machine that fails in these seconds loses a database that holds nothing yet.
        command += ["-A", "scram-sha-256", f"--pwfile={password}", "--no-sync", "--no-instructions"]
        try:
            done = run_as(account, command)
        finally:
            password.unlink()
        if done.returncode != 0:
            raise LocalPostgresError(f"PostgreSQL could not prepare {making}: {done.stderr.strip()}")
        making.rename(self.data)

    def _launch(self, account: Account) -> int:
        for _ in range(3):
            memory = self._known()
            port = self._pick_port(memory.port)
            self._remember(replace(memory, port=port))
            self._child = self._spawn(account)
            if self._becomes_ready(self._child.pid, account):
                return self._child.pid
            if port_is_free(_HOST, port):
                break
            # Somebody took the port between our look and the server's bind: look again.
        raise LocalPostgresError(f"PostgreSQL did not start: {self._last_words()}")

    def _spawn(self, account: Account) -> subprocess.Popen[bytes]:
        memory = self._known()
        fixed = {
            "listen_addresses": _HOST,
            "port": str(memory.port),
            "unix_socket_directories": memory.sockets,
            "unix_socket_permissions": "0700",
            "cluster_name": self._cluster(),
        }
        command = [self._program("postgres"), "-D", str(self.data)]
        for name, value in {**_SETTINGS, **self._settings, **fixed}.items():
            command += ["-c", f"{name}={value}"]
        with open(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            return spawn_as(account, command, log)

    def _pick_port(self, remembered: int) -> int:
        if self._wanted_port is None:
            return remembered if remembered and port_is_free(_HOST, remembered) else free_port(_HOST)
        if not port_is_free(_HOST, self._wanted_port):
            raise LocalPostgresError(f"Port {self._wanted_port} is taken: end what listens there, or choose another.")
        return self._wanted_port

    def _ensure_database(self) -> None:
        self.sql(
            f"select 'create database {_DATABASE}' where not exists "
            f"(select from pg_database where datname = '{_DATABASE}') \\gexec",
            database="postgres",
        )

    def _end(self, *signals: signal.Signals) -> None:
        self._memory = self._memory or self._recall()
        self._pid = None
        account = choose_account(self.data)
        pid = self._living(account)
        if pid is None:
            return
        for number in signals:
            send_signal(pid, number)
            if wait_until(lambda: not self._runs(pid, account), _STOP_SECONDS):
                return
        raise LocalPostgresError(f"PostgreSQL (process {pid}) does not end: {self._last_words()}")

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        telling = [line for line in lines[-50:] if "FATAL" in line or "ERROR" in line]
        return f"{(telling or lines or ['it said nothing'])[-1]} (all of it in {self.log})"
