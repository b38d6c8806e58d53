"""An MCP server in a process of its own that declares, byte for byte, what a proof tells it to, and notes what it did.

Above: `site.py`, or `python -m proofs.drifting.server --era modern|legacy`. Below: `kit/serving.py`.

    POST /mcp       MCP, in the era it was started for
    PUT  /tools     the text of the list of tools from now on, as it is sent
    PUT  /instructions
    GET  /done      how often each tool was called since the last time this was asked
"""

import argparse
from collections import Counter
from typing import Any

import orjson

from deputize.core.mcp import HANDSHAKES, METHOD_NOT_FOUND, MODERN, SERVER_INFO, VERSION_UNSUPPORTED
from proofs.kit.serving import Receive, Scope, Send, answer, read_body, serve

_INFO = {"name": "drifting", "version": "1"}


class Declaring:
    def __init__(self, *, modern: bool) -> None:
        self._modern = modern
        self._tools = b"[]"
        self._instructions = ""
        self._done: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        match scope["method"], scope["path"]:
            case "PUT", "/tools":
                self._tools = body
                await answer(send, 200, b"{}")
            case "PUT", "/instructions":
                self._instructions = body.decode()
                await answer(send, 200, b"{}")
            case "GET", "/done":
                done, self._done = self._done, Counter()
                await answer(send, 200, orjson.dumps(done))
            case "POST", "/mcp":
                await self._mcp(orjson.loads(body), send)
            case _:
                await answer(send, 405, b"")

    async def _mcp(self, asked: dict[str, Any], send: Send) -> None:
        if "id" not in asked:
            await answer(send, 202, b"")
            return
        status, told = self._told(asked["method"], asked.get("params") or {})
        number = orjson.dumps(asked["id"])
        await answer(send, status, b'{"jsonrpc": "2.0", "id": ' + number + b", " + told + b"}")

    def _told(self, method: str, params: dict[str, Any]) -> tuple[int, bytes]:
        match method:
            case "server/discover" if self._modern:
                said = {"supportedVersions": [MODERN], "_meta": {SERVER_INFO: _INFO}}
                return 200, self._result({**said, **self._introduced()})
            case "initialize" if not self._modern:
                return 200, self._result({"protocolVersion": HANDSHAKES[0], "serverInfo": _INFO, **self._introduced()})
            case "tools/list":
                kind = b'"resultType": "complete", ' if self._modern else b""
                return 200, b'"result": {' + kind + b'"tools": ' + self._tools + b"}"
            case "tools/call":
                self._done[params["name"]] += 1
                return 200, self._result({"content": [{"type": "text", "text": "done"}], "structuredContent": {}})
            case "server/discover":
                return 400, self._error(VERSION_UNSUPPORTED, {"supported": list(HANDSHAKES), "requested": MODERN})
            case _:
                return 404 if self._modern else 200, self._error(METHOD_NOT_FOUND, None)

    def _introduced(self) -> dict[str, Any]:
        return {"capabilities": {"tools": {}}, "instructions": self._instructions}

    def _result(self, value: dict[str, Any]) -> bytes:
        kind = {"resultType": "complete"} if self._modern else {}
        return b'"result": ' + orjson.dumps({**kind, **value})

    def _error(self, code: int, data: Any) -> bytes:
        return b'"error": ' + orjson.dumps({"code": code, "message": "not here", "data": data})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", choices=("modern", "legacy"), required=True)
    serve(Declaring(modern=parser.parse_args().era == "modern"))
