"""The local PostgreSQL, on real servers: it starts, is shared, survives crashes, shows nothing to others."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import asyncpg
import pytest

import deputize
from deputize.store import local_postgres_host
from deputize.store.local_postgres import LocalPostgres, LocalPostgresError

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the server to another account")

START_AND_TELL = """
import sys
from pathlib import Path
from deputize.store.local_postgres import LocalPostgres
server = LocalPostgres(Path(sys.argv[1])).start()
print(server.pid, server.run_sql("select count(*) from pg_database where datname = 'deputize'"))
"""


@pytest.fixture
def server(reachable_folder: Path) -> Iterator[LocalPostgres]:
    server = LocalPostgres(reachable_folder / "db")
    yield server
    server.erase()


def start_in_process(folder: Path, *, uid: int | None = None) -> subprocess.Popen[str]:
    source = str(Path(deputize.__file__).parent.parent)
    return subprocess.Popen(
        [sys.executable, "-c", START_AND_TELL, str(folder)],
        env={"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        user=uid,
        stdout=subprocess.PIPE,
        text=True,
    )


async def test_a_folder_with_nothing_in_it_becomes_a_database_within_seconds(server: LocalPostgres) -> None:
    began = time.monotonic()
    server.start()
    took = time.monotonic() - began

    connection = await asyncpg.connect(server.dsn)
    facts = {
        name: await connection.fetchval("select current_setting($1)", name)
        for name in ("server_encoding", "timezone", "fsync", "track_commit_timestamp", "max_connections")
    }
    await connection.close()

    assert facts == {
        "server_encoding": "UTF8",
        "timezone": "UTC",
        "fsync": "on",
        "track_commit_timestamp": "on",
        "max_connections": "200",
    }
    assert not server.is_adopted
    assert took < 200  # about one second on a quiet machine


def test_vectors_can_be_stored(server: LocalPostgres) -> None:
    server.start().run_sql(
        "create extension vector; create table points (at vector(2)); insert into points values ('[1,2]')"
    )

    assert server.run_sql("select at <-> '[1,5]' from points") == "3"


def test_settings_reach_the_server_and_those_that_keep_it_private_cannot_be_changed(
    reachable_folder: Path,
) -> None:
    settings = {"work_mem": "7MB", "listen_addresses": "*"}
    server = LocalPostgres(reachable_folder / "db", settings=settings).start()
    try:
        assert server.run_sql("show work_mem; show listen_addresses").split() == ["7MB", "127.0.0.1"]
    finally:
        server.erase()


def test_what_was_committed_survives_a_killed_postmaster(server: LocalPostgres) -> None:
    server.start().run_sql("create table kept as select generate_series(1, 1000) as n")
    before = server.dsn
    server.kill()

    server.start()

    assert not server.is_adopted
    assert server.run_sql("select count(*) from kept") == "1000"
    assert server.dsn == before


def test_a_backend_that_outlives_its_postmaster_does_not_block_the_next_start(server: LocalPostgres) -> None:
    server.start().run_sql("create sequence turns")
    endless = "do $$ begin loop perform nextval('turns'); end loop; end $$"
    arguments = [server._find_program("psql"), "-X", "-d", server.dsn, "-c", endless]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        busy = "select count(*) from pg_stat_activity where state = 'active' and query like 'do %'"
        assert local_postgres_host.wait_until(lambda: server.run_sql(busy) == "1", 60)
        server.kill()

        server.start()

        assert server.run_sql(busy) == "0"


def test_a_stale_pid_that_another_process_bears_now_does_not_block_the_next_start(
    server: LocalPostgres,
) -> None:
    server.start().kill()
    pid_file = server.data / "postmaster.pid"
    with subprocess.Popen(["sleep", "600"], user=pid_file.stat().st_uid) as stranger:
        old = pid_file.read_text()
        pid_file.write_text(old.replace(old.split("\n")[0], str(stranger.pid), 1))

        server.start()

        assert server.pid != stranger.pid
        assert stranger.poll() is None
        stranger.kill()


def test_a_stop_is_clean_and_the_next_start_keeps_port_and_data(server: LocalPostgres) -> None:
    server.start().run_sql("create table kept as select 1 as n")
    before = server.dsn
    server.stop()
    with pytest.raises(LocalPostgresError, match="not running"):
        _ = server.pid

    server.start()

    assert server.dsn == before
    assert server.run_sql("select n from kept") == "1"
    assert "not properly shut down" not in server.log.read_text()


def test_a_remembered_port_that_somebody_else_took_is_replaced(server: LocalPostgres) -> None:
    server.start().stop()
    taken = server.port
    with socket.create_server(("127.0.0.1", taken)):
        server.start()

        assert server.port != taken
        assert server.run_sql("select 1") == "1"


def test_a_wanted_port_that_is_taken_is_named(reachable_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = LocalPostgres(reachable_folder / "db", port=port)
        with pytest.raises(LocalPostgresError, match=f"Port {port} is in use"):
            server.start()
    server.erase()


def test_a_server_left_behind_is_adopted_and_only_an_explicit_stop_ends_it(server: LocalPostgres) -> None:
    left_behind = start_in_process(server.folder)
    pid = int(left_behind.communicate(timeout=300)[0].split()[0])

    with server:
        assert server.is_adopted
        assert server.pid == pid
    with LocalPostgres(server.folder) as again:
        assert again.pid == pid
    again.stop()

    assert not (server.data / "postmaster.pid").exists()


def test_two_processes_that_start_at_once_share_one_server(server: LocalPostgres) -> None:
    both = [start_in_process(server.folder) for _ in range(2)]
    said = [process.communicate(timeout=300)[0].split() for process in both]

    assert said[0] == said[1]
    assert said[0][1] == "1"


def test_a_server_that_cannot_start_says_why(reachable_folder: Path) -> None:
    server = LocalPostgres(reachable_folder / "db", settings={"shared_buffers": "a lot"})
    with pytest.raises(LocalPostgresError, match='invalid value for parameter "shared_buffers"'):
        server.start()
    server.erase()


def test_without_the_wheel_the_error_is_one_sentence_with_the_fix(reachable_folder: Path) -> None:
    with pytest.raises(LocalPostgresError, match=r"pip install 'deputize\[local\]'") as caught:
        LocalPostgres(reachable_folder / "db", package="not_installed_pgserver").start()

    assert "\n" not in str(caught.value)


def test_data_whose_password_is_lost_is_left_alone(server: LocalPostgres) -> None:
    server.start().stop()
    memory = server.folder / "pg.json"
    kept = memory.read_bytes()
    memory.unlink()

    with pytest.raises(LocalPostgresError, match=r"pg\.json.*is missing: restore it"):
        LocalPostgres(server.folder).start()

    memory.write_bytes(kept)
    assert server.data.exists()


async def test_other_users_can_neither_read_nor_connect(server: LocalPostgres) -> None:
    server.start()
    sockets = Path(server._require_record().sockets)

    for root in (server.folder, sockets):
        for place, folders, files in os.walk(root):
            for path in (Path(place, name) for name in (*folders, *files)):
                assert not path.lstat().st_mode & 0o077 or _is_unreachable(path, root), path
        assert not root.stat().st_mode & (stat.S_IROTH | stat.S_IRGRP)
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(server.dsn, password="guess")


def _is_unreachable(path: Path, root: Path) -> bool:
    inside = [parent for parent in path.parents if parent == root or root in parent.parents]
    return any(not parent.stat().st_mode & 0o077 for parent in inside)


@AS_ROOT
def test_root_gives_the_server_to_an_unprivileged_account(server: LocalPostgres) -> None:
    server.start()

    status = Path(f"/proc/{server.pid}/status").read_text()
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert set(lines["Uid"].split()) == {str(server.data.stat().st_uid)}
    assert "0" not in lines["Uid"].split()
    assert "0" not in lines["Gid"].split() + lines["Groups"].split()


@AS_ROOT
def test_behind_a_closed_parent_the_data_moves_and_the_parent_stays_closed(
    tmp_path: Path, reachable_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_postgres_host, "SHARED_FOLDER", reachable_folder / "shelter")
    tmp_path.chmod(0o700)
    server = LocalPostgres(tmp_path / "db").start()
    server.run_sql("create table kept as select 1 as n")
    server.kill()

    again = LocalPostgres(tmp_path / "db").start()

    assert again.run_sql("select n from kept") == "1"
    assert again.data.parent == reachable_folder / "shelter"
    assert stat.S_IMODE(again.data.stat().st_mode) == 0o700
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    again.erase()
    assert not again.data.exists()
    # Where the account cannot reach the installed programs, their copy stays.
    assert [path for path in (reachable_folder / "shelter").iterdir() if not path.name.startswith("pginstall")] == []


@AS_ROOT
def test_programs_the_account_cannot_reach_are_copied_once(
    tmp_path: Path, server: LocalPostgres, reachable_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = find_spec(local_postgres_host.PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent
    tmp_path.chmod(0o700)
    shutil.copytree(installed / "pginstall18", tmp_path / installed.name / "pginstall18")
    (tmp_path / installed.name / "__init__.py").touch()
    shutil.copytree(installed.with_suffix(".libs"), tmp_path / f"{installed.name}.libs")
    monkeypatch.syspath_prepend(tmp_path)
    # What another test imported is found where it was.
    monkeypatch.delitem(sys.modules, local_postgres_host.PACKAGE, raising=False)
    monkeypatch.setattr(local_postgres_host, "SHARED_FOLDER", reachable_folder / "shelter")

    assert server.start().run_sql("create extension vector; select 1") == "1"
    server.stop()
    copies = list((reachable_folder / "shelter").iterdir())
    server.start()

    assert Path(f"/proc/{server.pid}/exe").readlink().is_relative_to(reachable_folder / "shelter")
    assert list((reachable_folder / "shelter").iterdir()) == copies
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


@AS_ROOT
def test_an_ordinary_user_runs_the_server_as_themselves(reachable_folder: Path) -> None:
    account = local_postgres_host.choose_account()
    if not all(account.can_reach(Path(path)) for path in (sys.executable, sys.prefix, deputize.__file__)):
        pytest.skip("the ordinary account cannot reach this Python")
    account.set_owner(reachable_folder, 0o700)
    theirs = start_in_process(reachable_folder / "db", uid=account.uid)

    pid = int(theirs.communicate(timeout=300)[0].split()[0])

    assert os.stat(f"/proc/{pid}").st_uid == account.uid
    assert stat.S_IMODE((reachable_folder / "db").stat().st_mode) == 0o700
    os.kill(pid, signal.SIGINT)
    assert local_postgres_host.wait_until(lambda: not (reachable_folder / "db/pg/postmaster.pid").exists(), 60)


def test_without_proc_the_process_table_comes_from_ps(server: LocalPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    server.start()
    account = local_postgres_host.choose_account(server.data)
    seen = local_postgres_host.find_processes(server._get_cluster_name(), account)

    monkeypatch.setattr(local_postgres_host, "PROC", Path("/nonexistent"))

    assert server.pid in seen
    assert server.pid in local_postgres_host.find_processes(server._get_cluster_name(), account)
