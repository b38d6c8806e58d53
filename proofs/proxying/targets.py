"""One call of the tool, as each way to it wants it put: with a token or without, of today or after a handshake.

Above: `proxy.py`. Below: `kit/load.py`, which repeats the request; `kit/wire.py`, which makes the first ones.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from proofs.kit.load import Target
from proofs.kit.wire import Answer, Line
from proofs.proxying.upstream import TOOL

MODERN: Final = "2026-07-28"
OLDER: Final = "2025-11-25"
ARGUMENTS: Final = {"customer": "Ann", "items": [{"sku": f"SKU-{n}", "quantity": n + 1} for n in range(8)]}
CENTS: Final = 999 * 36
_ACCEPT: Final = "application/json, text/event-stream"
_CLIENT: Final = {"name": "proof", "version": "1"}
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": _CLIENT,
}


class NoCall(Exception):
    """The tool cannot be called there, in one sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """Where the tool is reached, and what it is called there. `modern` is whether 2026-07-28 is spoken."""

    name: str
    base: str
    tool: str
    path: str = "/mcp"
    token: str | None = None
    modern: bool = True


async def target_of(way: Way) -> Target:
    """The call as bytes to repeat, made once and looked at before: an error that comes with 200 is an error."""
    headers = {"accept": _ACCEPT, "content-type": "application/json"}
    if way.token is not None:
        headers["authorization"] = f"Bearer {way.token}"
    params: dict[str, Any] = {"name": way.tool, "arguments": ARGUMENTS}
    if way.modern:
        headers |= {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": way.tool}
        params["_meta"] = _META
    else:
        headers |= await _handshake(way, headers)
    body = orjson.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})
    line = Line.to(way.base)
    _require_good(way, await line.send("POST", way.path, headers=headers, body=body))
    line.close()
    return Target(url=f"{way.base}{way.path}", headers=headers, body=body)


async def tool_at(way: Way) -> Way:
    """The same way with the name that the tool has there: each proxy spells it as it likes."""
    headers = {"accept": _ACCEPT, "content-type": "application/json"}
    if way.token is not None:
        headers["authorization"] = f"Bearer {way.token}"
    headers |= await _handshake(way, headers)
    line = Line.to(way.base)
    asked = orjson.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}})
    answer = await line.send("POST", way.path, headers=headers, body=asked)
    line.close()
    try:
        names = [str(tool["name"]) for tool in _message(answer)["result"]["tools"]]
    except (KeyError, TypeError, ValueError, IndexError):
        raise NoCall(f"{way.name} lists no tools: {answer.status} {answer.body[:200]!r}") from None
    found = [name for name in names if name.endswith(TOOL)]
    if not found:
        raise NoCall(f"{way.name} does not offer the tool, only {', '.join(names)[:200]}")
    return replace(way, tool=found[0])


async def _handshake(way: Way, headers: dict[str, str]) -> dict[str, str]:
    line = Line.to(way.base)
    offer = {"protocolVersion": OLDER, "capabilities": {}, "clientInfo": _CLIENT}
    first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": offer}
    answer = await line.send("POST", way.path, headers=headers, body=orjson.dumps(first))
    if answer.status != 200:
        raise NoCall(f"{way.name} refuses the handshake: {answer.status} {answer.body[:200]!r}")
    told = {"mcp-protocol-version": _message(answer)["result"]["protocolVersion"]}
    if "mcp-session-id" in answer.headers:
        told["mcp-session-id"] = answer.headers["mcp-session-id"]
    ready = orjson.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})
    await line.send("POST", way.path, headers={**headers, **told}, body=ready)
    line.close()
    return told


def _require_good(way: Way, answer: Answer) -> None:
    try:
        result = _message(answer)["result"]
        if answer.status == 200 and not result.get("isError") and result["structuredContent"]["cents"] == CENTS:
            return
    except (KeyError, TypeError, ValueError):
        pass
    raise NoCall(f"{way.name} does not answer the call: {answer.status} {answer.body[:300]!r}")


def _message(answer: Answer) -> Any:
    """The answer, plain or as the last event of a stream."""
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        data = [line for line in answer.body.splitlines() if line.startswith(b"data:") and len(line) > 6]
        return orjson.loads(data[-1].removeprefix(b"data:"))
    return answer.json()
