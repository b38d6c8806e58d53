"""Runs that go on: sent back to a named checkpoint by a person, or tried again where the upstream takes a key once."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from deputize.app import open_worker
from deputize.core.contract.contract import Effects
from deputize.core.errors import CallNotFound, CheckpointNotFound, NotRetryable, VersionNotInCapability
from deputize.core.states import State
from deputize.operations.calls.restore_checkpoint import Rollbacks
from tests.integration.operations.background.test_reconciler import _list_open_tasks, run_reconciler
from tests.support.gateway_lab import GatewayLab, parse_body
from tests.support.lossy_tools import status_answers, status_requests
from tests.support.scripted_tools import Gate, list_effects, raise_error, set_behaviour

pytestmark = [pytest.mark.requirement("RES-7"), pytest.mark.requirement("INV-4")]

DAMAGE = """
    update deputize.checkpoints set ciphertext = set_byte(ciphertext, 20, get_byte(ciphertext, 20) # 255)
    where call_id = $1 and name = $2
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def worker(lossy_lab: GatewayLab) -> AsyncIterator[None]:
    async with open_worker(lossy_lab.gateway):
        yield


async def start_run(lab: GatewayLab, tool: str, tag: str, **more: Any) -> str:
    outcome = await lab.call(tool, tag, key=tag, mode="async", **more)
    assert outcome.http_status == 202
    return outcome.call_id


def save_and_lose_answer(restored_states: list[Any]) -> Any:
    async def behave(context: Any) -> dict[str, Any]:
        restored_states.append(context.saved_state)
        await context.save({"stage": "half"}, name="half")
        await context.save({"stage": "most"}, macro=True)
        raise ConnectionError("reset")

    return behave


def record_restored(restored_states: list[Any]) -> Any:
    def behave(context: Any) -> dict[str, Any]:
        restored_states.append(context.saved_state)
        return {"value": "done"}

    return behave


async def test_a_run_is_sent_back_to_a_named_checkpoint(lossy_lab: GatewayLab) -> None:
    seen: list[Any] = []
    set_behaviour("back", save_and_lose_answer(seen))
    call = await start_run(lossy_lab, "register", "back")
    await lossy_lab.wait_for_state(call, "unknown")
    set_behaviour("back", record_restored(seen))
    answer = await Rollbacks(lossy_lab.runtime).roll_back_run(await lossy_lab.make_caller(), call, "half")
    assert answer == {"call_id": call, "state": State.QUEUED, "checkpoint": "half"}
    await lossy_lab.wait_for_state(call, "succeeded")
    assert seen == [None, {"stage": "half"}]
    kept = await lossy_lab.db.fetch("select name from deputize.checkpoints where call_id = $1", call)
    assert [row["name"] for row in kept] == ["half"]
    entries = await lossy_lab.db.fetch("select entry from deputize.audit_entries order by id")
    assert any(b'"command":"rollback"' in row["entry"] and call.encode() in row["entry"] for row in entries)
    assert {effect.key for effect in list_effects("back")} == {call}


async def test_the_old_worker_is_fenced_and_its_late_outcome_is_ignored(lossy_lab: GatewayLab) -> None:
    gate, seen = Gate({"value": "too late"}), list[Any]()

    async def saves_and_waits(context: Any) -> Any:
        await context.save({"stage": "half"}, name="half")
        return await gate(context)

    set_behaviour("carried", saves_and_waits)
    call = await start_run(lossy_lab, "register", "carried")
    await gate.began.wait()
    set_behaviour("carried", record_restored(seen))
    await Rollbacks(lossy_lab.runtime).roll_back_run(await lossy_lab.make_admin(), call, "half")
    await lossy_lab.wait_for_state(call, "succeeded")
    gate.open.set()
    assert seen == [{"stage": "half"}]
    assert parse_body(await lossy_lab.call("register", "carried", key="carried"))["result"] == {"value": "done"}


async def test_what_cannot_be_sent_back_says_why(lossy_lab: GatewayLab) -> None:
    rollbacks, ana = Rollbacks(lossy_lab.runtime), await lossy_lab.make_caller()
    set_behaviour("stuck", save_and_lose_answer([]))
    call = await start_run(lossy_lab, "register", "stuck")
    await lossy_lab.wait_for_state(call, "unknown")
    with pytest.raises(CheckpointNotFound) as unknown:
        await rollbacks.roll_back_run(ana, call, "nowhere")
    assert unknown.value.details["names"] == ["half"]
    with pytest.raises(CallNotFound):
        await rollbacks.roll_back_run(await lossy_lab.make_caller("bob"), call, "half")
    with pytest.raises(CallNotFound):
        await rollbacks.roll_back_run(await lossy_lab.make_caller(scopes=()), call, "half")
    for nobodys in ("no id", "01890000-0000-7000-8000-000000000000"):
        with pytest.raises(CallNotFound):
            await rollbacks.roll_back_run(ana, nobodys, "half")
    await lossy_lab.db.execute(DAMAGE, call, "half")
    with pytest.raises(CheckpointNotFound):
        await rollbacks.roll_back_run(ana, call, "half")
    set_behaviour("ended", record_restored([]))
    ended = await start_run(lossy_lab, "register", "ended")
    await lossy_lab.wait_for_state(ended, "succeeded")
    with pytest.raises(NotRetryable, match="ended as succeeded"):
        await rollbacks.roll_back_run(ana, ended, "half")
    set_behaviour("once", raise_error(ConnectionError("reset")))
    once = await start_run(lossy_lab, "drop", "once")
    await lossy_lab.wait_for_state(once, "unknown")
    with pytest.raises(NotRetryable, match="repeated call"):
        await rollbacks.roll_back_run(ana, once, "half")


async def test_what_was_lent_for_less_sends_nothing_back(lossy_lab: GatewayLab) -> None:
    rollbacks = Rollbacks(lossy_lab.runtime)
    set_behaviour("lent", save_and_lose_answer([]))
    call = await start_run(lossy_lab, "register", "lent")
    await lossy_lab.wait_for_state(call, "unknown")
    ana, root = await lossy_lab.make_caller(), await lossy_lab.make_admin()
    for less in (replace(root, ceiling=each) for each in list(Effects)[:-1]):
        with pytest.raises(VersionNotInCapability):
            await rollbacks.roll_back_run(less, call, "half")
    for less in (replace(ana, ceiling=Effects.READ), replace(ana, agents=("bot",))):
        with pytest.raises(CallNotFound):
            await rollbacks.roll_back_run(less, call, "half")
    assert await lossy_lab.fetch_state(call) == "unknown"
    set_behaviour("lent", record_restored([]))
    await rollbacks.roll_back_run(replace(root, ceiling=Effects.DESTRUCTIVE), call, "half")
    await lossy_lab.wait_for_state(call, "succeeded")


@pytest.mark.requirement("NEW-3")
async def test_a_run_whose_upstream_takes_a_key_once_goes_on_by_itself_from_its_checkpoint(
    lossy_lab: GatewayLab,
) -> None:
    seen: list[Any] = []
    set_behaviour("by-itself", save_and_lose_answer(seen))
    call = await start_run(lossy_lab, "register", "by-itself")
    await lossy_lab.wait_for_state(call, "unknown")
    set_behaviour("by-itself", record_restored(seen))
    await run_reconciler(lossy_lab, call)
    await lossy_lab.wait_for_state(call, "succeeded")
    assert seen == [None, {"stage": "most"}]
    assert {effect.key for effect in list_effects("by-itself")} == {call}
    await run_reconciler(lossy_lab, call)
    assert await lossy_lab.db.fetchval("select count(*) from deputize.reconciliations where id = $1", call) == 0


@pytest.mark.requirement("NEW-3")
async def test_a_run_that_never_gets_through_ends_with_a_person(lossy_lab: GatewayLab) -> None:
    set_behaviour("never", raise_error(ConnectionError("reset")))
    call = await start_run(lossy_lab, "register", "never")
    tries = lossy_lab.runtime.settings.runs.reconcile_tries
    for _ in range(tries):
        await lossy_lab.wait_for_state(call, "unknown")
        await run_reconciler(lossy_lab, call)
    await lossy_lab.wait_for_state(call, "unknown")
    assert await _list_open_tasks(lossy_lab, call) == []
    await run_reconciler(lossy_lab, call)
    assert len(await _list_open_tasks(lossy_lab, call)) == 1
    assert len(list_effects("never")) == tries + 1


@pytest.mark.requirement("NEW-3")
async def test_a_run_that_killed_its_workers_is_not_tried_again(lossy_lab: GatewayLab) -> None:
    set_behaviour("poison", raise_error(ConnectionError("reset")))
    call = await start_run(lossy_lab, "register", "poison")
    await lossy_lab.wait_for_state(call, "unknown")
    await lossy_lab.db.execute("update deputize.calls set error = 'given-up' where id = $1", call)
    await run_reconciler(lossy_lab, call)
    assert (await lossy_lab.fetch_state(call), len(await _list_open_tasks(lossy_lab, call))) == ("unknown", 1)
    assert len(list_effects("poison")) == 1


@pytest.mark.requirement("NEW-3")
async def test_the_status_of_a_run_is_asked_with_the_grant_that_was_recorded(lossy_lab: GatewayLab) -> None:
    set_behaviour("granted", raise_error(ConnectionError("reset")))
    may_ask = await lossy_lab.make_caller("cora", scopes=("lab:write", "lab:read_status"))
    call = await start_run(lossy_lab, "send", "granted", by=may_ask)
    await lossy_lab.wait_for_state(call, "unknown")
    status_answers[call] = {"state": "happened", "result": {"value": "there"}}
    await run_reconciler(lossy_lab, call)
    assert await lossy_lab.fetch_state(call) == "succeeded"
    assert status_requests[-1] == (call, "cora", "")
    # Who may not read the status has it asked by nobody: it is not the gateway's to lend what they do not have.
    set_behaviour("ungranted", raise_error(ConnectionError("reset")))
    call = await start_run(lossy_lab, "send", "ungranted")
    await lossy_lab.wait_for_state(call, "unknown")
    status_answers[call] = {"state": "happened"}
    await run_reconciler(lossy_lab, call, times=lossy_lab.runtime.settings.runs.reconcile_tries)
    (ticket,) = await _list_open_tasks(lossy_lab, call)
    assert ticket["question"]["why"].endswith("scope-missing")
    assert ticket["question"]["arguments"] == {"tag": "ungranted"}
    assert await lossy_lab.fetch_state(call) == "unknown"
