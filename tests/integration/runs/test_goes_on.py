"""Runs that go on: sent back to a named checkpoint by a person, or tried again where the upstream takes a key once."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from deputize.app import open_worker
from deputize.core.contract import Effects
from deputize.core.errors import CallNotFound, CheckpointNotFound, NotInCapability, NotRetryable, ScopeMissing
from deputize.core.events import State
from deputize.lifecycle.keeping import Rollbacks
from tests.integration.lifecycle.lab import Lab, body
from tests.integration.lifecycle.tools import Gate, effects_of, on, raising
from tests.integration.runs.parcels import answers, asked
from tests.integration.runs.test_reconcile import _open, look

pytestmark = [pytest.mark.requirement("RES-7"), pytest.mark.requirement("INV-4")]

DAMAGE = (
    "update deputize.checkpoints set box = set_byte(box, 20, get_byte(box, 20) # 255) where call_id = $1 and name = $2"
)


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def worker(depot: Lab) -> AsyncIterator[None]:
    async with open_worker(depot.gateway):
        yield


async def run(lab: Lab, tool: str, tag: str, **more: Any) -> str:
    outcome = await lab.call(tool, tag, key=tag, mode="async", **more)
    assert outcome.http_status == 202
    return outcome.call_id


def saving_and_lost(seen: list[Any]) -> Any:
    async def behave(context: Any) -> dict[str, Any]:
        seen.append(context.restored)
        await context.save({"stage": "half"}, name="half")
        await context.save({"stage": "most"}, macro=True)
        raise ConnectionError("reset")

    return behave


def told(seen: list[Any]) -> Any:
    def behave(context: Any) -> dict[str, Any]:
        seen.append(context.restored)
        return {"value": "done"}

    return behave


async def test_a_run_is_sent_back_to_a_named_checkpoint(depot: Lab) -> None:
    seen: list[Any] = []
    on("back", saving_and_lost(seen))
    call = await run(depot, "register", "back")
    await depot.until_state(call, "unknown")
    on("back", told(seen))
    answer = await Rollbacks(depot.rooms).roll_back(await depot.caller(), call, "half")
    assert answer == {"call_id": call, "state": State.QUEUED, "checkpoint": "half"}
    await depot.until_state(call, "succeeded")
    assert seen == [None, {"stage": "half"}]
    kept = await depot.db.fetch("select name from deputize.checkpoints where call_id = $1", call)
    assert [row["name"] for row in kept] == ["half"]
    entries = await depot.db.fetch("select entry from deputize.audit_entries order by id")
    assert any(b'"command":"rollback"' in row["entry"] and call.encode() in row["entry"] for row in entries)
    assert {effect.key for effect in effects_of("back")} == {call}


async def test_who_carries_it_is_fenced_and_its_late_end_does_not_count(depot: Lab) -> None:
    gate, seen = Gate({"value": "too late"}), list[Any]()

    async def saves_and_waits(context: Any) -> Any:
        await context.save({"stage": "half"}, name="half")
        return await gate(context)

    on("carried", saves_and_waits)
    call = await run(depot, "register", "carried")
    await gate.began.wait()
    on("carried", told(seen))
    await Rollbacks(depot.rooms).roll_back(await depot.admin(), call, "half")
    await depot.until_state(call, "succeeded")
    gate.open.set()
    assert seen == [{"stage": "half"}]
    assert body(await depot.call("register", "carried", key="carried"))["result"] == {"value": "done"}


async def test_what_cannot_be_sent_back_says_why(depot: Lab) -> None:
    rollbacks, ana = Rollbacks(depot.rooms), await depot.caller()
    on("stuck", saving_and_lost([]))
    call = await run(depot, "register", "stuck")
    await depot.until_state(call, "unknown")
    with pytest.raises(CheckpointNotFound) as unknown:
        await rollbacks.roll_back(ana, call, "nowhere")
    assert unknown.value.details["names"] == ["half"]
    with pytest.raises(CallNotFound):
        await rollbacks.roll_back(await depot.caller("bob"), call, "half")
    with pytest.raises(ScopeMissing):
        await rollbacks.roll_back(await depot.caller(scopes=()), call, "half")
    for nobodys in ("no id", "01890000-0000-7000-8000-000000000000"):
        with pytest.raises(CallNotFound):
            await rollbacks.roll_back(ana, nobodys, "half")
    await depot.db.execute(DAMAGE, call, "half")
    with pytest.raises(CheckpointNotFound):
        await rollbacks.roll_back(ana, call, "half")
    on("ended", told([]))
    ended = await run(depot, "register", "ended")
    await depot.until_state(ended, "succeeded")
    with pytest.raises(NotRetryable, match="ended as succeeded"):
        await rollbacks.roll_back(ana, ended, "half")
    on("once", raising(ConnectionError("reset")))
    once = await run(depot, "drop", "once")
    await depot.until_state(once, "unknown")
    with pytest.raises(NotRetryable, match="second one"):
        await rollbacks.roll_back(ana, once, "half")


async def test_what_was_lent_for_less_sends_nothing_back(depot: Lab) -> None:
    rollbacks = Rollbacks(depot.rooms)
    on("lent", saving_and_lost([]))
    call = await run(depot, "register", "lent")
    await depot.until_state(call, "unknown")
    ana, root = await depot.caller(), await depot.admin()
    for less in (replace(ana, ceiling=Effects.READ), *(replace(root, ceiling=each) for each in list(Effects)[:-1])):
        with pytest.raises(NotInCapability):
            await rollbacks.roll_back(less, call, "half")
    with pytest.raises(CallNotFound):
        await rollbacks.roll_back(replace(ana, agents=("bot",)), call, "half")
    assert await depot.state(call) == "unknown"
    on("lent", told([]))
    await rollbacks.roll_back(replace(root, ceiling=Effects.DESTRUCTIVE), call, "half")
    await depot.until_state(call, "succeeded")


@pytest.mark.requirement("NEW-3")
async def test_a_run_whose_upstream_takes_a_key_once_goes_on_by_itself_from_its_checkpoint(depot: Lab) -> None:
    seen: list[Any] = []
    on("by-itself", saving_and_lost(seen))
    call = await run(depot, "register", "by-itself")
    await depot.until_state(call, "unknown")
    on("by-itself", told(seen))
    await look(depot, call)
    await depot.until_state(call, "succeeded")
    assert seen == [None, {"stage": "most"}]
    assert {effect.key for effect in effects_of("by-itself")} == {call}
    await look(depot, call)
    assert await depot.db.fetchval("select count(*) from deputize.reconciliations where id = $1", call) == 0


@pytest.mark.requirement("NEW-3")
async def test_a_run_that_never_gets_through_ends_with_a_person(depot: Lab) -> None:
    on("never", raising(ConnectionError("reset")))
    call = await run(depot, "register", "never")
    tries = depot.rooms.settings.runs.reconcile_tries
    for _ in range(tries):
        await depot.until_state(call, "unknown")
        await look(depot, call)
    await depot.until_state(call, "unknown")
    assert await _open(depot, call) == []
    await look(depot, call)
    assert len(await _open(depot, call)) == 1
    assert len(effects_of("never")) == tries + 1


@pytest.mark.requirement("NEW-3")
async def test_a_run_that_killed_its_workers_is_not_tried_again(depot: Lab) -> None:
    on("poison", raising(ConnectionError("reset")))
    call = await run(depot, "register", "poison")
    await depot.until_state(call, "unknown")
    await depot.db.execute("update deputize.calls set error = 'given-up' where id = $1", call)
    await look(depot, call)
    assert (await depot.state(call), len(await _open(depot, call))) == ("unknown", 1)
    assert len(effects_of("poison")) == 1


@pytest.mark.requirement("NEW-3")
async def test_the_status_of_a_run_is_asked_with_the_grant_that_was_recorded(depot: Lab) -> None:
    on("granted", raising(ConnectionError("reset")))
    may_ask = await depot.caller("cora", scopes=("lab:write", "lab:read_status"))
    call = await run(depot, "send", "granted", by=may_ask)
    await depot.until_state(call, "unknown")
    answers[call] = {"state": "happened", "result": {"value": "there"}}
    await look(depot, call)
    assert await depot.state(call) == "succeeded"
    assert asked[-1] == (call, "cora", "")
    # Who may not read the status has it asked by nobody: it is not the gateway's to lend what they do not have.
    on("ungranted", raising(ConnectionError("reset")))
    call = await run(depot, "send", "ungranted")
    await depot.until_state(call, "unknown")
    answers[call] = {"state": "happened"}
    await look(depot, call, times=depot.rooms.settings.runs.reconcile_tries)
    (ticket,) = await _open(depot, call)
    assert ticket["question"]["why"].endswith("scope-missing")
    assert ticket["question"]["arguments"] == {"tag": "ungranted"}
    assert await depot.state(call) == "unknown"
