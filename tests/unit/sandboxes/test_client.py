"""The pipes of a sandbox are closed once, on whatever loop."""

import asyncio
import contextlib
import os
from collections.abc import Callable

import pytest
import uvloop

from deputize.sandboxes.client import _open_reader, _open_writer, _Pipe


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
            reader = await _open_reader(source, 100, stack)
            writer = await _open_writer(target, stack)
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
