"""A receiver of webhooks: keeps what was sent, and answers as a test wants."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httptools


@dataclass
class ReceivedRequest:
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def on_url(self, url: bytes) -> None:
        self.path = url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body


@dataclass
class WebhookReceiver:
    url: str = ""
    statuses: list[int] = field(default_factory=list)
    """What to answer next; 204 once there is nothing left to say."""
    requests: list[ReceivedRequest] = field(default_factory=list)
    _arrival: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_for_request(self, number: int) -> ReceivedRequest:
        async with asyncio.timeout(90):
            while len(self.requests) < number:
                self._arrival.clear()
                await self._arrival.wait()
        return self.requests[number - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard = ReceivedRequest()
        parser = httptools.HttpRequestParser(heard)
        while "content-length" not in heard.headers or len(heard.body) < int(heard.headers["content-length"]):
            parser.feed_data(await reader.read(65_536))
        self.requests.append(heard)
        status = self.statuses.pop(0) if self.statuses else 204
        writer.write(b"HTTP/1.1 %d Said\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()
        self._arrival.set()


@contextlib.asynccontextmanager
async def open_webhook_receiver() -> AsyncIterator[WebhookReceiver]:
    receiver = WebhookReceiver()
    server = await asyncio.start_server(receiver._serve, "127.0.0.1", 0)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    try:
        yield receiver
    finally:
        server.close()
