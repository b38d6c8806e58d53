"""One call of the tool, as each way to it wants it put: with a token or without, of today or after a handshake."""

from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from proofs.kit.http_client import HttpConnection, HttpResponse
from proofs.kit.load import Target
from proofs.proxy.upstream_server import TOOL

MODERN: Final = "2026-07-28"
OLDER: Final = "2025-11-25"
ARGUMENTS: Final = {"customer": "Ann", "items": [{"sku": f"SKU-{n}", "quantity": n + 1} for n in range(8)]}
EXPECTED_CENTS: Final = 999 * 36
_ACCEPT: Final = "application/json, text/event-stream"
_CLIENT: Final = {"name": "proof", "version": "1"}
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": _CLIENT,
}


class ToolUnreachable(Exception):
    """The tool cannot be called there, in one sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolEndpoint:
    """Where the tool is reached, and what it is called there. `modern` is whether 2026-07-28 is spoken."""

    name: str
    base: str
    tool: str
    path: str = "/mcp"
    token: str | None = None
    modern: bool = True


async def build_target(endpoint: ToolEndpoint) -> Target:
    """The call as bytes to repeat, made once and looked at before: an error that comes with 200 is an error."""
    headers = {"accept": _ACCEPT, "content-type": "application/json"}
    if endpoint.token is not None:
        headers["authorization"] = f"Bearer {endpoint.token}"
    params: dict[str, Any] = {"name": endpoint.tool, "arguments": ARGUMENTS}
    if endpoint.modern:
        headers |= {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": endpoint.tool}
        params["_meta"] = _META
    else:
        headers |= await _run_handshake(endpoint, headers)
    body = orjson.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})
    http = HttpConnection.for_url(endpoint.base)
    _require_success(endpoint, await http.send("POST", endpoint.path, headers=headers, body=body))
    http.close()
    return Target(url=f"{endpoint.base}{endpoint.path}", headers=headers, body=body)


async def find_tool(endpoint: ToolEndpoint) -> ToolEndpoint:
    """The same way with the name that the tool has there: each proxy spells it as it likes."""
    headers = {"accept": _ACCEPT, "content-type": "application/json"}
    if endpoint.token is not None:
        headers["authorization"] = f"Bearer {endpoint.token}"
    headers |= await _run_handshake(endpoint, headers)
    http = HttpConnection.for_url(endpoint.base)
    request = orjson.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}})
    answer = await http.send("POST", endpoint.path, headers=headers, body=request)
    http.close()
    try:
        names = [str(tool["name"]) for tool in _parse_message(answer)["result"]["tools"]]
    except (KeyError, TypeError, ValueError, IndexError):
        raise ToolUnreachable(f"{endpoint.name} lists no tools: {answer.status} {answer.body[:200]!r}") from None
    tool_names = [name for name in names if name.endswith(TOOL)]
    if not tool_names:
        raise ToolUnreachable(f"{endpoint.name} does not offer the tool, only {', '.join(names)[:200]}")
    return replace(endpoint, tool=tool_names[0])


async def _run_handshake(endpoint: ToolEndpoint, headers: dict[str, str]) -> dict[str, str]:
    http = HttpConnection.for_url(endpoint.base)
    initialize_params = {"protocolVersion": OLDER, "capabilities": {}, "clientInfo": _CLIENT}
    initialize_request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize_params}
    answer = await http.send("POST", endpoint.path, headers=headers, body=orjson.dumps(initialize_request))
    if answer.status != 200:
        raise ToolUnreachable(f"{endpoint.name} refuses the handshake: {answer.status} {answer.body[:200]!r}")
    session_headers = {"mcp-protocol-version": _parse_message(answer)["result"]["protocolVersion"]}
    if "mcp-session-id" in answer.headers:
        session_headers["mcp-session-id"] = answer.headers["mcp-session-id"]
    initialized_message = orjson.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})
    await http.send("POST", endpoint.path, headers={**headers, **session_headers}, body=initialized_message)
    http.close()
    return session_headers


def _require_success(endpoint: ToolEndpoint, answer: HttpResponse) -> None:
    try:
        result = _parse_message(answer)["result"]
        if (
            answer.status == 200
            and not result.get("isError")
            and result["structuredContent"]["cents"] == EXPECTED_CENTS
        ):
            return
    except (KeyError, TypeError, ValueError):
        pass
    raise ToolUnreachable(f"{endpoint.name} does not answer the call: {answer.status} {answer.body[:300]!r}")


def _parse_message(answer: HttpResponse) -> Any:
    """The answer, plain or as the last event of a stream."""
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        data = [line for line in answer.body.splitlines() if line.startswith(b"data:") and len(line) > 6]
        return orjson.loads(data[-1].removeprefix(b"data:"))
    return answer.json()
