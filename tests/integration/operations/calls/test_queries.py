"""What a caller sees of a run: the answer at once, how far it is, its tool's words as they come, and its end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from deputize.app import open_worker
from deputize.core.contract.tools import ToolContext
from deputize.core.errors import CallNotFound, ConcurrencyLimitReached, ToolFailed
from deputize.lifecycle.submit import compute_poll_ms
from deputize.operations.calls.queries import CallEvent
from deputize.store.pool import Connection, Store
from tests.support.gateway_lab import GatewayLab, open_lab, parse_body, wait_until
from tests.support.scripted_tools import Gate, list_effects, raise_error, set_behaviour

pytestmark = pytest.mark.requirement("INV-4")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, tmp_path_factory.mktemp("lab")) as opened, open_worker(opened.gateway):
        yield opened


async def _fetch_call(lab: GatewayLab, call_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = (await lab.gateway.calls.show_call(await lab.make_caller(), call_id)).envelope.fields
    return shown


async def _follow_events(lab: GatewayLab, call_id: str, after: str | None = None) -> list[CallEvent]:
    return [seen async for seen in await lab.gateway.calls.follow_call(await lab.make_caller(), call_id, after=after)]


async def test_a_run_is_answered_at_once_and_found_finished(lab: GatewayLab) -> None:
    outcome = await lab.call("note", "seen", key="seen", mode="async")
    told = parse_body(outcome)
    assert (outcome.http_status, told["state"], told["is_error"]) == (202, "queued", False)
    assert told["links"]["events"] == f"/v1/calls/{outcome.call_id}/events"
    assert told["poll_after_ms"] == outcome.retry_after_ms == 500
    assert told["warnings"] == []
    await lab.wait_for_state(outcome.call_id, "succeeded")
    shown = await _fetch_call(lab, outcome.call_id)
    assert (shown["state"], shown["result"]) == ("succeeded", {"value": "seen"})
    again = await lab.call("note", "seen", key="seen", mode="async")
    assert (again.call_id, again.http_status, again.is_replay) == (outcome.call_id, 200, True)
    assert len(list_effects("seen")) == 1


async def test_a_contract_of_class_async_answers_at_once_by_itself(lab: GatewayLab) -> None:
    outcome = await lab.call("crawl", "by-contract")
    assert outcome.http_status == 202
    waited = await lab.call("crawl", "by-contract-2", mode="sync")
    assert waited.http_status == 202
    assert "by its contract" in parse_body(waited)["warnings"][0]
    await lab.wait_for_state(outcome.call_id, "succeeded")
    assert (await _fetch_call(lab, outcome.call_id))["result"] == {"value": "by-contract"}


async def test_a_failure_is_found_as_its_envelope(lab: GatewayLab) -> None:
    set_behaviour("fails", raise_error(ToolFailed("no luck")))
    outcome = await lab.call("note", "fails", key="fails", mode="async")
    await lab.wait_for_state(outcome.call_id, "failed")
    shown = await _fetch_call(lab, outcome.call_id)
    assert (shown["is_error"], shown["error"]["slug"], shown["detail"]) == (True, "tool-failed", "no luck")


async def test_progress_is_shown_while_it_runs_and_the_last_word_always(lab: GatewayLab) -> None:
    gate = Gate()

    async def behave(context: ToolContext) -> Any:
        for step in range(200):
            context.progress(step, 200, f"step {step}")
        context.progress(50, 200, "a quarter")
        await gate(context)
        context.progress(200, 200, "all of it")
        return {"value": "done"}

    set_behaviour("progress", behave)
    outcome = await lab.call("note", "progress", key="progress", mode="async")
    await gate.began.wait()

    async def has_progress() -> bool:
        return (await _fetch_call(lab, outcome.call_id))["progress"] is not None

    await wait_until(has_progress)
    shown = await _fetch_call(lab, outcome.call_id)
    progress = shown["progress"]
    assert (shown["state"], progress["message"], progress["percent"]) == ("running", "a quarter", 25.0)
    assert (progress["current_step"], progress["total_steps"], progress["sequence"]) == (50, 200, 1)
    assert progress["elapsed_ms"] >= 0
    assert shown["poll_after_ms"] >= 500
    gate.open.set()
    await lab.wait_for_state(outcome.call_id, "succeeded")
    events = await _follow_events(lab, outcome.call_id)
    assert [each.event for each in events] == ["tool.invocation.progress", "tool.invocation.succeeded"]
    assert events[0].facts["message"] == "all of it"
    assert await lab.db.fetchval("select count(*) from deputize.progress where id = $1", outcome.call_id) == 1


async def test_a_tool_that_says_much_is_written_down_twice_a_second(lab: GatewayLab) -> None:
    seconds = 0.0

    async def behave(context: ToolContext) -> Any:
        nonlocal seconds
        loop = asyncio.get_running_loop()
        began = loop.time()
        # The machine may let it wait longer.
        while (seconds := loop.time() - began) < 1.6:
            context.progress(message="still here")
            await asyncio.sleep(0.001)
        return {"value": "done"}

    set_behaviour("chatty", behave)
    outcome = await lab.call("note", "chatty", key="chatty", mode="async")
    await lab.wait_for_state(outcome.call_id, "succeeded")
    last = await lab.db.fetchval("select max(seq) from deputize.progress where id = $1", outcome.call_id)
    # At the beginning and at the end, and no more than twice a second in between.
    assert 2 <= last <= 2 + 2 * seconds


async def test_parts_of_the_result_come_in_order_and_are_resumed_after_the_last_one_seen(lab: GatewayLab) -> None:
    gate = Gate()

    async def behave(context: ToolContext) -> Any:
        for number in range(5):
            context.partial({"value": number})
        await gate(context)
        context.partial({"value": 5})
        return {"value": "done"}

    set_behaviour("parts", behave)
    outcome = await lab.call("look", "parts", mode="async")
    await gate.began.wait()
    following = await lab.gateway.calls.follow_call(await lab.make_caller(), outcome.call_id)
    seen: list[CallEvent] = []
    async for each in following:
        seen.append(each)
        if each.facts.get("partial_result") == {"value": 3}:
            break
    assert [each.facts["partial_result"]["value"] for each in seen if "partial_result" in each.facts] == [0, 1, 2, 3]
    gate.open.set()
    rest = await _follow_events(lab, outcome.call_id, after=seen[-1].id)
    assert [each.event for each in rest] == [
        "tool.invocation.partial_result", "tool.invocation.partial_result", "tool.invocation.succeeded",
    ]  # fmt: skip
    assert [each.facts["partial_result"]["value"] for each in rest[:2]] == [4, 5]
    assert await _follow_events(lab, outcome.call_id, after=rest[-1].id) == []
    assert len(await _follow_events(lab, outcome.call_id, after="no such id")) == 7


async def test_progress_is_encrypted_and_visible_to_its_caller_only(lab: GatewayLab) -> None:
    async def behave(context: ToolContext) -> Any:
        context.progress(message="a canary sings")
        context.partial({"value": "a canary sings", "password": "opens everything"})
        return {"value": "done"}

    set_behaviour("sealed", behave)
    outcome = await lab.call("note", "sealed", key="sealed", mode="async")
    await lab.wait_for_state(outcome.call_id, "succeeded")
    rows = await lab.db.fetch("select report from deputize.progress where id = $1", outcome.call_id)
    assert len(rows) == 2
    assert not any(b"canary" in row["report"] for row in rows)
    parts = [each.facts for each in await _follow_events(lab, outcome.call_id) if each.event.endswith("partial_result")]
    # The schema leaves room for any field, so what a field is called decides.
    assert parts[0]["partial_result"] == {"value": "a canary sings", "password": "[redacted]"}
    assert parts[0]["redactions"] == ["/password"]
    with pytest.raises(CallNotFound):
        await lab.gateway.calls.follow_call(await lab.make_caller("eve"), outcome.call_id)


async def test_progress_of_a_synchronous_call_is_accepted_and_discarded(lab: GatewayLab) -> None:
    def behave(context: ToolContext) -> Any:
        context.progress(1, 2, "half")
        context.partial({"value": "half"})
        assert not context.is_cancel_requested
        return {"value": "done"}

    set_behaviour("in-request", behave)
    outcome = await lab.call("note", "in-request", key="in-request")
    assert parse_body(outcome)["result"] == {"value": "done"}
    assert await lab.db.fetchval("select count(*) from deputize.progress where id = $1", outcome.call_id) == 0


async def test_a_tool_in_a_thread_reports_progress(lab: GatewayLab) -> None:
    def behave(context: ToolContext) -> Any:
        context.progress(1, 4)
        return {"value": "done"}

    set_behaviour("from-thread", behave)
    outcome = await lab.call("thread_note", "from-thread", key="from-thread", mode="async")
    await lab.wait_for_state(outcome.call_id, "succeeded")
    assert (await _follow_events(lab, outcome.call_id))[0].facts["percent"] == 25.0


class _Reads:
    """How often the database was read, and how many reads there were at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.total = self.active = self.most_at_once = 0
        read_transaction = Store.read_transaction

        @asynccontextmanager
        async def count_read(store: Store, tenant: str, *, repeatable: bool = False) -> AsyncIterator[Connection]:
            async with read_transaction(store, tenant, repeatable=repeatable) as connection:
                self.total, self.active = self.total + 1, self.active + 1
                self.most_at_once = max(self.most_at_once, self.active)
                try:
                    yield connection
                finally:
                    self.active -= 1

        monkeypatch.setattr(Store, "read_transaction", count_read)


async def test_streams_of_one_user_are_few_and_read_together(lab: GatewayLab, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, calls, ana = Gate(), lab.gateway.calls, await lab.make_caller()
    set_behaviour("crowd", gate)
    outcome = await lab.call("note", "crowd", key="crowd", mode="async")
    await gate.began.wait()
    streams = [await calls.follow_call(ana, outcome.call_id) for _ in range(64)]
    with pytest.raises(ConcurrencyLimitReached, match="64 streams of events") as refusal:
        await calls.follow_call(ana, outcome.call_id)
    assert "GET /v1/calls/{call_id}" in refusal.value.advice
    admin_stream = await calls.follow_call(await lab.make_admin(), outcome.call_id)
    assert {(await anext(each)).event for each in streams} == {"tool.invocation.started"}
    rests = [asyncio.create_task(_collect(each)) for each in (*streams, admin_stream)]
    await asyncio.sleep(1.5)
    with monkeypatch.context() as patch:
        reads = _Reads(patch)
        await asyncio.sleep(2)
        # One for all of them in each round; other parts of the gateway read as well, now and then.
        assert 1 <= reads.total <= 16
        gate.open.set()
        assert {(await rest)[-1] for rest in rests} == {"tool.invocation.succeeded"}
        # Two of a tenant's streams load what changed at once, beside the watcher and other parts of the gateway.
        assert reads.most_at_once <= 5
    assert len(await _follow_events(lab, outcome.call_id)) == 1


async def _collect(stream: AsyncIterator[CallEvent]) -> list[str]:
    return [each.event async for each in stream]


def test_the_advised_pause_grows_with_the_age_of_a_call() -> None:
    assert [compute_poll_ms(age) for age in (0, 5, 60, 3600)] == [500, 500, 6000, 30_000]
