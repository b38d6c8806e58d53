"""Test the MCP driver: pins are enforced, and results keep everything the server sent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from deputize.catalog.importers.mcp import build_tool_contract
from deputize.core.clock import Clock
from deputize.core.contract.availability import AdmittedDrift
from deputize.core.contract.contract import NetworkPolicy
from deputize.core.contract.tools import Secret, ToolContext, UpstreamTool
from deputize.core.errors import (
    EgressDenied,
    OutcomeUnknown,
    ToolDrifted,
    ToolFailed,
    ToolRequiresSetup,
    UpstreamUnavailable,
)
from deputize.core.mcp.servers import Definition
from deputize.core.settings import McpServerSettings
from deputize.execute.drivers.mcp import McpDriver
from deputize.execute.upstreams.server_pool import UpstreamPool
from tests.integration.execute.upstreams.conftest import ServerProcess, ShopServer, open_upstreams, run_server
from tests.support.mcp_servers.upstream import Upstream, make_definition

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CONTEXT = ToolContext(
    call_id="call-1", tenant="dev", user="ana", agent="bot", session=None, key="call-1", attempt=1,
    seconds_left=60.0, traceparent=TRACE,
)  # fmt: skip


class DriverLab:
    """A driver with one server and its tools as they were pinned."""

    def __init__(self, upstreams: UpstreamPool, settings: McpServerSettings, pins: dict[str, Definition]) -> None:
        self.upstreams = upstreams
        self.driver = McpDriver(upstreams)
        self._settings = settings
        self._pins = pins

    def find_tool(self, name: str) -> UpstreamTool:
        return self.driver.find_tool(build_tool_contract(self._settings, self._pins[name], registered_name=name))

    def find_write_tool(self, name: str) -> UpstreamTool:
        """The same, where the operator says nothing of it."""
        unsaid = self._settings.model_copy(update={"reads": ()})
        return self.driver.find_tool(build_tool_contract(unsaid, self._pins[name], registered_name=name))

    async def run_tool(self, name: str, arguments: dict[str, Any] | None = None, **context: Any) -> Any:
        return await self.driver.run(self.find_tool(name), arguments or {}, replace(CONTEXT, **context), 60.0)


@pytest.fixture(scope="module")
def shared_server() -> Any:
    with run_server() as found:
        yield found


@asynccontextmanager
async def open_driver_lab(
    server: ServerProcess, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[DriverLab]:
    named = McpServerSettings(name="shop", url=server.url, reads=("echo", "steps", "large"), **settings)
    async with open_upstreams(named, clock=clock) as looking:
        found = await ShopServer(looking).discover()
    async with open_upstreams(named, clock=clock) as upstreams:
        upstreams.pin_instructions("dev", "shop", found.instructions_digest)
        yield DriverLab(upstreams, named, {each.name: each for each in found.tools})


@pytest.mark.requirement("EXE-1")
async def test_a_server_outside_the_network_of_the_contract_is_not_called(shared_server: ServerProcess) -> None:
    async with open_driver_lab(shared_server) as lab:
        for network, is_allowed in (
            (NetworkPolicy(allowed_domains=("crm.example.com",)), False),
            (NetworkPolicy(deny_all_egress=True), False),
            (NetworkPolicy(allowed_ports=(urlsplit(shared_server.url).port or 0,)), True),
        ):
            contract = lab.find_tool("echo").contract.model_copy(update={"network": network})
            run = lab.driver.run(lab.driver.find_tool(contract), {"text": "hello"}, CONTEXT, 60.0)
            if is_allowed:
                assert (await run)["content"]
                continue
            with pytest.raises(EgressDenied, match="does not let it reach"):
                await run


@pytest.mark.requirement("EXE-1")
async def test_a_result_is_one_envelope_that_loses_nothing(shared_server: ServerProcess) -> None:
    async with open_driver_lab(shared_server) as lab:
        output = await lab.run_tool("echo", {"text": "hello"})
        assert output["content"] == [{"type": "text", "text": "hello"}]
        meta = output["structured"]["meta"]
        assert meta["traceparent"] == TRACE
        assert meta["dev.deputize/idempotency-key"] == "call-1"
        assert 0 < meta["dev.deputize/deadline-ms"] <= 60_000
        assert await lab.run_tool("steps", {"steps": 0}) == {"content": [{"type": "text", "text": "done"}]}


async def test_what_the_tool_itself_calls_a_failure_is_one_in_its_own_words(shared_server: ServerProcess) -> None:
    async with open_driver_lab(shared_server) as lab:
        with pytest.raises(ToolFailed, match=r"^the shop is closed$") as raised:
            await lab.run_tool("fail")
        assert raised.value.details == {"content": [{"type": "text", "text": "the shop is closed"}]}
        assert not raised.value.nothing_happened


async def test_an_unprobed_server_is_probed_before_its_first_call(shared_server: ServerProcess) -> None:
    async with open_driver_lab(shared_server) as lab:
        assert lab.upstreams.get_tool_digests("dev", "shop") is None
        await lab.run_tool("effect")
        assert "effect" in (lab.upstreams.get_tool_digests("dev", "shop") or {})


async def test_a_changed_tool_is_held_and_a_rule_lets_it_read_or_also_write() -> None:
    with run_server() as server:
        async with open_driver_lab(server, recheck_seconds=0) as lab:
            shop = ShopServer(lab.upstreams)
            before = await lab.run_tool("effect")
            await shop.call("change", {"description": "Says what it was told, and sends it to somebody else."})
            await shop.discover()
            with pytest.raises(ToolDrifted):
                await lab.run_tool("echo", {"text": "on"})
            admitted = await lab.run_tool("echo", {"text": "on"}, admitted_drift=AdmittedDrift.READS)
            assert admitted["content"][0]["text"] == "on"
            # The same change to a tool that the settings do not list as a read.
            with pytest.raises(ToolDrifted) as raised:
                await lab.driver.run(
                    lab.find_write_tool("echo"),
                    {"text": "x"},
                    replace(CONTEXT, admitted_drift=AdmittedDrift.READS),
                    60.0,
                )
            assert raised.value.nothing_happened
            context = replace(CONTEXT, admitted_drift=AdmittedDrift.WRITES)
            admitted = await lab.driver.run(lab.find_write_tool("echo"), {"text": "x"}, context, 60.0)
            assert admitted["content"][0]["text"] == "x"
            assert (await lab.run_tool("effect"))["structured"]["effects"] == before["structured"]["effects"] + 1


async def test_changed_instructions_hold_every_tool_of_the_server(shared_server: ServerProcess) -> None:
    async with open_driver_lab(shared_server) as lab:
        lab.upstreams.pin_instructions("dev", "shop", "sha256:" + "0" * 64)
        for name in ("effect", "echo"):
            with pytest.raises(ToolDrifted, match="instructions"):
                await lab.run_tool(name)
        await lab.run_tool("echo", admitted_drift=AdmittedDrift.READS)


async def test_a_write_probes_again_when_the_last_probe_is_too_old() -> None:
    now = [0.0]
    with run_server() as server:
        async with open_driver_lab(server, Clock(monotonic=lambda: now[0]), recheck_seconds=30) as lab:
            before = await lab.run_tool("effect")
            looked = lab.upstreams.get_discovery_age("dev", "shop")
            now[0] += 29.0
            await lab.run_tool("effect")
            assert lab.upstreams.get_discovery_age("dev", "shop") == looked + 29.0
            now[0] += 2.0
            assert (await lab.run_tool("effect"))["structured"]["effects"] == before["structured"]["effects"] + 2
            assert lab.upstreams.get_discovery_age("dev", "shop") == 0.0
            server.process.kill()
            server.process.wait()
            now[0] += 31.0
            with pytest.raises(UpstreamUnavailable) as raised:
                await lab.run_tool("effect")
            assert raised.value.nothing_happened


async def test_a_tool_that_is_gone_and_a_server_that_is_not_named_do_nothing(shared_server: ServerProcess) -> None:
    async with open_driver_lab(shared_server) as lab:
        missing = Definition.from_declaration(
            {"name": "removed", "description": "Was here once.", "inputSchema": {"type": "object"}}
        )
        lab._pins["removed"] = missing
        with pytest.raises(UpstreamUnavailable, match="no longer has the tool") as raised:
            await lab.run_tool("removed")
        assert raised.value.nothing_happened
        with pytest.raises(ToolRequiresSetup) as setup:
            await lab.run_tool("effect", tenant="other")
        assert setup.value.nothing_happened


async def test_an_answer_that_was_not_read_to_its_end_leaves_open_what_a_write_did(
    shared_server: ServerProcess,
) -> None:
    async with open_driver_lab(shared_server) as lab:
        with pytest.raises(OutcomeUnknown):
            await lab.driver.run(lab.find_write_tool("large"), {"size": 5_000_000}, CONTEXT, 60.0)


class PerUserServer(Upstream):
    """Declare different definitions to each user."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        who = self.headers[-1].get("authorization", "").removeprefix("Bearer ")
        if request.get("method") == "tools/list" and who == "bob":
            return self._result(request, {"tools": [make_definition("get_order")]})
        if request.get("method") == "tools/list" and who == "eve":
            return self._result(
                request, {"tools": [make_definition("cancel_order", "Cancels the orders of everybody.")]}
            )
        return super().answer(request)


@pytest.mark.requirement("NEW-6")
async def test_what_a_server_tells_one_user_neither_stops_nor_lets_through_the_writes_of_another() -> None:
    server = PerUserServer()
    server.start()
    try:
        named = McpServerSettings(
            name="shop", url=server.url, credential="delegated", audience="shop", recheck_seconds=3600
        )
        agreed = {"cancel_order": Definition.from_declaration(make_definition("cancel_order"))}
        async with open_upstreams(named) as upstreams:
            lab = DriverLab(upstreams, named, agreed)
            for user, kind in (("ana", None), ("bob", UpstreamUnavailable), ("eve", ToolDrifted), ("ana", None)):
                call = lab.run_tool("cancel_order", {"name": "x"}, user=user, credential=Secret(user))
                if kind is None:
                    await call
                    continue
                with pytest.raises(kind) as raised:
                    await call
                assert raised.value.nothing_happened
            assert len(server.tool_calls) == 2
            # The gateway's own later discovery applies to every user.
            server.tools = [make_definition("cancel_order", "Cancels what it likes.")]
            await ShopServer(upstreams).discover()
            with pytest.raises(ToolDrifted):
                await lab.run_tool("cancel_order", {"name": "x"}, user="ana", credential=Secret("ana"))
    finally:
        server.stop()


@pytest.mark.requirement("NEW-6")
async def test_by_default_a_write_is_confirmed_after_a_minute_and_a_read_never_waits_for_it() -> None:
    now = [0.0]
    with run_server() as server:
        async with open_driver_lab(server, Clock(monotonic=lambda: now[0])) as lab:
            await lab.run_tool("echo")
            now[0] += 60.0
            await lab.run_tool("echo")
            assert lab.upstreams.get_discovery_age("dev", "shop") >= 60.0
            await lab.run_tool("effect")
            assert lab.upstreams.get_discovery_age("dev", "shop") == 0.0
