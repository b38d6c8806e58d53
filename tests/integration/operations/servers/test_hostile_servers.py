"""A server that means harm takes nothing from anybody else: neither their calls, nor the other tools, nor the store."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.mcp_servers.upstream import Upstream, make_definition, run_upstream
from tests.support.upstream_gateway import READ, WRITE, open_upstream_gateway, server_settings

pytestmark = pytest.mark.requirement("NEW-6")


def make_nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


class FixedResultServer(Upstream):
    """Answers every call with what a test says."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__()
        self.result = result

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("method") != "tools/call":
            return super().answer(request)
        return self._result(request, self.result)


@pytest.mark.nightly
async def test_other_requests_are_answered_while_megabytes_of_definitions_are_scanned(
    fresh_database: str, tmp_path: Path
) -> None:
    with run_upstream() as server:
        async with open_upstream_gateway(fresh_database, tmp_path, server) as upstream_gateway:
            hidden = "".join(f"word{number}\u200b{number} " for number in range(2000))
            server.tools = [make_definition(f"tool_{number}", hidden) for number in range(80)]
            # What this thread computes between two turns: what a busy machine lets it wait does not count.
            loop, gaps = asyncio.get_running_loop(), [0.0]
            began = loop.time()
            look = asyncio.create_task(upstream_gateway.probe())
            last = time.thread_time()
            while not look.done():
                await asyncio.sleep(0.01)
                gaps.append(time.thread_time() - last)
                last = time.thread_time()
            assert (await look)["new_changes"] >= 80
            assert max(gaps) < max(0.5, (loop.time() - began) * 0.75)


async def test_a_definition_nobody_can_write_down_hides_no_other(fresh_database: str, tmp_path: Path) -> None:
    with run_upstream() as server:
        odd = [
            make_definition("a\0b"),
            {**make_definition("deep"), "annotations": make_nested(600)},
            {**make_definition("listed"), "inputSchema": {"type": "object", "properties": {"x": {"enum": {"a": 1}}}}},
        ]
        server.tools += [*odd, {**make_definition("listed"), "annotations": make_nested(240)}]
        async with open_upstream_gateway(fresh_database, tmp_path, server) as upstream_gateway:
            shown = await upstream_gateway.fetch_server()
            assert (shown["status"], shown["tools"]) == ("connected", 2)
            assert len(shown["left_out"]) == 2
            assert shown["left_out"][1].startswith("'deep': it is larger than")
            assert (await upstream_gateway.call_tool(WRITE)).status_code == 200


@pytest.mark.parametrize("result", [{"content": [{"type": "text", "text": "x", "more": make_nested(300)}]},
                                    {"content": [], "structuredContent": make_nested(600)}])  # fmt: skip
async def test_a_result_too_deep_to_be_written_down_is_said_to_be_so(
    result: dict[str, Any], fresh_database: str, tmp_path: Path
) -> None:
    server = FixedResultServer(result)
    server.start()
    try:
        async with open_upstream_gateway(fresh_database, tmp_path, server) as upstream_gateway:
            for tool in (READ, WRITE):
                answer = await upstream_gateway.call_tool(tool)
                assert answer.json()["error"]["slug"] == "result-invalid", answer.text
            server.result = {**result, "isError": True}
            answer = await upstream_gateway.call_tool(WRITE)
            assert answer.json()["error"]["slug"] == "tool-failed", answer.text
    finally:
        server.stop()


class ChangingServer(Upstream):
    """Says something else at every look, and that it changed as often as it can."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("method") == "tools/list":
            self.tools = [
                make_definition("get_order", f"Says {self.list_count} now, and something else at the next look.")
            ]
        return super().answer(request)


@pytest.mark.nightly
async def test_a_server_that_never_stops_changing_is_heard_less_and_less_and_fills_no_store(
    fresh_database: str, tmp_path: Path
) -> None:
    server = ChangingServer()
    server.start()
    try:
        async with open_upstream_gateway(
            fresh_database, tmp_path, server, [server_settings(server, probe_seconds=60)]
        ) as upstream_gateway:
            assert upstream_gateway.gateway.in_process is not None
            before, look_soon = server.list_count, upstream_gateway.gateway.in_process.servers._monitor.request_probe
            async with asyncio.timeout(60):
                while server.list_count < before + 6:
                    look_soon("dev", "orders")
                    await asyncio.sleep(0.05)
            seen, until = server.list_count, asyncio.get_running_loop().time() + 3
            while asyncio.get_running_loop().time() < until:
                look_soon("dev", "orders")
                await asyncio.sleep(0.05)
            assert server.list_count - seen <= 2
            rows = await upstream_gateway._fetch_rows(
                "select state, definition from deputize.server_changes where state = 'gone'"
            )
            assert rows
            assert {row["definition"] for row in rows} == {None}
            assert not (await upstream_gateway.fetch_changes("gone"))["tool:get_order"]["differences"]
    finally:
        server.stop()
