"""Serves a raw ASGI app from a process of its own, the way every small server of the kit does."""

import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

READY = "listening on "
_JSON = [(b"content-type", b"application/json")]


def serve_app(app: App, port: int = 0) -> None:
    """Listen on loopback, say where in a line that begins with `READY`, and serve until told to stop."""
    listener = socket.create_server(("127.0.0.1", port), backlog=2048)
    config = uvicorn.Config(app, loop="uvloop", http="httptools", lifespan="off", access_log=False, log_level="warning")
    print(f"{READY}http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


async def read_body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


async def send_json(send: Send, status: int, body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*_JSON, length]})
    await send({"type": "http.response.body", "body": body})
