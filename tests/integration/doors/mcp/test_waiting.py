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
from deputize.core.mcp import HANDSHAKES, MODERN
from deputize.doors.mcp import waiting
from tests.integration import shop
from tests.integration.doors.mcp.speaking import OPENS, TASKS, Answer, Speaker
from tests.integration.doors.people import Office, open_office

pytestmark = pytest.mark.requirement("INV-4")


Name = Annotated[str, Field(description="Whose gate to wait for", examples=["a"])]


@tool(effects="read", namespace="shop", timeout="long-running", returns=dict[str, int])
async def count_slowly(name: Name, context: ToolContext) -> dict[str, int]:
    """Count the whole shop, and say how far it is on the way."""
    context.progress(1, 2, "half way")
    shop.started.setdefault(name, asyncio.Event()).set()
    await shop.gates.setdefault(name, asyncio.Event()).wait()
    return {"counted": 2}


@tool(effects="read", namespace="shop", returns=str)
async def tells(name: Name, context: ToolContext) -> str:
    """Say how far it is, in the very request."""
    context.progress(1, 4, "begun")
    context.progress(3, 4, "nearly")
    return name


TOOLS = [*shop.TOOLS, getattr(count_slowly, ATTRIBUTE), getattr(tells, ATTRIBUTE)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def office(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Office]:
    async with open_office(module_database, tmp_path_factory.mktemp("office"), tools=TOOLS) as opened:
        yield opened


@dataclass
class Asking:
    """One client, and the people who decide about what it asks for."""

    office: Office
    version: str = MODERN
    abilities: Mapping[str, Any] = ()  # type: ignore[assignment]  # nothing is declared

    @property
    def speaker(self) -> Speaker:
        session = "url.test" if self.version != MODERN and self.abilities else None
        return Speaker(self.office.served, version=self.version, abilities=dict(self.abilities), session=session)

    async def delete(self, id: int, **more: Any) -> Answer:
        return await self.speaker.call("shop__delete_user", {"id": id}, **more)

    async def decide(self, word: str, call_id: str) -> None:
        answer = await self.office.decide(word, call_id, token=self.office.person(), reason="seen")
        assert answer.status_code == 200, answer.text

    async def end(self, call_id: str) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while True:
                told = (await self.speaker.call("calls_get", {"call_id": call_id, "wait_ms": 5000})).structured
                if "retry_after_ms" not in told:
                    return told


@pytest.mark.parametrize("version", [MODERN, *HANDSHAKES])
async def test_a_call_that_people_decide_answers_pending_and_is_found_when_it_ended(
    office: Office, version: str
) -> None:
    asking = Asking(office, version)
    answer = await asking.delete(41, key=f"pending-{version}")
    told = answer.structured

    assert answer.result["isError"] is False
    assert (told["status"], told["retry_after_ms"] > 0) == ("awaiting_approval", True)
    assert told["approval_url"].endswith(told["approval_url"].rpartition("/")[2])
    for word in (told["call_id"], told["approval_url"], "calls_get"):
        assert word in answer.result["content"][0]["text"]
    again = await asking.delete(41, key=f"pending-{version}")
    assert again.structured["call_id"] == told["call_id"]
    await asking.decide("approve", told["call_id"])
    ended = await asking.end(told["call_id"])
    assert (ended["status"], ended["result"]) == ("succeeded", {"deleted": 41})
    replayed = await asking.delete(41, key=f"pending-{version}")
    assert replayed.structured == {"deleted": 41}


async def test_a_pending_answer_fits_the_schema_that_was_published(office: Office) -> None:
    import jsonschema_rs  # noqa: PLC0415 -- only this test holds answers against published schemas

    asking = Asking(office)
    schema = (await asking.speaker.tools())["shop__delete_user"]["outputSchema"]
    told = (await asking.delete(42, key="fits")).structured
    jsonschema_rs.Draft202012Validator(schema).validate(told)
    jsonschema_rs.Draft202012Validator(schema).validate({"deleted": 42})


async def test_a_denied_call_says_that_somebody_said_no(office: Office) -> None:
    asking = Asking(office)
    call_id = (await asking.delete(43, key="denied")).structured["call_id"]
    await asking.decide("deny", call_id)
    ended = await asking.end(call_id)
    assert (ended["status"], ended["error"]["slug"]) == ("denied", "approval-rejected")
    again = await asking.delete(43, key="denied")
    assert (again.result["isError"], again.structured["error"]["slug"]) == (True, "approval-rejected")


async def test_the_same_words_without_a_key_ask_about_the_call_that_waits(office: Office) -> None:
    asking = Asking(office)
    name = {"id": 44, "name": "Ana"}
    first = await asking.speaker.call("shop__rename_user", name)
    again = await asking.speaker.call("shop__rename_user", name)
    other = await asking.speaker.call("shop__rename_user", {**name, "name": "Bo"})
    assert first.structured["status"] == "awaiting_approval"
    assert again.structured["call_id"] == first.structured["call_id"] != other.structured["call_id"]
    for each in (first, other):
        await asking.speaker.call("calls_cancel", {"call_id": each.structured["call_id"]})
    canceled = await asking.speaker.call("shop__rename_user", name)
    assert (canceled.result["isError"], canceled.structured["status"]) == (True, "canceled")
    anew = await asking.speaker.call("shop__rename_user", name)
    assert anew.structured["call_id"] != first.structured["call_id"]
    # Who heard of the end by asking for it says the same words about something new, too.
    heard = await asking.speaker.call("calls_get", {"call_id": other.structured["call_id"]})
    assert heard.structured["status"] == "canceled"
    another = await asking.speaker.call("shop__rename_user", {**name, "name": "Bo"})
    assert another.structured["status"] == "awaiting_approval"
    assert another.structured["call_id"] != other.structured["call_id"]


async def test_a_client_that_opens_addresses_is_sent_to_one_once(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "AFTER_OPENING_SECONDS", 0.5)
    asking = Asking(office, abilities=OPENS)
    first = await asking.delete(45, key="opens")
    asks = first.result["inputRequests"]["approval"]

    assert first.result["resultType"] == "input_required"
    assert (asks["method"], asks["params"]["mode"]) == ("elicitation/create", "url")
    assert "/console/tickets/" in asks["params"]["url"]
    state = first.result["requestState"]
    declined = await asking.delete(
        45, key="opens", requestState=state, inputResponses={"approval": {"action": "decline"}}
    )
    assert declined.structured["status"] == "awaiting_approval"
    opened = {"approval": {"action": "accept"}}
    still = await asking.delete(45, key="opens", requestState=state, inputResponses=opened)
    assert still.structured["status"] == "awaiting_approval"

    monkeypatch.setattr(waiting, "AFTER_OPENING_SECONDS", 60.0)
    coming = asyncio.create_task(asking.delete(45, key="opens", requestState=state, inputResponses=opened))
    await asking.decide("approve", still.structured["call_id"])
    assert (await coming).structured == {"deleted": 45}


async def test_what_a_client_brings_back_is_good_for_that_request_of_that_caller_alone(office: Office) -> None:
    asking = Asking(office, abilities=OPENS)
    state = (await asking.delete(46, key="bound")).result["requestState"]
    call = asking.speaker.call

    assert (await call("shop__delete_user", {"id": 47}, key="bound", requestState=state)).error["code"] == -32602
    assert (await call("shop__get_user", {"id": 46}, requestState=state)).error["code"] == -32602
    assert (await call("shop__delete_user", {"id": 46}, requestState=state[:-4] + "AAAA")).error["code"] == -32602
    assert (await call("shop__delete_user", {"id": 46}, requestState="")).error["code"] == -32602
    stranger = Speaker(office.served, token=office.served.token("mallory"), abilities=OPENS)
    answer = await stranger.call("shop__delete_user", {"id": 46}, requestState=state)
    assert answer.error["code"] == -32602


async def test_an_older_client_that_opens_addresses_hears_where_by_an_error_once(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "AFTER_OPENING_SECONDS", 0.3)
    asking = Asking(office, "2025-11-25", OPENS)
    first = await asking.delete(48, key="older")
    asks = first.error["data"]["elicitations"][0]

    assert (first.status, first.error["code"]) == (200, -32042)
    assert (asks["mode"], "/console/tickets/" in asks["url"], bool(asks["elicitationId"])) == ("url", True, True)
    again = await asking.delete(48, key="older")
    assert again.structured["status"] == "awaiting_approval"


async def test_a_client_that_knows_tasks_gets_one_and_follows_it_to_its_end(office: Office) -> None:
    asking = Asking(office, abilities=TASKS)
    made = (await asking.delete(49, key="task")).result
    task = made["taskId"]

    assert (made["resultType"], made["status"]) == ("task", "working")
    assert {"createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"} <= made.keys()
    assert "/console/tickets/" in made["statusMessage"]
    looked = (await asking.speaker.ask("tasks/get", {"taskId": task})).result
    assert (looked["resultType"], looked["status"]) == ("complete", "working")
    assert (await asking.speaker.ask("tasks/update", {"taskId": task, "inputResponses": {}})).result["resultType"]
    await asking.decide("approve", task)
    await asking.end(task)
    ended = (await asking.speaker.ask("tasks/get", {"taskId": task})).result
    assert (ended["status"], ended["result"]["structuredContent"]) == ("completed", {"deleted": 49})


async def test_a_task_can_be_canceled_and_says_so(office: Office) -> None:
    asking = Asking(office, abilities=TASKS)
    task = (await asking.delete(50, key="stop")).result["taskId"]
    for _ in range(2):
        assert (await asking.speaker.ask("tasks/cancel", {"taskId": task})).result["resultType"] == "complete"
    assert (await asking.speaker.ask("tasks/get", {"taskId": task})).result["status"] == "cancelled"


async def test_tasks_of_nobody_or_of_others_are_not_there(office: Office) -> None:
    asking = Asking(office, abilities=TASKS)
    task = (await asking.delete(51, key="mine")).result["taskId"]
    stranger = Speaker(office.served, token=office.served.token("mallory"), abilities=TASKS)
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        for speaker, named in (
            (asking.speaker, "nothing"), (asking.speaker, "01890000-0000-7000-8000-000000000000"), (stranger, task),
        ):  # fmt: skip
            assert (await speaker.ask(method, {"taskId": named})).error["code"] == -32602
        wrong = await asking.speaker.ask(method, {"taskId": task}, headers={"mcp-name": "other"})
        assert wrong.error["code"] == -32020
        unable = await Speaker(office.served).ask(method, {"taskId": task})
        assert (unable.status, unable.error["code"]) == (400, -32021)


async def test_something_long_is_a_run_that_tells_how_far_it_is(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "HOLD_SECONDS", 0.5)
    asking = Asking(office)
    told = (await asking.speaker.call("shop__count_slowly", {"name": "long"})).structured
    assert told["status"] in ("queued", "running")
    async with asyncio.timeout(30):
        await shop.started.setdefault("long", asyncio.Event()).wait()
    following = asyncio.create_task(
        asking.speaker.call("calls_get", {"call_id": told["call_id"], "wait_ms": 20_000}, meta={"progressToken": "p1"})
    )
    await asyncio.sleep(1.5)
    shop.gates.setdefault("long", asyncio.Event()).set()
    answer = await following
    assert answer.structured["result"] == {"counted": 2}
    assert answer.messages[0]["params"] == {
        "progressToken": "p1", "progress": 1.0, "total": 2.0, "message": "half way",
    }  # fmt: skip


async def test_a_run_that_ends_soon_is_answered_with_its_result(office: Office) -> None:
    shop.gates.setdefault("soon", asyncio.Event()).set()
    answer = await Asking(office).speaker.call("shop__count_slowly", {"name": "soon"})
    told = (
        answer.structured if "counted" in answer.structured else await Asking(office).end(answer.structured["call_id"])
    )
    assert "counted" in told or told["result"] == {"counted": 2}


@pytest.mark.parametrize("version", [MODERN, HANDSHAKES[0]])
async def test_progress_in_the_very_request_goes_before_the_answer(office: Office, version: str) -> None:
    speaker = Speaker(office.served, version=version)
    answer = await speaker.call("shop__tells", {"name": "x"}, meta={"progressToken": 7})
    assert [each["params"]["progress"] for each in answer.messages[:-1]] == [1.0, 3.0]
    assert answer.structured == {"result": "x"}
    assert len((await speaker.call("shop__tells", {"name": "x"})).messages) == 1


async def test_a_client_that_leaves_does_not_stop_a_write(office: Office) -> None:
    speaker = Speaker(office.served)
    before = len(shop.made)
    leaving = asyncio.create_task(speaker.call("shop__slow_note", {"name": "left"}, key="left"))
    async with asyncio.timeout(30):
        await shop.started.setdefault("left", asyncio.Event()).wait()
    leaving.cancel()
    await asyncio.sleep(0.2)
    shop.gates.setdefault("left", asyncio.Event()).set()
    async with asyncio.timeout(30):
        while True:
            answer = await speaker.call("shop__slow_note", {"name": "left"}, key="left")
            if not answer.result["isError"]:
                break
            await asyncio.sleep(0.1)
    assert answer.structured == {"result": "left"}
    assert shop.made[before:] == [("note", "left")]


async def test_own_tools_say_what_is_wrong_with_what_they_are_given(office: Office) -> None:
    speaker = Speaker(office.served)
    for name, arguments in (
        ("calls_get", {}), ("calls_get", {"call_id": 7}), ("calls_get", {"call_id": "x"}),
        ("calls_get", {"call_id": "01890000-0000-7000-8000-000000000000"}), ("calls_get", {"call_id": "x", "more": 1}),
        ("calls_get", {"call_id": "x", "wait_ms": 20_001}), ("calls_cancel", {"call_id": "x"}),
    ):  # fmt: skip
        answer = await speaker.call(name, arguments)
        assert (answer.status, answer.result["isError"]) == (200, True), (name, arguments)
    read = await speaker.call("shop__list_users", {"limit": 1})
    shown = await speaker.call("calls_get", {"call_id": read.result["_meta"]["dev.deputize/call"]["id"]})
    assert (shown.structured["status"], "not kept" in shown.structured["message"]) == ("succeeded", True)
