"""A server that asks before it answers: its questions reach a client that can answer, and each round is a call."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from deputize.core.mcp.constants import CAPABILITY_MISSING, HANDSHAKE_VERSIONS, INVALID_PARAMS
from deputize.lifecycle.elicitation import round_token
from tests.integration.conftest import SCOPES as SHOP
from tests.support.mcp_client import McpClient, McpResponse
from tests.support.mcp_servers.eliciting_server import ANSWERS, EVERYTHING, FORMS, NAME_FORM, STATE, ElicitingServer
from tests.support.upstream_gateway import SCOPES, UpstreamGateway, open_upstream_gateway, server_settings

pytestmark = pytest.mark.requirement("EXE-1")

ANA = {"name": "Ana"}
READ, WRITE = "orders__get_order", "orders__cancel_order"
ELICITATION_MODES = ("elicitation", "sampling", "roots")


class ElicitationGateway:
    def __init__(self, upstream_gateway: UpstreamGateway, server: ElicitingServer) -> None:
        self.upstream_gateway, self.server = upstream_gateway, server

    def make_client(self, capabilities: dict[str, Any] = FORMS, **more: Any) -> McpClient:
        return McpClient(
            self.upstream_gateway.gateway,
            token=more.pop("token", self.upstream_gateway.admin_token),
            capabilities=capabilities,
            **more,
        )

    async def fetch_entries(self, call_id: str) -> list[dict[str, Any]]:
        rows = await self.upstream_gateway._fetch_rows(
            f"select entry from deputize.audit_entries where call_id = '{call_id}' order by id"
        )
        return [orjson.loads(row["entry"]) for row in rows]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_elicitation(
    module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ElicitationGateway]:
    server = ElicitingServer()
    server.start()
    try:
        named = (server_settings(server, slow=(), input_requests=ELICITATION_MODES, prompts=("*",)),)
        async with open_upstream_gateway(module_database, tmp_path_factory.mktemp("gateway"), server, named) as found:
            yield ElicitationGateway(found, server)
    finally:
        server.stop()


@pytest.fixture
def elicitation(shared_elicitation: ElicitationGateway) -> ElicitationGateway:
    shared_elicitation.server.reset()
    return shared_elicitation


def read_call_id(answer: McpResponse) -> str:
    found: str = answer.result["_meta"]["dev.deputize/call"]["id"]
    return found


@pytest.mark.parametrize("tool", [READ, WRITE])
async def test_what_a_server_asks_reaches_the_client_and_its_answer_the_server(
    elicitation: ElicitationGateway, tool: str
) -> None:
    client = elicitation.make_client()
    first = await client.call_tool(tool, ANA, key=f"asked-{tool}")

    assert first.result["resultType"] == "input_required"
    asked = first.result["inputRequests"]["who"]
    assert asked["params"]["message"] == "The server orders asks: What is your name?"
    assert asked["params"]["requestedSchema"] == NAME_FORM["params"]["requestedSchema"]
    assert STATE not in str(first.last_message)
    assert elicitation.server.client_capabilities == {"elicitation": {"form": {}}}
    assert elicitation.server.tool_calls == []

    state = first.result["requestState"]
    second = await client.call_tool(tool, ANA, key=f"asked-{tool}", requestState=state, inputResponses=ANSWERS)
    assert second.result["content"][0]["text"].endswith("done")
    assert elicitation.server.call_params[1]["requestState"] == f"{STATE}0"
    assert elicitation.server.call_params[1]["inputResponses"] == ANSWERS
    assert elicitation.server.call_params[1]["arguments"] == ANA
    assert read_call_id(second) != read_call_id(first)


async def test_a_round_is_on_record_with_the_call_it_continues(elicitation: ElicitationGateway) -> None:
    client = elicitation.make_client()
    first = await client.call_tool(WRITE, ANA, key="recorded")
    again = {"requestState": first.result["requestState"], "inputResponses": ANSWERS}
    second = await client.call_tool(WRITE, ANA, key="recorded", **again)

    asked, answered = (
        await elicitation.fetch_entries(read_call_id(first)),
        await elicitation.fetch_entries(read_call_id(second)),
    )
    assert [(each["kind"], each.get("outcome")) for each in asked] == [("intent", None), ("outcome", "needs_input")]
    assert "result" in asked[1]
    assert "continues" not in asked[0]
    assert [(each["kind"], each.get("outcome")) for each in answered] == [("intent", None), ("outcome", "succeeded")]
    assert {each["continues"] for each in answered} == {read_call_id(first)}
    assert answered[0]["input_responses"] != answered[0]["arguments"]


async def test_a_repeated_round_is_answered_from_the_record_and_other_answers_are_refused(
    elicitation: ElicitationGateway,
) -> None:
    client = elicitation.make_client()
    first = await client.call_tool(WRITE, ANA, key="once")
    repeated = await client.call_tool(WRITE, ANA, key="once")
    assert repeated.result["requestState"] == first.result["requestState"]

    again = {"requestState": first.result["requestState"], "inputResponses": ANSWERS}
    once = await client.call_tool(WRITE, ANA, key="once", **again)
    twice = await client.call_tool(WRITE, ANA, key="another", **again)
    assert twice.result["content"] == once.result["content"]
    assert twice.result["_meta"]["dev.deputize/replayed"] is True

    other = {"who": {"action": "decline"}}
    refused = await client.call_tool(WRITE, ANA, key="once", requestState=again["requestState"], inputResponses=other)
    assert refused.error["code"] == INVALID_PARAMS
    assert "already answered" in refused.error["message"]
    assert len(elicitation.server.tool_calls) == 1


async def test_a_server_may_ask_again_and_again(elicitation: ElicitationGateway) -> None:
    elicitation.server.rounds = 3
    client, states = elicitation.make_client(), []
    answer = await client.call_tool(WRITE, ANA, key="rounds")
    while answer.result.get("resultType") == "input_required":
        states.append(answer.result["requestState"])
        again = {"requestState": states[-1], "inputResponses": ANSWERS}
        answer = await client.call_tool(WRITE, ANA, key="rounds", **again)
    assert len(set(states)) == 3
    assert [each.get("requestState") for each in elicitation.server.call_params] == [
        None,
        *(f"{STATE}{n}" for n in range(3)),
    ]
    assert len(elicitation.server.tool_calls) == 1


async def test_a_round_is_nobody_elses_and_nothing_elses(elicitation: ElicitationGateway) -> None:
    first = await elicitation.make_client().call_tool(WRITE, ANA, key="mine")
    state = first.result["requestState"]
    again: dict[str, Any] = {"requestState": state, "inputResponses": ANSWERS}
    gateway = elicitation.upstream_gateway.gateway
    attempts = [
        await elicitation.make_client(token=gateway.token("mallory", scopes=SCOPES)).call_tool(
            WRITE, ANA, key="a", **again
        ),
        await elicitation.make_client(token=gateway.token("root", scopes=SCOPES, agent="bot")).call_tool(
            WRITE, ANA, key="b", **again
        ),
        await elicitation.make_client(token=gateway.other_token(scopes=(*SHOP, *SCOPES))).call_tool(
            WRITE, ANA, key="c", **again
        ),
        await elicitation.make_client().call_tool(WRITE, {"name": "Eve"}, key="mine", **again),
        await elicitation.make_client().call_tool(READ, ANA, **again),
        await elicitation.make_client().call_tool(
            WRITE, ANA, key="mine", **{**again, "requestState": f"{state}-TAMPERED"}
        ),
        await elicitation.make_client().call_tool(
            WRITE, ANA, key="mine", **{**again, "requestState": _change_call_id(state)}
        ),
        await elicitation.make_client().call_tool(
            WRITE, ANA, key="mine", **{**again, "requestState": "round1.nonsense"}
        ),
    ]
    assert [each.error["code"] for each in attempts] == [INVALID_PARAMS] * len(attempts)
    assert elicitation.server.tool_calls == []
    assert len(elicitation.server.call_params) == 1


async def test_a_round_that_is_answered_too_late_is_refused(
    elicitation: ElicitationGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_token, "LIFETIME_SECONDS", -1)
    first = await elicitation.make_client().call_tool(WRITE, ANA, key="late")
    again: dict[str, Any] = {"requestState": first.result["requestState"], "inputResponses": ANSWERS}
    late = await elicitation.make_client().call_tool(WRITE, ANA, key="late", **again)
    assert late.error["code"] == INVALID_PARAMS
    assert "expired" in late.error["message"]
    assert elicitation.server.tool_calls == []


def _change_call_id(state: str) -> str:
    name, _, box = state.removeprefix("round1.").partition(".")
    return f"round1.{name[:-1]}{'0' if name[-1] != '0' else '1'}.{box}"


async def test_an_answer_that_does_not_fit_is_refused_and_may_be_mended(elicitation: ElicitationGateway) -> None:
    client = elicitation.make_client()
    first = await client.call_tool(WRITE, ANA, key="fits")
    state = first.result["requestState"]
    for wrong in ({"action": "accept", "content": {"name": 7}}, {"action": "accept"}, {"action": "maybe"}):
        refused = await client.call_tool(WRITE, ANA, key="fits", requestState=state, inputResponses={"who": wrong})
        assert refused.structured_content["error"]["slug"] == "input-responses-invalid"
    extra = {**ANSWERS, "unasked": {"action": "accept", "content": {"more": 1}}}
    mended = await client.call_tool(WRITE, ANA, key="fits", requestState=state, inputResponses=extra)
    assert mended.result["isError"] is False
    assert elicitation.server.tool_calls == [("cancel_order", ANSWERS)]


async def test_answers_brought_before_they_were_asked_for_are_held_to_the_questions(
    elicitation: ElicitationGateway,
) -> None:
    client = elicitation.make_client()
    known = await client.call_tool(READ, ANA, inputResponses={**ANSWERS, "unasked": {}})
    assert known.result["isError"] is False
    assert [each.get("inputResponses") for each in elicitation.server.call_params] == [None, ANSWERS]

    unknown = await client.call_tool(READ, ANA, inputResponses={"unasked": {}})
    assert unknown.result["resultType"] == "input_required"


async def test_a_prompt_is_asked_about_in_the_same_way(elicitation: ElicitationGateway) -> None:
    client = elicitation.make_client()
    first = await client.send_request("prompts/get", {"name": "orders__summary"})
    assert first.result["resultType"] == "input_required"
    state = {"requestState": first.result["requestState"]}
    asked = {"name": "orders__summary", "inputResponses": ANSWERS}
    second = await client.send_request("prompts/get", {**asked, **state})
    assert second.result["messages"][0]["content"]["text"] == "summary done"
    assert elicitation.server.call_params[1]["requestState"] == f"{STATE}0"

    assert (await client.send_request("prompts/get", {**asked, "requestState": "else"})).error["code"] == INVALID_PARAMS
    assert (await client.call_tool(READ, ANA, inputResponses=ANSWERS, **state)).error["code"] == INVALID_PARAMS
    assert (await elicitation.make_client({}).send_request("prompts/get", {"name": "orders__summary"})).error[
        "code"
    ] == CAPABILITY_MISSING


async def test_a_client_without_elicitation_learns_which_capability_is_missing(elicitation: ElicitationGateway) -> None:
    answer = await elicitation.make_client({}).call_tool(READ, ANA)
    assert elicitation.server.client_capabilities == {}
    assert (answer.status, answer.error["code"]) == (400, CAPABILITY_MISSING)
    assert answer.error["data"]["requiredCapabilities"] == {"elicitation": {"form": {}}}

    older = await McpClient(
        elicitation.upstream_gateway.gateway,
        token=elicitation.upstream_gateway.admin_token,
        version=HANDSHAKE_VERSIONS[0],
    ).call_tool(READ, ANA)
    assert older.result["isError"] is True
    assert older.structured_content["error"]["slug"] == "client-capability-missing"


async def test_what_was_asked_of_one_client_is_not_asked_of_another_that_cannot_answer(
    elicitation: ElicitationGateway,
) -> None:
    await elicitation.make_client().call_tool(WRITE, ANA, key="moved")
    answer = await elicitation.make_client({"sampling": {}}).call_tool(WRITE, ANA, key="moved")
    assert answer.error["code"] == CAPABILITY_MISSING
    assert answer.error["data"]["requiredCapabilities"] == {"elicitation": {"form": {}}}


async def test_a_model_and_folders_are_asked_for_by_those_names(elicitation: ElicitationGateway) -> None:
    messages = [{"role": "user", "content": {"type": "text", "text": "Which?"}}]
    elicitation.server.questions = {
        "model": {"method": "sampling/createMessage", "params": {"messages": messages, "maxTokens": 9}},
        "folders": {"method": "roots/list"},
        "page": {
            "method": "elicitation/create",
            "params": {"mode": "url", "message": "Pay", "url": "https://pay.test/1"},
        },
    }
    client = elicitation.make_client(EVERYTHING)
    first = await client.call_tool(READ, ANA)
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
    refused = await client.call_tool(READ, ANA, requestState=state, inputResponses=outside)
    assert refused.structured_content["error"]["slug"] == "input-responses-invalid"
    await client.call_tool(READ, ANA, requestState=state, inputResponses=said)
    assert elicitation.server.tool_calls == [("get_order", said)]


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"message": "Your na\u200bme?", "requestedSchema": NAME_FORM["params"]["requestedSchema"]}, "zero-width"),
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
async def test_what_is_badly_asked_is_asked_of_nobody(
    elicitation: ElicitationGateway, params: dict[str, Any], why: str
) -> None:
    elicitation.server.questions = {"who": {"method": "elicitation/create", "params": params}}
    answer = await elicitation.make_client(EVERYTHING).call_tool(READ, ANA)
    assert answer.structured_content["error"]["slug"] == "input-request-rejected"
    assert why in answer.structured_content["error"]["message"]


async def test_through_rest_a_caller_says_what_it_can_answer_and_answers(elicitation: ElicitationGateway) -> None:
    gateway, token = elicitation.upstream_gateway.gateway, elicitation.upstream_gateway.admin_token
    body: dict[str, Any] = {
        "tool": "orders.cancel_order",
        "arguments": ANA,
        "client_capabilities": ["elicitation.form"],
    }
    headers = {"authorization": f"Bearer {token}", "idempotency-key": "rest"}
    first = await gateway.http.post("/v1/calls", json=body, headers=headers)
    assert (first.status_code, first.json()["state"]) == (200, "needs_input")
    assert "result" not in first.json()
    asks = first.json()["input_required"]
    assert asks["requests"]["who"]["params"]["message"].startswith("The server orders asks: ")
    shown = await gateway.get(f"/v1/calls/{first.json()['call_id']}", token=token)
    assert shown.json() == first.json()

    answers = {"round_token": asks["round_token"], "responses": ANSWERS}
    second = await gateway.http.post("/v1/calls", json={**body, "input_responses": answers}, headers=headers)
    assert second.json()["state"] == "succeeded"
    assert second.json()["continues"] == first.json()["call_id"]

    silent = await gateway.http.post(
        "/v1/calls", json={**body, "client_capabilities": []}, headers={**headers, "idempotency-key": "x"}
    )
    assert silent.json()["error"]["slug"] == "client-capability-missing"


async def test_a_round_outlives_the_gateway_that_gave_it_out(fresh_database: str, tmp_path: Path) -> None:
    server = ElicitingServer()
    server.start()
    try:
        named = (server_settings(server, slow=(), input_requests=ELICITATION_MODES),)
        async with open_upstream_gateway(fresh_database, tmp_path, server, named) as found:
            first = await ElicitationGateway(found, server).make_client().call_tool(WRITE, ANA, key="killed")
        async with open_upstream_gateway(fresh_database, tmp_path, server, named) as found:
            again = {"requestState": first.result["requestState"], "inputResponses": ANSWERS}
            second = await ElicitationGateway(found, server).make_client().call_tool(WRITE, ANA, key="killed", **again)
        assert second.result["isError"] is False
        assert len(server.tool_calls) == 1
    finally:
        server.stop()


async def test_a_round_whose_answer_was_lost_goes_on_where_doing_it_again_does_it_once(
    fresh_database: str, tmp_path: Path
) -> None:
    server = ElicitingServer()
    server.start()
    try:
        named = (
            server_settings(
                server, slow=(), input_requests=ELICITATION_MODES, repeatable=("cancel_order",), probe_seconds=3600
            ),
        )
        async with open_upstream_gateway(fresh_database, tmp_path, server, named) as found:
            client = ElicitationGateway(found, server).make_client()
            first = await client.call_tool(WRITE, ANA, key="lost")
            again = {"requestState": first.result["requestState"], "inputResponses": ANSWERS}
            server.drops_connection = True
            lost = await client.call_tool(WRITE, ANA, key="lost", **again)
            assert lost.structured_content["status"] == "unknown"
            server.drops_connection = False
            found_again = await client.call_tool(WRITE, ANA, key="lost", **again)
            assert found_again.result["isError"] is False
        keys = {each["_meta"]["dev.deputize/idempotency-key"] for each in server.call_params[1:]}
        assert len(keys) == 1
        assert all(each["inputResponses"] == ANSWERS for each in server.call_params[1:])
    finally:
        server.stop()


async def test_a_server_that_may_not_ask_is_not_heard(fresh_database: str, tmp_path: Path) -> None:
    server = ElicitingServer()
    server.start()
    try:
        async with open_upstream_gateway(
            fresh_database, tmp_path, server, (server_settings(server, slow=(), input_requests=("roots",)),)
        ) as found:
            elicitation = ElicitationGateway(found, server)
            answer = await elicitation.make_client(EVERYTHING).call_tool(WRITE, ANA, key="silent")
            assert elicitation.server.client_capabilities == {"roots": {}}
            assert answer.structured_content["error"]["slug"] == "input-not-allowed"
            assert answer.structured_content["error"]["details"]["needed"] == "elicitation"
    finally:
        server.stop()
