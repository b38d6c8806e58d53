"""Asking a run to stop: it does, within a second, or its outcome says that it did not; and what is known is said."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from deputize import Canceled, ToolContext
from deputize.app import open_worker
from deputize.core.contract.contract import Effects
from deputize.core.errors import CallNotFound, NotCancelable, VersionNotInCapability
from deputize.runs.engine import _compute_fair_share
from tests.support.gateway_lab import GatewayLab, open_lab, parse_body, wait_until
from tests.support.scripted_tools import AMPLE_SECONDS, Gate, list_effects, set_behaviour

pytestmark = [pytest.mark.requirement("INV-4"), pytest.mark.requirement("NEW-3")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, tmp_path_factory.mktemp("lab")) as opened, open_worker(opened.gateway):
        yield opened


async def _start_run(lab: GatewayLab, tool: str, tag: str, began: asyncio.Event) -> str:
    outcome = await lab.call(tool, tag, key=tag, mode="async")
    async with asyncio.timeout(90):
        await began.wait()
    return outcome.call_id


async def _cancel_call(lab: GatewayLab, call_id: str) -> dict[str, Any]:
    return await lab.gateway.cancellations.cancel_call(await lab.make_caller(), call_id)


async def _wait_for_end(lab: GatewayLab, call_id: str) -> dict[str, Any]:
    async def has_ended() -> bool:
        return await lab.fetch_state(call_id) not in ("queued", "running")

    await wait_until(has_ended)
    shown: dict[str, Any] = (await lab.gateway.calls.show_call(await lab.make_caller(), call_id)).envelope.fields
    return shown


async def test_a_queued_run_ends_at_once_and_its_key_remembers(module_database: str, lab: GatewayLab) -> None:
    async with open_lab(module_database, lab.folder) as idle:
        by = await idle.make_caller()
        # Held in the queue: the only worker runs as many as it may for one tenant.
        gates = [Gate() for _ in range(_compute_fair_share(idle.runtime.settings.runs.at_once, 1))]
        for number, gate in enumerate(gates):
            set_behaviour(f"fills-{number}", gate)
            await idle.call("look", f"fills-{number}", mode="async")
        await asyncio.gather(*(gate.began.wait() for gate in gates))
        outcome = await idle.call("note", "queued", key="queued", mode="async")
        answer = await idle.gateway.cancellations.cancel_call(by, outcome.call_id)
        assert (answer["state"], answer["cancel"]) == ("canceled", "canceled")
        for gate in gates:
            gate.open.set()
    shown = await _wait_for_end(lab, outcome.call_id)
    assert (shown["state"], shown["error"]["slug"]) == ("canceled", "canceled")
    assert sorted(await lab.fetch_entry_kinds(outcome.call_id)) == ["command", "intent", "outcome"]
    again = await lab.call("note", "queued", key="queued", mode="async")
    assert (again.call_id, again.http_status, again.is_replay) == (outcome.call_id, 409, True)
    with pytest.raises(NotCancelable):
        await _cancel_call(lab, outcome.call_id)
    await asyncio.sleep(0.5)
    assert not list_effects("queued")


async def test_a_running_read_is_stopped_before_its_timeout(lab: GatewayLab) -> None:
    gate = Gate()
    set_behaviour("read", gate)
    call_id = await _start_run(lab, "look", "read", gate.began)
    asked = time.monotonic()
    answer = await _cancel_call(lab, call_id)
    assert answer["cancel"] == "asked"
    shown = await _wait_for_end(lab, call_id)
    assert time.monotonic() - asked < AMPLE_SECONDS / 2
    assert (shown["state"], shown["error"]["slug"]) == ("canceled", "canceled")
    assert (await lab.fetch_entries(call_id))[-1]["outcome"] == "canceled"


async def test_a_write_that_was_stopped_and_said_nothing_may_have_acted(lab: GatewayLab) -> None:
    gate = Gate()
    set_behaviour("silent", gate)
    call_id = await _start_run(lab, "note", "silent", gate.began)
    await _cancel_call(lab, call_id)
    shown = await _wait_for_end(lab, call_id)
    assert (shown["state"], shown["error"]["slug"]) == ("unknown", "outcome-unknown")
    assert shown["error"]["details"]["cause"] == "canceled"
    assert "by hand" in shown["error"]["details"]["next"]


async def test_a_write_that_says_it_stopped_is_canceled_and_keeps_its_key(lab: GatewayLab) -> None:
    began = asyncio.Event()

    async def behave(_: ToolContext) -> Any:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Canceled("stopped before the letter was sent") from None

    set_behaviour("confirms", behave)
    call_id = await _start_run(lab, "note", "confirms", began)
    await _cancel_call(lab, call_id)
    shown = await _wait_for_end(lab, call_id)
    assert (shown["state"], shown["detail"]) == ("canceled", "stopped before the letter was sent")
    again = await lab.call("note", "confirms", key="confirms", mode="async")
    assert (again.call_id, again.is_replay) == (call_id, True)
    assert len(list_effects("confirms")) == 1


async def test_a_tool_that_comes_to_its_end_all_the_same_has_succeeded(lab: GatewayLab) -> None:
    began = asyncio.Event()

    async def behave(_: ToolContext) -> Any:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return {"value": "it was as good as done"}

    set_behaviour("finishes", behave)
    call_id = await _start_run(lab, "note", "finishes", began)
    await _cancel_call(lab, call_id)
    shown = await _wait_for_end(lab, call_id)
    assert (shown["state"], shown["result"]) == ("succeeded", {"value": "it was as good as done"})
    assert "the tool did not stop" in shown["warnings"][0]


async def test_a_thread_cannot_be_stopped_and_the_outcome_says_so(lab: GatewayLab) -> None:
    began, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def behave(_: ToolContext) -> Any:
        loop.call_soon_threadsafe(began.set)
        go.wait(60)
        return {"value": "done"}

    set_behaviour("thread", behave)
    call_id = await _start_run(lab, "slow_thread_note", "thread", began)
    answer = await _cancel_call(lab, call_id)
    assert answer["cancel"] == "recorded"
    assert "thread" in answer["detail"]
    await asyncio.sleep(0.6)
    assert await lab.fetch_state(call_id) == "running"
    go.set()
    shown = await _wait_for_end(lab, call_id)
    assert (shown["state"], shown["result"]) == ("succeeded", {"value": "done"})
    assert "a thread cannot be stopped" in shown["warnings"][0]
    assert "command" in await lab.fetch_entry_kinds(call_id)


async def test_a_thread_that_checks_for_cancellation_can_stop_itself(lab: GatewayLab) -> None:
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def behave(context: ToolContext) -> Any:
        loop.call_soon_threadsafe(began.set)
        while not context.is_cancel_requested:
            time.sleep(0.01)
        raise Canceled("nothing was written")

    set_behaviour("looks", behave)
    call_id = await _start_run(lab, "slow_thread_note", "looks", began)
    await _cancel_call(lab, call_id)
    shown = await _wait_for_end(lab, call_id)
    assert (shown["state"], shown["detail"]) == ("canceled", "nothing was written")


async def test_a_run_whose_worker_died_is_not_begun_again_once_it_was_canceled(lab: GatewayLab) -> None:
    for tool, state in (("look", "canceled"), ("put", "unknown")):
        tag, gate = f"orphan-{tool}", Gate()
        set_behaviour(tag, gate)
        call_id = await _start_run(lab, tool, tag, gate.began)
        # As a worker leaves it that dies: owned by nobody who lives, canceled meanwhile, and handed out again.
        await lab.db.execute(
            "update deputize.calls set owner = gen_random_uuid(), cancel_requested_at = now() where id = $1", call_id
        )
        await lab.db.execute("select deputize.reschedule_run('dev', $1, 0, false)", call_id)
        shown = await _wait_for_end(lab, call_id)
        assert (shown["state"], len(list_effects(tag))) == (state, 1)
        gate.open.set()


async def test_only_who_made_a_call_or_an_administrator_stops_it(lab: GatewayLab) -> None:
    gate = Gate()
    set_behaviour("whose", gate)
    call_id = await _start_run(lab, "look", "whose", gate.began)
    with pytest.raises(CallNotFound):
        await lab.gateway.cancellations.cancel_call(await lab.make_caller("eve"), call_id)
    with pytest.raises(VersionNotInCapability):
        await lab.gateway.cancellations.cancel_call(replace(await lab.make_admin(), ceiling=Effects.READ), call_id)
    await lab.gateway.cancellations.cancel_call(await lab.make_admin(), call_id)
    assert (await _wait_for_end(lab, call_id))["state"] == "canceled"


async def test_a_canceled_run_is_made_again_when_its_caller_asks_and_once(lab: GatewayLab) -> None:
    gate = Gate()
    set_behaviour("retried", gate)
    call_id = await _start_run(lab, "look", "retried", gate.began)
    await _cancel_call(lab, call_id)
    await _wait_for_end(lab, call_id)
    gate.open.set()
    by = await lab.make_caller()
    again = await lab.gateway.retry_call(by, call_id)
    assert (again.http_status, parse_body(again)["state"]) == (202, "queued")
    assert again.call_id != call_id
    assert (await _wait_for_end(lab, again.call_id))["state"] == "succeeded"
    assert (await lab.gateway.retry_call(by, call_id)).call_id == again.call_id


async def test_a_repeated_key_does_not_bring_back_what_was_stopped_but_asking_for_it_does(lab: GatewayLab) -> None:
    gate = Gate()
    set_behaviour("stays-stopped", gate)
    call_id = await _start_run(lab, "put", "stays-stopped", gate.began)
    await _cancel_call(lab, call_id)
    assert (await _wait_for_end(lab, call_id))["state"] == "unknown"
    gate.open.set()
    again = await lab.call("put", "stays-stopped", key="stays-stopped", mode="async")
    assert (again.call_id, again.http_status, again.is_replay) == (call_id, 504, True)
    assert (await lab.gateway.retry_call(await lab.make_caller(), call_id)).http_status == 202
    assert (await _wait_for_end(lab, call_id))["state"] == "succeeded"
    assert {effect.key for effect in list_effects("stays-stopped")} == {call_id}
