"""Test that tools with forbidden uses of `x-mcp-header` are reported and rejected."""

from typing import Any

import pytest

from deputize.core.mcp.constants import MODERN_VERSION, VERSION_UNSUPPORTED
from deputize.execute.upstreams.discovery import list_definitions
from deputize.execute.upstreams.jsonrpc import ServerInfo, UpstreamRpcError, has_modern_version

SERVER_INFO = ServerInfo(
    protocol=MODERN_VERSION, title="t", version="1", instructions="", has_tools=True, announces_changes=False
)


def make_tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "description": "Does a thing.", "inputSchema": {"type": "object", "properties": properties}}


@pytest.mark.parametrize(
    "properties",
    [
        {"a": {"type": "string", "x-mcp-header": ""}},
        {"a": {"type": "object", "x-mcp-header": "A"}},
        {"a": {"type": "array", "x-mcp-header": "A"}},
        {"a": {"type": "string", "x-mcp-header": "has a space"}},
        {"a": {"type": "string", "x-mcp-header": "Région"}},
        {"a": {"type": "string", "x-mcp-header": "Same"}, "b": {"type": "string", "x-mcp-header": "same"}},
    ],
)
async def test_a_tool_with_an_invalid_x_mcp_header_is_rejected_and_others_are_kept(properties: dict[str, Any]) -> None:
    async def page(method: str, cursor: str | None) -> dict[str, Any]:
        return {"tools": [make_tool("bad", **properties), make_tool("good", a={"type": "string", "x-mcp-header": "A"})]}

    found = await list_definitions(SERVER_INFO, page)
    assert [each.name for each in found.tools] == ["good"]
    assert len(found.rejections) == 1
    assert "x-mcp-header" in found.rejections[0]


def test_only_a_server_that_says_it_speaks_the_version_it_refused_is_asked_again() -> None:
    def make_refusal(**data: Any) -> UpstreamRpcError:
        return UpstreamRpcError(VERSION_UNSUPPORTED, "not this one", data)

    assert has_modern_version(make_refusal(supported=[MODERN_VERSION]))
    assert not has_modern_version(make_refusal(supported=["2025-11-25"]))
    assert not has_modern_version(make_refusal(supported=MODERN_VERSION))
    assert not has_modern_version(UpstreamRpcError(-32601, "no such method", {"supported": [MODERN_VERSION]}))
