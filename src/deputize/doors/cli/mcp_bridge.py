"""Between a client that speaks MCP over its own pipes and the gateway's `/mcp`: every line in is a request over HTTP,
every message back is a line out.

It understands no more than it must: what HTTP carries in headers is taken from the messages. Calls go side by side; one
that is canceled is let go of, and the gateway still brings what it began to its end. Above: `mcp.py`. Below: httpx2.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import httpx2
import orjson

from deputize.core.errors import ResourceLimit
from deputize.core.mcp import (
    EVENTS,
    INTERNAL_ERROR,
    JSON,
    METHOD_HEADER,
    MODERN,
    NAME_HEADER,
    PARSE_ERROR,
    PROTOCOL_VERSION,
    SESSION_HEADER,
    VERSION_HEADER,
)
from deputize.execute.upstreams.events import Events
from deputize.execute.upstreams.headers import Path, carried, repeat, repeated

_CONNECT_SECONDS = 10.0
# A little more than the longest a call may take in its request; a stream in between is kept alive.
_SILENT_SECONDS = 330.0
_AT_THE_END_SECONDS = 20.0
_LARGEST = 32 * 1024 * 1024
_NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_CANCEL = "notifications/cancelled"

Write = Callable[[bytes], None]


class _NoGateway(Exception):
    """What came back is no message of MCP."""


class Bridge:
    def __init__(self, url: str, token: str, write: Write, complain: Callable[[str], None]) -> None:
        self._url = f"{url}/mcp"
        self._write = write
        self._complain = complain
        self._http = httpx2.AsyncClient(
            headers={
                "authorization": f"Bearer {token}",
                "accept": f"{JSON}, {EVENTS}",
                "content-type": JSON,
            },
            timeout=httpx2.Timeout(_SILENT_SECONDS, connect=_CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=100),
        )
        self._running: dict[Any, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._version: str | None = None
        self._session: str | None = None
        self._mirrored: dict[str, Mapping[Path, str]] = {}

    async def carry(self, lines: "asyncio.Queue[bytes | None]") -> None:
        """Until the lines end; what is on its way then is waited for."""
        async with self._http:
            while (line := await lines.get()) is not None:
                if line.strip():
                    self._take(line)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_AT_THE_END_SECONDS)
            for task in self._tasks:
                task.cancel()

    def _take(self, line: bytes) -> None:
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            self._fail(None, PARSE_ERROR, "the line is not JSON")
            return
        if not isinstance(message, dict):
            self._fail(None, PARSE_ERROR, "the line is no message of MCP")
            return
        if message.get("method") == _CANCEL and self._let_go(message):
            return
        task = asyncio.create_task(self._ask(message, self._headers(message)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        identity = message.get("id")
        if "method" in message and isinstance(identity, str | int):
            self._running[identity] = task
            task.add_done_callback(lambda ended: self._forget(identity, ended))

    def _forget(self, identity: Any, task: "asyncio.Task[None]") -> None:
        if self._running.get(identity) is task:
            del self._running[identity]

    def _let_go(self, message: dict[str, Any]) -> bool:
        """Since 2026-07-28 a client cancels over HTTP by hanging up; before, the gateway hears of it by the message."""
        params = message.get("params")
        identity = params.get("requestId") if isinstance(params, dict) else None
        task = self._running.get(identity) if isinstance(identity, str | int) else None
        if self._version is not None:
            return False
        if task is not None:
            task.cancel()
        return True

    def _headers(self, message: dict[str, Any]) -> dict[str, str]:
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        meta, method = params.get("_meta"), message.get("method")
        told = meta.get(PROTOCOL_VERSION) if isinstance(meta, dict) else None
        if not isinstance(told, str):
            known = {VERSION_HEADER: self._version, SESSION_HEADER: self._session}
            if method is not None and "id" not in message and self._version is None:
                known = {VERSION_HEADER: MODERN}
            return {} if method == "initialize" else {name: value for name, value in known.items() if value}
        headers = {VERSION_HEADER: told, METHOD_HEADER: str(method)}
        name = params.get("taskId" if str(method).startswith("tasks/") else _NAMED_BY.get(str(method), ""))
        if isinstance(name, str):
            headers[NAME_HEADER] = carried(name)
            arguments = params.get("arguments")
            if method == "tools/call" and isinstance(arguments, dict):
                headers |= repeat(self._mirrored.get(name, {}), arguments)
        return headers

    async def _ask(self, message: dict[str, Any], headers: dict[str, str]) -> None:
        identity = message.get("id") if "method" in message else None
        try:
            async with self._http.stream("POST", self._url, content=orjson.dumps(message), headers=headers) as answer:
                if answer.headers.get("content-type", "").startswith(EVENTS):
                    events = Events(_LARGEST)
                    async for piece in answer.aiter_raw():
                        for event in events.feed(piece):
                            self._pass_on(orjson.loads(event.data), message, answer)
                    return
                body = await answer.aread()
            if body:
                self._pass_on(orjson.loads(body), message, answer)
            elif identity is not None:
                self._fail(identity, INTERNAL_ERROR, f"the gateway answered {answer.status_code} and nothing else")
        except httpx2.TransportError as error:
            said = f"the gateway at {self._url} does not answer ({type(error).__name__})"
            self._complain(f"{said}: is it running?")
            if identity is not None:
                self._fail(identity, INTERNAL_ERROR, said)
        except (orjson.JSONDecodeError, _NoGateway):
            said = f"what answers at {self._url} is no gateway"
            self._complain(f"{said}: see what DEPUTIZE_URL or --url names")
            if identity is not None:
                self._fail(identity, INTERNAL_ERROR, said)
        except ResourceLimit as limit:
            self._complain(limit.message)
            if identity is not None:
                self._fail(identity, INTERNAL_ERROR, limit.message)

    def _pass_on(self, told: Any, asked: dict[str, Any], answer: httpx2.Response) -> None:
        if not _is_message(told):
            raise _NoGateway
        if answer.status_code == 401:
            self._complain("the gateway does not take this token: set DEPUTIZE_TOKEN to a good one")
        if "error" in told and told.get("id") is None:
            if asked.get("id") is None:
                self._complain(str(told["error"].get("message")))
                return
            # It was refused before it was read.
            told["id"] = asked["id"]
        self._learn(told.get("result"), str(asked.get("method")), answer)
        self._write(orjson.dumps(told) + b"\n")

    def _learn(self, result: Any, method: str, answer: httpx2.Response) -> None:
        if not isinstance(result, dict):
            return
        if method == "initialize" and isinstance(result.get("protocolVersion"), str):
            self._version, self._session = result["protocolVersion"], answer.headers.get(SESSION_HEADER)
        elif method == "tools/list":
            for tool in result.get("tools", ()):
                self._mirrored[tool["name"]] = repeated(tool.get("inputSchema"))

    def _fail(self, identity: Any, code: int, message: str) -> None:
        error = {"code": code, "message": message}
        self._write(orjson.dumps({"jsonrpc": "2.0", "id": identity, "error": error}) + b"\n")


def _is_message(told: Any) -> bool:
    if not isinstance(told, dict) or told.get("jsonrpc") != "2.0":
        return False
    return isinstance(told.get("error", {}), dict) and isinstance(told.get("result", {}), dict)


async def bridge(url: str, token: str, complain: Callable[[str], None]) -> None:
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        """In a thread of its own, since a terminal, a file and a pipe can all be read like that; it ends with us."""
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)

    out = sys.stdout.fileno()
    threading.Thread(target=read, daemon=True).start()
    await Bridge(url, token, lambda line: _written(out, line), complain).carry(lines)


def _written(out: int, line: bytes) -> None:
    """Whole, whatever the pipe takes at once. Where nobody reads any more, there is nothing left to do."""
    left = memoryview(line)
    try:
        while left:
            left = left[os.write(out, left) :]
    except BrokenPipeError:
        os._exit(0)
