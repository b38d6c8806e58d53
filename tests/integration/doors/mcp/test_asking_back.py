"""A server that asks before it answers: its questions reach a client that can answer, and each round is a call."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from deputize.core.mcp import CAPABILITY_MISSING, HANDSHAKES, INVALID_PARAMS
from tests.integration.conftest import SCOPES as SHOP
from tests.integration.doors.mcp.speaking import Answer, Speaker
from tests.integration.servers.curious import EVERYTHING, FORMS, NAME_FORM, SAID, STATE, Curious
from tests.integration.servers.scene import SCOPES, Scene, described, scene

pytestmark = pytest.mark.requirement("EXE-1")

ANA = {"name": "Ana"}
READ, WRITE = "orders__get_order", "orders__cancel_order"
ASKS = ("elicitation", "sampling", "roots")


class Room:
    def __init__(self, opened: Scene, server: Curious) -> None:
        self.scene, self.server = opened, server

    def speaker(self, abilities: dict[str, Any] = FORMS, **more: Any) -> Speaker:
        return Speaker(self.scene.served, token=more.pop("token", self.scene.admin), abilities=abilities, **more)

    async def entries(self, call_id: str) -> list[dict[str, Any]]:
        rows = await self.scene._rows(
            f"select entry from deputize.audit_entries where call_id = '{call_id}' order by id"
        )
        return [orjson.loads(row["entry"]) for row in rows]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def opened(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Room]:
    server = Curious()
    server.start()
    try:
        named = (described(server, slow=(), asks=ASKS, prompts=("*",)),)
        async with scene(module_database, tmp_path_factory.mktemp("gateway"), server, named) as found:
            yield Room(found, server)
    finally:
        server.stop()


@pytest.fixture
def room(opened: Room) -> Room:
    opened.server.forget()
    return opened


def call_id(answer: Answer) -> str:
    found: str = answer.result["_meta"]["dev.deputize/call"]["id"]
    return found


@pytest.mark.parametrize("tool", [READ, WRITE])
async def test_what_a_server_asks_reaches_the_client_and_its_answer_the_server(room: Room, tool: str) -> None:
    speaker = room.speaker()
    first = await speaker.call(tool, ANA, key=f"asked-{tool}")

    assert first.result["resultType"] == "input_required"
    asked = first.result["inputRequests"]["who"]
    assert asked["params"]["message"] == "The server orders asks: What is your name?"
    assert asked["params"]["requestedSchema"] == NAME_FORM["params"]["requestedSchema"]
    assert STATE not in str(first.told)
    assert room.server.told_of == {"elicitation": {"form": {}}}
    assert room.server.done == []

    state = first.result["requestState"]
    second = await speaker.call(tool, ANA, key=f"asked-{tool}", requestState=state, inputResponses=SAID)
    assert second.result["content"][0]["text"].endswith("done")
    assert room.server.heard[1]["requestState"] == f"{STATE}0"
    assert room.server.heard[1]["inputResponses"] == SAID
    assert room.server.heard[1]["arguments"] == ANA
    assert call_id(second) != call_id(first)


async def test_a_round_is_on_record_with_the_call_it_continues(room: Room) -> None:
    speaker = room.speaker()
    first = await speaker.call(WRITE, ANA, key="recorded")
    again = {"requestState": first.result["requestState"], "inputResponses": SAID}
    second = await speaker.call(WRITE, ANA, key="recorded", **again)

    asked, answered = await room.entries(call_id(first)), await room.entries(call_id(second))
    assert [(each["kind"], each.get("outcome")) for each in asked] == [("intent", None), ("outcome", "needs_input")]
    assert "result" in asked[1]
    assert "continues" not in asked[0]
    assert [(each["kind"], each.get("outcome")) for each in answered] == [("intent", None), ("outcome", "succeeded")]
    assert {each["continues"] for each in answered} == {call_id(first)}
    assert answered[0]["answers"] != answered[0]["arguments"]


async def test_a_repeated_round_is_answered_from_the_record_and_other_answers_are_refused(room: Room) -> None:
    speaker = room.speaker()
    first = await speaker.call(WRITE, ANA, key="once")
    repeated = await speaker.call(WRITE, ANA, key="once")
    assert repeated.result["requestState"] == first.result["requestState"]

    again = {"requestState": first.result["requestState"], "inputResponses": SAID}
    once = await speaker.call(WRITE, ANA, key="once", **again)
    twice = await speaker.call(WRITE, ANA, key="another", **again)
    assert twice.result["content"] == once.result["content"]
    assert twice.result["_meta"]["dev.deputize/replayed"] is True

    other = {"who": {"action": "decline"}}
    refused = await speaker.call(WRITE, ANA, key="once", requestState=again["requestState"], inputResponses=other)
    assert refused.error["code"] == INVALID_PARAMS
    assert "answered already" in refused.error["message"]
    assert len(room.server.done) == 1


async def test_a_server_may_ask_again_and_again(room: Room) -> None:
    room.server.rounds = 3
    speaker, states = room.speaker(), []
    answer = await speaker.call(WRITE, ANA, key="rounds")
    while answer.result.get("resultType") == "input_required":
        states.append(answer.result["requestState"])
        again = {"requestState": states[-1], "inputResponses": SAID}
        answer = await speaker.call(WRITE, ANA, key="rounds", **again)
    assert len(set(states)) == 3
    assert [each.get("requestState") for each in room.server.heard] == [None, *(f"{STATE}{n}" for n in range(3))]
    assert len(room.server.done) == 1


async def test_a_round_is_nobody_elses_and_nothing_elses(room: Room) -> None:
    first = await room.speaker().call(WRITE, ANA, key="mine")
    state = first.result["requestState"]
    again: dict[str, Any] = {"requestState": state, "inputResponses": SAID}
    served = room.scene.served
    attempts = [
        await room.speaker(token=served.token("mallory", scopes=SCOPES)).call(WRITE, ANA, key="a", **again),
        await room.speaker(token=served.token("root", scopes=SCOPES, agent="bot")).call(WRITE, ANA, key="b", **again),
        await room.speaker(token=served.other_token(scopes=(*SHOP, *SCOPES))).call(WRITE, ANA, key="c", **again),
        await room.speaker().call(WRITE, {"name": "Eve"}, key="mine", **again),
        await room.speaker().call(READ, ANA, **again),
        await room.speaker().call(WRITE, ANA, key="mine", **{**again, "requestState": f"{state}-TAMPERED"}),
        await room.speaker().call(WRITE, ANA, key="mine", **{**again, "requestState": _other_call(state)}),
        await room.speaker().call(WRITE, ANA, key="mine", **{**again, "requestState": "round1.nonsense"}),
    ]
    assert [each.error["code"] for each in attempts] == [INVALID_PARAMS] * len(attempts)
    assert room.server.done == []
    assert len(room.server.heard) == 1


def _other_call(state: str) -> str:
    name, _, box = state.removeprefix("round1.").partition(".")
    return f"round1.{name[:-1]}{'0' if name[-1] != '0' else '1'}.{box}"


async def test_an_answer_that_does_not_fit_is_refused_and_may_be_mended(room: Room) -> None:
    speaker = room.speaker()
    first = await speaker.call(WRITE, ANA, key="fits")
    state = first.result["requestState"]
    for wrong in ({"action": "accept", "content": {"name": 7}}, {"action": "accept"}, {"action": "maybe"}):
        refused = await speaker.call(WRITE, ANA, key="fits", requestState=state, inputResponses={"who": wrong})
        assert refused.structured["error"]["slug"] == "answers-invalid"
    extra = {**SAID, "unasked": {"action": "accept", "content": {"more": 1}}}
    mended = await speaker.call(WRITE, ANA, key="fits", requestState=state, inputResponses=extra)
    assert mended.result["isError"] is False
    assert room.server.done == [("cancel_order", SAID)]


async def test_answers_brought_before_they_were_asked_for_are_held_to_the_questions(room: Room) -> None:
    speaker = room.speaker()
    known = await speaker.call(READ, ANA, inputResponses={**SAID, "unasked": {}})
    assert known.result["isError"] is False
    assert [each.get("inputResponses") for each in room.server.heard] == [None, SAID]

    unknown = await speaker.call(READ, ANA, inputResponses={"unasked": {}})
    assert unknown.result["resultType"] == "input_required"


async def test_a_prompt_is_asked_about_in_the_same_way(room: Room) -> None:
    speaker = room.speaker()
    first = await speaker.ask("prompts/get", {"name": "orders__summary"})
    assert first.result["resultType"] == "input_required"
    state = {"requestState": first.result["requestState"]}
    asked = {"name": "orders__summary", "inputResponses": SAID}
    second = await speaker.ask("prompts/get", {**asked, **state})
    assert second.result["messages"][0]["content"]["text"] == "summary done"
    assert room.server.heard[1]["requestState"] == f"{STATE}0"

    assert (await speaker.ask("prompts/get", {**asked, "requestState": "else"})).error["code"] == INVALID_PARAMS
    assert (await speaker.call(READ, ANA, inputResponses=SAID, **state)).error["code"] == INVALID_PARAMS
    assert (await room.speaker({}).ask("prompts/get", {"name": "orders__summary"})).error["code"] == CAPABILITY_MISSING


async def test_a_client_that_cannot_answer_is_told_what_is_missing(room: Room) -> None:
    answer = await room.speaker({}).call(READ, ANA)
    assert room.server.told_of == {}
    assert (answer.status, answer.error["code"]) == (400, CAPABILITY_MISSING)
    assert answer.error["data"]["requiredCapabilities"] == {"elicitation": {"form": {}}}

    older = await Speaker(room.scene.served, token=room.scene.admin, version=HANDSHAKES[0]).call(READ, ANA)
    assert older.result["isError"] is True
    assert older.structured["error"]["slug"] == "caller-cannot-answer"


async def test_what_was_asked_of_one_client_is_not_asked_of_another_that_cannot_answer(room: Room) -> None:
    await room.speaker().call(WRITE, ANA, key="moved")
    answer = await room.speaker({"sampling": {}}).call(WRITE, ANA, key="moved")
    assert answer.error["code"] == CAPABILITY_MISSING
    assert answer.error["data"]["requiredCapabilities"] == {"elicitation": {"form": {}}}


async def test_a_model_and_folders_are_asked_for_by_those_names(room: Room) -> None:
    messages = [{"role": "user", "content": {"type": "text", "text": "Which?"}}]
    room.server.questions = {
        "model": {"method": "sampling/createMessage", "params": {"messages": messages, "maxTokens": 9}},
        "folders": {"method": "roots/list"},
        "page": {
            "method": "elicitation/create",
            "params": {"mode": "url", "message": "Pay", "url": "https://pay.test/1"},
        },
    }
    speaker = room.speaker(EVERYTHING)
    first = await speaker.call(READ, ANA)
    asked = first.result["inputRequests"]
    assert asked["model"]["params"] == {"messages": messages, "maxTokens": 9}
    assert asked["page"]["params"]["message"] == "The server orders asks: Pay"
    said = {
        "model": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "This"}},
        "folders": {"roots": [{"uri": "file:///home/ana"}]},
        "page": {"action": "accept"},
    }
    state = first.result["requestState"]
    outside = {**said, "folders": {"roots": [{"uri": "https://else.test"}]}}
    refused = await speaker.call(READ, ANA, requestState=state, inputResponses=outside)
    assert refused.structured["error"]["slug"] == "answers-invalid"
    await speaker.call(READ, ANA, requestState=state, inputResponses=said)
    assert room.server.done == [("get_order", said)]


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"message": "Your na\u200bme?", "requestedSchema": NAME_FORM["params"]["requestedSchema"]}, "without width"),
        (
            {"message": "?", "requestedSchema": {"type": "object", "properties": {"password": {"type": "string"}}}},
            "secret",
        ),
        ({"message": "?", "requestedSchema": {"type": "object", "properties": {"deep": {"type": "object"}}}}, "field"),
        ({"mode": "url", "message": "?", "url": "http://pay.test/1"}, "https"),
        ({"mode": "url", "message": "?", "url": "https://ana@pay.test/1"}, "user"),
        ({"message": "x" * 5000, "requestedSchema": NAME_FORM["params"]["requestedSchema"]}, "4000"),
    ],
)
async def test_what_is_badly_asked_is_asked_of_nobody(room: Room, params: dict[str, Any], why: str) -> None:
    room.server.questions = {"who": {"method": "elicitation/create", "params": params}}
    answer = await room.speaker(EVERYTHING).call(READ, ANA)
    assert answer.structured["error"]["slug"] == "question-refused"
    assert why in answer.structured["error"]["message"]


async def test_through_rest_a_caller_says_what_it_can_answer_and_answers(room: Room) -> None:
    served, token = room.scene.served, room.scene.admin
    body: dict[str, Any] = {"tool": "orders.cancel_order", "arguments": ANA, "can_answer": ["elicitation.form"]}
    headers = {"authorization": f"Bearer {token}", "idempotency-key": "rest"}
    first = await served.http.post("/v1/calls", json=body, headers=headers)
    assert (first.status_code, first.json()["state"]) == (200, "needs_input")
    assert "result" not in first.json()
    asks = first.json()["asks"]
    assert asks["questions"]["who"]["params"]["message"].startswith("The server orders asks: ")
    shown = await served.get(f"/v1/calls/{first.json()['call_id']}", token=token)
    assert shown.json() == first.json()

    answers = {"round": asks["round"], "responses": SAID}
    second = await served.http.post("/v1/calls", json={**body, "answers": answers}, headers=headers)
    assert second.json()["state"] == "succeeded"
    assert second.json()["continues"] == first.json()["call_id"]

    silent = await served.http.post(
        "/v1/calls", json={**body, "can_answer": []}, headers={**headers, "idempotency-key": "x"}
    )
    assert silent.json()["error"]["slug"] == "caller-cannot-answer"


async def test_a_round_outlives_the_gateway_that_gave_it_out(fresh_database: str, tmp_path: Path) -> None:
    server = Curious()
    server.start()
    try:
        named = (described(server, slow=(), asks=ASKS),)
        async with scene(fresh_database, tmp_path, server, named) as found:
            first = await Room(found, server).speaker().call(WRITE, ANA, key="killed")
        async with scene(fresh_database, tmp_path, server, named) as found:
            again = {"requestState": first.result["requestState"], "inputResponses": SAID}
            second = await Room(found, server).speaker().call(WRITE, ANA, key="killed", **again)
        assert second.result["isError"] is False
        assert len(server.done) == 1
    finally:
        server.stop()


async def test_a_round_whose_answer_was_lost_goes_on_where_doing_it_again_does_it_once(
    fresh_database: str, tmp_path: Path
) -> None:
    server = Curious()
    server.start()
    try:
        named = (described(server, slow=(), asks=ASKS, repeatable=("cancel_order",), probe_seconds=3600),)
        async with scene(fresh_database, tmp_path, server, named) as found:
            speaker = Room(found, server).speaker()
            first = await speaker.call(WRITE, ANA, key="lost")
            again = {"requestState": first.result["requestState"], "inputResponses": SAID}
            server.losing = True
            lost = await speaker.call(WRITE, ANA, key="lost", **again)
            assert lost.structured["status"] == "unknown"
            server.losing = False
            found_again = await speaker.call(WRITE, ANA, key="lost", **again)
            assert found_again.result["isError"] is False
        keys = {each["_meta"]["dev.deputize/idempotency-key"] for each in server.heard[1:]}
        assert len(keys) == 1
        assert all(each["inputResponses"] == SAID for each in server.heard[1:])
    finally:
        server.stop()


async def test_a_server_that_may_not_ask_is_not_heard(fresh_database: str, tmp_path: Path) -> None:
    server = Curious()
    server.start()
    try:
        async with scene(fresh_database, tmp_path, server, (described(server, slow=(), asks=("roots",)),)) as found:
            room = Room(found, server)
            answer = await room.speaker(EVERYTHING).call(WRITE, ANA, key="silent")
            assert room.server.told_of == {"roots": {}}
            assert answer.structured["error"]["slug"] == "server-asks-back"
            assert answer.structured["error"]["details"]["needed"] == "elicitation"
    finally:
        server.stop()
