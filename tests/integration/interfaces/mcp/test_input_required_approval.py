"""A server that asks back, about a call that people have to approve: they decide about the answers, too."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.approval_gateway import ApprovalGateway, open_approval_gateway
from tests.support.mcp_client import McpClient, McpResponse
from tests.support.mcp_servers.eliciting_server import ANSWERS, FORMS, STATE, ElicitingServer
from tests.support.upstream_gateway import SCOPES, server_settings

pytestmark = pytest.mark.requirement("GOV-3")

ANA = {"name": "Ana"}
WRITE = "orders__cancel_order"
RULES = """
@id("open")
permit (principal, action, resource) unless { resource == Tool::"orders.cancel_order" };

@id("canceling-asks")
@decision("ask")
@approvers("oncall")
permit (principal, action, resource == Tool::"orders.cancel_order");
"""


class ApprovalElicitation:
    def __init__(self, approval_gateway: ApprovalGateway, server: ElicitingServer) -> None:
        self.approval_gateway, self.server = approval_gateway, server
        self.client = McpClient(
            approval_gateway.gateway, token=approval_gateway.gateway.token("ana", scopes=SCOPES[:1]), capabilities=FORMS
        )

    async def call(self, **more: Any) -> McpResponse:
        return await self.client.call_tool(WRITE, ANA, key="approved", **more)

    async def fetch_request(self, response: McpResponse) -> tuple[str, dict[str, Any]]:
        assert response.structured_content["status"] == "awaiting_approval", response.last_message
        call_id: str = response.structured_content["call_id"]
        return call_id, await self.approval_gateway.fetch_request(call_id, token=self.approval_gateway.sign_token())

    async def approve(self, request_id: dict[str, Any]) -> None:
        said = {"binding": request_id["binding"], "reason": "looks right"}
        done = await self.approval_gateway.decide(
            "approve", request_id["approval_id"], token=self.approval_gateway.sign_token(), **said
        )
        assert done.status_code == 200, done.text

    async def wait_for_end(self, call_id: str) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while True:
                shown = (
                    await self.client.call_tool("calls_get", {"call_id": call_id, "wait_ms": 500})
                ).structured_content
                if shown["status"] not in ("awaiting_approval", "approved", "queued", "running"):
                    return shown


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def approval_elicitation(
    module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ApprovalElicitation]:
    server = ElicitingServer()
    server.start()
    try:
        named = (server_settings(server, slow=(), input_requests=("elicitation",)),)
        folder = tmp_path_factory.mktemp("office")
        async with open_approval_gateway(
            module_database, folder, rules=RULES, tools=(), servers=named
        ) as approval_gateway:
            yield ApprovalElicitation(approval_gateway, server)
    finally:
        server.stop()


async def test_each_round_is_approved_by_itself_with_its_answers(approval_elicitation: ApprovalElicitation) -> None:
    first, ticket = await approval_elicitation.fetch_request(await approval_elicitation.call())
    assert ticket.get("input_responses") is None
    await approval_elicitation.approve(ticket)
    shown = await approval_elicitation.wait_for_end(first)
    assert (shown["status"], shown["input_requests"]) == ("needs_input", ["who"])

    asked = await approval_elicitation.call()
    assert asked.result["resultType"] == "input_required"
    again = {"requestState": asked.result["requestState"], "inputResponses": ANSWERS}
    second, ticket = await approval_elicitation.fetch_request(await approval_elicitation.call(**again))
    assert second != first
    assert ticket["input_responses"] == ANSWERS
    assert ticket["arguments"] == ANA
    assert approval_elicitation.server.tool_calls == []
    same, _ = await approval_elicitation.fetch_request(await approval_elicitation.call(**again))
    assert same == second

    await approval_elicitation.approve(ticket)
    assert (await approval_elicitation.wait_for_end(second))["status"] == "succeeded"
    assert approval_elicitation.server.tool_calls == [("cancel_order", ANSWERS)]
    assert approval_elicitation.server.call_params[-1]["requestState"] == f"{STATE}0"
    replayed = await approval_elicitation.call(**again)
    assert replayed.result["content"][0]["text"] == "cancel_order done"
    assert len(approval_elicitation.server.tool_calls) == 1
