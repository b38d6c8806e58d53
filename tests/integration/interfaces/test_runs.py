"""Calls that outlive their request, through every interface: taken on, looked for, followed, stopped, asked for
again.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from deputize import CallFailed, Client, SyncClient
from deputize.app import open_worker
from tests.integration.conftest import ADMIN, HttpGateway, serve_gateway
from tests.support import shop_tools

pytestmark = pytest.mark.requirement("INV-4")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpGateway]:
    async with serve_gateway(module_database, tmp_path_factory.mktemp("gateway")) as gateway:
        assert gateway.in_process is not None
        async with open_worker(gateway.in_process):
            yield gateway


async def _start_run(gateway: HttpGateway, name: str, tool: str = "shop.slow_note", **fields: Any) -> str:
    answer = await gateway.call(tool, {"name": name}, key=name, mode="async", **fields)
    assert answer.status_code == 202, answer.text
    async with asyncio.timeout(90):
        await shop_tools.start_events.setdefault(name, asyncio.Event()).wait()
    call_id: str = answer.json()["call_id"]
    return call_id


def _release_tool(name: str) -> None:
    shop_tools.release_events.setdefault(name, asyncio.Event()).set()


async def _wait_for_end(gateway: HttpGateway, call_id: str) -> dict[str, Any]:
    async with asyncio.timeout(90):
        while True:
            answer = await gateway.get(f"/v1/calls/{call_id}")
            if "retry-after" not in answer.headers:
                shown: dict[str, Any] = answer.json()
                return shown
            await asyncio.sleep(0.05)


def _parse_events(text: str) -> list[tuple[str, str]]:
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in lines:
            found.append((lines["id"], lines["event"]))
    return found


async def test_an_accepted_call_returns_its_location_and_retry_after(gateway: HttpGateway) -> None:
    answer = await gateway.call("shop.slow_note", {"name": "rest"}, key="rest", mode="async", priority=3)
    told = answer.json()
    assert (answer.status_code, told["state"]) == (202, "queued")
    assert answer.headers["location"] == told["links"]["self"] == f"/v1/calls/{told['call_id']}"
    assert answer.headers["retry-after"] == "1"
    await shop_tools.start_events.setdefault("rest", asyncio.Event()).wait()
    looked = await gateway.get(told["links"]["self"])
    assert (looked.json()["state"], looked.json()["queue"], looked.headers["retry-after"]) == ("running", None, "1")
    _release_tool("rest")
    assert (await _wait_for_end(gateway, told["call_id"]))["state"] == "succeeded"


async def test_a_stream_is_taken_up_again_after_the_last_event(gateway: HttpGateway) -> None:
    call_id = await _start_run(gateway, "stream")
    headers = {"authorization": f"Bearer {gateway.token()}"}
    async with gateway.http.stream("GET", f"/v1/calls/{call_id}/events", headers=headers) as stream:
        first = _parse_events(await anext(stream.aiter_text()))
    assert [name for _, name in first] == ["tool.invocation.started"]
    _release_tool("stream")
    again = await gateway.http.get(
        f"/v1/calls/{call_id}/events", headers={**headers, "last-event-id": first[0][0]}, timeout=60
    )
    assert [name for _, name in _parse_events(again.text)] == ["tool.invocation.succeeded"]
    whole = await gateway.get(f"/v1/calls/{call_id}/events")
    assert [name for _, name in _parse_events(whole.text)] == ["tool.invocation.succeeded"]


async def test_json_rpc_takes_on_shows_stops_and_tries_again(gateway: HttpGateway) -> None:
    params = {"tool": "shop.get_user", "arguments": {"id": 5}, "mode": "async", "idempotency_key": "rpc"}
    made = (await gateway.call_rpc("calls.create", params))["result"]
    assert (made["state"], made["poll_after_ms"]) == ("queued", 500)
    assert (await _wait_for_end(gateway, made["call_id"]))["result"] == {"id": 5, "plan": "pro"}
    call_id = await _start_run(gateway, "rpc-stop")
    asked = (await gateway.call_rpc("calls.cancel", {"call_id": call_id}))["result"]
    assert asked["cancel"] == "asked"
    ended = await _wait_for_end(gateway, call_id)
    assert (ended["state"], ended["error"]["details"]["cause"]) == ("unknown", "canceled")
    refused = (await gateway.call_rpc("calls.retry", {"call_id": call_id}))["error"]
    assert refused["data"]["error"]["slug"] == "not-retryable"


async def test_a_late_call_goes_on_over_http(gateway: HttpGateway) -> None:
    fields: dict[str, Any] = {"deadline_ms": 4000, "continue": True}
    late = await gateway.call("shop.slow_read", {"name": "late"}, **fields)
    assert late.status_code == 202
    _release_tool("late")
    assert (await _wait_for_end(gateway, late.json()["call_id"]))["result"] == "late"


async def test_a_canceled_call_is_made_again_over_http(gateway: HttpGateway) -> None:
    read = await gateway.call("shop.slow_read", {"name": "again"}, mode="async")
    await shop_tools.start_events.setdefault("again", asyncio.Event()).wait()
    assert (await gateway.post(f"/v1/calls/{read.json()['call_id']}/cancel")).status_code == 202
    assert (await _wait_for_end(gateway, read.json()["call_id"]))["state"] == "canceled"
    _release_tool("again")
    # Nor does another agent of the same person learn by it what this one asked.
    for anothers in (gateway.token("bob"), await gateway.exchange_token(agent="another")):
        assert (await gateway.post(f"/v1/calls/{read.json()['call_id']}/retry", token=anothers)).status_code == 404
    made = await gateway.post(f"/v1/calls/{read.json()['call_id']}/retry")
    assert (made.status_code, made.json()["state"]) == (202, "queued")
    assert (await _wait_for_end(gateway, made.json()["call_id"]))["result"] == "again"


async def test_a_call_of_an_agent_is_made_again_once_whoever_asks(gateway: HttpGateway) -> None:
    agent = await gateway.exchange_token(agent="retrier")
    asked = await gateway.call("shop.slow_read", {"name": "whoever"}, mode="async", token=agent)
    path = f"/v1/calls/{asked.json()['call_id']}"
    await shop_tools.start_events.setdefault("whoever", asyncio.Event()).wait()
    assert (await gateway.post(f"{path}/cancel", token=agent)).status_code == 202
    assert (await _wait_for_end(gateway, asked.json()["call_id"]))["state"] == "canceled"
    _release_tool("whoever")
    # The person whose agent it is sees that it failed, and so does the agent.
    by_agent, by_person = [await gateway.post(f"{path}/retry", token=each) for each in (agent, gateway.token())]
    # It may have ended when the second asks.
    assert by_agent.status_code == 202
    assert by_person.status_code in (200, 202), by_person.text
    assert by_agent.json()["call_id"] == by_person.json()["call_id"]


@pytest.mark.requirement("RES-7")
async def test_a_run_is_sent_back_to_a_named_checkpoint_over_http(gateway: HttpGateway) -> None:
    call_id = await _start_run(gateway, "back", "shop.count_stock")
    path = f"/v1/calls/{call_id}/rollback"
    wrong = await gateway.post(path, {"checkpoint": "third"})
    assert (wrong.status_code, wrong.json()["error"]["slug"]) == (404, "checkpoint-not-found")
    assert wrong.json()["error"]["details"]["names"] == ["half"]
    # An id may be written in any case.
    sent = await gateway.post(f"/v1/calls/{call_id.upper()}/rollback", {"checkpoint": "half"})
    assert (sent.status_code, sent.json()) == (202, {"call_id": call_id, "state": "queued", "checkpoint": "half"})
    assert (await _wait_for_end(gateway, call_id))["result"] == {"counted": 1}
    late = await gateway.post(path, {"checkpoint": "half"})
    assert (late.status_code, late.json()["error"]["slug"]) == (409, "not-retryable")
    _release_tool("back")


@pytest.mark.requirement("RES-7")
async def test_only_who_made_a_run_and_administrators_send_it_back(gateway: HttpGateway) -> None:
    token = await gateway.exchange_token(agent="counter")
    call_id = await _start_run(gateway, "whose", "shop.count_stock", token=token)
    path, half = f"/v1/calls/{call_id}/rollback", {"checkpoint": "half"}
    strangers = (
        gateway.token("bob"), gateway.other_token("ana"), gateway.other_token("otto", scopes=[ADMIN]),
        await gateway.exchange_token(agent="another"), await gateway.exchange_token(token, agent="counter"),
        await gateway.exchange_token(agent="counter", ceiling="read"),
    )  # fmt: skip
    for stranger in strangers:
        refused = await gateway.post(path, half, token=stranger)
        assert (refused.status_code, refused.json()["error"]["slug"]) == (404, "call-not-found")
    root = gateway.token("root", scopes=[ADMIN])
    looking = await gateway.exchange_token(root, agent="auditor", scope=ADMIN, ceiling="read")
    refused = await gateway.post(path, half, token=looking)
    assert (refused.status_code, refused.json()["error"]["slug"]) == (403, "not-in-capability")
    wrong: list[Any] = [{}, [], {"checkpoint": ""}, {"checkpoint": 5}, {"checkpoint": "x" * 101}, {**half, "more": 1}]
    for body in wrong:
        assert (await gateway.post(path, body, token=token)).status_code == 400
    assert (await gateway.post(path, half, token=root)).status_code == 202
    assert (await _wait_for_end(gateway, call_id))["state"] == "succeeded"
    _release_tool("whose")


async def test_who_was_lent_to_administer_and_to_change_nothing_stops_nobodys_call(gateway: HttpGateway) -> None:
    call_id = await _start_run(gateway, "kept")
    root = gateway.token("root", scopes=[ADMIN])
    looking = await gateway.exchange_token(root, agent="auditor", scope=ADMIN, ceiling="read")
    assert (await gateway.get(f"/v1/calls/{call_id}", token=looking)).status_code == 200
    refused = await gateway.post(f"/v1/calls/{call_id}/cancel", token=looking)
    assert (refused.status_code, refused.json()["error"]["slug"]) == (403, "not-in-capability")
    assert (await gateway.get(f"/v1/calls/{call_id}")).json()["cancel_requested_at"] is None
    _release_tool("kept")
    assert (await _wait_for_end(gateway, call_id))["state"] == "succeeded"


async def test_an_id_may_be_written_in_any_case(gateway: HttpGateway) -> None:
    call_id = await _start_run(gateway, "shouted")
    loud = f"/v1/calls/{call_id.upper()}"
    assert (await gateway.get(loud)).json()["state"] == "running"
    _release_tool("shouted")
    assert (await _wait_for_end(gateway, call_id))["state"] == "succeeded"
    assert (await gateway.get(loud)).json()["result"] == "shouted"
    assert [name for _, name in _parse_events((await gateway.get(f"{loud}/events")).text)] == [
        "tool.invocation.succeeded"
    ]
    refused = await gateway.post(f"{loud}/retry")
    assert (refused.status_code, refused.json()["error"]["slug"]) == (409, "not-retryable")


async def test_the_python_client_waits_for_the_given_time(gateway: HttpGateway) -> None:
    async with Client(gateway.url, gateway.token()) as d:
        reply = await d.call("shop.slow_read", name="python", mode="async", priority=2)
        assert (reply.pending, reply.ok, reply.state) == (True, True, "queued")
        assert (await d.wait(reply.call_id, seconds=0.2)).pending
        _release_tool("python")
        ended = await d.wait(reply.call_id)
        assert (ended.pending, ended.result, ended.state) == (False, "python", "succeeded")
        failed = await d.call("shop.fail", slug="tool-failed", mode="async")
        with pytest.raises(CallFailed) as told:
            await d.wait(failed.call_id)
        assert (told.value.failure.slug, told.value.failure.status) == ("tool-failed", 502)
        assert (await d.wait(failed.call_id, check=False)).state == "failed"
        with pytest.raises(CallFailed, match="not-retryable"):
            await d.retry(reply.call_id)


async def test_the_client_without_asyncio_does_the_same(gateway: HttpGateway) -> None:
    def run_sync_client() -> Any:
        with SyncClient(gateway.url, gateway.token()) as d:
            return d.wait(d.call("shop.get_user", id=3, mode="async").call_id).result

    assert await asyncio.to_thread(run_sync_client) == {"id": 3, "plan": "pro"}


async def test_callbacks_have_a_form_and_their_routes_are_for_administrators(gateway: HttpGateway) -> None:
    for wrong in (1, {}, {"url": 5}, {"url": "https://a.example/", "more": 1}, {"url": "x y"}):
        answer = await gateway.call("shop.get_user", {"id": 1}, mode="async", callback=wrong)
        assert (answer.status_code, answer.json()["error"]["slug"]) == (400, "malformed")
    refused = await gateway.call("shop.get_user", {"id": 1}, mode="async", callback={"url": "http://a.example/"})
    assert (refused.status_code, refused.json()["error"]["slug"]) == (403, "callback-refused")
    root = gateway.token("root", scopes=(ADMIN,))
    assert (await gateway.get("/v1/webhooks/key?host=a.example", token=root)).json()["secret"].startswith("whsec_")
    assert (await gateway.get("/v1/webhooks/key")).status_code == 403
    assert (await gateway.get("/v1/webhooks/deadletters", token=root)).json() == {"deadletters": []}


async def test_without_a_worker_the_response_warns_and_shows_the_queue_position(
    fresh_database: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with serve_gateway(fresh_database, tmp_path_factory.mktemp("idle")) as idle:
        first = await idle.call("shop.get_user", {"id": 1}, mode="async", priority=5)
        assert "no worker is running" in first.json()["warnings"][0]
        later = await idle.call("shop.get_user", {"id": 2}, mode="async", priority=5)
        urgent = await idle.call("shop.get_user", {"id": 3}, mode="async", priority=1)
        ahead = [
            (await idle.get(f"/v1/calls/{each.json()['call_id']}")).json()["queue"]["ahead"]
            for each in (first, later, urgent)
        ]
        assert ahead == [1, 2, 0]
        canceled = await idle.post(f"/v1/calls/{later.json()['call_id']}/cancel")
        assert canceled.json()["cancel"] == "canceled"
        shown = (await idle.get(f"/v1/calls/{later.json()['call_id']}")).content
        assert orjson.loads(shown)["error"]["slug"] == "canceled"
