"""A proxy between a client and a gateway that strikes around one exchange: before it, or around its reply.

Above: proofs, which send their calls to `ClientProxy.url` and arm it. Below: `arming`; httptools, which
tells where a request and a response end.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

import httptools

from proofs.kit.arming import Action, Armed

ClientPoint = Literal["before_request", "before_reply", "after_reply"]


@dataclass(kw_only=True, slots=True)
class Request:
    """One request as the client sent it; header names in lower case."""

    method: str = ""
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


ArmedRequest = Armed[Request, ClientPoint]


class ClientProxy:
    """`async with ClientProxy(gateway_url) as proxy:` listens on loopback until the block ends."""

    def __init__(self, upstream_url: str) -> None:
        parts = urlsplit(upstream_url)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._armed: ArmedRequest | None = None
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "ClientProxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    @property
    def url(self) -> str:
        if self._server is None:
            raise RuntimeError("the proxy listens only inside `async with ClientProxy(url)`")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def arm(self, match: Callable[[Request], bool], nth: int, point: ClientPoint, action: Action) -> ArmedRequest:
        """Strike once, at the nth request from now that matches; then close both sides of its connection.

        `before_request`: the gateway never sees it. `before_reply`: the gateway answered in full, the client
        gets nothing. `after_reply`: the client has been given the whole answer.
        """
        self._armed = Armed(match, nth, point, action)
        return self._armed

    def disarm(self) -> None:
        self._armed = None

    def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(client, to_client))
        self._links.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._links.discard(task)
        failure = None if task.cancelled() else task.exception()
        # One side going away is what the proxy is for; anything else is a fault of the proxy itself.
        if failure is not None and not isinstance(failure, OSError):
            raise failure

    async def _carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            while await self._exchange(client, to_client):
                pass
        finally:
            to_client.close()

    async def _exchange(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> bool:
        """Carry one request and its response; false ends the client's connection."""
        asked = _RequestReader()
        raw = b""
        while not asked.complete:
            if not (data := await client.read(65536)):
                return False
            raw += data
            asked.feed(data)
        armed = self._armed
        fault = armed if armed is not None and armed.takes(asked.request) else None
        if fault is not None and fault.point == "before_request":
            await fault.fire()
            return False
        whole = await self._answer(raw, None if fault and fault.point == "before_reply" else to_client)
        if fault is not None and whole:
            await fault.fire()
            return False
        if fault is not None:
            fault.give_back()
        return whole and asked.keep_alive

    async def _answer(self, raw: bytes, to_client: asyncio.StreamWriter | None) -> bool:
        # A connection per exchange: one kept from before a kill would lose the first request after it.
        gateway, to_gateway = await asyncio.open_connection(*self._upstream)
        try:
            to_gateway.write(raw)
            return await _relay(gateway, to_client)
        finally:
            to_gateway.close()


async def _relay(gateway: asyncio.StreamReader, to_client: asyncio.StreamWriter | None) -> bool:
    """Read one response to its end, giving it on as it comes if it may; false if it was cut short."""
    answered = _ResponseReader()
    while not answered.complete:
        if not (data := await gateway.read(65536)):
            return answered.ends_with_connection
        answered.feed(data)
        if to_client is not None:
            to_client.write(data)
            await to_client.drain()
    return True


class _RequestReader:
    """Reads one request; the callbacks are httptools'."""

    def __init__(self) -> None:
        self.request = Request()
        self.complete = False
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
        self.complete = True


class _ResponseReader:
    """Finds the end of one response, interim ones (1xx) passed over; the callbacks are httptools'."""

    def __init__(self) -> None:
        self.complete = False
        self._framed = False
        self._begun = False
        self._parser = httptools.HttpResponseParser(self)

    @property
    def ends_with_connection(self) -> bool:
        """Whether a response is under way that only the end of the connection can end."""
        return self._begun and not self._framed

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._framed = self._framed or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._begun = True

    def on_message_complete(self) -> None:
        self.complete = self._parser.get_status_code() >= 200
