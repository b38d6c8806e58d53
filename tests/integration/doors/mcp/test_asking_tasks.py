"""A task whose server asks back: its questions are the task's, answered one by one, and each round is a call."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from deputize.app import open_worker
from deputize.core.mcp import CAPABILITY_MISSING, INVALID_PARAMS
from tests.integration.doors.mcp.speaking import TASKS, Answer, Speaker
from tests.integration.servers.curious import FORMS, NAME_FORM, SAID, Curious
from tests.integration.servers.scene import SCOPES, Scene, described, scene

pytestmark = pytest.mark.requirement("INV-4")

ANA = {"name": "Ana"}
WRITE = "orders__cancel_order"
ABLE: dict[str, Any] = {**FORMS, **TASKS}


class Room:
    def __init__(self, opened: Scene, server: Curious) -> None:
        self.scene, self.server = opened, server

    def speaker(self, abilities: dict[str, Any] = ABLE, **more: Any) -> Speaker:
        return Speaker(self.scene.served, token=more.pop("token", self.scene.admin), abilities=abilities)

    async def begin(self, key: str) -> str:
        answer = await self.speaker().call(WRITE, ANA, key=key)
        assert answer.result["resultType"] == "task"
        task: str = answer.result["taskId"]
        return task

    async def until(self, task: str, *statuses: str) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while True:
                shown = (await self.get(task)).result
                if shown["status"] in statuses:
                    return shown
                await asyncio.sleep(0.05)

    async def get(self, task: str, **more: Any) -> Answer:
        return await self.speaker(**more).ask("tasks/get", {"taskId": task})

    async def update(self, task: str, said: dict[str, Any], **more: Any) -> Answer:
        return await self.speaker(**more).ask("tasks/update", {"taskId": task, "inputResponses": said})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def opened(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Room]:
    server = Curious()
    server.start()
    try:
        named = (described(server, asks=("elicitation",)),)
        folder = tmp_path_factory.mktemp("gateway")
        async with scene(module_database, folder, server, named) as found:
            assert found.served.gateway is not None
            async with open_worker(found.served.gateway):
                yield Room(found, server)
    finally:
        server.stop()


@pytest.fixture
def room(opened: Room) -> Room:
    opened.server.forget()
    return opened


async def test_a_task_that_is_asked_back_goes_on_once_it_is_answered(room: Room) -> None:
    room.server.rounds = 2
    task = await room.begin("answered")
    for _ in range(2):
        shown = await room.until(task, "input_required", "completed")
        assert shown["taskId"] == task
        assert shown["inputRequests"]["who"]["params"]["message"] == "The server orders asks: What is your name?"
        assert "requestState" not in shown
        assert (await room.update(task, {"unasked": {}})).result["resultType"] == "complete"
        assert (await room.get(task)).result["status"] == "input_required"
        assert (await room.update(task, SAID)).result["resultType"] == "complete"
    ended = await room.until(task, "completed")
    assert ended["result"]["content"][0]["text"] == "cancel_order done"
    assert len(room.server.done) == 1
    assert (await room.update(task, SAID)).result["resultType"] == "complete"
    assert len(room.server.done) == 1


async def test_questions_are_answered_one_by_one(room: Room) -> None:
    room.server.questions = {"who": NAME_FORM, "whose": NAME_FORM}
    task = await room.begin("partly")
    await room.until(task, "input_required")
    await room.update(task, SAID)
    shown = (await room.get(task)).result
    assert (shown["status"], list(shown["inputRequests"])) == ("input_required", ["whose"])
    assert len(room.server.heard) == 1
    wrong = await room.update(task, {"whose": {"action": "accept", "content": {"name": 7}}})
    assert "error" in wrong.told
    await room.update(task, {"whose": SAID["who"]})
    await room.until(task, "completed")
    assert room.server.done == [("cancel_order", {"who": SAID["who"], "whose": SAID["who"]})]


async def test_an_answer_that_was_kept_and_led_nowhere_can_be_given_again(room: Room) -> None:
    """As after a kill between the answer and the call that goes on: the answer is there, and no call."""
    task, served = await room.begin("led-nowhere"), room.scene.served
    await room.until(task, "input_required")
    switch = {"kind": "tool", "value": "orders.cancel_order", "reason": "a moment"}
    assert (await served.post("/v1/switches", {**switch, "off": True}, token=room.scene.admin)).status_code == 200
    assert "error" in (await room.update(task, SAID)).told
    assert (await served.post("/v1/switches", {**switch, "off": False}, token=room.scene.admin)).status_code == 200
    shown = (await room.get(task)).result
    assert (shown["status"], list(shown["inputRequests"])) == ("input_required", ["who"])
    assert (await room.update(task, SAID)).result["resultType"] == "complete"
    await room.until(task, "completed")
    assert len(room.server.done) == 1


async def test_a_task_that_nobody_will_answer_is_cancelled(room: Room) -> None:
    task = await room.begin("given-up")
    await room.until(task, "input_required")
    assert (await room.speaker().ask("tasks/cancel", {"taskId": task})).result["resultType"] == "complete"
    assert (await room.get(task)).result["status"] == "cancelled"
    await room.update(task, SAID)
    assert room.server.done == []


async def test_questions_of_a_task_are_nobody_elses(room: Room) -> None:
    task = await room.begin("theirs")
    await room.until(task, "input_required")
    served = room.scene.served
    for token in (
        served.token("mallory", scopes=SCOPES[:1]),
        served.token("root", scopes=SCOPES[:1], agent="bot"),
        served.other_token(scopes=SCOPES),
    ):
        assert (await room.get(task, token=token)).error["code"] == INVALID_PARAMS
        assert (await room.update(task, SAID, token=token)).error["code"] == INVALID_PARAMS
    # An administrator sees it, and answers nothing in somebody else's name.
    for token in (served.token("olga", scopes=SCOPES), served.token("root", scopes=SCOPES, agent="bot")):
        assert (await room.get(task, token=token)).result["status"] == "input_required"
        assert (await room.update(task, SAID, token=token)).error["code"] == INVALID_PARAMS
    assert (await room.get(task, abilities=TASKS)).error["code"] == CAPABILITY_MISSING
    assert room.server.done == []
