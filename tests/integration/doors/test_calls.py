"""Calls over REST: envelopes, replays, conflicts, headers."""

import asyncio

import pytest

from tests.integration import shop
from tests.integration.conftest import Served


@pytest.mark.requirement("CON-5")
@pytest.mark.requirement("INV-10")
async def test_a_result_comes_with_pages_provenance_and_what_it_cost(served: Served) -> None:
    answer = await served.call("shop.list_users", {"limit": 3})
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


async def test_both_spellings_of_a_name_reach_the_tool(served: Served) -> None:
    answers = [await served.call(name, {"id": 7}) for name in ("shop.get_user", "shop__get_user")]
    assert [answer.json()["tool"]["name"] for answer in answers] == ["shop.get_user"] * 2


async def test_a_version_can_be_asked_for(served: Served) -> None:
    assert (await served.call("shop.get_user", {"id": 7}, version="^1")).json()["tool"]["version"] == "1.2.0"
    refused = await served.call("shop.get_user", {"id": 7}, version="^2")
    assert (refused.status_code, refused.json()["error"]["slug"]) == (404, "version-not-found")


async def test_a_trace_is_carried_through(served: Served) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    parent = {"traceparent": f"00-{trace}-00f067aa0ba902b7-00"}
    assert (await served.call("shop.get_user", {"id": 7}, headers=parent)).json()["trace_id"] == trace
    assert (await served.call("shop.nobody", headers=parent)).json()["trace_id"] == trace
    refused = await served.http.post("/v1/calls", json={}, headers=parent)
    assert refused.json()["error"]["trace_id"] == trace


@pytest.mark.requirement("INV-5")
async def test_the_same_key_gets_the_same_bytes_and_nothing_happens_again(served: Served) -> None:
    before = len(shop.made)
    asked = {"id": 1, "name": "Ana"}
    first = await served.call("shop.rename_user", asked, key="replay-1")
    again = await served.call("shop.rename_user", asked, key="replay-1")
    assert first.status_code == again.status_code == 200
    assert first.content == again.content
    assert len(shop.made) == before + 1
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]


@pytest.mark.requirement("INV-5")
async def test_a_failure_that_is_final_is_replayed_too(served: Served) -> None:
    first = await served.call("shop.delete_user", {"id": 0}, key="bad-1")
    assert first.status_code == 400
    # A refusal never consumes a key: mended, the same key goes through.
    assert (await served.call("shop.delete_user", {"id": 4}, key="bad-1")).status_code == 200


@pytest.mark.requirement("INV-5")
async def test_the_same_key_for_other_arguments_is_refused(served: Served) -> None:
    await served.call("shop.rename_user", {"id": 1, "name": "Ana"}, key="reuse-1")
    refused = await served.call("shop.rename_user", {"id": 1, "name": "Bea"}, key="reuse-1")
    assert (refused.status_code, refused.json()["error"]["slug"]) == (422, "key-reused")


@pytest.mark.requirement("INV-5")
async def test_a_key_belongs_to_its_caller_and_its_tool(served: Served) -> None:
    await served.call("shop.rename_user", {"id": 1, "name": "Ana"}, key="mine")
    others = await served.call("shop.rename_user", {"id": 2, "name": "Bo"}, key="mine", token=served.token("bob"))
    elsewhere = await served.call("shop.delete_user", {"id": 3}, key="mine")
    assert (others.status_code, elsewhere.status_code) == (200, 200)


@pytest.mark.requirement("INV-5")
async def test_a_call_still_running_answers_409_with_its_id_and_when_to_come_back(served: Served) -> None:
    running = asyncio.create_task(served.call("shop.slow_note", {"name": "flight"}, key="flight-1"))
    await shop.started.setdefault("flight", asyncio.Event()).wait()
    refused = await served.call("shop.slow_note", {"name": "flight"}, key="flight-1")
    shop.gates["flight"].set()
    first = await running
    assert (refused.status_code, refused.json()["error"]["slug"]) == (409, "in-flight")
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["details"]["call_id"] == first.json()["call_id"]
    assert (await served.call("shop.slow_note", {"name": "flight"}, key="flight-1")).content == first.content


@pytest.mark.requirement("INV-5")
async def test_what_cannot_be_taken_back_needs_a_key(served: Served) -> None:
    refused = await served.call("shop.delete_user", {"id": 7})
    assert (refused.status_code, refused.json()["error"]["slug"]) == (400, "key-required")
    assert "Idempotency-Key" in refused.json()["error"]["advice"]


@pytest.mark.requirement("INV-2")
async def test_every_refusal_ends_in_an_envelope_that_can_be_looked_at(served: Served) -> None:
    for asked, state in (
        (served.call("shop.nobody"), "blocked"),
        (served.call("shop.get_user", {"id": "x"}), "validation_failed"),
        (served.call("shop.delete_user", {"id": 1}, token=served.token(scopes=())), "denied"),
        (served.call("shop.fail", {"slug": "tool-failed"}), "failed"),
        (served.call("shop.get_user", {"id": 1}, deadline_ms=1), "succeeded|timed_out"),
    ):
        answer = await asked
        envelope = answer.json()
        assert envelope["state"] in state.split("|")
        assert envelope["call_id"]
        shown = await served.get(f"/v1/calls/{envelope['call_id']}")
        assert shown.status_code == 200
        assert shown.json()["state"] == envelope["state"]


@pytest.mark.requirement("GOV-1")
async def test_a_token_that_lists_tools_hides_the_others_to_the_byte(served: Served) -> None:
    narrow = served.token(tools={"shop.get_user": "^1"})
    assert (await served.call("shop.get_user", {"id": 1}, token=narrow)).status_code == 200
    hidden = (await served.call("shop.hidden", {"id": 1}, token=narrow)).json()
    unknown = (await served.call("shop.hiddem", {"id": 1}, token=narrow)).json()
    differ = ("call_id", "trace_id", "instance")
    shown = [
        {k: v for k, v in each.items() if k not in differ} | {"error": {**each["error"], "trace_id": ""}}
        for each in (hidden, unknown)
    ]
    assert str(shown[0]).replace("shop.hidden", "X") == str(shown[1]).replace("shop.hiddem", "X")


@pytest.mark.requirement("GOV-1")
async def test_a_missing_scope_is_named(served: Served) -> None:
    refused = await served.call("shop.delete_user", {"id": 1}, key="s", token=served.token(scopes=()))
    assert refused.status_code == 403
    assert refused.json()["error"]["details"]["missing_scopes"] == ["shop:delete"]


async def test_a_missing_argument_shows_a_call_that_would_work(served: Served) -> None:
    refused = (await served.call("shop.get_user")).json()["error"]
    assert refused["slug"] == "schema-violation"
    assert refused["details"]["example"] == {"id": 7}


async def test_a_mistyped_tool_is_asked_about(served: Served) -> None:
    assert "did you mean shop.get_user" in (await served.call("shop.get_usr")).json()["detail"]


async def test_a_call_can_be_looked_at_and_listed_by_who_made_it(served: Served) -> None:
    carla = served.token("carla")
    made = (await served.call("shop.rename_user", {"id": 5, "name": "C"}, key="c", token=carla)).json()
    shown = await served.get(f"/v1/calls/{made['call_id']}", token=carla)
    assert shown.json() == made
    page = (await served.get("/v1/calls", token=carla)).json()
    assert [call["call_id"] for call in page["calls"]] == [made["call_id"]]
    assert page["next_before"] is None
    assert (await served.get(f"/v1/calls/{made['call_id']}", token=served.token("dan"))).status_code == 404


@pytest.mark.requirement("GOV-2")
@pytest.mark.parametrize(("tool", "arguments"), [("rename_user", {"id": 1, "name": "Ana"}), ("get_user", {"id": 1})])
async def test_an_agent_sees_what_it_did_and_not_what_its_user_or_another_agent_was_told(
    served: Served, tool: str, arguments: dict[str, object]
) -> None:
    user = served.token("lender")
    agent, other = await served.lent(user, agent="clerk"), await served.lent(user, agent="courier")
    made = {}
    for token in (user, agent, other):
        made[token] = (await served.call(f"shop.{tool}", arguments, token=token)).json()["call_id"]
    for path in ("", "/decision", "/events"):
        for maker, call in made.items():
            for token in made:
                status = (await served.get(f"/v1/calls/{call}{path}", token=token)).status_code
                assert status == (200 if token in (user, maker) else 404)
    anothers = await served.post(f"/v1/calls/{made[user]}/cancel", token=agent)
    assert anothers.status_code == 404
    listed = (await served.get("/v1/calls", token=agent)).json()["calls"]
    assert {each["agent"] for each in listed} <= {"clerk"}
    assert len((await served.get("/v1/calls", token=user)).json()["calls"]) >= len(listed)


@pytest.mark.requirement("GOV-1")
@pytest.mark.parametrize(("tool", "arguments"), [("rename_user", {"id": 1, "name": "Ana"}), ("get_user", {"id": 1})])
async def test_an_agent_that_lends_on_under_anothers_name_is_not_taken_for_it(
    served: Served, tool: str, arguments: dict[str, object]
) -> None:
    user = served.token("patron")
    agent, mallory = await served.lent(user, agent="clerk"), await served.lent(user, agent="mallory")
    posing = await served.lent(mallory, agent="clerk")
    made = (await served.call(f"shop.{tool}", arguments, token=agent, key="clerks")).json()["call_id"]
    for path in ("", "/decision", "/events"):
        assert (await served.get(f"/v1/calls/{made}{path}", token=posing)).status_code == 404
    again = await served.call(f"shop.{tool}", arguments, token=posing, key="clerks")
    assert (again.status_code, "idempotency-replayed" in again.headers) == (200, False)
    listed = (await served.get("/v1/calls", token=posing)).json()["calls"]
    assert made not in {each["call_id"] for each in listed}
    assert {each["agent"] for each in listed} <= {"clerk"}


async def test_calls_are_listed_a_page_at_a_time_newest_first(served: Served) -> None:
    erin = served.token("erin")
    made = [
        (await served.call("shop.rename_user", {"id": n, "name": "E"}, key=f"e{n}", token=erin)).json()["call_id"]
        for n in (1, 2, 3)
    ]
    first = (await served.get("/v1/calls", token=erin, limit=2)).json()
    rest = (await served.get("/v1/calls", token=erin, limit=2, before=first["next_before"])).json()
    assert [call["call_id"] for call in first["calls"] + rest["calls"]] == made[::-1]
