"""Calls that wait for people or for their turn: what each kind of client is told, and how it hears of the end."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import pytest_asyncio
from pydantic import Field

from deputize import ToolContext, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.mcp.constants import HANDSHAKE_VERSIONS, MODERN_VERSION
from deputize.interfaces.mcp import pending
from deputize.interfaces.mcp.context import McpContext
from tests.support import shop_tools
from tests.support.approval_gateway import ApprovalGateway, open_approval_gateway
from tests.support.mcp_client import TASKS_CAPABILITY, URL_ELICITATION, McpClient, McpResponse

pytestmark = pytest.mark.requirement("INV-4")


Name = Annotated[str, Field(description="Whose gate to wait for", examples=["a"])]


@tool(effects="read", namespace="shop", timeout="long-running", returns=dict[str, int])
async def count_slowly(name: Name, context: ToolContext) -> dict[str, int]:
    """Count the whole shop, and say how far it is on the way."""
    context.progress(1, 2, "half way")
    shop_tools.start_events.setdefault(name, asyncio.Event()).set()
    await shop_tools.release_events.setdefault(name, asyncio.Event()).wait()
    return {"counted": 2}


@tool(
    effects="write", namespace="shop", resources=["create shop.notes/{name}"], scopes=["shop:write"],
    idempotency="cannot", undo="shop.rename_user",
)  # fmt: skip
async def note_at_once(name: Name) -> str:
    """Write a note in the very request, once a test opens the gate of that name."""
    return await shop_tools.slow_note(name)


@tool(effects="read", namespace="shop", returns=str)
async def tells(name: Name, context: ToolContext) -> str:
    """Say how far it is, in the very request."""
    context.progress(1, 4, "begun")
    context.progress(3, 4, "nearly")
    return name


TOOLS = [
    *shop_tools.TOOLS,
    getattr(count_slowly, ATTRIBUTE),
    getattr(tells, ATTRIBUTE),
    getattr(note_at_once, ATTRIBUTE),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def approval_gateway(
    module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ApprovalGateway]:
    async with open_approval_gateway(module_database, tmp_path_factory.mktemp("office"), tools=TOOLS) as opened:
        yield opened


@dataclass
class PendingClient:
    """One client, and the people who decide about what it asks for."""

    approval_gateway: ApprovalGateway
    version: str = MODERN_VERSION
    capabilities: Mapping[str, Any] = ()  # type: ignore[assignment]  # nothing is declared

    @property
    def client(self) -> McpClient:
        session = "url.test" if self.version != MODERN_VERSION and self.capabilities else None
        return McpClient(
            self.approval_gateway.gateway, version=self.version, capabilities=dict(self.capabilities), session=session
        )

    async def request_deletion(self, id: int, **more: Any) -> McpResponse:
        return await self.client.call_tool("shop__delete_user", {"id": id}, **more)

    async def decide(self, verb: str, call_id: str) -> None:
        answer = await self.approval_gateway.decide(
            verb, call_id, token=self.approval_gateway.sign_token(), reason="seen"
        )
        assert answer.status_code == 200, answer.text

    async def wait_for_end(self, call_id: str) -> dict[str, Any]:
        async with asyncio.timeout(90):
            while True:
                told = (
                    await self.client.call_tool("calls_get", {"call_id": call_id, "wait_ms": 5000})
                ).structured_content
                if "retry_after_ms" not in told:
                    return told


@pytest.mark.parametrize("version", [MODERN_VERSION, *HANDSHAKE_VERSIONS])
async def test_a_call_that_people_decide_answers_pending_and_is_found_when_it_ended(
    approval_gateway: ApprovalGateway, version: str
) -> None:
    asking = PendingClient(approval_gateway, version)
    answer = await asking.request_deletion(41, key=f"pending-{version}")
    told = answer.structured_content

    assert answer.result["isError"] is False
    assert (told["status"], told["retry_after_ms"] > 0) == ("awaiting_approval", True)
    assert told["approval_url"].endswith(told["approval_url"].rpartition("/")[2])
    for word in (told["call_id"], told["approval_url"], "calls_get"):
        assert word in answer.result["content"][0]["text"]
    again = await asking.request_deletion(41, key=f"pending-{version}")
    assert again.structured_content["call_id"] == told["call_id"]
    await asking.decide("approve", told["call_id"])
    ended = await asking.wait_for_end(told["call_id"])
    assert (ended["status"], ended["result"]) == ("succeeded", {"deleted": 41})
    replayed = await asking.request_deletion(41, key=f"pending-{version}")
    assert replayed.structured_content == {"deleted": 41}


async def test_a_pending_answer_fits_the_schema_that_was_published(approval_gateway: ApprovalGateway) -> None:
    import jsonschema_rs  # noqa: PLC0415 -- only this test holds answers against published schemas

    asking = PendingClient(approval_gateway)
    schema = (await asking.client.list_tools())["shop__delete_user"]["outputSchema"]
    told = (await asking.request_deletion(42, key="fits")).structured_content
    jsonschema_rs.Draft202012Validator(schema).validate(told)
    jsonschema_rs.Draft202012Validator(schema).validate({"deleted": 42})


async def test_a_caller_who_follows_too_many_calls_is_answered_without_waiting(
    approval_gateway: ApprovalGateway,
) -> None:
    asking = PendingClient(approval_gateway)
    call_id = (await asking.request_deletion(44, key="crowd")).structured_content["call_id"]
    gateway = approval_gateway.gateway.in_process
    assert gateway is not None
    caller = await gateway.authenticate(f"Bearer {approval_gateway.gateway.token()}".encode())
    streams = [await gateway.calls.follow_call(caller, call_id) for _ in range(64)]
    told = (await asking.client.call_tool("calls_get", {"call_id": call_id, "wait_ms": 5000})).structured_content
    assert (len(streams), told["status"]) == (64, "awaiting_approval")


async def test_a_denied_call_says_that_somebody_said_no(approval_gateway: ApprovalGateway) -> None:
    asking = PendingClient(approval_gateway)
    call_id = (await asking.request_deletion(43, key="denied")).structured_content["call_id"]
    await asking.decide("deny", call_id)
    ended = await asking.wait_for_end(call_id)
    assert (ended["status"], ended["error"]["slug"]) == ("denied", "approval-rejected")
    again = await asking.request_deletion(43, key="denied")
    assert (again.result["isError"], again.structured_content["error"]["slug"]) == (True, "approval-rejected")


async def test_the_same_words_without_a_key_ask_about_the_call_that_waits(approval_gateway: ApprovalGateway) -> None:
    asking = PendingClient(approval_gateway)
    name = {"id": 44, "name": "Ana"}
    first = await asking.client.call_tool("shop__rename_user", name)
    again = await asking.client.call_tool("shop__rename_user", name)
    other = await asking.client.call_tool("shop__rename_user", {**name, "name": "Bo"})
    assert first.structured_content["status"] == "awaiting_approval"
    assert (
        again.structured_content["call_id"]
        == first.structured_content["call_id"]
        != other.structured_content["call_id"]
    )
    for each in (first, other):
        await asking.client.call_tool("calls_cancel", {"call_id": each.structured_content["call_id"]})
    canceled = await asking.client.call_tool("shop__rename_user", name)
    assert (canceled.result["isError"], canceled.structured_content["status"]) == (True, "canceled")
    anew = await asking.client.call_tool("shop__rename_user", name)
    assert anew.structured_content["call_id"] != first.structured_content["call_id"]
    # Who heard of the end by asking for it says the same words about something new, too.
    heard = await asking.client.call_tool("calls_get", {"call_id": other.structured_content["call_id"]})
    assert heard.structured_content["status"] == "canceled"
    another = await asking.client.call_tool("shop__rename_user", {**name, "name": "Bo"})
    assert another.structured_content["status"] == "awaiting_approval"
    assert another.structured_content["call_id"] != other.structured_content["call_id"]


async def test_a_client_that_opens_addresses_is_sent_to_one_once(
    approval_gateway: ApprovalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "APPROVAL_WAIT_SECONDS", 0.5)
    asking = PendingClient(approval_gateway, capabilities=URL_ELICITATION)
    first = await asking.request_deletion(45, key="opens")
    asks = first.result["inputRequests"]["approval"]

    assert first.result["resultType"] == "input_required"
    assert (asks["method"], asks["params"]["mode"]) == ("elicitation/create", "url")
    assert "/console/approvals/" in asks["params"]["url"]
    state = first.result["requestState"]
    declined = await asking.request_deletion(
        45, key="opens", requestState=state, inputResponses={"approval": {"action": "decline"}}
    )
    assert declined.structured_content["status"] == "awaiting_approval"
    opened = {"approval": {"action": "accept"}}
    still = await asking.request_deletion(45, key="opens", requestState=state, inputResponses=opened)
    assert still.structured_content["status"] == "awaiting_approval"

    monkeypatch.setattr(pending, "APPROVAL_WAIT_SECONDS", 60.0)
    coming = asyncio.create_task(asking.request_deletion(45, key="opens", requestState=state, inputResponses=opened))
    await asking.decide("approve", still.structured_content["call_id"])
    assert (await coming).structured_content == {"deleted": 45}


async def test_what_a_client_brings_back_is_good_for_that_request_of_that_caller_alone(
    approval_gateway: ApprovalGateway,
) -> None:
    asking = PendingClient(approval_gateway, capabilities=URL_ELICITATION)
    state = (await asking.request_deletion(46, key="bound")).result["requestState"]
    call = asking.client.call_tool

    assert (await call("shop__delete_user", {"id": 47}, key="bound", requestState=state)).error["code"] == -32602
    assert (await call("shop__get_user", {"id": 46}, requestState=state)).error["code"] == -32602
    assert (await call("shop__delete_user", {"id": 46}, requestState=state[:-4] + "AAAA")).error["code"] == -32602
    assert (await call("shop__delete_user", {"id": 46}, requestState="")).error["code"] == -32602
    stranger = McpClient(
        approval_gateway.gateway, token=approval_gateway.gateway.token("mallory"), capabilities=URL_ELICITATION
    )
    answer = await stranger.call_tool("shop__delete_user", {"id": 46}, requestState=state)
    assert answer.error["code"] == -32602


async def test_an_older_client_that_opens_addresses_hears_where_by_an_error_once(
    approval_gateway: ApprovalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "APPROVAL_WAIT_SECONDS", 0.3)
    asking = PendingClient(approval_gateway, "2025-11-25", URL_ELICITATION)
    first = await asking.request_deletion(48, key="older")
    asks = first.error["data"]["elicitations"][0]

    assert (first.status, first.error["code"]) == (200, -32042)
    assert (asks["mode"], "/console/approvals/" in asks["url"], bool(asks["elicitationId"])) == ("url", True, True)
    again = await asking.request_deletion(48, key="older")
    assert again.structured_content["status"] == "awaiting_approval"


async def test_a_client_that_knows_tasks_gets_one_and_follows_it_to_its_end(approval_gateway: ApprovalGateway) -> None:
    asking = PendingClient(approval_gateway, capabilities=TASKS_CAPABILITY)
    made = (await asking.request_deletion(49, key="task")).result
    task = made["taskId"]

    assert (made["resultType"], made["status"]) == ("task", "working")
    assert {"createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"} <= made.keys()
    assert "/console/approvals/" in made["statusMessage"]
    looked = (await asking.client.send_request("tasks/get", {"taskId": task})).result
    assert (looked["resultType"], looked["status"]) == ("complete", "working")
    assert (await asking.client.send_request("tasks/update", {"taskId": task, "inputResponses": {}})).result[
        "resultType"
    ]
    await asking.decide("approve", task)
    await asking.wait_for_end(task)
    ended = (await asking.client.send_request("tasks/get", {"taskId": task})).result
    assert (ended["status"], ended["result"]["structuredContent"]) == ("completed", {"deleted": 49})


async def test_a_task_can_be_canceled_and_says_so(approval_gateway: ApprovalGateway) -> None:
    asking = PendingClient(approval_gateway, capabilities=TASKS_CAPABILITY)
    task = (await asking.request_deletion(50, key="stop")).result["taskId"]
    for _ in range(2):
        assert (await asking.client.send_request("tasks/cancel", {"taskId": task})).result["resultType"] == "complete"
    assert (await asking.client.send_request("tasks/get", {"taskId": task})).result["status"] == "cancelled"


async def test_tasks_of_nobody_or_of_others_are_not_there(approval_gateway: ApprovalGateway) -> None:
    asking = PendingClient(approval_gateway, capabilities=TASKS_CAPABILITY)
    task = (await asking.request_deletion(51, key="mine")).result["taskId"]
    stranger = McpClient(
        approval_gateway.gateway, token=approval_gateway.gateway.token("mallory"), capabilities=TASKS_CAPABILITY
    )
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        for client, named in (
            (asking.client, "nothing"), (asking.client, "01890000-0000-7000-8000-000000000000"), (stranger, task),
        ):  # fmt: skip
            assert (await client.send_request(method, {"taskId": named})).error["code"] == -32602
        wrong = await asking.client.send_request(method, {"taskId": task}, headers={"mcp-name": "other"})
        assert wrong.error["code"] == -32020
        unable = await McpClient(approval_gateway.gateway).send_request(method, {"taskId": task})
        assert (unable.status, unable.error["code"]) == (400, -32021)


async def test_something_long_is_a_run_that_tells_how_far_it_is(
    approval_gateway: ApprovalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "WAIT_SECONDS", 0.5)
    asking = PendingClient(approval_gateway)
    told = (await asking.client.call_tool("shop__count_slowly", {"name": "long"})).structured_content
    assert told["status"] in ("queued", "running")
    async with asyncio.timeout(90):
        await shop_tools.start_events.setdefault("long", asyncio.Event()).wait()
    follows, forward_progress = asyncio.Event(), pending._forward_progress

    async def note_follower(context: McpContext, call_id: str) -> None:
        follows.set()
        await forward_progress(context, call_id)

    monkeypatch.setattr(pending, "_forward_progress", note_follower)
    following = asyncio.create_task(
        asking.client.call_tool(
            "calls_get", {"call_id": told["call_id"], "wait_ms": 20_000}, meta={"progressToken": "p1"}
        )
    )
    async with asyncio.timeout(90):
        await follows.wait()
    shop_tools.release_events.setdefault("long", asyncio.Event()).set()
    answer = await following
    assert answer.structured_content["result"] == {"counted": 2}
    assert answer.messages[0]["params"] == {
        "progressToken": "p1", "progress": 1.0, "total": 2.0, "message": "half way",
    }  # fmt: skip


async def test_a_run_that_ends_soon_is_answered_with_its_result(approval_gateway: ApprovalGateway) -> None:
    shop_tools.release_events.setdefault("soon", asyncio.Event()).set()
    answer = await PendingClient(approval_gateway).client.call_tool("shop__count_slowly", {"name": "soon"})
    told = (
        answer.structured_content
        if "counted" in answer.structured_content
        else await PendingClient(approval_gateway).wait_for_end(answer.structured_content["call_id"])
    )
    assert "counted" in told or told["result"] == {"counted": 2}


@pytest.mark.parametrize("version", [MODERN_VERSION, HANDSHAKE_VERSIONS[0]])
async def test_progress_in_the_very_request_goes_before_the_answer(
    approval_gateway: ApprovalGateway, version: str
) -> None:
    client = McpClient(approval_gateway.gateway, version=version)
    answer = await client.call_tool("shop__tells", {"name": "x"}, meta={"progressToken": 7})
    assert [each["params"]["progress"] for each in answer.messages[:-1]] == [1.0, 3.0]
    assert answer.structured_content == {"result": "x"}
    assert len((await client.call_tool("shop__tells", {"name": "x"})).messages) == 1


async def test_a_client_that_leaves_does_not_stop_a_write(approval_gateway: ApprovalGateway) -> None:
    client = McpClient(approval_gateway.gateway)
    before = len(shop_tools.effects)
    leaving = asyncio.create_task(client.call_tool("shop__note_at_once", {"name": "left"}, key="left"))
    async with asyncio.timeout(90):
        await shop_tools.start_events.setdefault("left", asyncio.Event()).wait()
    leaving.cancel()
    await asyncio.sleep(0.2)
    shop_tools.release_events.setdefault("left", asyncio.Event()).set()
    async with asyncio.timeout(90):
        while True:
            answer = await client.call_tool("shop__note_at_once", {"name": "left"}, key="left")
            if not answer.result["isError"]:
                break
            await asyncio.sleep(0.1)
    assert answer.structured_content == {"result": "left"}
    assert shop_tools.effects[before:] == [("note", "left")]


async def test_own_tools_say_what_is_wrong_with_what_they_are_given(approval_gateway: ApprovalGateway) -> None:
    client = McpClient(approval_gateway.gateway)
    for name, arguments in (
        ("calls_get", {}), ("calls_get", {"call_id": 7}), ("calls_get", {"call_id": "x"}),
        ("calls_get", {"call_id": "01890000-0000-7000-8000-000000000000"}), ("calls_get", {"call_id": "x", "more": 1}),
        ("calls_get", {"call_id": "x", "wait_ms": 20_001}), ("calls_cancel", {"call_id": "x"}),
        ("calls_batch", {}), ("calls_batch", {"calls": [{"tool": "shop__get_user", "session": "x"}]}),
        ("calls_batch", {"calls": [{"tool": "shop__get_user"}], "more": 1}), ("calls_batch", {"calls": [7]}),
    ):  # fmt: skip
        answer = await client.call_tool(name, arguments)
        assert (answer.status, answer.result["isError"]) == (200, True), (name, arguments)
    read = await client.call_tool("shop__list_users", {"limit": 1})
    shown = await client.call_tool("calls_get", {"call_id": read.result["_meta"]["dev.deputize/call"]["id"]})
    assert (shown.structured_content["status"], "not stored" in shown.structured_content["message"]) == (
        "succeeded",
        True,
    )
