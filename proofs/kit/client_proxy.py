"""A proxy between a client and a gateway that strikes around one exchange: before it, or around its reply."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

import httptools

from proofs.kit.fault_trigger import Action, FaultTrigger

ClientPoint = Literal["before_request", "before_reply", "after_reply"]


@dataclass(kw_only=True, slots=True)
class Request:
    """One request as the client sent it; header names in lower case."""

    method: str = ""
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


RequestTrigger = FaultTrigger[Request, ClientPoint]


class ClientProxy:
    """`async with ClientProxy(gateway_url) as proxy:` listens on loopback until the block ends."""

    def __init__(self, upstream_url: str) -> None:
        parts = urlsplit(upstream_url)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._trigger: RequestTrigger | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "ClientProxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        if self._server is None:
            raise RuntimeError("the proxy listens only inside `async with ClientProxy(url)`")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def arm(self, match: Callable[[Request], bool], nth: int, point: ClientPoint, action: Action) -> RequestTrigger:
        """Strike once, at the nth request from now that matches; then close both sides of its connection.

        `before_request`: the gateway never sees it. `before_reply`: the gateway answered in full, the client
        gets nothing. `after_reply`: the client has been given the whole answer.
        """
        self._trigger = FaultTrigger(match, nth, point, action)
        return self._trigger

    def disarm(self) -> None:
        self._trigger = None

    def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve_connection(client, to_client))
        self._tasks.add(task)
        task.add_done_callback(self._remove_task)

    def _remove_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        # One side going away is what the proxy is for; anything else is a fault of the proxy itself.
        if failure is not None and not isinstance(failure, OSError):
            raise failure

    async def _serve_connection(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            while await self._relay_exchange(client, to_client):
                pass
        finally:
            to_client.close()

    async def _relay_exchange(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> bool:
        """Carry one request and its response; false ends the client's connection."""
        reader = _RequestReader()
        raw = b""
        while not reader.is_complete:
            if not (data := await client.read(65536)):
                return False
            raw += data
            reader.feed(data)
        trigger = self._trigger
        fault = trigger if trigger is not None and trigger.try_claim(reader.request) else None
        if fault is not None and fault.point == "before_request":
            await fault.fire()
            return False
        is_complete = await self._forward_request(raw, None if fault and fault.point == "before_reply" else to_client)
        if fault is not None and is_complete:
            await fault.fire()
            return False
        if fault is not None:
            fault.release()
        return is_complete and reader.keep_alive

    async def _forward_request(self, raw: bytes, to_client: asyncio.StreamWriter | None) -> bool:
        # A connection per exchange: one kept from before a kill would lose the first request after it.
        gateway, to_gateway = await asyncio.open_connection(*self._upstream)
        try:
            to_gateway.write(raw)
            return await _relay_response(gateway, to_client)
        finally:
            to_gateway.close()


async def _relay_response(gateway: asyncio.StreamReader, to_client: asyncio.StreamWriter | None) -> bool:
    """Read one response to its end, giving it on as it comes if it may; false if it was cut short."""
    reader = _ResponseReader()
    while not reader.is_complete:
        if not (data := await gateway.read(65536)):
            return reader.is_ended_by_close
        reader.feed(data)
        if to_client is not None:
            to_client.write(data)
            await to_client.drain()
    return True


class _RequestReader:
    """Reads one request; the callbacks are httptools'."""

    def __init__(self) -> None:
        self.request = Request()
        self.is_complete = False
        self.keep_alive = True
        self._parser = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.request.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.request.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self.request.body += body

    def on_message_complete(self) -> None:
        self.request.method = self._parser.get_method().decode()
        self.keep_alive = self._parser.should_keep_alive()
        self.is_complete = True


class _ResponseReader:
    """Finds the end of one response, interim ones (1xx) passed over; the callbacks are httptools'."""

    def __init__(self) -> None:
        self.is_complete = False
        self._has_length = False
        self._has_headers = False
        self._parser = httptools.HttpResponseParser(self)

    @property
    def is_ended_by_close(self) -> bool:
        """Whether a response is under way that only the end of the connection can end."""
        return self._has_headers and not self._has_length

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._has_length = self._has_length or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._has_headers = True

    def on_message_complete(self) -> None:
        self.is_complete = self._parser.get_status_code() >= 200
