"""A task whose server asks back: its questions are the task's, answered one by one, and each round is a call."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from deputize.app import open_worker
from deputize.core.mcp.constants import CAPABILITY_MISSING, INVALID_PARAMS
from tests.support.mcp_client import TASKS_CAPABILITY, McpClient, McpResponse
from tests.support.mcp_servers.eliciting_server import ANSWERS, FORMS, NAME_FORM, ElicitingServer
from tests.support.upstream_gateway import SCOPES, UpstreamGateway, open_upstream_gateway, server_settings

pytestmark = pytest.mark.requirement("INV-4")

ANA = {"name": "Ana"}
WRITE = "orders__cancel_order"
TASK_CAPABILITIES: dict[str, Any] = {**FORMS, **TASKS_CAPABILITY}


class TaskElicitation:
    def __init__(self, upstream_gateway: UpstreamGateway, server: ElicitingServer) -> None:
        self.upstream_gateway, self.server = upstream_gateway, server

    def make_client(self, capabilities: dict[str, Any] = TASK_CAPABILITIES, **more: Any) -> McpClient:
        return McpClient(
            self.upstream_gateway.gateway,
            token=more.pop("token", self.upstream_gateway.admin_token),
            capabilities=capabilities,
        )

    async def start_task(self, key: str) -> str:
        answer = await self.make_client().call_tool(WRITE, ANA, key=key)
        assert answer.result["resultType"] == "task"
        task: str = answer.result["taskId"]
        return task

    async def wait_for_status(self, task: str, *statuses: str) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while True:
                shown = (await self.get_task(task)).result
                if shown["status"] in statuses:
                    return shown
                await asyncio.sleep(0.05)

    async def get_task(self, task: str, **more: Any) -> McpResponse:
        return await self.make_client(**more).send_request("tasks/get", {"taskId": task})

    async def update_task(self, task: str, input_responses: dict[str, Any], **more: Any) -> McpResponse:
        return await self.make_client(**more).send_request(
            "tasks/update", {"taskId": task, "inputResponses": input_responses}
        )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_elicitation(
    module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[TaskElicitation]:
    server = ElicitingServer()
    server.start()
    try:
        named = (server_settings(server, input_requests=("elicitation",)),)
        folder = tmp_path_factory.mktemp("gateway")
        async with open_upstream_gateway(module_database, folder, server, named) as found:
            assert found.gateway.in_process is not None
            async with open_worker(found.gateway.in_process):
                yield TaskElicitation(found, server)
    finally:
        server.stop()


@pytest.fixture
def task_elicitation(shared_elicitation: TaskElicitation) -> TaskElicitation:
    shared_elicitation.server.reset()
    return shared_elicitation


async def test_a_task_that_is_asked_back_goes_on_once_it_is_answered(task_elicitation: TaskElicitation) -> None:
    task_elicitation.server.rounds = 2
    task = await task_elicitation.start_task("answered")
    for _ in range(2):
        shown = await task_elicitation.wait_for_status(task, "input_required", "completed")
        assert shown["taskId"] == task
        assert shown["inputRequests"]["who"]["params"]["message"] == "The server orders asks: What is your name?"
        assert "requestState" not in shown
        assert (await task_elicitation.update_task(task, {"unasked": {}})).result["resultType"] == "complete"
        assert (await task_elicitation.get_task(task)).result["status"] == "input_required"
        assert (await task_elicitation.update_task(task, ANSWERS)).result["resultType"] == "complete"
    ended = await task_elicitation.wait_for_status(task, "completed")
    assert ended["result"]["content"][0]["text"] == "cancel_order done"
    assert len(task_elicitation.server.tool_calls) == 1
    assert (await task_elicitation.update_task(task, ANSWERS)).result["resultType"] == "complete"
    assert len(task_elicitation.server.tool_calls) == 1


async def test_questions_are_answered_one_by_one(task_elicitation: TaskElicitation) -> None:
    task_elicitation.server.questions = {"who": NAME_FORM, "whose": NAME_FORM}
    task = await task_elicitation.start_task("partly")
    await task_elicitation.wait_for_status(task, "input_required")
    await task_elicitation.update_task(task, ANSWERS)
    shown = (await task_elicitation.get_task(task)).result
    assert (shown["status"], list(shown["inputRequests"])) == ("input_required", ["whose"])
    assert len(task_elicitation.server.call_params) == 1
    wrong = await task_elicitation.update_task(task, {"whose": {"action": "accept", "content": {"name": 7}}})
    assert "error" in wrong.last_message
    await task_elicitation.update_task(task, {"whose": ANSWERS["who"]})
    await task_elicitation.wait_for_status(task, "completed")
    assert task_elicitation.server.tool_calls == [("cancel_order", {"who": ANSWERS["who"], "whose": ANSWERS["who"]})]


async def test_an_answer_that_was_kept_and_led_nowhere_can_be_given_again(task_elicitation: TaskElicitation) -> None:
    """As after a kill between the answer and the call that goes on: the answer is there, and no call."""
    task, gateway = await task_elicitation.start_task("led-nowhere"), task_elicitation.upstream_gateway.gateway
    await task_elicitation.wait_for_status(task, "input_required")
    switch = {"kind": "tool", "value": "orders.cancel_order", "reason": "a moment"}
    assert (
        await gateway.post("/v1/switches", {**switch, "off": True}, token=task_elicitation.upstream_gateway.admin_token)
    ).status_code == 200
    assert "error" in (await task_elicitation.update_task(task, ANSWERS)).last_message
    assert (
        await gateway.post(
            "/v1/switches", {**switch, "off": False}, token=task_elicitation.upstream_gateway.admin_token
        )
    ).status_code == 200
    shown = (await task_elicitation.get_task(task)).result
    assert (shown["status"], list(shown["inputRequests"])) == ("input_required", ["who"])
    assert (await task_elicitation.update_task(task, ANSWERS)).result["resultType"] == "complete"
    await task_elicitation.wait_for_status(task, "completed")
    assert len(task_elicitation.server.tool_calls) == 1


async def test_a_task_that_nobody_will_answer_is_cancelled(task_elicitation: TaskElicitation) -> None:
    task = await task_elicitation.start_task("given-up")
    await task_elicitation.wait_for_status(task, "input_required")
    assert (await task_elicitation.make_client().send_request("tasks/cancel", {"taskId": task})).result[
        "resultType"
    ] == "complete"
    assert (await task_elicitation.get_task(task)).result["status"] == "cancelled"
    await task_elicitation.update_task(task, ANSWERS)
    assert task_elicitation.server.tool_calls == []


async def test_questions_of_a_task_are_nobody_elses(task_elicitation: TaskElicitation) -> None:
    task = await task_elicitation.start_task("theirs")
    await task_elicitation.wait_for_status(task, "input_required")
    gateway = task_elicitation.upstream_gateway.gateway
    for token in (
        gateway.token("mallory", scopes=SCOPES[:1]),
        gateway.token("root", scopes=SCOPES[:1], agent="bot"),
        gateway.other_token(scopes=SCOPES),
    ):
        assert (await task_elicitation.get_task(task, token=token)).error["code"] == INVALID_PARAMS
        assert (await task_elicitation.update_task(task, ANSWERS, token=token)).error["code"] == INVALID_PARAMS
    # An administrator sees it, and answers nothing in somebody else's name.
    for token in (gateway.token("olga", scopes=SCOPES), gateway.token("root", scopes=SCOPES, agent="bot")):
        assert (await task_elicitation.get_task(task, token=token)).result["status"] == "input_required"
        assert (await task_elicitation.update_task(task, ANSWERS, token=token)).error["code"] == INVALID_PARAMS
    assert (await task_elicitation.get_task(task, capabilities=TASKS_CAPABILITY)).error["code"] == CAPABILITY_MISSING
    assert task_elicitation.server.tool_calls == []
