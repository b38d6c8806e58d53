"""Calls over REST: envelopes, replays, conflicts, headers."""

import asyncio

import pytest

from tests.integration.conftest import HttpGateway
from tests.support import shop_tools


@pytest.mark.requirement("CON-5")
@pytest.mark.requirement("INV-10")
async def test_a_result_comes_with_pages_provenance_and_what_it_cost(gateway: HttpGateway) -> None:
    answer = await gateway.call("shop.list_users", {"limit": 3})
    envelope = answer.json()
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert envelope["result"] == [0, 1, 2]
    assert (envelope["summary"], envelope["search_text"]) == ("3 users", "users")
    assert envelope["pagination"] == {"cursor": "c2", "has_more": True, "total_count": 9}
    assert envelope["provenance"]["source"] == "crm"
    assert envelope["provenance"]["data_version"] == "v7"
    assert envelope["provenance"]["retrieved_at"] == envelope["created_at"]
    assert envelope["execution"]["cost"] == 0.25
    assert envelope["execution"]["duration_ms"] >= 0
    assert envelope["tool"]["digest"].startswith("sha256:")
    assert answer.headers["location"] == f"/v1/calls/{envelope['call_id']}"


async def test_both_spellings_of_a_name_reach_the_tool(gateway: HttpGateway) -> None:
    answers = [await gateway.call(name, {"id": 7}) for name in ("shop.get_user", "shop__get_user")]
    assert [answer.json()["tool"]["name"] for answer in answers] == ["shop.get_user"] * 2


async def test_a_version_can_be_asked_for(gateway: HttpGateway) -> None:
    assert (await gateway.call("shop.get_user", {"id": 7}, version="^1")).json()["tool"]["version"] == "1.2.0"
    refused = await gateway.call("shop.get_user", {"id": 7}, version="^2")
    assert (refused.status_code, refused.json()["error"]["slug"]) == (404, "version-not-found")


async def test_the_traceparent_is_propagated(gateway: HttpGateway) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    parent = {"traceparent": f"00-{trace}-00f067aa0ba902b7-00"}
    assert (await gateway.call("shop.get_user", {"id": 7}, headers=parent)).json()["trace_id"] == trace
    assert (await gateway.call("shop.nobody", headers=parent)).json()["trace_id"] == trace
    refused = await gateway.http.post("/v1/calls", json={}, headers=parent)
    assert refused.json()["error"]["trace_id"] == trace


@pytest.mark.requirement("INV-5")
async def test_the_same_key_gets_the_same_bytes_and_nothing_happens_again(gateway: HttpGateway) -> None:
    before = len(shop_tools.effects)
    asked = {"id": 1, "name": "Ana"}
    first = await gateway.call("shop.rename_user", asked, key="replay-1")
    again = await gateway.call("shop.rename_user", asked, key="replay-1")
    assert first.status_code == again.status_code == 200
    assert first.content == again.content
    assert len(shop_tools.effects) == before + 1
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]


@pytest.mark.requirement("INV-5")
async def test_a_failure_that_is_final_is_replayed_too(gateway: HttpGateway) -> None:
    first = await gateway.call("shop.delete_user", {"id": 0}, key="bad-1")
    assert first.status_code == 400
    # A refusal never consumes a key: mended, the same key goes through.
    assert (await gateway.call("shop.delete_user", {"id": 4}, key="bad-1")).status_code == 200


@pytest.mark.requirement("INV-5")
async def test_the_same_key_for_other_arguments_is_refused(gateway: HttpGateway) -> None:
    await gateway.call("shop.rename_user", {"id": 1, "name": "Ana"}, key="reuse-1")
    refused = await gateway.call("shop.rename_user", {"id": 1, "name": "Bea"}, key="reuse-1")
    assert (refused.status_code, refused.json()["error"]["slug"]) == (422, "key-reused")


@pytest.mark.requirement("INV-5")
async def test_a_key_belongs_to_its_caller_and_its_tool(gateway: HttpGateway) -> None:
    await gateway.call("shop.rename_user", {"id": 1, "name": "Ana"}, key="mine")
    others = await gateway.call("shop.rename_user", {"id": 2, "name": "Bo"}, key="mine", token=gateway.token("bob"))
    elsewhere = await gateway.call("shop.delete_user", {"id": 3}, key="mine")
    assert (others.status_code, elsewhere.status_code) == (200, 200)


@pytest.mark.requirement("INV-5")
async def test_a_call_still_running_answers_409_with_its_id_and_when_to_come_back(gateway: HttpGateway) -> None:
    running = asyncio.create_task(gateway.call("shop.slow_note", {"name": "flight"}, key="flight-1"))
    await shop_tools.start_events.setdefault("flight", asyncio.Event()).wait()
    refused = await gateway.call("shop.slow_note", {"name": "flight"}, key="flight-1")
    shop_tools.release_events["flight"].set()
    first = await running
    assert (refused.status_code, refused.json()["error"]["slug"]) == (409, "in-flight")
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["details"]["call_id"] == first.json()["call_id"]
    assert (await gateway.call("shop.slow_note", {"name": "flight"}, key="flight-1")).content == first.content


@pytest.mark.requirement("INV-5")
async def test_what_cannot_be_taken_back_needs_a_key(gateway: HttpGateway) -> None:
    refused = await gateway.call("shop.delete_user", {"id": 7})
    assert (refused.status_code, refused.json()["error"]["slug"]) == (400, "key-required")
    assert "Idempotency-Key" in refused.json()["error"]["advice"]


@pytest.mark.requirement("INV-2")
async def test_every_refusal_is_stored_as_an_envelope_that_can_be_fetched(gateway: HttpGateway) -> None:
    for asked, state in (
        (gateway.call("shop.nobody"), "blocked"),
        (gateway.call("shop.get_user", {"id": "x"}), "validation_failed"),
        (gateway.call("shop.delete_user", {"id": 1}, token=gateway.token(scopes=())), "denied"),
        (gateway.call("shop.fail", {"slug": "tool-failed"}), "failed"),
        (gateway.call("shop.get_user", {"id": 1}, deadline_ms=1), "succeeded|timed_out"),
    ):
        answer = await asked
        envelope = answer.json()
        assert envelope["state"] in state.split("|")
        assert envelope["call_id"]
        shown = await gateway.get(f"/v1/calls/{envelope['call_id']}")
        assert shown.status_code == 200
        assert shown.json()["state"] == envelope["state"]


@pytest.mark.requirement("GOV-1")
async def test_a_token_that_lists_tools_hides_the_others_to_the_byte(gateway: HttpGateway) -> None:
    narrow = gateway.token(tools={"shop.get_user": "^1"})
    assert (await gateway.call("shop.get_user", {"id": 1}, token=narrow)).status_code == 200
    hidden = (await gateway.call("shop.hidden_user", {"id": 1}, token=narrow)).json()
    unknown = (await gateway.call("shop.hiddem_user", {"id": 1}, token=narrow)).json()
    differ = ("call_id", "trace_id", "instance")
    shown = [
        {k: v for k, v in each.items() if k not in differ} | {"error": {**each["error"], "trace_id": ""}}
        for each in (hidden, unknown)
    ]
    assert str(shown[0]).replace("shop.hidden_user", "X") == str(shown[1]).replace("shop.hiddem_user", "X")


@pytest.mark.requirement("GOV-1")
async def test_a_missing_scope_is_named(gateway: HttpGateway) -> None:
    refused = await gateway.call("shop.delete_user", {"id": 1}, key="s", token=gateway.token(scopes=()))
    assert refused.status_code == 403
    assert refused.json()["error"]["details"]["missing_scopes"] == ["shop:delete"]


async def test_a_missing_argument_shows_a_call_that_would_work(gateway: HttpGateway) -> None:
    refused = (await gateway.call("shop.get_user")).json()["error"]
    assert refused["slug"] == "schema-violation"
    assert refused["details"]["example"] == {"id": 7}


async def test_a_mistyped_tool_is_asked_about(gateway: HttpGateway) -> None:
    assert "did you mean shop.get_user" in (await gateway.call("shop.get_usr")).json()["detail"]


async def test_a_caller_can_show_and_list_its_calls(gateway: HttpGateway) -> None:
    carla = gateway.token("carla")
    made = (await gateway.call("shop.rename_user", {"id": 5, "name": "C"}, key="c", token=carla)).json()
    shown = await gateway.get(f"/v1/calls/{made['call_id']}", token=carla)
    assert shown.json() == made
    page = (await gateway.get("/v1/calls", token=carla)).json()
    assert [call["call_id"] for call in page["calls"]] == [made["call_id"]]
    assert page["next_before"] is None
    assert (await gateway.get(f"/v1/calls/{made['call_id']}", token=gateway.token("dan"))).status_code == 404


@pytest.mark.requirement("GOV-2")
@pytest.mark.parametrize(("tool", "arguments"), [("rename_user", {"id": 1, "name": "Ana"}), ("get_user", {"id": 1})])
async def test_an_agent_sees_its_own_calls_and_not_those_of_its_user_or_other_agents(
    gateway: HttpGateway, tool: str, arguments: dict[str, object]
) -> None:
    user = gateway.token("lender")
    agent, other = (
        await gateway.exchange_token(user, agent="clerk"),
        await gateway.exchange_token(user, agent="courier"),
    )
    made = {}
    for token in (user, agent, other):
        made[token] = (await gateway.call(f"shop.{tool}", arguments, token=token)).json()["call_id"]
    for path in ("", "/decision", "/events"):
        for maker, call in made.items():
            for token in made:
                status = (await gateway.get(f"/v1/calls/{call}{path}", token=token)).status_code
                assert status == (200 if token in (user, maker) else 404)
    anothers = await gateway.post(f"/v1/calls/{made[user]}/cancel", token=agent)
    assert anothers.status_code == 404
    listed = (await gateway.get("/v1/calls", token=agent)).json()["calls"]
    assert {each["agent"] for each in listed} <= {"clerk"}
    assert len((await gateway.get("/v1/calls", token=user)).json()["calls"]) >= len(listed)


@pytest.mark.requirement("GOV-1")
@pytest.mark.parametrize(("tool", "arguments"), [("rename_user", {"id": 1, "name": "Ana"}), ("get_user", {"id": 1})])
async def test_an_agent_that_lends_on_under_anothers_name_is_not_taken_for_it(
    gateway: HttpGateway, tool: str, arguments: dict[str, object]
) -> None:
    user = gateway.token("patron")
    agent, mallory = (
        await gateway.exchange_token(user, agent="clerk"),
        await gateway.exchange_token(user, agent="mallory"),
    )
    posing = await gateway.exchange_token(mallory, agent="clerk")
    made = (await gateway.call(f"shop.{tool}", arguments, token=agent, key="clerks")).json()["call_id"]
    for path in ("", "/decision", "/events"):
        assert (await gateway.get(f"/v1/calls/{made}{path}", token=posing)).status_code == 404
    again = await gateway.call(f"shop.{tool}", arguments, token=posing, key="clerks")
    assert (again.status_code, "idempotency-replayed" in again.headers) == (200, False)
    listed = (await gateway.get("/v1/calls", token=posing)).json()["calls"]
    assert made not in {each["call_id"] for each in listed}
    assert {each["agent"] for each in listed} <= {"clerk"}


async def test_calls_are_listed_a_page_at_a_time_newest_first(gateway: HttpGateway) -> None:
    erin = gateway.token("erin")
    made = [
        (await gateway.call("shop.rename_user", {"id": n, "name": "E"}, key=f"e{n}", token=erin)).json()["call_id"]
        for n in (1, 2, 3)
    ]
    first = (await gateway.get("/v1/calls", token=erin, limit=2)).json()
    rest = (await gateway.get("/v1/calls", token=erin, limit=2, before=first["next_before"])).json()
    assert [call["call_id"] for call in first["calls"] + rest["calls"]] == made[::-1]
