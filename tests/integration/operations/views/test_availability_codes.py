"""Each reason of a surface is produced by a real situation, and the API document lists exactly these."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from deputize.core.contract.availability import AvailabilityCode
from deputize.core.contract.contract import LifecycleState
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.operations.views.tool_status import ToolSelection
from tests.support.gateway_lab import GatewayLab
from tests.support.mcp_servers.upstream import make_definition, run_upstream
from tests.support.policies import OPEN_FILES
from tests.support.upstream_gateway import READ, WRITE, UpstreamGateway, open_upstream_gateway

pytestmark = pytest.mark.requirement("REG-3")

Code = AvailabilityCode
_POLICY = """
@id("reads") permit (principal, action, resource) when { resource.effects == "read" };
@id("notes") @decision("ask") permit (principal, action, resource == Tool::"lab.note");
@id("puts") permit (principal, action, resource == Tool::"lab.put") when { context.time.hour < 12 };
"""


async def _fetch_code(lab: GatewayLab, tool: str, **who: Any) -> str:
    selection = who.pop("selection", ToolSelection())
    shown = await lab.gateway.surface.list_availability(await lab.make_caller(**who), selection)
    return str(next(each["reason"]["code"] for each in shown["tools"] if each["name"] == f"lab.{tool}"))


async def _fetch_code_in_state(lab: GatewayLab, state: LifecycleState) -> str:
    admin, commands = await lab.make_admin(), lab.gateway.commands
    version = (await lab.runtime.authority.load_tenant("dev")).tools.resolve_version("lab.look").version
    await commands.set_state(admin, "lab.look", version, state)
    try:
        return await _fetch_code(lab, "look")
    finally:
        await commands.set_state(admin, "lab.look", version, LifecycleState.AVAILABLE)


LAB_SITUATIONS: dict[AvailabilityCode, Callable[[GatewayLab], Awaitable[str]]] = {
    Code.PERMITTED: lambda lab: _fetch_code(lab, "look"),
    Code.NEEDS_APPROVAL: lambda lab: _fetch_code(lab, "note"),
    Code.DECIDED_PER_CALL: lambda lab: _fetch_code(lab, "put"),
    Code.POLICY_BLOCKED: lambda lab: _fetch_code(lab, "erase"),
    Code.ROLE_NOT_ALLOWED: lambda lab: _fetch_code(lab, "note", scopes=()),
    Code.OUTSIDE_SELECTION: lambda lab: _fetch_code(
        lab, "look", selection=ToolSelection(namespaces=frozenset({"elsewhere"}))
    ),
    Code.DEFERRED_UNTIL_DISCOVERED: lambda lab: _fetch_code_in_state(lab, LifecycleState.DEFERRED),
    Code.FEATURE_DISABLED: lambda lab: _fetch_code_in_state(lab, LifecycleState.DISABLED),
    Code.SETUP_REQUIRED: lambda lab: _fetch_code_in_state(lab, LifecycleState.REQUIRES_SETUP),
}


async def _change_tool(orders: UpstreamGateway) -> None:
    orders.upstream.tools = [make_definition("get_order"), make_definition("cancel_order", "Cancels all orders now.")]
    await orders.probe()


async def _fail_server(orders: UpstreamGateway) -> None:
    orders.upstream.failure_status = 503
    await orders.gateway.post("/v1/servers/orders/test", token=orders.admin_token)


async def _fail_calls(orders: UpstreamGateway) -> None:
    orders.upstream.failure_status = 503
    for _ in range(5):
        await orders.call_tool(READ)


SERVER_SITUATIONS: dict[AvailabilityCode, Callable[[UpstreamGateway], Awaitable[None]]] = {
    Code.TOOL_DRIFTED: _change_tool,
    Code.SERVER_UNAVAILABLE: _fail_server,
    Code.CIRCUIT_OPEN: _fail_calls,
}


@pytest_asyncio.fixture(loop_scope="session")
async def orders(fresh_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[UpstreamGateway]:
    with run_upstream() as upstream:
        async with open_upstream_gateway(fresh_database, tmp_path_factory.mktemp("orders"), upstream) as opened:
            yield opened


def test_every_reason_has_a_situation() -> None:
    assert {*LAB_SITUATIONS, *SERVER_SITUATIONS} == set(AvailabilityCode)
    assert len(AvailabilityCode) == 12


@pytest.mark.parametrize("code", LAB_SITUATIONS)
async def test_the_situation_has_its_reason(lab: GatewayLab, code: AvailabilityCode) -> None:
    admin = await lab.make_admin()
    await lab.gateway.commands.put_policies(admin, [PolicyFile(path="codes.cedar", text=_POLICY)])
    try:
        assert await LAB_SITUATIONS[code](lab) == code
    finally:
        await lab.gateway.commands.put_policies(admin, OPEN_FILES)


@pytest.mark.parametrize("code", SERVER_SITUATIONS)
async def test_what_a_server_does_has_its_reason(orders: UpstreamGateway, code: AvailabilityCode) -> None:
    await SERVER_SITUATIONS[code](orders)
    assert (await orders.fetch_tool_status())[WRITE] == ("blocked", code)


async def test_the_api_document_lists_every_reason(orders: UpstreamGateway) -> None:
    document = (await orders.gateway.get("/openapi.json")).json()
    assert set(document["components"]["schemas"]["AvailabilityCode"]["enum"]) == set(AvailabilityCode)
