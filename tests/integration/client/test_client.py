"""The Python client against a real gateway, with and without asyncio."""

import asyncio
from typing import Any

import pytest

from deputize import CallFailed, Client, SyncClient, Unreachable
from tests.integration.conftest import HttpGateway
from tests.support import shop_tools


async def test_a_call_and_its_reply(gateway: HttpGateway) -> None:
    async with Client(gateway.url, gateway.token()) as d:
        reply = await d.call("shop.get_user", id=7)
        assert (reply.result, reply.state, reply.ok) == ({"id": 7, "plan": "pro"}, "succeeded", True)
        assert (await d.call("shop.get_user", {"id": 8}, version="^1")).result["id"] == 8


@pytest.mark.requirement("INV-5")
async def test_a_restarted_program_repeats_its_steps_instead_of_making_them_twice(gateway: HttpGateway) -> None:
    token, before = gateway.token("restarted"), len(shop_tools.effects)
    replies = []
    for _ in range(2):
        async with Client(gateway.url, token, session="job-42", secret=b"kept somewhere safe") as d:
            replies.append(await d.call("shop.rename_user", id=1, name="Ana", step="rename"))
    assert [reply.is_replay for reply in replies] == [False, True]
    assert replies[0].envelope == replies[1].envelope
    assert len(shop_tools.effects) == before + 1


async def test_two_calls_are_two_calls_even_if_they_ask_the_same(gateway: HttpGateway) -> None:
    before = len(shop_tools.effects)
    async with Client(gateway.url, gateway.token()) as d:
        await asyncio.gather(*(d.call("shop.rename_user", id=1, name="Ana") for _ in range(5)))
    assert len(shop_tools.effects) == before + 5


@pytest.mark.requirement("INV-9", "INV-5")
async def test_several_calls_in_one_request_and_the_same_program_again(gateway: HttpGateway) -> None:
    token = gateway.token("many")
    calls: list[dict[str, Any]] = [
        {"tool": "shop.rename_user", "arguments": {"id": 1, "name": "Ana"}, "step": "rename"},
        {"tool": "shop.fail", "arguments": {"slug": "tool-failed"}},
        {"tool": "shop.get_user", "arguments": {"id": 7}, "depends_on": [1]},
        {"tool": "shop.list_users"},
    ]
    replies = []
    for _ in range(2):
        async with Client(gateway.url, token, session="many", secret=b"kept somewhere safe") as d:
            replies.append(await d.call_many(calls))
    assert [reply.state for reply in replies[0]] == ["succeeded", "failed", "canceled", "succeeded"]
    assert replies[0][1].failure is not None
    assert (replies[0][1].failure.slug, replies[0][1].failure.status) == ("tool-failed", 502)
    assert [each[0].is_replay for each in replies] == [False, True]

    def call_without_asyncio() -> None:
        with SyncClient(gateway.url, token) as d:
            assert [reply.ok for reply in d.call_many(calls, on_failure="ignore")] == [True, False, True, True]
            with pytest.raises(CallFailed, match="a batch holds 1 to 50 calls"):
                d.call_many([])

    await asyncio.to_thread(call_without_asyncio)


async def test_irreversible_tools_just_work_because_a_key_is_always_sent(gateway: HttpGateway) -> None:
    async with Client(gateway.url, gateway.token()) as d:
        assert (await d.call("shop.delete_user", id=9)).result == {"deleted": 9}


@pytest.mark.requirement("INV-12")
async def test_a_call_in_flight_is_waited_for(gateway: HttpGateway) -> None:
    async with Client(gateway.url, gateway.token(), attempts=20) as d:
        first = asyncio.create_task(d.call("shop.slow_note", name="client", key="one"))
        await shop_tools.start_events.setdefault("client", asyncio.Event()).wait()
        second = asyncio.create_task(d.call("shop.slow_note", name="client", key="one"))
        await asyncio.sleep(0)
        shop_tools.release_events["client"].set()
        replies = await asyncio.gather(first, second)
    assert replies[0].envelope == replies[1].envelope


async def test_a_failure_is_raised_with_its_facts_or_returned(gateway: HttpGateway) -> None:
    async with Client(gateway.url, gateway.token()) as d:
        with pytest.raises(CallFailed, match="E3301 schema-violation") as failed:
            await d.call("shop.get_user", id="many")
        assert failed.value.failure.code == "INVALID_INPUT"
        assert failed.value.reply is not None
        assert failed.value.reply.state == "validation_failed"
        unchecked = await d.call("shop.get_user", id="many", check=False)
        assert unchecked.failure is not None
        assert unchecked.failure.details["example"] == {"id": 7}
        with pytest.raises(CallFailed, match="tool-not-found"):
            await d.tool("shop.nobody")


async def test_the_client_lists_tools_and_calls(gateway: HttpGateway) -> None:
    async with Client(gateway.url, gateway.token("looker")) as d:
        page = await d.tools(limit=2)
        assert len(page["tools"]) == 2
        assert (await d.tools(after=page["next_after"]))["tools"]
        assert (await d.search("look up a user & more", limit=1))["matches"][0]["name"] == "shop.get_user"
        assert (await d.tool("shop.get_user", version="1.x"))["version"] == "1.2.0"
        made = await d.call("shop.rename_user", id=1, name="L")
        assert (await d.show(made.call_id)) == made.envelope
        assert [call["call_id"] for call in (await d.calls(limit=5))["calls"]] == [made.call_id]
        with pytest.raises(CallFailed, match="not-cancelable"):
            await d.cancel(made.call_id)


async def test_without_asyncio_it_is_the_same(gateway: HttpGateway) -> None:
    token = gateway.token("sync")

    def run_sync_client() -> None:
        with SyncClient(gateway.url, token) as d:
            made = d.call("shop.rename_user", {"id": 3}, name="S", key="sync-1")
            again = d.call("shop.rename_user", {"id": 3}, name="S", key="sync-1")
            assert (made.is_replay, again.is_replay, again.envelope) == (False, True, made.envelope)
            assert d.show(made.call_id) == made.envelope
            assert d.calls()["calls"][0]["call_id"] == made.call_id
            assert d.search("user")["matches"]
            assert d.tools(limit=1)["tools"]
            assert d.tool("shop.get_user")["name"] == "shop.get_user"
            with pytest.raises(CallFailed):
                d.cancel(made.call_id)
            assert d.call("shop.nobody", check=False).failure is not None

    await asyncio.to_thread(run_sync_client)


async def test_nobody_there_is_said_plainly() -> None:
    async with Client("http://127.0.0.1:9", "t", attempts=2) as d:
        with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:9 does not answer"):
            await d.call("a.b")
