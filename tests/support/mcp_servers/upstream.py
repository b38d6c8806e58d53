"""A real MCP server over HTTP whose definitions a test can change while it runs. It speaks the handshake of 2025-06-18,
answers in plain JSON, and writes down what it was asked to do.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROTOCOL = "2025-06-18"
NAME_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "description": "Whose order it is."}},
    "required": ["name"],
    "additionalProperties": False,
}


def make_definition(name: str, description: str = "", **more: Any) -> dict[str, Any]:
    told = description or f"Does what {name} does, and nothing beside it."
    return {"name": name, "description": told, "inputSchema": NAME_SCHEMA, **more}


class Upstream:
    """`tools` and `instructions` are what it declares at the moment; `done` are the calls that reached it."""

    def __init__(self) -> None:
        self.tools: list[dict[str, Any]] = [make_definition("get_order"), make_definition("cancel_order")]
        self.instructions = "Ask for orders by the name of whoever made them."
        self.tool_calls: list[tuple[str, dict[str, Any]]] = []
        # The `_meta` of each call, in the same order.
        self.call_metas: list[dict[str, Any]] = []
        self.list_count = 0
        self.headers: list[dict[str, str]] = []
        # An HTTP status that everything is answered with, while it is set.
        self.failure_status = 0
        self.port = 0
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        """On the port it had before, if it had one."""
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                upstream.headers.append({name.lower(): value for name, value in self.headers.items()})
                asked = json.loads(body)
                if status := upstream.find_failure_status(asked):
                    self._send(status, None)
                    return
                answer = upstream.answer(asked)
                self._send(202 if "id" not in asked else 200, answer if "id" in asked else None)

            def do_GET(self) -> None:
                self._send(405, None)

            def do_DELETE(self) -> None:
                self._send(405, None)

            def _send(self, status: int, value: Any) -> None:
                body = b"" if value is None else json.dumps(value).encode()
                self.send_response(status)
                if body:
                    self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def find_failure_status(self, _request: dict[str, Any]) -> int:
        """The HTTP status that a request is refused with; 0 if it is answered."""
        return self.failure_status

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        method, params = request.get("method"), request.get("params") or {}
        if method == "initialize":
            return self._result(
                request,
                {
                    "protocolVersion": PROTOCOL, "capabilities": {"tools": {}},
                    "serverInfo": {"name": "orders", "title": "Orders", "version": "7"},
                    "instructions": self.instructions,
                },
            )  # fmt: skip
        if method == "tools/list":
            self.list_count += 1
            return self._result(request, {"tools": self.tools})
        if method == "tools/call":
            self.tool_calls.append((params["name"], params.get("arguments") or {}))
            self.call_metas.append(params.get("_meta") or {})
            return self._result(request, {"content": [{"type": "text", "text": f"{params['name']} done"}]})
        if method == "ping":
            return self._result(request, {})
        error = {"code": -32601, "message": "no such method"}
        return {"jsonrpc": "2.0", "id": request.get("id"), "error": error}

    @staticmethod
    def _result(request: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": request.get("id"), "result": result}


@contextmanager
def run_upstream() -> Iterator[Upstream]:
    server = Upstream()
    server.start()
    try:
        yield server
    finally:
        server.stop()
