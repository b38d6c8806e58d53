"""Bridge an MCP client on stdio to the gateway's `/mcp`: each line in is an HTTP request, each message back a line out.

The bridge reads from the messages only what HTTP carries in headers. Requests run concurrently. A canceled request is
dropped here; the gateway still finishes a call it has started.

The gateway of a project may come, go and renew its token. While there is none, the bridge answers by itself, in words
that a model can pass on; then it connects, and tells clients of the older versions that the list of tools changed.
"""

import asyncio
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, Final

import httpx2
import orjson

from deputize.core.bounded_dict import BoundedDict
from deputize.core.config_error import ConfigError
from deputize.core.errors import ResourceLimitExceeded
from deputize.core.mcp.constants import (
    HANDSHAKE_VERSIONS,
    INTERNAL_ERROR,
    JSON_MEDIA_TYPE,
    METHOD_HEADER,
    METHOD_NOT_FOUND,
    MODERN_VERSION,
    NAME_HEADER,
    PARSE_ERROR,
    PROTOCOL_VERSION_KEY,
    SESSION_HEADER,
    SSE_MEDIA_TYPE,
    VERSION_HEADER,
)
from deputize.core.mcp.headers import Path, build_param_headers, encode_header_value, read_header_params
from deputize.core.mcp.sse import SseParser
from deputize.interfaces.cli.client.rest_client import GatewayClient

_CONNECT_SECONDS = 10.0
_WATCH_SECONDS = 2.0
# Of a list that no gateway has given yet: any list is another one.
_NO_TOOLS = b"none"
# In the answer to an initialize that no gateway gave.
NO_GATEWAY: Final = "dev.deputize/no-gateway"
_TOOLS_CHANGED = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n'
# A little longer than a synchronous call may take; streams are kept alive by the gateway.
_READ_TIMEOUT_SECONDS = 330.0
_DRAIN_SECONDS = 20.0
_MAX_MESSAGE_BYTES = 32 * 1024 * 1024
_MAX_TOOLS = 4096
_NAME_PARAMS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_CANCEL_METHOD = "notifications/cancelled"

Write = Callable[[bytes], None]


class _NotMcpResponse(Exception):
    """Response that is not an MCP message."""


class McpBridge:
    """Relay between lines of JSON and the gateway, with the session that the client negotiated."""

    def __init__(
        self,
        find_gateway: Callable[[], GatewayClient],
        write: Write,
        report: Callable[[str], None],
        *,
        follows_project: bool = False,
    ) -> None:
        """Relay to the gateway that is found. With `follows_project`, there may be none yet, and another one later."""
        self._find_gateway = find_gateway
        self._follows_project = follows_project
        self._gateway: GatewayClient | None = None if follows_project else find_gateway()
        self._absence = ""
        # What the client said first, if no gateway has heard it yet.
        self._unheard_initialize: dict[str, Any] | None = None
        self._tools_digest = b""
        self._write = write
        self._report = report
        self._http = httpx2.AsyncClient(
            headers={
                "accept": f"{JSON_MEDIA_TYPE}, {SSE_MEDIA_TYPE}",
                "content-type": JSON_MEDIA_TYPE,
            },
            timeout=httpx2.Timeout(_READ_TIMEOUT_SECONDS, connect=_CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=100),
        )
        self._tasks_by_id: dict[Any, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._version: str | None = None
        self._session: str | None = None
        self._param_headers: BoundedDict[str, Mapping[Path, str]] = BoundedDict(_MAX_TOOLS)

    async def relay_lines(self, lines: "asyncio.Queue[bytes | None]") -> None:
        """Relay until the lines end, then wait for requests in flight."""
        async with self._http:
            watch_task = asyncio.create_task(self._watch_project()) if self._follows_project else None
            while (line := await lines.get()) is not None:
                if line.strip():
                    self._handle_line(line)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_DRAIN_SECONDS)
            for task in (*self._tasks, *([watch_task] if watch_task else ())):
                task.cancel()

    def _refresh_gateway(self) -> GatewayClient | None:
        """Find the gateway of the project, with its newest token; None, and why, if none runs."""
        if self._follows_project:
            try:
                self._gateway = self._find_gateway()
            except ConfigError as error:
                self._gateway, self._absence = None, str(error)
        return self._gateway

    async def _watch_project(self) -> None:
        """Notify the client when the tools that the gateway lists for it changed."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            gateway = self._refresh_gateway()
            if gateway is None or self._version is None:
                continue
            try:
                if self._unheard_initialize is not None:
                    await self._open_session(gateway)
                headers = {"authorization": f"Bearer {gateway.token}", "accept": JSON_MEDIA_TYPE}
                response = await self._http.get(f"{gateway.url}/v1/tools", params={"limit": 100}, headers=headers)
            except httpx2.TransportError:
                continue
            digest = hashlib.sha256(response.content).digest() if response.status_code == 200 else self._tools_digest
            if self._tools_digest not in (b"", digest):
                self._write(_TOOLS_CHANGED)
            self._tools_digest = digest

    async def _open_session(self, gateway: GatewayClient) -> None:
        """Tell a gateway that came later what the client said first, so that it has a session of the client."""
        message, self._unheard_initialize = self._unheard_initialize, None
        headers = {"authorization": f"Bearer {gateway.token}"}
        try:
            body = orjson.dumps(message)
            response = await self._http.post(f"{gateway.url}/mcp", content=body, headers=headers)
        except httpx2.TransportError:
            self._unheard_initialize = message
            raise
        self._session = response.headers.get(SESSION_HEADER)
        self._tools_digest = _NO_TOOLS

    def _answer_alone(self, message: dict[str, Any]) -> None:
        """Answer a request while there is no gateway: what is missing is said where a model or a person reads it."""
        if "method" not in message or message.get("id") is None:
            return
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        words = f"{self._absence} Then the tools of this project are here."
        result: dict[str, Any]
        match message["method"]:
            case "initialize":
                asked = params.get("protocolVersion")
                self._version = asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0]
                self._unheard_initialize = message
                result = {
                    "protocolVersion": self._version,
                    "capabilities": {"tools": {"listChanged": True}},
                    "serverInfo": {"name": "deputize", "version": version("deputize")},
                    "instructions": words,
                    "_meta": {NO_GATEWAY: True},
                }
            case "ping":
                result = {}
            case "tools/list":
                result = {"tools": []}
            case "tools/call":
                result = {"content": [{"type": "text", "text": words}], "isError": True}
            case "server/discover":
                # Clients of the newer version begin with an initialize then, which can be answered without a gateway.
                self._send_error(message["id"], METHOD_NOT_FOUND, words)
                return
            case _:
                self._send_error(message["id"], INTERNAL_ERROR, words)
                return
        self._write(orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + b"\n")

    def _handle_line(self, line: bytes) -> None:
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            self._send_error(None, PARSE_ERROR, "the line is not valid JSON")
            return
        if not isinstance(message, dict):
            self._send_error(None, PARSE_ERROR, "the line is not an MCP message: expected a JSON object")
            return
        if message.get("method") == _CANCEL_METHOD and self._cancel_request(message):
            return
        task = asyncio.create_task(self._forward_message(message, self._build_headers(message)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        request_id = message.get("id")
        if "method" in message and isinstance(request_id, str | int):
            self._tasks_by_id[request_id] = task
            task.add_done_callback(lambda done_task: self._forget_task(request_id, done_task))

    def _forget_task(self, request_id: Any, task: "asyncio.Task[None]") -> None:
        if self._tasks_by_id.get(request_id) is task:
            del self._tasks_by_id[request_id]

    def _cancel_request(self, message: dict[str, Any]) -> bool:
        """Cancel the request's task. Return False for versions before 2026-07-28, which send the gateway a message."""
        params = message.get("params")
        request_id = params.get("requestId") if isinstance(params, dict) else None
        task = self._tasks_by_id.get(request_id) if isinstance(request_id, str | int) else None
        if self._version is not None:
            return False
        if task is not None:
            task.cancel()
        return True

    def _build_headers(self, message: dict[str, Any]) -> dict[str, str]:
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        meta, method = params.get("_meta"), message.get("method")
        version = meta.get(PROTOCOL_VERSION_KEY) if isinstance(meta, dict) else None
        if not isinstance(version, str):
            session_headers = {VERSION_HEADER: self._version, SESSION_HEADER: self._session}
            if method is not None and "id" not in message and self._version is None:
                session_headers = {VERSION_HEADER: MODERN_VERSION}
            return {} if method == "initialize" else {name: value for name, value in session_headers.items() if value}
        headers = {VERSION_HEADER: version, METHOD_HEADER: str(method)}
        name = params.get("taskId" if str(method).startswith("tasks/") else _NAME_PARAMS.get(str(method), ""))
        if isinstance(name, str):
            headers[NAME_HEADER] = encode_header_value(name)
            arguments = params.get("arguments")
            if method == "tools/call" and isinstance(arguments, dict):
                headers |= build_param_headers(self._param_headers.get(name, {}), arguments)
        return headers

    async def _forward_message(self, message: dict[str, Any], headers: dict[str, str]) -> None:
        request_id = message.get("id") if "method" in message else None
        gateway = self._refresh_gateway()
        if gateway is None:
            self._answer_alone(message)
            return
        url = f"{gateway.url}/mcp"
        try:
            if self._unheard_initialize is not None:
                await self._open_session(gateway)
                headers = self._build_headers(message)
            headers = {**headers, "authorization": f"Bearer {gateway.token}"}
            async with self._http.stream("POST", url, content=orjson.dumps(message), headers=headers) as response:
                if response.headers.get("content-type", "").startswith(SSE_MEDIA_TYPE):
                    events = SseParser(_MAX_MESSAGE_BYTES)
                    async for piece in response.aiter_raw():
                        for event in events.parse_chunk(piece):
                            self._relay_reply(orjson.loads(event.data), message, response)
                    return
                body = await response.aread()
            if body:
                self._relay_reply(orjson.loads(body), message, response)
            elif request_id is not None:
                self._send_error(
                    request_id, INTERNAL_ERROR, f"the gateway answered HTTP {response.status_code} without a message"
                )
        except httpx2.TransportError as error:
            reason = f"the gateway at {url} does not answer ({type(error).__name__})"
            self._report(f"{reason}: check that it is running, and that --url is right.")
            if request_id is not None:
                self._send_error(request_id, INTERNAL_ERROR, reason)
        except (orjson.JSONDecodeError, _NotMcpResponse):
            reason = f"{url} does not answer like a Deputize gateway"
            self._report(f"{reason}: check --url or DEPUTIZE_URL.")
            if request_id is not None:
                self._send_error(request_id, INTERNAL_ERROR, reason)
        except ResourceLimitExceeded as limit:
            self._report(limit.message)
            if request_id is not None:
                self._send_error(request_id, INTERNAL_ERROR, limit.message)

    def _relay_reply(self, reply: Any, request: dict[str, Any], response: httpx2.Response) -> None:
        if not _is_message(reply):
            raise _NotMcpResponse
        if response.status_code == 401:
            self._report("the gateway rejects this token: set DEPUTIZE_TOKEN to a valid one.")
        if "error" in reply and reply.get("id") is None:
            if request.get("id") is None:
                self._report(str(reply["error"].get("message")))
                return
            # The gateway rejected the message before it read the id.
            reply["id"] = request["id"]
        self._remember_session(reply.get("result"), str(request.get("method")), response)
        self._write(orjson.dumps(reply) + b"\n")

    def _remember_session(self, result: Any, method: str, response: httpx2.Response) -> None:
        if not isinstance(result, dict):
            return
        if method == "initialize" and isinstance(result.get("protocolVersion"), str):
            self._version, self._session = result["protocolVersion"], response.headers.get(SESSION_HEADER)
            capabilities = result.get("capabilities")
            if self._follows_project and isinstance(capabilities, dict):
                capabilities["tools"] = {"listChanged": True}
        elif method == "tools/list":
            for tool in result.get("tools", ()):
                self._param_headers.put(tool["name"], read_header_params(tool.get("inputSchema")))

    def _send_error(self, request_id: Any, code: int, message: str) -> None:
        error = {"code": code, "message": message}
        self._write(orjson.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}) + b"\n")


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        return False
    return isinstance(value.get("error", {}), dict) and isinstance(value.get("result", {}), dict)


async def run_bridge(
    find_gateway: Callable[[], GatewayClient], report: Callable[[str], None], *, follows_project: bool
) -> None:
    """Relay between this process's stdin and stdout and the gateway, until stdin ends."""
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read_lines() -> None:
        """Read stdin in a thread, which works for a terminal, a file and a pipe alike."""
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)

    out = sys.stdout.fileno()
    threading.Thread(target=read_lines, daemon=True).start()
    bridge = McpBridge(find_gateway, lambda line: _write_all(out, line), report, follows_project=follows_project)
    await bridge.relay_lines(lines)


def _write_all(descriptor: int, line: bytes) -> None:
    """Write a whole line, in as many pieces as the pipe takes; end the process if the client closed it."""
    rest = memoryview(line)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except BrokenPipeError:
        os._exit(0)
