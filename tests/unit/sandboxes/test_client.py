"""The pipes of a sandbox are closed once, on whatever loop."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from deputize.sandboxes.client import SandboxClient, SandboxUnavailable, _open_reader, _open_writer, _Pipe
from deputize.sandboxes.port import Backend, SandboxSpec
from deputize.sandboxes.supervisor import SOCKET_NAME


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_pipe_is_closed_with_its_transport(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def use(source: int, target: int) -> bytes:
        async with contextlib.AsyncExitStack() as stack:
            reader = await _open_reader(_Pipe(source), 100, stack)
            writer = await _open_writer(_Pipe(target), stack)
            writer.write(b"said")
            writer.close()
            content = await reader.read()
        # A transport closes its pipe in the next turn.
        await asyncio.sleep(0)
        return content

    source, target = os.pipe()
    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(use(source, target)) == b"said"
        assert not _is_open(source)
        assert not _is_open(target)


def test_what_was_opened_since_the_loop_closed_a_pipe_stays_open() -> None:
    source, target = os.pipe()
    with open(os.devnull, "rb") as other:
        pipe = _Pipe(source)
        # Closes the pipe, and gives its number to another file.
        os.dup2(other.fileno(), source)
    pipe.close()
    assert _is_open(source)
    os.close(source)
    os.close(target)


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_start_that_is_cancelled_in_any_turn_of_the_loop_leaves_no_descriptor(
    make_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    connections: list[socket.socket] = []

    async def connect(client: SandboxClient, backend: Backend) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        connections.append(theirs)
        return ours

    async def cancel_after(turns: int) -> bool:
        task = asyncio.create_task(SandboxClient().start(SandboxSpec(command=("program",), seconds=1)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        for each in connections:
            each.close()
        if not isinstance(outcome, BaseException):
            await outcome.aclose()
        for _ in range(5):
            await asyncio.sleep(0)
        return not isinstance(outcome, BaseException)

    monkeypatch.setattr(SandboxClient, "_connect", connect)
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(cancel_after(100))
        open_before, turns = len(os.listdir("/proc/self/fd")), 0
        while not runner.run(cancel_after(turns)):
            assert len(os.listdir("/proc/self/fd")) == open_before, f"cancelled after {turns} turns"
            turns += 1
        assert turns > 3


@pytest.mark.parametrize("lack", ["weak_limits", "shared_user"])
async def test_a_host_that_separates_less_is_refused_unless_that_is_accepted(lack: str, tmp_path: Path) -> None:
    greeting = {"problem": None, "gvisor": None, "weak_limits": None, "shared_user": None, lack: "less is separated"}

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(json.dumps(greeting).encode() + b"\n")
        await writer.drain()

    async with await asyncio.start_unix_server(greet, tmp_path / SOCKET_NAME):
        refusing = SandboxClient(tmp_path)
        accepting = SandboxClient(
            tmp_path, accept_weak_limits=lack == "weak_limits", accept_shared_user=lack == "shared_user"
        )
        with pytest.raises(SandboxUnavailable, match="less is separated"):
            await refusing.connect()
        await accepting.connect()
        await refusing.aclose()
        await accepting.aclose()
