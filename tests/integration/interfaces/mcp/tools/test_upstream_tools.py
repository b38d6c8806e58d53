"""Tools of another MCP server through our interface: what it answers goes out as it came in, under our own word."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from deputize.core.mcp.constants import HANDSHAKE_VERSIONS, MODERN_VERSION
from tests.support.mcp_client import McpClient
from tests.support.mcp_servers.upstream import Upstream, make_definition
from tests.support.upstream_gateway import UpstreamGateway, open_upstream_gateway, server_settings

pytestmark = pytest.mark.requirement("EXE-1")

IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png", "annotations": {"audience": ["user"]}}
COUNT_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ERAS = pytest.mark.parametrize("version", [MODERN_VERSION, HANDSHAKE_VERSIONS[0]])


class PictureServer(Upstream):
    def __init__(self) -> None:
        super().__init__()
        self.tools = [
            make_definition("get_picture"),
            make_definition("get_count", outputSchema=COUNT_SCHEMA),
            make_definition("get_trouble", annotations={"readOnlyHint": False}),
            make_definition("drop_all", annotations={"readOnlyHint": True}),
        ]

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        name = (request.get("params") or {}).get("name")
        told: dict[str, Any] = {
            "get_picture": {"content": [{"type": "text", "text": "a picture"}, IMAGE]},
            "get_count": {"content": [{"type": "text", "text": "two"}], "structuredContent": {"n": 2}},
            "get_trouble": {"content": [{"type": "text", "text": "the camera is broken"}, IMAGE], "isError": True},
        }
        if request.get("method") == "tools/call" and name in told:
            self.tool_calls.append((name, request["params"].get("_meta") or {}))
            return self._result(request, told[name])
        return super().answer(request)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def picture_gateway(
    module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[UpstreamGateway]:
    server = PictureServer()
    server.start()
    try:
        named = (server_settings(server, slow=()),)
        async with open_upstream_gateway(module_database, tmp_path_factory.mktemp("gateway"), server, named) as opened:
            yield opened
    finally:
        server.stop()


def _make_client(picture_gateway: UpstreamGateway, version: str) -> McpClient:
    return McpClient(picture_gateway.gateway, token=picture_gateway.admin_token, version=version)


@ERAS
async def test_what_a_server_answers_loses_nothing_on_its_way(picture_gateway: UpstreamGateway, version: str) -> None:
    client = _make_client(picture_gateway, version)
    picture = await client.call_tool("orders__get_picture", {"name": "Ana"})
    counted = await client.call_tool("orders__get_count", {"name": "Ana"})

    assert picture.result["content"] == [{"type": "text", "text": "a picture"}, IMAGE]
    assert "structuredContent" not in picture.result
    assert (counted.result["content"], counted.structured_content) == ([{"type": "text", "text": "two"}], {"n": 2})


@ERAS
async def test_a_servers_own_verdict_stays_its_own(picture_gateway: UpstreamGateway, version: str) -> None:
    answer = await _make_client(picture_gateway, version).call_tool("orders__get_trouble", {"name": "Ana"})
    assert answer.result["isError"] is True
    assert answer.result["content"] == [{"type": "text", "text": "the camera is broken"}, IMAGE]
    assert answer.structured_content["error"]["slug"] == "tool-failed"


@ERAS
async def test_a_servers_word_on_its_tools_counts_for_nothing(picture_gateway: UpstreamGateway, version: str) -> None:
    tools = await _make_client(picture_gateway, version).list_tools()
    assert tools["orders__get_trouble"]["annotations"]["readOnlyHint"] is True
    assert tools["orders__drop_all"]["annotations"]["readOnlyHint"] is False
    assert tools["orders__drop_all"]["annotations"]["destructiveHint"] is True
    assert tools["orders__get_count"]["outputSchema"]["anyOf"][0]["required"] == ["n"]
    assert "outputSchema" not in tools["orders__get_picture"]
