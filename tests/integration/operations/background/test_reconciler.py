"""What no one knows is found out by asking, never by repeating; what cannot be asked becomes an approval request."""

import asyncio
from typing import Any

import orjson
import pytest

from deputize.core.caller import Caller
from deputize.core.contract.contract import LifecycleState
from deputize.core.errors import ToolNotAdmitted, UpstreamUnavailable
from deputize.core.outcome import Outcome
from deputize.core.states import State
from deputize.operations.admin.human_tasks import HumanTasks
from deputize.operations.background.reconciler import Reconciler
from tests.support.gateway_internals import get_lifecycle
from tests.support.gateway_lab import GatewayLab, error_slug, parse_body
from tests.support.lossy_tools import TOOLS, status_answers, status_requests
from tests.support.scripted_tools import Gate, list_effects, raise_error, set_behaviour

pytestmark = [pytest.mark.requirement("NEW-3"), pytest.mark.requirement("INV-4")]

DUE = "update deputize.reconciliations set due_at = now() - interval '1 hour' where id = $1"


async def make_unknown_call(lab: GatewayLab, tool: str, tag: str, *, by: Caller | None = None, **more: Any) -> str:
    """A call whose answer got lost: it acted, and no one knows."""
    set_behaviour(tag, raise_error(ConnectionError("reset")))
    outcome = await lab.call(tool, {"tag": tag, **more}, key=tag, by=by)
    assert outcome.state is State.UNKNOWN
    return outcome.call_id


async def run_reconciler(lab: GatewayLab, *calls: str, times: int = 1) -> None:
    """As if the time to look had come, so many times."""
    for _ in range(times):
        for call in calls:
            await lab.db.execute(DUE, call)
        await Reconciler(get_lifecycle(lab.gateway)).reconcile_due()


async def repeat_call(lab: GatewayLab, tool: str, tag: str, **more: Any) -> Outcome:
    return await lab.call(tool, {"tag": tag, **more}, key=tag)


async def test_every_unknown_becomes_work_in_the_commit_that_makes_it_so(lossy_lab: GatewayLab) -> None:
    call = await make_unknown_call(lossy_lab, "drop", "work")
    row = await lossy_lab.db.fetchrow(
        "select *, due_at >= now() as later from deputize.reconciliations where id = $1", call
    )
    assert row is not None
    assert (row["tries"], row["tenant"]) == (0, "dev")
    # Its own time is not over: the tool might still act, so nobody asks yet.
    assert row["later"]
    assert await Reconciler(get_lifecycle(lossy_lab.gateway)).reconcile_due() == 0


async def test_a_status_that_knows_it_happened_settles_the_call_with_its_result(lossy_lab: GatewayLab) -> None:
    call = await make_unknown_call(lossy_lab, "send", "arrived")
    status_answers[call] = {"state": "happened", "result": {"value": "delivered"}}
    await run_reconciler(lossy_lab, call)
    assert await lossy_lab.fetch_state(call) == "succeeded"
    told = await repeat_call(lossy_lab, "send", "arrived")
    assert (told.state, told.is_replay, parse_body(told)["result"]) == (State.SUCCEEDED, True, {"value": "delivered"})
    assert "lab.track_parcel" in parse_body(told)["warnings"][0]
    assert len(list_effects("arrived")) == 1
    assert [(entry["kind"], entry.get("outcome")) for entry in await lossy_lab.fetch_entries(call)] == [
        ("intent", None), ("outcome", "unknown"), ("outcome", "succeeded"),
    ]  # fmt: skip
    assert (await lossy_lab.fetch_entries(call))[-1]["rules"] == ["reconciliation"]
    assert await lossy_lab.db.fetchval("select count(*) from deputize.reconciliations where id = $1", call) == 0


async def test_a_result_that_does_not_fit_is_not_passed_off_as_the_tools(lossy_lab: GatewayLab) -> None:
    call = await make_unknown_call(lossy_lab, "send", "odd-result")
    status_answers[call] = {"state": "happened", "result": "no object"}
    await run_reconciler(lossy_lab, call)
    assert parse_body(await repeat_call(lossy_lab, "send", "odd-result"))["result"]["settled"]["happened"] is True


async def test_a_costly_result_is_checked_in_another_process_and_left_out_if_that_takes_too_long(
    lossy_lab: GatewayLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"state": "happened", "result": "a" * 8_000}
    checked, unchecked = [await make_unknown_call(lossy_lab, "label", tag) for tag in ("checked", "unchecked")]
    status_answers.update({checked: answer, unchecked: answer})
    await run_reconciler(lossy_lab, checked)
    assert parse_body(await repeat_call(lossy_lab, "label", "checked"))["result"] == answer["result"]

    async def run_out_of_time(*_: Any) -> None:
        return None

    monkeypatch.setattr(lossy_lab.runtime.jobs, "run_job", run_out_of_time)
    await run_reconciler(lossy_lab, unchecked)
    assert parse_body(await repeat_call(lossy_lab, "label", "unchecked"))["result"]["settled"]["happened"] is True


async def test_a_status_that_knows_it_did_not_happen_frees_the_key(lossy_lab: GatewayLab) -> None:
    call = await make_unknown_call(lossy_lab, "send", "never-left")
    status_answers[call] = {"state": "did_not_happen"}
    await run_reconciler(lossy_lab, call)
    row = await lossy_lab.fetch_call(call)
    assert (row["state"], row["error"], row["nothing_happened"]) == ("failed", "did-not-happen", True)
    assert not await lossy_lab.has_claim(call)
    set_behaviour("never-left", lambda _: {"value": "sent"})
    second = await repeat_call(lossy_lab, "send", "never-left")
    assert (second.state, second.call_id == call) == (State.SUCCEEDED, False)


async def test_the_gateway_asks_as_itself_and_may_read_that_one_tool(lossy_lab: GatewayLab) -> None:
    call = await make_unknown_call(lossy_lab, "send", "who-asks")
    status_answers[call] = {"state": "unknown"}
    await run_reconciler(lossy_lab, call)
    assert status_requests[-1] == (call, "reconciliation", "")
    reads = await lossy_lab.db.fetch("select entry from deputize.audit_entries order by id")
    asking = [entry for row in reads if (entry := orjson.loads(row["entry"])).get("tool") == "lab.track_parcel"]
    assert asking[-1]["rules"][0] == "reconciliation"
    assert await lossy_lab.fetch_state(call) == "unknown"


@pytest.mark.parametrize(
    "answer", [{"state": "unknown"}, UpstreamUnavailable("away"), {"state": "perhaps"}, [], None, "happened"]
)
async def test_a_status_that_does_not_know_leads_to_a_person_after_so_many_tries(
    lossy_lab: GatewayLab, answer: Any
) -> None:
    tag = f"vague-{answer!r}"
    call = await make_unknown_call(lossy_lab, "send", tag, password="hunter2")
    status_answers[call] = answer
    tries = lossy_lab.runtime.settings.runs.reconcile_tries
    await run_reconciler(lossy_lab, call, times=tries - 1)
    assert await _list_open_tasks(lossy_lab, call) == []
    await run_reconciler(lossy_lab, call)
    (ticket,) = await _list_open_tasks(lossy_lab, call)
    assert ticket["question"]["tries"] == tries
    assert ticket["call"]["state"] == "unknown"
    await run_reconciler(lossy_lab, call)
    assert len(await _list_open_tasks(lossy_lab, call)) == 1
    assert len(list_effects(tag)) == 1
    # A status that comes back settles it, and nobody has to decide any more.
    status_answers[call] = {"state": "happened"}
    await run_reconciler(lossy_lab, call)
    assert await lossy_lab.fetch_state(call) == "succeeded"
    shown = await HumanTasks(lossy_lab.runtime).show_task(await lossy_lab.make_admin(), ticket["task_id"])
    assert (shown["state"], shown["resolution"], shown["resolved_by"]) == ("resolved", "happened", None)


async def _list_open_tasks(lab: GatewayLab, call: str) -> list[dict[str, Any]]:
    page = await HumanTasks(lab.runtime).list_tasks(await lab.make_admin(), limit=200)
    return [each for each in page if each["call"]["call_id"] == call]


@pytest.mark.parametrize("lacking", ["status", "caller", "form"])
async def test_a_status_that_cannot_be_asked_at_all_leads_to_a_person_too(lossy_lab: GatewayLab, lacking: str) -> None:
    call = await make_unknown_call(lossy_lab, "send", f"unaskable-{lacking}")
    version = (
        (await lossy_lab.runtime.authority.load_tenant("dev"))
        .tools.resolve_version("lab.track_parcel")
        .contract.version
    )
    if lacking == "status":
        await lossy_lab.gateway.commands.set_state(
            await lossy_lab.make_admin(), "lab.track_parcel", version, LifecycleState.REQUIRES_SETUP
        )
    else:
        keys = lossy_lab.runtime.keys.find("dev")
        assert keys is not None
        box = b"nonsense" if lacking == "caller" else keys.seal(call, "caller", b'{"v": 99}')
        await lossy_lab.db.execute(
            "insert into deputize.runs (tenant, id, priority, caller, release) values ('dev', $1, 5, $2, '')", call, box
        )
    try:
        await run_reconciler(lossy_lab, call, times=lossy_lab.runtime.settings.runs.reconcile_tries)
    finally:
        if lacking == "status":
            await lossy_lab.gateway.commands.set_state(
                await lossy_lab.make_admin(), "lab.track_parcel", version, LifecycleState.AVAILABLE
            )
    (ticket,) = await _list_open_tasks(lossy_lab, call)
    assert "could not be called" in ticket["question"]["why"]


@pytest.mark.parametrize("damaged", [True, False])
async def test_a_person_is_asked_even_if_the_arguments_cannot_be_read(lossy_lab: GatewayLab, damaged: bool) -> None:
    call = await make_unknown_call(lossy_lab, "drop", f"unreadable-{damaged}")
    keys = lossy_lab.runtime.keys.find("dev")
    assert keys is not None
    box = b"nonsense" if damaged else keys.seal(call, "input", b'{"v": 99}')
    await lossy_lab.db.execute("insert into deputize.sealed_payloads values ('dev', $1, 'input', $2)", call, box)
    await run_reconciler(lossy_lab, call)
    (ticket,) = await _list_open_tasks(lossy_lab, call)
    assert ticket["question"]["arguments"] is None


async def test_an_internal_error_on_one_call_does_not_stop_reconciling_the_others(
    lossy_lab: GatewayLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, broken = Reconciler._reconcile_call, await make_unknown_call(lossy_lab, "drop", "faulty")

    async def fail_for_one_call(self: Reconciler, due: Any) -> None:
        if str(due["id"]) == broken:
            raise RuntimeError("broken")
        await real(self, due)

    monkeypatch.setattr(Reconciler, "_reconcile_call", fail_for_one_call)
    fine = await make_unknown_call(lossy_lab, "drop", "fine")
    await run_reconciler(lossy_lab, broken, fine)
    assert len(await _list_open_tasks(lossy_lab, fine)) == 1


async def test_without_a_status_a_person_is_asked_at_once(lossy_lab: GatewayLab) -> None:
    call = await make_unknown_call(lossy_lab, "drop", "no-status")
    await run_reconciler(lossy_lab, call)
    (ticket,) = await _list_open_tasks(lossy_lab, call)
    assert "names no status" in ticket["question"]["why"]
    assert [entry["kind"] for entry in await lossy_lab.fetch_entries(call)] == ["intent", "outcome", "decision"]
    assert len(list_effects("no-status")) == 1


async def test_a_late_outcome_settles_the_call_and_closes_the_task(
    lossy_lab: GatewayLab, lossy_lab_folder: Any
) -> None:
    gate = Gate()
    set_behaviour("late", gate)
    running = asyncio.create_task(lossy_lab.call("drop", "late", key="late"))
    await gate.began.wait()
    call = await lossy_lab.find_running_call("drop")
    await lossy_lab.db.execute("update deputize.calls set deadline_at = now() - interval '1 hour' where id = $1", call)
    assert await lossy_lab.run_sweeper() == 1
    await run_reconciler(lossy_lab, call)
    (ticket,) = await _list_open_tasks(lossy_lab, call)
    gate.open.set()
    assert (await running).state is State.SUCCEEDED
    await run_reconciler(lossy_lab, call)
    shown = await HumanTasks(lossy_lab.runtime).show_task(await lossy_lab.make_admin(), ticket["task_id"])
    assert (shown["state"], shown["resolution"]) == ("resolved", "settled_elsewhere")
    assert parse_body(await repeat_call(lossy_lab, "drop", "late"))["result"] == {"value": "done"}
    assert await lossy_lab.db.fetchval("select count(*) from deputize.reconciliations where id = $1", call) == 0


async def test_a_call_that_somebody_took_over_is_left_alone(lossy_lab: GatewayLab) -> None:
    set_behaviour("taken", raise_error(ConnectionError("reset")))
    call = (await lossy_lab.call("register", "taken", key="taken")).call_id
    gate = Gate()
    set_behaviour("taken", gate)
    retry = asyncio.create_task(lossy_lab.call("register", "taken", key="taken"))
    await gate.began.wait()
    await run_reconciler(lossy_lab, call)
    assert await lossy_lab.fetch_state(call) == "running"
    assert await _list_open_tasks(lossy_lab, call) == []
    gate.open.set()
    assert (await retry).state is State.SUCCEEDED
    await run_reconciler(lossy_lab, call)
    assert await lossy_lab.db.fetchval("select count(*) from deputize.reconciliations where id = $1", call) == 0


async def test_many_reconcilers_ask_once(lossy_lab: GatewayLab) -> None:
    call = await make_unknown_call(lossy_lab, "send", "at-once")
    status_answers[call] = {"state": "unknown"}
    await lossy_lab.db.execute(DUE, call)
    before = len(status_requests)
    await asyncio.gather(*(Reconciler(get_lifecycle(lossy_lab.gateway)).reconcile_due() for _ in range(4)))
    assert len([each for each in status_requests[before:] if each[0] == call]) == 1


async def test_a_revoked_policy_stops_the_asking_and_a_person_is_asked(lossy_lab: GatewayLab) -> None:
    """The gateway's own question is decided like anybody's: a switch on the status tool stops it."""
    call = await make_unknown_call(lossy_lab, "send", "switched")
    status_answers[call] = {"state": "happened"}
    admin = await lossy_lab.make_admin()
    await lossy_lab.gateway.commands.set_switch(admin, "tool", "lab.track_parcel", off=True)
    try:
        await run_reconciler(lossy_lab, call, times=lossy_lab.runtime.settings.runs.reconcile_tries)
    finally:
        await lossy_lab.gateway.commands.set_switch(admin, "tool", "lab.track_parcel", off=False)
    (ticket,) = await _list_open_tasks(lossy_lab, call)
    assert ticket["question"]["why"].endswith("switched-off")


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("lab.nowhere", "is not a callable tool"),
        ("lab.drop", "has side effects"),
        ("lab.send", "has no argument `key`"),
    ],
)
async def test_a_status_that_could_not_be_asked_is_not_admitted(
    lossy_lab: GatewayLab, status: str, reason: str
) -> None:
    declared = next(each.contract for each in TOOLS if each.contract.full_name == "lab.send")
    contract = declared.model_copy(update={"status": status, "version": "0.2.0"})
    with pytest.raises(ToolNotAdmitted) as refused:
        await lossy_lab.gateway.commands.register_tool(await lossy_lab.make_admin(), contract)
    assert any(reason in each["reason"] for each in refused.value.details["reasons"])
    assert {each["path"] for each in refused.value.details["reasons"]} == {"/status"}
    assert error_slug(await lossy_lab.call("send", "still-there", key="still-there")) is None
