"""How one request is answered: as JSON where the answer comes soon, else as a stream that is kept alive.

A stream is begun when there is something to tell before the answer, or after fifteen silent seconds, so that no proxy
takes the connection for dead. Whether the client is still there is looked for only by what waits; what runs is not
stopped by a client that leaves, since nobody could say what it had done by then.

Above: `door.py` and whatever tells progress. Below: ASGI.
"""

import asyncio
from collections import deque
from typing import Any

import orjson

from deputize.doors.wire import JSON, Header, Receive, Send, answer

PING_SECONDS = 15.0
# News that a client has not read yet. Of more, the oldest are dropped: how far something was is of no use by then.
MOST_WAITING = 64
_PING = b": still here\n\n"
_STREAM: list[Header] = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class Reply:
    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._waiting: deque[bytes] = deque(maxlen=MOST_WAITING)
        self._wake = asyncio.Event()
        self._last: bytes | None = None
        self._streaming: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(PING_SECONDS, self._begin)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Told before the answer; may be called from any thread."""
        event = _event(orjson.dumps({"jsonrpc": "2.0", "method": method, "params": params}))
        self._loop.call_soon_threadsafe(self._add, event)

    def left(self) -> "asyncio.Task[None]":
        """Ends when the client goes away."""
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._watch())
        return self._leaving

    async def finish(self, status: int, headers: list[Header], body: bytes) -> None:
        """The answer. Once a stream has begun, its status is told already."""
        self._timer.cancel()
        if self._streaming is None:
            await answer(self._send, status, [JSON, *headers], body)
        else:
            self._last = _event(body)
            self._wake.set()
            await self._streaming
        self.close()

    def close(self) -> None:
        """Nothing is left behind, whatever happened."""
        self._timer.cancel()
        for task in (self._leaving, self._streaming):
            if task is not None:
                task.cancel()

    def _add(self, event: bytes) -> None:
        if self._last is None:
            self._waiting.append(event)
            self._begin()
            self._wake.set()

    def _begin(self) -> None:
        if self._streaming is None:
            self._streaming = asyncio.create_task(self._stream())

    async def _stream(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": list(_STREAM)})
        while True:
            while self._waiting:
                await self._part(self._waiting.popleft())
            if self._last is not None:
                await self._send({"type": "http.response.body", "body": self._last})
                return
            self._wake.clear()
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                await self._part(_PING)

    async def _part(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _event(body: bytes) -> bytes:
    return b"event: message\ndata: " + body + b"\n\n"
