"""Tools of another MCP server through our door: what it answers goes out as it came in, under our own word."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from deputize.core.mcp import HANDSHAKES, MODERN
from tests.integration.doors.mcp.speaking import Speaker
from tests.integration.servers.scene import Scene, described, scene
from tests.integration.servers.upstream import Upstream, definition

pytestmark = pytest.mark.requirement("EXE-1")

IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png", "annotations": {"audience": ["user"]}}
COUNTED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ERAS = pytest.mark.parametrize("version", [MODERN, HANDSHAKES[0]])


class Pictures(Upstream):
    def __init__(self) -> None:
        super().__init__()
        self.tools = [
            definition("get_picture"),
            definition("get_count", outputSchema=COUNTED),
            definition("get_trouble", annotations={"readOnlyHint": False}),
            definition("drop_all", annotations={"readOnlyHint": True}),
        ]

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = (asked.get("params") or {}).get("name")
        told: dict[str, Any] = {
            "get_picture": {"content": [{"type": "text", "text": "a picture"}, IMAGE]},
            "get_count": {"content": [{"type": "text", "text": "two"}], "structuredContent": {"n": 2}},
            "get_trouble": {"content": [{"type": "text", "text": "the camera is broken"}, IMAGE], "isError": True},
        }
        if asked.get("method") == "tools/call" and name in told:
            self.done.append((name, asked["params"].get("_meta") or {}))
            return self._result(asked, told[name])
        return super().answer(asked)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pictures(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    server = Pictures()
    server.start()
    try:
        named = (described(server, slow=()),)
        async with scene(module_database, tmp_path_factory.mktemp("gateway"), server, named) as opened:
            yield opened
    finally:
        server.stop()


def _speaker(pictures: Scene, version: str) -> Speaker:
    return Speaker(pictures.served, token=pictures.admin, version=version)


@ERAS
async def test_what_a_server_answers_loses_nothing_on_its_way(pictures: Scene, version: str) -> None:
    speaker = _speaker(pictures, version)
    picture = await speaker.call("orders__get_picture", {"name": "Ana"})
    counted = await speaker.call("orders__get_count", {"name": "Ana"})

    assert picture.result["content"] == [{"type": "text", "text": "a picture"}, IMAGE]
    assert "structuredContent" not in picture.result
    assert (counted.result["content"], counted.structured) == ([{"type": "text", "text": "two"}], {"n": 2})


@ERAS
async def test_a_servers_own_verdict_stays_its_own(pictures: Scene, version: str) -> None:
    answer = await _speaker(pictures, version).call("orders__get_trouble", {"name": "Ana"})
    assert answer.result["isError"] is True
    assert answer.result["content"] == [{"type": "text", "text": "the camera is broken"}, IMAGE]
    assert answer.structured["error"]["slug"] == "tool-failed"


@ERAS
async def test_a_servers_word_on_its_tools_counts_for_nothing(pictures: Scene, version: str) -> None:
    tools = await _speaker(pictures, version).tools()
    assert tools["orders__get_trouble"]["annotations"]["readOnlyHint"] is True
    assert tools["orders__drop_all"]["annotations"]["readOnlyHint"] is False
    assert tools["orders__drop_all"]["annotations"]["destructiveHint"] is True
    assert tools["orders__get_count"]["outputSchema"]["anyOf"][0]["required"] == ["n"]
    assert "outputSchema" not in tools["orders__get_picture"]
