"""A server that means harm takes nothing from anybody else: neither their calls, nor the other tools, nor the store."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.integration.servers.scene import READ, WRITE, described, scene
from tests.integration.servers.upstream import Upstream, definition, upstream

pytestmark = pytest.mark.requirement("NEW-6")


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


class Answering(Upstream):
    """Answers every call with what a test says."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__()
        self.result = result

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked.get("method") != "tools/call":
            return super().answer(asked)
        return self._result(asked, self.result)


async def test_others_are_answered_while_megabytes_of_definitions_are_looked_through(
    fresh_database: str, tmp_path: Path
) -> None:
    with upstream() as server:
        async with scene(fresh_database, tmp_path, server) as there:
            hidden = "".join(f"word{number}\u200b{number} " for number in range(2000))
            server.tools = [definition(f"tool_{number}", hidden) for number in range(80)]
            loop, gaps, last = asyncio.get_running_loop(), [0.0], 0.0
            began = loop.time()
            look = asyncio.create_task(there.look())
            last = loop.time()
            while not look.done():
                await asyncio.sleep(0.01)
                gaps.append(loop.time() - last)
                last = loop.time()
            assert (await look)["opened"] >= 80
            assert max(gaps) < max(0.5, (loop.time() - began) / 3)


async def test_a_definition_nobody_can_write_down_hides_no_other(fresh_database: str, tmp_path: Path) -> None:
    with upstream() as server:
        odd = [
            definition("a\0b"),
            {**definition("deep"), "annotations": nested(600)},
            {**definition("listed"), "inputSchema": {"type": "object", "properties": {"x": {"enum": {"a": 1}}}}},
        ]
        server.tools += [*odd, {**definition("listed"), "annotations": nested(240)}]
        async with scene(fresh_database, tmp_path, server) as there:
            shown = await there.shown()
            assert (shown["status"], shown["tools"]) == ("connected", 2)
            assert len(shown["left_out"]) == 2
            assert shown["left_out"][1].startswith("'deep': it is larger than")
            assert (await there.call(WRITE)).status_code == 200


@pytest.mark.parametrize("result", [{"content": [{"type": "text", "text": "x", "more": nested(300)}]},
                                    {"content": [], "structuredContent": nested(600)}])  # fmt: skip
async def test_a_result_too_deep_to_be_written_down_is_said_to_be_so(
    result: dict[str, Any], fresh_database: str, tmp_path: Path
) -> None:
    server = Answering(result)
    server.start()
    try:
        async with scene(fresh_database, tmp_path, server) as there:
            for tool in (READ, WRITE):
                answer = await there.call(tool)
                assert answer.json()["error"]["slug"] == "result-invalid", answer.text
            server.result = {**result, "isError": True}
            answer = await there.call(WRITE)
            assert answer.json()["error"]["slug"] == "tool-failed", answer.text
    finally:
        server.stop()


class Restless(Upstream):
    """Says something else at every look, and that it changed as often as it can."""

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked.get("method") == "tools/list":
            self.tools = [definition("get_order", f"Says {self.listed} now, and something else at the next look.")]
        return super().answer(asked)


async def test_a_server_that_never_stops_changing_is_heard_less_and_less_and_fills_no_store(
    fresh_database: str, tmp_path: Path
) -> None:
    server = Restless()
    server.start()
    try:
        async with scene(fresh_database, tmp_path, server, [described(server, probe_seconds=60)]) as there:
            assert there.served.gateway is not None
            before, look_soon = server.listed, there.served.gateway.servers._connected.look_soon
            async with asyncio.timeout(60):
                while server.listed < before + 6:
                    look_soon("dev", "orders")
                    await asyncio.sleep(0.05)
            seen, until = server.listed, asyncio.get_running_loop().time() + 3
            while asyncio.get_running_loop().time() < until:
                look_soon("dev", "orders")
                await asyncio.sleep(0.05)
            assert server.listed - seen <= 2
            rows = await there._rows("select state, definition from deputize.server_changes where state = 'gone'")
            assert rows
            assert {row["definition"] for row in rows} == {None}
            assert not (await there.changes("gone"))["tool:get_order"]["differences"]
    finally:
        server.stop()
