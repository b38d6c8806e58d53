"""Requests at a fixed rate, each sent when it is due whatever became of those before: a process of its own.

What is timed shares the machine with anyone who times it, so this does as little as can be done: the request is made
once, and of an answer only its status and its end are read.
"""

import asyncio
import sys
import uuid
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import orjson
import uvloop

from proofs.kit.load import Target

_CONNECTIONS = 32
_ROOT = Path(__file__).resolve().parents[2]
_LENGTH = b"content-length:"


class OpenLoopError(Exception):
    """Not every request was answered well: how long the others took would mean nothing."""


async def run_open_loop(target: Target, *, rate: float, seconds: float) -> list[float]:
    """How many seconds each request took, from when it was due to the last byte of its answer."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proofs.kit.open_loop", cwd=_ROOT,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    options = {
        "url": target.url, "headers": dict(target.headers), "body": target.body.decode(), "rate": rate,
        "seconds": seconds, "unique_keys": target.unique_keys,
    }  # fmt: skip
    stdout, stderr = await process.communicate(orjson.dumps(options))
    if process.returncode != 0:
        raise OpenLoopError(stderr.decode(errors="replace")[-600:])
    return [float(each) for each in orjson.loads(stdout)]


@dataclass(slots=True)
class _Schedule:
    """Those that are due and not sent, the lines that are free, and what came of the others."""

    due: deque[float]
    free: deque["_Connection"]
    durations: list[float]
    open_count: int
    completion: asyncio.Future[None]

    def send(self) -> None:
        while self.due and self.free:
            # In turn: a server closes a line that nobody uses for a while.
            self.free.popleft().send(self.due.popleft())

    def record_answer(self, connection: "_Connection", seconds: float) -> None:
        self.durations.append(seconds)
        self.free.append(connection)
        self.open_count -= 1
        if self.open_count == 0 and not self.completion.done():
            self.completion.set_result(None)
        self.send()

    def fail(self, reason: str) -> None:
        if not self.completion.done():
            self.completion.set_exception(OpenLoopError(reason))


class _Connection(asyncio.Protocol):
    """One connection, with one request on its way at most."""

    def __init__(self, schedule: _Schedule, request: bytes, *, has_unique_key: bool) -> None:
        self._has_unique_key = has_unique_key
        self._schedule, self._request, self._time = schedule, request, asyncio.get_running_loop().time
        self._buffer, self._due = b"", 0.0
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._schedule.fail(f"a connection was lost: {exc!r}")

    def send(self, due: float) -> None:
        self._due = due
        self._transport.write(_add_key(self._request) if self._has_unique_key else self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator or len(body) < _parse_content_length(head):
            return
        if not head.startswith(b"HTTP/1.1 200 "):
            self._schedule.fail(self._buffer[:400].decode(errors="replace"))
            return
        self._buffer = b""
        self._schedule.record_answer(self, self._time() - self._due)


def _add_key(request: bytes) -> bytes:
    line, _, rest = request.partition(b"\r\n")
    return b"%b\r\nidempotency-key: %b\r\n%b" % (line, uuid.uuid4().hex.encode(), rest)


def _parse_content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(_LENGTH):
            return int(line[len(_LENGTH) :])
    raise OpenLoopError("an answer does not say how long it is")


async def _run_schedule(options: dict[str, object]) -> list[float]:
    url, body, rate = urlsplit(str(options["url"])), str(options["body"]).encode(), float(str(options["rate"]))
    headers = options["headers"]
    assert isinstance(headers, dict)
    lines = [f"POST {url.path} HTTP/1.1", f"host: {url.netloc}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    request = "\r\n".join([*lines, "", ""]).encode() + body
    loop = asyncio.get_running_loop()
    count = int(rate * float(str(options["seconds"])))
    schedule = _Schedule(deque(), deque(), [], count, loop.create_future())
    for _ in range(_CONNECTIONS):
        _, connection = await loop.create_connection(
            lambda: _Connection(schedule, request, has_unique_key=bool(options.get("unique_keys"))),
            url.hostname or "",
            url.port or 80,
        )
        schedule.free.append(connection)
    began = loop.time()
    for number in range(count):
        due = began + number / rate
        if (delay := due - loop.time()) > 0:
            await asyncio.sleep(delay)
        schedule.due.append(due)
        schedule.send()
    await schedule.completion
    return schedule.durations


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.stdout.buffer.write(orjson.dumps(runner.run(_run_schedule(orjson.loads(sys.stdin.buffer.read())))))
