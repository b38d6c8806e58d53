"""Requests at a fixed rate, each sent when it is due whatever became of those before: a process of its own.

What is timed shares the machine with whoever times it, so this does as little as can be done: the request is made once,
and of an answer only its status and its end are read. Above: proofs that time what callers wait. Below: asyncio.
"""

import asyncio
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import orjson
import uvloop

from proofs.kit.load import Target

_LANES = 32
_ROOT = Path(__file__).resolve().parents[2]
_LENGTH = b"content-length:"


class PacingFailed(Exception):
    """Not every request was answered well: how long the others took would mean nothing."""


async def paced(target: Target, *, rate: float, seconds: float) -> list[float]:
    """How many seconds each request took, from when it was due to the last byte of its answer."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proofs.kit.paced", cwd=_ROOT,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    told = {
        "url": target.url, "headers": dict(target.headers), "body": target.body.decode(), "rate": rate,
        "seconds": seconds,
    }  # fmt: skip
    said, wrong = await process.communicate(orjson.dumps(told))
    if process.returncode != 0:
        raise PacingFailed(wrong.decode(errors="replace")[-600:])
    return [float(each) for each in orjson.loads(said)]


@dataclass(slots=True)
class _Pace:
    """Those that are due and not sent, the lines that are free, and what came of the others."""

    due: deque[float]
    free: deque["_Line"]
    took: list[float]
    left: int
    done: asyncio.Future[None]

    def send(self) -> None:
        while self.due and self.free:
            # In turn: a server closes a line that nobody uses for a while.
            self.free.popleft().send(self.due.popleft())

    def answered(self, line: "_Line", seconds: float) -> None:
        self.took.append(seconds)
        self.free.append(line)
        self.left -= 1
        if self.left == 0 and not self.done.done():
            self.done.set_result(None)
        self.send()

    def fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(PacingFailed(why))


class _Line(asyncio.Protocol):
    """One connection, with one request on its way at most."""

    def __init__(self, pace: _Pace, request: bytes) -> None:
        self._pace, self._request, self._time = pace, request, asyncio.get_running_loop().time
        self._heard, self._due = b"", 0.0
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pace.fail(f"a connection was lost: {exc!r}")

    def send(self, due: float) -> None:
        self._due = due
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        head, found, body = self._heard.partition(b"\r\n\r\n")
        if not found or len(body) < _length(head):
            return
        if not head.startswith(b"HTTP/1.1 200 "):
            self._pace.fail(self._heard[:400].decode(errors="replace"))
            return
        self._heard = b""
        self._pace.answered(self, self._time() - self._due)


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(_LENGTH):
            return int(line[len(_LENGTH) :])
    raise PacingFailed("an answer does not say how long it is")


async def _kept(told: dict[str, object]) -> list[float]:
    url, body, rate = urlsplit(str(told["url"])), str(told["body"]).encode(), float(str(told["rate"]))
    headers = told["headers"]
    assert isinstance(headers, dict)
    lines = [f"POST {url.path} HTTP/1.1", f"host: {url.netloc}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    request = "\r\n".join([*lines, "", ""]).encode() + body
    loop = asyncio.get_running_loop()
    count = int(rate * float(str(told["seconds"])))
    pace = _Pace(deque(), deque(), [], count, loop.create_future())
    for _ in range(_LANES):
        _, line = await loop.create_connection(lambda: _Line(pace, request), url.hostname or "", url.port or 80)
        pace.free.append(line)
    began = loop.time()
    for number in range(count):
        due = began + number / rate
        if (rest := due - loop.time()) > 0:
            await asyncio.sleep(rest)
        pace.due.append(due)
        pace.send()
    await pace.done
    return pace.took


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.stdout.buffer.write(orjson.dumps(runner.run(_kept(orjson.loads(sys.stdin.buffer.read())))))
