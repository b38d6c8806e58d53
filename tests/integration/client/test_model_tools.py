"""A model's tool calls executed through a real gateway."""

import asyncio

import pytest

from deputize import Client, SyncClient
from deputize.client import ModelCall
from tests.integration.conftest import HttpGateway
from tests.support import shop_tools

pytestmark = pytest.mark.requirement("EXE-1")
RENAME = {"id": "c1", "name": "shop__rename_user", "arguments": {"id": 1, "name": "Model"}}


async def test_a_models_calls_run_side_by_side_and_once(gateway: HttpGateway) -> None:
    token, before, answers = gateway.token("model"), len(shop_tools.effects), []
    calls = [RENAME, {"id": "c2", "name": "shop__get_user", "arguments": {"id": "many"}}]
    for _ in range(2):  # as if the program had been started twice
        async with Client(gateway.url, token) as client:
            tools = await client.model_tools(
                "json-schema", ["shop.rename_user", "shop.get_user"], conversation="thread-1"
            )
            answers.append(await tools.run(calls))
    assert answers[0] == answers[1]
    assert len(shop_tools.effects) == before + 1
    assert [(each["id"], each["is_error"]) for each in answers[0]] == [("c1", False), ("c2", True)]
    assert "E3301 schema-violation" in answers[0][1]["content"]
    assert "Next step:" in answers[0][1]["content"]


async def test_every_tool_is_offered_and_no_other_is_called(gateway: HttpGateway) -> None:
    async with Client(gateway.url, gateway.token("model")) as client:
        tools = await client.model_tools("openai-chat")
        names = {each["function"]["name"] for each in tools.definitions}
        assert {"shop__get_user", "shop__delete_user"} <= names
        few = await client.model_tools("openai-chat", ["shop.get_user"])
        (result,) = await few.run_calls([ModelCall(id="c9", name="shop__delete_user", arguments={"id": 1})])
        assert (result.is_error, result.reply) == (True, None)
        assert await few.run({"role": "assistant", "content": "Hello."}) == []


async def test_the_client_without_asyncio_does_the_same(gateway: HttpGateway) -> None:
    token = gateway.token("model")

    def run_sync_client() -> None:
        with SyncClient(gateway.url, token) as client:
            tools = client.model_tools("anthropic", ["shop.get_user"])
            blocks = [
                {"type": "tool_use", "id": f"c{number}", "name": "shop__get_user", "input": {"id": number}}
                for number in range(1, 13)
            ]
            (message,) = tools.run({"role": "assistant", "content": blocks})
            assert [each["tool_use_id"] for each in message["content"]] == [each["id"] for each in blocks]
            assert not any(each["is_error"] for each in message["content"])

    await asyncio.to_thread(run_sync_client)
