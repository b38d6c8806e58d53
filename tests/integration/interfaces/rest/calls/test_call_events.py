"""Following a call, and asking it to stop."""

import asyncio
from typing import Any

import orjson
import pytest

from tests.integration.conftest import HttpGateway
from tests.support import shop_tools


def _parse_events(text: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in lines:
            found.append((lines["event"], orjson.loads(lines["data"])))
    return found


async def _start_call(gateway: HttpGateway, name: str) -> tuple["asyncio.Task[Any]", str]:
    task = asyncio.create_task(gateway.call("shop.slow_note", {"name": name}, key=name))
    await shop_tools.start_events.setdefault(name, asyncio.Event()).wait()
    listed = (await gateway.get("/v1/calls", limit=1)).json()["calls"][0]
    return task, listed["call_id"]


@pytest.mark.requirement("INV-2")
async def test_a_call_is_followed_to_its_end(gateway: HttpGateway) -> None:
    task, call_id = await _start_call(gateway, "follow")
    headers = {"authorization": f"Bearer {gateway.token()}"}
    async with gateway.http.stream("GET", f"/v1/calls/{call_id}/events", headers=headers) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        pieces = []
        async for text in stream.aiter_text():
            pieces.append(text)
            shop_tools.release_events["follow"].set()
    await task
    events = _parse_events("".join(pieces))
    assert [name for name, _ in events] == ["tool.invocation.started", "tool.invocation.succeeded"]
    assert events[-1][1]["call_id"] == call_id


async def test_a_call_that_ended_is_one_event(gateway: HttpGateway) -> None:
    call_id = (await gateway.call("shop.get_user", {"id": 1})).json()["call_id"]
    events = _parse_events((await gateway.get(f"/v1/calls/{call_id}/events")).text)
    assert [name for name, _ in events] == ["tool.invocation.succeeded"]


async def test_an_unknown_call_is_a_problem_and_not_a_stream(gateway: HttpGateway) -> None:
    answer = await gateway.get("/v1/calls/01890000-0000-7000-8000-000000000000/events")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


async def test_asking_a_running_call_to_stop_is_recorded_and_said_honestly(gateway: HttpGateway) -> None:
    task, call_id = await _start_call(gateway, "cancel")
    asked = await gateway.post(f"/v1/calls/{call_id}/cancel")
    shop_tools.release_events["cancel"].set()
    await task
    assert (asked.status_code, asked.json()["cancel"]) == (202, "recorded")
    late = await gateway.post(f"/v1/calls/{call_id}/cancel")
    assert (late.status_code, late.json()["error"]["slug"]) == (409, "not-cancelable")
