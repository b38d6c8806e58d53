"""Clients that come, do a little and go, each on a connection of its own: politely, in either era, or not.

Above: `sessions.py`. Below: `kit/wire.py`.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import orjson

from proofs.kit.wire import Line
from proofs.proxying.targets import ARGUMENTS, MODERN, OLDER

_ACCEPT: Final = "application/json, text/event-stream"
_CLIENT: Final = {"name": "visitor", "version": "1"}
_SECONDS: Final = 120.0


class Visitors:
    """`tool` is read by everybody who calls something."""

    def __init__(self, url: str, tokens: Sequence[str], tool: str) -> None:
        self._url = url
        self._tokens = tokens
        self._tool = tool
        self.failed: Counter[str] = Counter()
        self.came = 0

    async def come(self, number: int, *, at_once: int) -> None:
        """So many sessions, of every kind in turn."""
        left = iter(range(number))

        async def lane() -> None:
            for _ in left:
                self.came += 1
                await self._visit(self.came)

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(lane())

    async def _visit(self, number: int) -> None:
        line = Line.to(self._url, token=self._tokens[number % len(self._tokens)])
        kind = (self._today, self._handshake, self._opening, self._leaving, self._half)[number % 5]
        try:
            async with asyncio.timeout(_SECONDS):
                await kind(line)
        except (OSError, EOFError, TimeoutError, ValueError, KeyError) as error:
            self.failed[f"{kind.__name__}: {type(error).__name__} {error}"[:200]] += 1
        finally:
            line.close()

    async def _today(self, line: Line) -> None:
        for method in ("server/discover", "tools/list"):
            await self._ask(line, method, {}, modern=True)
        await self._ask(line, "tools/call", {"name": self._tool, "arguments": ARGUMENTS}, modern=True)

    async def _handshake(self, line: Line, **abilities: Any) -> None:
        offer = {"protocolVersion": OLDER, "capabilities": abilities, "clientInfo": _CLIENT}
        await self._ask(line, "initialize", offer)
        await self._ask(line, "notifications/initialized", None)
        await self._ask(line, "tools/list", {})
        await self._ask(line, "tools/call", {"name": self._tool, "arguments": ARGUMENTS})

    async def _opening(self, line: Line) -> None:
        """One that can open addresses, and says at its end that its session is over."""
        await self._handshake(line, elicitation={"url": {}})
        ended = await line.send("DELETE", "/mcp")
        if ended.status != 405:
            raise ValueError(f"DELETE is answered with {ended.status}")

    async def _leaving(self, line: Line) -> None:
        """One that asks and does not wait."""
        asking = asyncio.ensure_future(self._today(line))
        await asyncio.sleep(0.001)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking

    async def _half(self, line: Line) -> None:
        """One that goes in the middle of a word."""
        _, writer = await asyncio.open_connection(line.host, line.port)
        writer.write(
            b'POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 90\r\n\r\n{"js'
        )
        await writer.drain()
        writer.close()

    async def _ask(self, line: Line, method: str, params: dict[str, Any] | None, *, modern: bool = False) -> None:
        headers = {"accept": _ACCEPT, "mcp-protocol-version": MODERN if modern else OLDER}
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message |= {"id": 1, "params": params}
        if modern:
            headers |= {"mcp-method": method} | ({"mcp-name": self._tool} if method == "tools/call" else {})
            meta = {"protocolVersion": MODERN, "clientCapabilities": {}, "clientInfo": _CLIENT}
            message["params"] = {
                **(params or {}),
                "_meta": {f"io.modelcontextprotocol/{name}": value for name, value in meta.items()},
            }
        answer = await line.send("POST", "/mcp", headers=headers, body=orjson.dumps(message))
        if params is None:
            if answer.status != 202:
                raise ValueError(f"{method} is answered with {answer.status}")
        elif answer.status != 200 or "result" not in answer.json() or answer.json()["result"].get("isError"):
            raise ValueError(f"{method} is answered with {answer.status} {answer.body[:120]!r}")
