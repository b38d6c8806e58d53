"""Clients that come, do a little and go, each on a connection of its own: politely, in either era, or not."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import orjson

from proofs.kit.http_client import HttpConnection
from proofs.proxy.endpoints import ARGUMENTS, MODERN, OLDER

_ACCEPT: Final = "application/json, text/event-stream"
_CLIENT: Final = {"name": "visitor", "version": "1"}
_SECONDS: Final = 120.0


class SessionClients:
    """`tool` is read by everybody who calls something."""

    def __init__(self, url: str, tokens: Sequence[str], tool: str) -> None:
        self._url = url
        self._tokens = tokens
        self._tool = tool
        self.failures: Counter[str] = Counter()
        self.session_count = 0

    async def run_sessions(self, number: int, *, at_once: int) -> None:
        """So many sessions, of every kind in turn."""
        pending = iter(range(number))

        async def run_lane() -> None:
            for _ in pending:
                self.session_count += 1
                await self._run_session(self.session_count)

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(run_lane())

    async def _run_session(self, number: int) -> None:
        http = HttpConnection.for_url(self._url, token=self._tokens[number % len(self._tokens)])
        run_kind = (
            self._run_modern_session,
            self._run_handshake_session,
            self._run_session_with_delete,
            self._run_abandoned_session,
            self._send_half_request,
        )[number % 5]
        try:
            async with asyncio.timeout(_SECONDS):
                await run_kind(http)
        except (OSError, EOFError, TimeoutError, ValueError, KeyError) as error:
            self.failures[f"{run_kind.__name__}: {type(error).__name__} {error}"[:200]] += 1
        finally:
            http.close()

    async def _run_modern_session(self, http: HttpConnection) -> None:
        for method in ("server/discover", "tools/list"):
            await self._send_message(http, method, {}, modern=True)
        await self._send_message(http, "tools/call", {"name": self._tool, "arguments": ARGUMENTS}, modern=True)

    async def _run_handshake_session(self, http: HttpConnection, **abilities: Any) -> None:
        offer = {"protocolVersion": OLDER, "capabilities": abilities, "clientInfo": _CLIENT}
        await self._send_message(http, "initialize", offer)
        await self._send_message(http, "notifications/initialized", None)
        await self._send_message(http, "tools/list", {})
        await self._send_message(http, "tools/call", {"name": self._tool, "arguments": ARGUMENTS})

    async def _run_session_with_delete(self, http: HttpConnection) -> None:
        """One that can open addresses, and says at its end that its session is over."""
        await self._run_handshake_session(http, elicitation={"url": {}})
        response = await http.send("DELETE", "/mcp")
        if response.status != 405:
            raise ValueError(f"DELETE is answered with {response.status}")

    async def _run_abandoned_session(self, http: HttpConnection) -> None:
        """One that asks and does not wait."""
        request_task = asyncio.ensure_future(self._run_modern_session(http))
        await asyncio.sleep(0.001)
        request_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await request_task

    async def _send_half_request(self, http: HttpConnection) -> None:
        """One that goes in the middle of a word."""
        _, writer = await asyncio.open_connection(http.host, http.port)
        writer.write(
            b'POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 90\r\n\r\n{"js'
        )
        await writer.drain()
        writer.close()

    async def _send_message(
        self, http: HttpConnection, method: str, params: dict[str, Any] | None, *, modern: bool = False
    ) -> None:
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
        answer = await http.send("POST", "/mcp", headers=headers, body=orjson.dumps(message))
        if params is None:
            if answer.status != 202:
                raise ValueError(f"{method} is answered with {answer.status}")
        elif answer.status != 200 or "result" not in answer.json() or answer.json()["result"].get("isError"):
            raise ValueError(f"{method} is answered with {answer.status} {answer.body[:120]!r}")
