"""What nobody knows is found out by asking, never by repeating; what cannot be asked becomes a ticket."""

import asyncio
from typing import Any

import orjson
import pytest

from deputize.core.caller import Caller
from deputize.core.contract import LifecycleState
from deputize.core.errors import NotAdmitted, UpstreamUnavailable
from deputize.core.events import State
from deputize.core.outcome import Outcome
from deputize.lifecycle.reconcile import Reconciler
from deputize.lifecycle.tickets import Tickets
from tests.integration.lifecycle.lab import Lab, body, slug
from tests.integration.lifecycle.tools import Gate, effects_of, on, raising
from tests.integration.runs.parcels import TOOLS, answers, asked

pytestmark = [pytest.mark.requirement("NEW-3"), pytest.mark.requirement("INV-4")]

DUE = "update deputize.reconciliations set due_at = now() - interval '1 hour' where id = $1"


async def lost(lab: Lab, tool: str, tag: str, *, by: Caller | None = None, **more: Any) -> str:
    """A call whose answer got lost: it acted, and nobody knows."""
    on(tag, raising(ConnectionError("reset")))
    outcome = await lab.call(tool, {"tag": tag, **more}, key=tag, by=by)
    assert outcome.state is State.UNKNOWN
    return outcome.call_id


async def look(lab: Lab, *calls: str, times: int = 1) -> None:
    """As if the time to look had come, so many times."""
    for _ in range(times):
        for call in calls:
            await lab.db.execute(DUE, call)
        await Reconciler(lab.gateway.lifecycle).round()


async def again(lab: Lab, tool: str, tag: str, **more: Any) -> Outcome:
    return await lab.call(tool, {"tag": tag, **more}, key=tag)


async def test_every_unknown_becomes_work_in_the_commit_that_makes_it_so(depot: Lab) -> None:
    call = await lost(depot, "drop", "work")
    row = await depot.db.fetchrow(
        "select *, due_at >= now() as later from deputize.reconciliations where id = $1", call
    )
    assert row is not None
    assert (row["tries"], row["tenant"]) == (0, "dev")
    # Its own time is not over: the tool might still act, so nobody asks yet.
    assert row["later"]
    assert await Reconciler(depot.gateway.lifecycle).round() == 0


async def test_a_status_that_knows_it_happened_settles_the_call_with_its_result(depot: Lab) -> None:
    call = await lost(depot, "send", "arrived")
    answers[call] = {"state": "happened", "result": {"value": "delivered"}}
    await look(depot, call)
    assert await depot.state(call) == "succeeded"
    told = await again(depot, "send", "arrived")
    assert (told.state, told.replayed, body(told)["result"]) == (State.SUCCEEDED, True, {"value": "delivered"})
    assert "lab.tracking" in body(told)["warnings"][0]
    assert len(effects_of("arrived")) == 1
    assert [(entry["kind"], entry.get("outcome")) for entry in await depot.entries(call)] == [
        ("intent", None), ("outcome", "unknown"), ("outcome", "succeeded"),
    ]  # fmt: skip
    assert (await depot.entries(call))[-1]["rules"] == ["reconciliation"]
    assert await depot.db.fetchval("select count(*) from deputize.reconciliations where id = $1", call) == 0


async def test_a_result_that_does_not_fit_is_not_passed_off_as_the_tools(depot: Lab) -> None:
    call = await lost(depot, "send", "odd-result")
    answers[call] = {"state": "happened", "result": "no object"}
    await look(depot, call)
    assert body(await again(depot, "send", "odd-result"))["result"]["settled"]["happened"] is True


async def test_a_status_that_knows_it_did_not_happen_frees_the_key(depot: Lab) -> None:
    call = await lost(depot, "send", "never-left")
    answers[call] = {"state": "did_not_happen"}
    await look(depot, call)
    row = await depot.row(call)
    assert (row["state"], row["error"], row["nothing_happened"]) == ("failed", "did-not-happen", True)
    assert not await depot.claimed(call)
    on("never-left", lambda _: {"value": "sent"})
    second = await again(depot, "send", "never-left")
    assert (second.state, second.call_id == call) == (State.SUCCEEDED, False)


async def test_the_gateway_asks_as_itself_and_may_read_that_one_tool(depot: Lab) -> None:
    call = await lost(depot, "send", "who-asks")
    answers[call] = {"state": "unknown"}
    await look(depot, call)
    assert asked[-1] == (call, "reconciliation", "")
    reads = await depot.db.fetch("select entry from deputize.audit_entries order by id")
    asking = [entry for row in reads if (entry := orjson.loads(row["entry"])).get("tool") == "lab.tracking"]
    assert asking[-1]["rules"][0] == "reconciliation"
    assert await depot.state(call) == "unknown"


@pytest.mark.parametrize(
    "answer", [{"state": "unknown"}, UpstreamUnavailable("away"), {"state": "perhaps"}, [], None, "happened"]
)
async def test_a_status_that_does_not_know_leads_to_a_person_after_so_many_tries(depot: Lab, answer: Any) -> None:
    tag = f"vague-{answer!r}"
    call = await lost(depot, "send", tag, password="hunter2")
    answers[call] = answer
    tries = depot.rooms.settings.runs.reconcile_tries
    await look(depot, call, times=tries - 1)
    assert await _open(depot, call) == []
    await look(depot, call)
    (ticket,) = await _open(depot, call)
    assert ticket["question"]["tries"] == tries
    assert ticket["call"]["state"] == "unknown"
    await look(depot, call)
    assert len(await _open(depot, call)) == 1
    assert len(effects_of(tag)) == 1
    # A status that comes back settles it, and nobody has to decide any more.
    answers[call] = {"state": "happened"}
    await look(depot, call)
    assert await depot.state(call) == "succeeded"
    shown = await Tickets(depot.rooms).show(await depot.admin(), ticket["ticket_id"])
    assert (shown["state"], shown["resolution"], shown["resolved_by"]) == ("resolved", "happened", None)


async def _open(lab: Lab, call: str) -> list[dict[str, Any]]:
    page = await Tickets(lab.rooms).page(await lab.admin(), limit=200)
    return [each for each in page if each["call"]["call_id"] == call]


@pytest.mark.parametrize("lacking", ["status", "caller", "form"])
async def test_a_status_that_cannot_be_asked_at_all_leads_to_a_person_too(depot: Lab, lacking: str) -> None:
    call = await lost(depot, "send", f"unaskable-{lacking}")
    version = (await depot.rooms.authority.of("dev")).tools.resolve("lab.tracking").contract.version
    if lacking == "status":
        await depot.gateway.commands.set_state(
            await depot.admin(), "lab.tracking", version, LifecycleState.REQUIRES_SETUP
        )
    else:
        keys = depot.rooms.keys.ready("dev")
        assert keys is not None
        box = b"nonsense" if lacking == "caller" else keys.seal(call, "caller", b'{"v": 99}')
        await depot.db.execute(
            "insert into deputize.runs (tenant, id, priority, caller, release) values ('dev', $1, 5, $2, '')", call, box
        )
    try:
        await look(depot, call, times=depot.rooms.settings.runs.reconcile_tries)
    finally:
        if lacking == "status":
            await depot.gateway.commands.set_state(
                await depot.admin(), "lab.tracking", version, LifecycleState.AVAILABLE
            )
    (ticket,) = await _open(depot, call)
    assert "could not be asked" in ticket["question"]["why"]


@pytest.mark.parametrize("damaged", [True, False])
async def test_a_person_is_asked_even_if_the_arguments_cannot_be_read(depot: Lab, damaged: bool) -> None:
    call = await lost(depot, "drop", f"unreadable-{damaged}")
    keys = depot.rooms.keys.ready("dev")
    assert keys is not None
    box = b"nonsense" if damaged else keys.seal(call, "input", b'{"v": 99}')
    await depot.db.execute("insert into deputize.sealed values ('dev', $1, 'input', $2)", call, box)
    await look(depot, call)
    (ticket,) = await _open(depot, call)
    assert ticket["question"]["arguments"] is None


async def test_a_fault_of_ours_about_one_call_leaves_the_others_looked_into(
    depot: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, broken = Reconciler._look_into, await lost(depot, "drop", "faulty")

    async def look_into(self: Reconciler, due: Any) -> None:
        if str(due["id"]) == broken:
            raise RuntimeError("broken")
        await real(self, due)

    monkeypatch.setattr(Reconciler, "_look_into", look_into)
    fine = await lost(depot, "drop", "fine")
    await look(depot, broken, fine)
    assert len(await _open(depot, fine)) == 1


async def test_without_a_status_a_person_is_asked_at_once(depot: Lab) -> None:
    call = await lost(depot, "drop", "no-status")
    await look(depot, call)
    (ticket,) = await _open(depot, call)
    assert "names no status" in ticket["question"]["why"]
    assert [entry["kind"] for entry in await depot.entries(call)] == ["intent", "outcome", "decision"]
    assert len(effects_of("no-status")) == 1


async def test_a_late_outcome_settles_it_and_closes_the_ticket(depot: Lab, depot_folder: Any) -> None:
    gate = Gate()
    on("late", gate)
    running = asyncio.create_task(depot.call("drop", "late", key="late"))
    await gate.began.wait()
    call = await depot.running_call("drop")
    await depot.db.execute("update deputize.calls set deadline_at = now() - interval '1 hour' where id = $1", call)
    assert await depot.sweep() == 1
    await look(depot, call)
    (ticket,) = await _open(depot, call)
    gate.open.set()
    assert (await running).state is State.SUCCEEDED
    await look(depot, call)
    shown = await Tickets(depot.rooms).show(await depot.admin(), ticket["ticket_id"])
    assert (shown["state"], shown["resolution"]) == ("resolved", "settled_elsewhere")
    assert body(await again(depot, "drop", "late"))["result"] == {"value": "done"}
    assert await depot.db.fetchval("select count(*) from deputize.reconciliations where id = $1", call) == 0


async def test_a_call_that_somebody_took_over_is_left_alone(depot: Lab) -> None:
    on("taken", raising(ConnectionError("reset")))
    call = (await depot.call("register", "taken", key="taken")).call_id
    gate = Gate()
    on("taken", gate)
    retry = asyncio.create_task(depot.call("register", "taken", key="taken"))
    await gate.began.wait()
    await look(depot, call)
    assert await depot.state(call) == "running"
    assert await _open(depot, call) == []
    gate.open.set()
    assert (await retry).state is State.SUCCEEDED
    await look(depot, call)
    assert await depot.db.fetchval("select count(*) from deputize.reconciliations where id = $1", call) == 0


async def test_many_reconcilers_ask_once(depot: Lab) -> None:
    call = await lost(depot, "send", "at-once")
    answers[call] = {"state": "unknown"}
    await depot.db.execute(DUE, call)
    before = len(asked)
    await asyncio.gather(*(Reconciler(depot.gateway.lifecycle).round() for _ in range(4)))
    assert len([each for each in asked[before:] if each[0] == call]) == 1


async def test_a_revoked_policy_stops_the_asking_and_a_person_is_asked(depot: Lab) -> None:
    """The gateway's own question is decided like anybody's: a switch on the status tool stops it."""
    call = await lost(depot, "send", "switched")
    answers[call] = {"state": "happened"}
    admin = await depot.admin()
    await depot.gateway.commands.switch(admin, "tool", "lab.tracking", off=True)
    try:
        await look(depot, call, times=depot.rooms.settings.runs.reconcile_tries)
    finally:
        await depot.gateway.commands.switch(admin, "tool", "lab.tracking", off=False)
    (ticket,) = await _open(depot, call)
    assert ticket["question"]["why"].endswith("switched-off")


@pytest.mark.parametrize(
    ("status", "reason"),
    [("lab.nowhere", "is no tool"), ("lab.drop", "changes things"), ("lab.send", "takes no key")],
)
async def test_a_status_that_could_not_be_asked_is_not_admitted(depot: Lab, status: str, reason: str) -> None:
    declared = next(each.contract for each in TOOLS if each.contract.full_name == "lab.send")
    contract = declared.model_copy(update={"status": status, "version": "0.2.0"})
    with pytest.raises(NotAdmitted) as refused:
        await depot.gateway.commands.register(await depot.admin(), contract)
    assert any(reason in each["reason"] for each in refused.value.details["reasons"])
    assert {each["path"] for each in refused.value.details["reasons"]} == {"/status"}
    assert slug(await depot.call("send", "still-there", key="still-there")) is None
