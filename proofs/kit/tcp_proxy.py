"""A TCP proxy that can be made slow, or silent: a network fault between a gateway and what it depends on."""

import asyncio
import contextlib
from typing import Self
from urllib.parse import urlsplit


class TcpProxy:
    """`async with TcpProxy(url) as proxy:` carries bytes both ways until the block ends.

    `delay` holds back each piece of an answer for so many seconds, from the next piece on, open connections included.
    """

    def __init__(self, upstream_url: str) -> None:
        parts = urlsplit(upstream_url)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.delay = 0.0
        self.connections = 0

    async def __aenter__(self) -> Self:
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
            raise RuntimeError("the proxy listens only inside `async with TcpProxy(url)`")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._relay_connection(client, to_client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay_connection(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        # One side going away is what the proxy is for.
        with contextlib.suppress(OSError), contextlib.closing(to_client):
            server, to_server = await asyncio.open_connection(*self._upstream)
            with contextlib.closing(to_server):
                pumps = [
                    asyncio.create_task(self._pump(client, to_server, is_delayed=False)),
                    asyncio.create_task(self._pump(server, to_client, is_delayed=True)),
                ]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_delayed: bool) -> None:
        while data := await source.read(65536):
            if is_delayed and self.delay:
                await asyncio.sleep(self.delay)
            target.write(data)
            await target.drain()
