"""Send the response to one request: as JSON if it is ready soon, else as an event stream that is kept alive.

A stream begins with the first notification, or after fifteen silent seconds, so that no proxy closes the connection.
Only requests that wait watch for a disconnect: a client that leaves does not stop a running tool, because it would be
unknown what the tool had done by then.
"""

import asyncio
from collections import deque
from typing import Any

import orjson

from deputize.interfaces.asgi_http import JSON, Header, Receive, Send, send_response

PING_SECONDS = 15.0
# Notifications that the client has not read yet. The oldest are dropped: old progress is of no use.
MAX_QUEUE_LENGTH = 64
_PING = b": still here\n\n"
_STREAM_HEADERS: list[Header] = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class McpResponse:
    """The response to one request."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._queue: deque[bytes] = deque(maxlen=MAX_QUEUE_LENGTH)
        self._wake = asyncio.Event()
        self._final_event: bytes | None = None
        self._stream_task: asyncio.Task[None] | None = None
        self._disconnect_task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(PING_SECONDS, self._start_stream)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification before the response; may be called from any thread."""
        event = _format_event(orjson.dumps({"jsonrpc": "2.0", "method": method, "params": params}))
        self._loop.call_soon_threadsafe(self._queue_event, event)

    def watch_disconnect(self) -> "asyncio.Task[None]":
        """Return a task that ends when the client disconnects."""
        if self._disconnect_task is None:
            self._disconnect_task = asyncio.create_task(self._wait_for_disconnect())
        return self._disconnect_task

    async def finish(self, status: int, headers: list[Header], body: bytes) -> None:
        """Send the response. If a stream has begun, its status has been sent already."""
        self._timer.cancel()
        if self._stream_task is None:
            await send_response(self._send, status, [JSON, *headers], body)
        else:
            self._final_event = _format_event(body)
            self._wake.set()
            await self._stream_task
        self.close()

    def close(self) -> None:
        """Cancel every timer and task."""
        self._timer.cancel()
        for task in (self._disconnect_task, self._stream_task):
            if task is not None:
                task.cancel()

    def _queue_event(self, event: bytes) -> None:
        if self._final_event is None:
            self._queue.append(event)
            self._start_stream()
            self._wake.set()

    def _start_stream(self) -> None:
        if self._stream_task is None:
            self._stream_task = asyncio.create_task(self._stream())

    async def _stream(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": list(_STREAM_HEADERS)})
        while True:
            while self._queue:
                await self._send_part(self._queue.popleft())
            if self._final_event is not None:
                await self._send({"type": "http.response.body", "body": self._final_event})
                return
            self._wake.clear()
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                await self._send_part(_PING)

    async def _send_part(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _format_event(body: bytes) -> bytes:
    return b"event: message\ndata: " + body + b"\n\n"
