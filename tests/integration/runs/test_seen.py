"""What a caller sees of a run: the answer at once, how far it is, its tool's words as they come, and its end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from deputize.app import open_worker
from deputize.core.definition import ToolContext
from deputize.core.errors import CallNotFound, ToolFailed
from deputize.lifecycle.calls import Seen
from deputize.lifecycle.submit import poll_after_ms
from tests.integration.lifecycle.lab import Lab, body, open_lab, until
from tests.integration.lifecycle.tools import Gate, effects_of, on, raising

pytestmark = pytest.mark.requirement("INV-4")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    async with open_lab(module_database, tmp_path_factory.mktemp("lab")) as opened, open_worker(opened.gateway):
        yield opened


async def _shown(lab: Lab, call_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = orjson.loads((await lab.gateway.calls.show(await lab.caller(), call_id)).body)
    return shown


async def _heard(lab: Lab, call_id: str, after: str | None = None) -> list[Seen]:
    return [seen async for seen in await lab.gateway.calls.follow(await lab.caller(), call_id, after=after)]


async def test_a_run_is_answered_at_once_and_found_finished(lab: Lab) -> None:
    outcome = await lab.call("note", "seen", key="seen", mode="async")
    told = body(outcome)
    assert (outcome.http_status, told["state"], told["is_error"]) == (202, "queued", False)
    assert told["links"]["events"] == f"/v1/calls/{outcome.call_id}/events"
    assert told["poll_after_ms"] == outcome.retry_after_ms == 500
    assert told["warnings"] == []
    await lab.until_state(outcome.call_id, "succeeded")
    shown = await _shown(lab, outcome.call_id)
    assert (shown["state"], shown["result"]) == ("succeeded", {"value": "seen"})
    again = await lab.call("note", "seen", key="seen", mode="async")
    assert (again.call_id, again.http_status, again.replayed) == (outcome.call_id, 200, True)
    assert len(effects_of("seen")) == 1


async def test_a_contract_of_class_async_answers_at_once_by_itself(lab: Lab) -> None:
    outcome = await lab.call("crawl", "by-contract")
    assert outcome.http_status == 202
    waited = await lab.call("crawl", "by-contract-2", mode="sync")
    assert waited.http_status == 202
    assert "by its contract" in body(waited)["warnings"][0]
    await lab.until_state(outcome.call_id, "succeeded")
    assert (await _shown(lab, outcome.call_id))["result"] == {"value": "by-contract"}


async def test_a_failure_is_found_as_its_envelope(lab: Lab) -> None:
    on("fails", raising(ToolFailed("no luck")))
    outcome = await lab.call("note", "fails", key="fails", mode="async")
    await lab.until_state(outcome.call_id, "failed")
    shown = await _shown(lab, outcome.call_id)
    assert (shown["is_error"], shown["error"]["slug"], shown["detail"]) == (True, "tool-failed", "no luck")


async def test_progress_is_shown_while_it_runs_and_the_last_word_always(lab: Lab) -> None:
    gate = Gate()

    async def behave(context: ToolContext) -> Any:
        for step in range(200):
            context.progress(step, 200, f"step {step}")
        context.progress(50, 200, "a quarter")
        await gate(context)
        context.progress(200, 200, "all of it")
        return {"value": "done"}

    on("progress", behave)
    outcome = await lab.call("note", "progress", key="progress", mode="async")
    await gate.began.wait()

    async def told() -> bool:
        return (await _shown(lab, outcome.call_id))["progress"] is not None

    await until(told)
    shown = await _shown(lab, outcome.call_id)
    progress = shown["progress"]
    assert (shown["state"], progress["message"], progress["percent"]) == ("running", "a quarter", 25.0)
    assert (progress["current_step"], progress["total_steps"], progress["sequence"]) == (50, 200, 1)
    assert progress["elapsed_ms"] >= 0
    assert shown["poll_after_ms"] >= 500
    gate.open.set()
    await lab.until_state(outcome.call_id, "succeeded")
    events = await _heard(lab, outcome.call_id)
    assert [each.event for each in events] == ["tool.invocation.progress", "tool.invocation.succeeded"]
    assert events[0].facts["message"] == "all of it"
    assert await lab.db.fetchval("select count(*) from deputize.progress where id = $1", outcome.call_id) == 1


async def test_a_tool_that_says_much_is_written_down_twice_a_second(lab: Lab) -> None:
    seconds = 1.6

    async def behave(context: ToolContext) -> Any:
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        while loop.time() < ends:
            context.progress(message="still here")
            await asyncio.sleep(0.001)
        return {"value": "done"}

    on("chatty", behave)
    outcome = await lab.call("note", "chatty", key="chatty", mode="async")
    await lab.until_state(outcome.call_id, "succeeded")
    last = await lab.db.fetchval("select max(seq) from deputize.progress where id = $1", outcome.call_id)
    # At the beginning and at the end, and no more than twice a second in between.
    assert 2 <= last <= 2 + 2 * seconds


async def test_parts_of_the_result_come_in_order_and_are_resumed_after_the_last_one_seen(lab: Lab) -> None:
    gate = Gate()

    async def behave(context: ToolContext) -> Any:
        for number in range(5):
            context.partial({"value": number})
        await gate(context)
        context.partial({"value": 5})
        return {"value": "done"}

    on("parts", behave)
    outcome = await lab.call("look", "parts", mode="async")
    await gate.began.wait()
    following = await lab.gateway.calls.follow(await lab.caller(), outcome.call_id)
    seen: list[Seen] = []
    async for each in following:
        seen.append(each)
        if each.facts.get("partial_result") == {"value": 3}:
            break
    assert [each.facts["partial_result"]["value"] for each in seen if "partial_result" in each.facts] == [0, 1, 2, 3]
    gate.open.set()
    rest = await _heard(lab, outcome.call_id, after=seen[-1].id)
    assert [each.event for each in rest] == [
        "tool.invocation.partial_result", "tool.invocation.partial_result", "tool.invocation.succeeded",
    ]  # fmt: skip
    assert [each.facts["partial_result"]["value"] for each in rest[:2]] == [4, 5]
    assert await _heard(lab, outcome.call_id, after=rest[-1].id) == []
    assert len(await _heard(lab, outcome.call_id, after="no such id")) == 7


async def test_what_is_told_is_sealed_and_belongs_to_who_made_the_call(lab: Lab) -> None:
    async def behave(context: ToolContext) -> Any:
        context.progress(message="a canary sings")
        context.partial({"value": "a canary sings", "password": "opens everything"})
        return {"value": "done"}

    on("sealed", behave)
    outcome = await lab.call("note", "sealed", key="sealed", mode="async")
    await lab.until_state(outcome.call_id, "succeeded")
    rows = await lab.db.fetch("select told from deputize.progress where id = $1", outcome.call_id)
    assert len(rows) == 2
    assert not any(b"canary" in row["told"] for row in rows)
    parts = [each.facts for each in await _heard(lab, outcome.call_id) if each.event.endswith("partial_result")]
    # The schema leaves room for any field, so what a field is called decides.
    assert parts[0]["partial_result"] == {"value": "a canary sings", "password": "[redacted]"}
    assert parts[0]["redactions"] == ["/password"]
    with pytest.raises(CallNotFound):
        await lab.gateway.calls.follow(await lab.caller("eve"), outcome.call_id)


async def test_in_a_request_telling_is_valid_and_heard_by_nobody(lab: Lab) -> None:
    def behave(context: ToolContext) -> Any:
        context.progress(1, 2, "half")
        context.partial({"value": "half"})
        assert not context.cancel_asked
        return {"value": "done"}

    on("in-request", behave)
    outcome = await lab.call("note", "in-request", key="in-request")
    assert body(outcome)["result"] == {"value": "done"}
    assert await lab.db.fetchval("select count(*) from deputize.progress where id = $1", outcome.call_id) == 0


async def test_a_thread_tells_how_far_it_is(lab: Lab) -> None:
    def behave(context: ToolContext) -> Any:
        context.progress(1, 4)
        return {"value": "done"}

    on("from-thread", behave)
    outcome = await lab.call("thread_note", "from-thread", key="from-thread", mode="async")
    await lab.until_state(outcome.call_id, "succeeded")
    assert (await _heard(lab, outcome.call_id))[0].facts["percent"] == 25.0


def test_the_advised_pause_grows_with_the_age_of_a_call() -> None:
    assert [poll_after_ms(age) for age in (0, 5, 60, 3600)] == [500, 500, 6000, 30_000]
