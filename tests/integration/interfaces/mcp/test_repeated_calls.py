"""The same words again, from clients that follow tasks; and answers to questions that no one asked."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
import pytest_asyncio
from pydantic import Field

from deputize import tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.mcp.constants import INVALID_PARAMS
from tests.support import shop_tools
from tests.support.approval_gateway import ApprovalGateway, open_approval_gateway
from tests.support.mcp_client import TASKS_CAPABILITY, McpClient

Name = Annotated[str, Field(description="Whom to greet", examples=["ana"])]


@tool(effects="read", namespace="shop", timeout="long-running", returns=str)
async def greet_later(name: Name) -> str:
    """Greet someone, which may take long."""
    return f"hello {name}"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def approval_gateway(
    module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ApprovalGateway]:
    tools = [*shop_tools.TOOLS, getattr(greet_later, ATTRIBUTE)]
    async with open_approval_gateway(module_database, tmp_path_factory.mktemp("office"), tools=tools) as opened:
        yield opened


@pytest.mark.requirement("INV-4")
async def test_what_a_task_was_followed_to_the_end_of_is_made_anew_by_the_same_words(
    approval_gateway: ApprovalGateway,
) -> None:
    client = McpClient(approval_gateway.gateway, capabilities=TASKS_CAPABILITY)
    first = (await client.call_tool("shop__greet_later", {"name": "ana"})).result
    ended: dict[str, Any] = {"retry_after_ms": 0}
    async with asyncio.timeout(90):
        while "retry_after_ms" in ended:
            looked = await client.call_tool("calls_get", {"call_id": first["taskId"], "wait_ms": 20_000})
            ended = looked.structured_content
    assert ended["status"] == "succeeded"
    second = (await client.call_tool("shop__greet_later", {"name": "ana"})).result
    assert second["resultType"] == "task"
    assert second["taskId"] != first["taskId"]


@pytest.mark.parametrize("answers", [None, 7, [], {"name": 12345}, {"name": None}])
async def test_answers_that_are_none_are_an_error_of_the_request(
    approval_gateway: ApprovalGateway, answers: Any
) -> None:
    sent = {"name": "shop__greet_later", "arguments": {"name": "bo"}, "inputResponses": answers}
    assert (await McpClient(approval_gateway.gateway).send_request("tools/call", sent)).error["code"] == INVALID_PARAMS
