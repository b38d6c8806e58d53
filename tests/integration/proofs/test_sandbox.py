"""A world starts real things, knows when they are ready, and leaves nothing behind."""

import io
import os
import socket
import sys
from pathlib import Path

import asyncpg
import pytest

from proofs.kit.child_process import ProcessNotReady, ProcessTooSlow
from proofs.kit.report import is_timeout
from proofs.kit.reserved_port import reserve_port
from proofs.kit.sandbox import Sandbox
from tests.support.gateway_lab import wait_until

SLEEPER = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER
PARENT = (
    "import subprocess, sys, time;"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "print('child', child.pid, flush=True); time.sleep(60)"
)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_everything_ends_with_the_world_even_when_the_proof_fails() -> None:
    async def fail(progress: io.StringIO) -> None:
        async with Sandbox(progress=progress) as world:
            started.append((await world.start_process("one", [sys.executable, "-c", SLEEPER], ready_line="up")).pid)
            parent = await world.start_process("two", [sys.executable, "-c", PARENT], ready_line="child")
            started.append(int((await parent.wait_for_line("child")).split()[1]))
            folders.append(world.folder)
            raise ValueError("the proof's own")

    started: list[int] = []
    folders: list[Path] = []
    progress = io.StringIO()
    with pytest.raises(ValueError, match="own"):
        await fail(progress)
    assert len(started) == 2

    async def is_gone() -> bool:
        return not any(map(is_running, started))

    # What was killed is gone when the kernel comes to it.
    await wait_until(is_gone)
    assert not folders[0].exists()
    assert "--- one (running), last lines:\nup" in progress.getvalue()


async def test_a_process_that_ends_before_it_is_ready_shows_its_last_words() -> None:
    argv = [sys.executable, "-c", "print('sorry'); raise SystemExit(3)"]
    async with Sandbox(progress=io.StringIO()) as world:
        with pytest.raises(ProcessNotReady, match="sorry"):
            await world.start_process("one", argv, ready_line="never said")
        with pytest.raises(ProcessNotReady, match="ended with 3"):
            await world.start_process("two", argv, ready_url=f"http://127.0.0.1:{world.pick_free_port()}/")


async def test_a_process_that_is_never_ready_is_waited_for_no_longer_than_asked() -> None:
    async with Sandbox(progress=io.StringIO()) as world:
        with pytest.raises(ProcessTooSlow, match="did not say") as failure:
            await world.start_process("one", [sys.executable, "-c", SLEEPER], ready_line="never", timeout=0.3)
        assert is_timeout(failure.value)


def test_a_port_is_reserved_but_a_server_can_listen_on_it_again_and_again() -> None:
    ports = {reserve_port() for _ in range(20)}
    assert len(ports) == 20
    for port in [*ports, *ports]:
        with socket.create_server(("127.0.0.1", port)) as server:
            socket.create_connection(server.getsockname()).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


async def test_an_http_endpoint_may_tell_readiness() -> None:
    async with Sandbox() as world:
        port = world.pick_free_port()
        argv = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
        server = await world.start_process("web", argv, ready_url=f"http://127.0.0.1:{port}/")
        assert server.is_alive
        assert server.read_cpu_seconds() >= 0
        assert await server.stop() == -15


async def test_what_does_not_heed_a_request_to_stop_is_killed() -> None:
    async with Sandbox() as world:
        child = await world.start_process("stubborn", [sys.executable, "-c", STUBBORN], ready_line="up")
        assert await child.stop(timeout=0.2) == -9


async def test_a_command_is_run_to_its_end_with_its_outputs_apart() -> None:
    script = "import sys; print(sys.stdin.read()); print('err', file=sys.stderr); raise SystemExit(2)"
    async with Sandbox() as world:
        done = await world.run_command([sys.executable, "-c", script], stdin=b"in")
        assert (done.code, done.stdout, done.stderr) == (2, "in\n", "err\n")
        with pytest.raises(TimeoutError):
            await world.run_command([sys.executable, "-c", SLEEPER], timeout=0.2)


async def test_free_ports_are_free_and_never_given_twice() -> None:
    async with Sandbox() as world:
        ports = [world.pick_free_port() for _ in range(50)]
        assert len(set(ports)) == 50


async def test_a_world_brings_its_own_postgresql_and_takes_it_away() -> None:
    async with Sandbox() as world:
        server = await world.start_postgres()
        pid = server.pid
        connection = await asyncpg.connect(server.dsn)
        assert await connection.fetchval("show fsync") == "on"
        assert world.postgres_version == (await connection.fetchval("show server_version")).split()[0]
        await connection.close()
    assert not is_running(pid)
    assert not os.path.exists(world.folder)
