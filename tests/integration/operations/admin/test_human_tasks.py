"""An operator resolves what waits for a person, once, by their own word: outcomes of calls, and acts outside them."""

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from deputize.core.caller import AUDIT_SCOPE, OPERATE_SCOPE
from deputize.core.contract.contract import Effects
from deputize.core.errors import (
    HumanTaskClosed,
    HumanTaskNotFound,
    MalformedRequest,
    OperatorConfirmationRequired,
    ScopeMissing,
    VersionNotInCapability,
)
from deputize.core.states import State
from deputize.lifecycle.recording.human_tasks import OpenedTask, TaskKind, open_human_task
from deputize.lifecycle.recording.settlement import ActualOutcome
from deputize.operations.admin.human_tasks import HumanTasks
from tests.integration.operations.background.test_reconciler import (
    _list_open_tasks,
    make_unknown_call,
    repeat_call,
    run_reconciler,
)
from tests.support.gateway_lab import GatewayLab, parse_body
from tests.support.scripted_tools import list_effects, set_behaviour

pytestmark = [pytest.mark.requirement("NEW-3"), pytest.mark.requirement("INV-4")]

UNKNOWN_ID = "01890000-0000-7000-8000-000000000000"
OTHER_KINDS: list[TaskKind] = ["fallback", "compensate", "undo"]


async def make_task(lab: GatewayLab, tag: str) -> tuple[str, str]:
    """The ids of an unknown call and of the approval request about it."""
    call = await make_unknown_call(lab, "drop", tag)
    await run_reconciler(lab, call)
    (ticket,) = await _list_open_tasks(lab, call)
    return call, str(ticket["task_id"])


async def test_it_happened(lossy_lab: GatewayLab) -> None:
    call, ticket = await make_task(lossy_lab, "happened")
    answer = await HumanTasks(lossy_lab.runtime).resolve_task(
        await lossy_lab.make_admin(), ticket, "happened", "it lies on the shelf"
    )
    assert (answer["state"], answer["resolution"], answer["resolved_by"]) == ("resolved", "happened", "root")
    assert answer["call"]["state"] == "succeeded"
    told = parse_body(await repeat_call(lossy_lab, "drop", "happened"))
    assert told["state"] == "succeeded"
    assert "An operator established" in told["result"]["settled"]["said"]
    assert "it lies on the shelf" in told["warnings"][0]
    last = (await lossy_lab.fetch_entries(call))[-1]
    assert (last["kind"], last["command"], last["subject"]) == ("decision", "settle:happened", ticket)
    assert last["rules"] == ["admin-scope", "operator-sign-in"]
    assert len(last["caller"]) == 1
    assert len(list_effects("happened")) == 1


async def test_the_operate_scope_resolves_a_task_and_the_audit_scope_only_reads_it(lossy_lab: GatewayLab) -> None:
    call, ticket = await make_task(lossy_lab, "operated")
    admin, tasks = await lossy_lab.make_admin(), HumanTasks(lossy_lab.runtime)
    auditor = replace(admin, scopes=frozenset({AUDIT_SCOPE}))
    assert (await tasks.show_task(auditor, ticket))["state"] == "open"
    with pytest.raises(ScopeMissing):
        await tasks.resolve_task(auditor, ticket, "happened", "seen")
    operator = replace(admin, scopes=frozenset({OPERATE_SCOPE}))
    assert (await tasks.resolve_task(operator, ticket, "happened", "seen"))["state"] == "resolved"
    assert (await lossy_lab.fetch_entries(call))[-1]["rules"] == ["operate-scope", "operator-sign-in"]


async def test_it_did_not_happen(lossy_lab: GatewayLab) -> None:
    call, ticket = await make_task(lossy_lab, "did-not")
    await HumanTasks(lossy_lab.runtime).resolve_task(
        await lossy_lab.make_admin(), ticket, "did_not_happen", "the shelf is empty"
    )
    row = await lossy_lab.fetch_call(call)
    assert (row["state"], row["error"], row["nothing_happened"]) == ("failed", "did-not-happen", True)
    assert not await lossy_lab.has_claim(call)
    set_behaviour("did-not", lambda _: {"value": "now"})
    assert (await repeat_call(lossy_lab, "drop", "did-not")).state is State.SUCCEEDED
    assert await lossy_lab.db.fetchval("select count(*) from deputize.reconciliations where id = $1", call) == 0


async def test_of_many_answers_one_counts(lossy_lab: GatewayLab) -> None:
    call, ticket = await make_task(lossy_lab, "many")
    admin = await lossy_lab.make_admin()
    found: list[ActualOutcome] = ["happened", "did_not_happen"] * 3
    answers = await asyncio.gather(
        *(HumanTasks(lossy_lab.runtime).resolve_task(admin, ticket, each, "I looked") for each in found),
        return_exceptions=True,
    )
    assert [type(each).__name__ for each in answers].count("dict") == 1
    assert all(isinstance(each, dict | HumanTaskClosed) for each in answers)
    won = next(each for each in answers if isinstance(each, dict))
    assert (await lossy_lab.fetch_call(call))["state"] == ("succeeded" if won["resolution"] == "happened" else "failed")
    assert [entry["kind"] for entry in await lossy_lab.fetch_entries(call)].count("decision") == 2


async def test_a_call_that_was_settled_meanwhile_stays_as_it_is(lossy_lab: GatewayLab) -> None:
    call, ticket = await make_task(lossy_lab, "meanwhile")
    await lossy_lab.db.execute("update deputize.calls set state = 'succeeded' where id = $1", call)
    with pytest.raises(HumanTaskClosed):
        await HumanTasks(lossy_lab.runtime).resolve_task(
            await lossy_lab.make_admin(), ticket, "did_not_happen", "I looked"
        )
    assert await lossy_lab.fetch_state(call) == "succeeded"
    shown = await HumanTasks(lossy_lab.runtime).show_task(await lossy_lab.make_admin(), ticket)
    assert (shown["state"], shown["resolution"]) == ("resolved", "settled_elsewhere")


async def test_only_administrators_see_and_answer_and_say_why(lossy_lab: GatewayLab) -> None:
    _, ticket = await make_task(lossy_lab, "whose")
    tickets, admin, ana = (
        HumanTasks(lossy_lab.runtime),
        await lossy_lab.make_admin(),
        await lossy_lab.make_caller(),
    )
    with pytest.raises(ScopeMissing):
        await tickets.list_tasks(ana)
    with pytest.raises(ScopeMissing):
        await tickets.show_task(ana, ticket)
    with pytest.raises(ScopeMissing):
        await tickets.resolve_task(ana, ticket, "happened", "I say so")
    with pytest.raises(MalformedRequest):
        await tickets.resolve_task(admin, ticket, "happened", "  ")
    for unknown in (UNKNOWN_ID, "no id"):
        with pytest.raises(HumanTaskNotFound):
            await tickets.show_task(admin, unknown)
        with pytest.raises(HumanTaskNotFound):
            await tickets.resolve_task(admin, unknown, "happened", "I looked")


@pytest.mark.parametrize("ceiling", [Effects.READ, Effects.WRITE])
async def test_who_was_lent_to_administer_without_changing_anything_sees_and_answers_nothing(
    lossy_lab: GatewayLab, ceiling: Effects
) -> None:
    call, ticket = await make_task(lossy_lab, f"lent-{ceiling}")
    tickets, looking = HumanTasks(lossy_lab.runtime), replace(await lossy_lab.make_admin(), ceiling=ceiling)
    assert (await tickets.show_task(looking, ticket))["state"] == "open"
    with pytest.raises(VersionNotInCapability) as refused:
        await tickets.resolve_task(looking, ticket, "happened", "I looked")
    assert refused.value.details["rule"] == "grant-ceiling"
    assert await lossy_lab.fetch_state(call) == "unknown"


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"agents": ("helper",)}, "operator-in-person"),
        ({"agents": ("helper",), "ceiling": Effects.DESTRUCTIVE}, "operator-in-person"),
        ({"operator": False}, "operator-issuer"),
        ({"auth_time": 1}, "operator-sign-in"),
    ],
    ids=["an agent", "an agent for anything", "an administrator who is no operator", "a sign-in of long ago"],
)
async def test_only_an_operator_in_person_says_what_happened(
    lossy_lab: GatewayLab, changes: dict[str, Any], rule: str
) -> None:
    call, ticket = await make_task(lossy_lab, f"who-{rule}-{len(changes)}")
    tickets, somebody = HumanTasks(lossy_lab.runtime), replace(await lossy_lab.make_admin(), **changes)
    with pytest.raises(OperatorConfirmationRequired) as refused:
        await tickets.resolve_task(somebody, ticket, "did_not_happen", "trust me")
    assert refused.value.details["rule"] == rule
    assert await lossy_lab.fetch_state(call) == "unknown"
    assert await lossy_lab.has_claim(call)


async def test_pages_go_on_where_the_last_one_ended(lossy_lab: GatewayLab) -> None:
    made = [(await make_task(lossy_lab, f"page-{n}"))[1] for n in range(3)]
    tickets, admin = HumanTasks(lossy_lab.runtime), await lossy_lab.make_admin()
    first = await tickets.list_tasks(admin, limit=2)
    rest = await tickets.list_tasks(admin, before=first[-1]["task_id"], limit=200)
    assert [each["task_id"] for each in first] == made[:0:-1]
    assert made[0] == rest[0]["task_id"]
    assert all(each["state"] == "open" for each in first + rest)


async def open_task(lab: GatewayLab, kind: TaskKind, call: str, **facts: Any) -> OpenedTask:
    question = {"asked": "Look at the stock by hand.", "why": "the stock does not answer", **facts}
    async with lab.runtime.store.write_transaction() as connection:
        return await open_human_task(lab.runtime, connection, "dev", kind, call, question)


@pytest.mark.parametrize("kind", OTHER_KINDS)
async def test_a_task_about_an_act_is_done_or_dismissed_and_changes_no_call(
    lossy_lab: GatewayLab, kind: TaskKind
) -> None:
    call = await make_unknown_call(lossy_lab, "drop", f"act-{kind}")
    task, again = await open_task(lossy_lab, kind, call), await open_task(lossy_lab, kind, call, why="something else")
    assert (task.is_new, again.is_new, task.id) == (True, False, again.id)
    tasks, admin = HumanTasks(lossy_lab.runtime), await lossy_lab.make_admin()
    (listed,) = await tasks.list_tasks(admin, kind=kind)
    assert (listed["task_id"], listed["question"]["why"]) == (task.id, "the stock does not answer")
    assert listed["call"]["tool"]["name"] == "lab.drop"
    for outcome in ("happened", "did_not_happen"):
        with pytest.raises(MalformedRequest, match="done or dismissed"):
            await tasks.resolve_task(admin, task.id, outcome, "I looked")
    with pytest.raises(OperatorConfirmationRequired):
        await tasks.resolve_task(replace(admin, agents=("helper",)), task.id, "done", "trust me")
    answer = await tasks.resolve_task(admin, task.id, "done", "counted by hand")
    assert (answer["state"], answer["resolution"], answer["resolved_by"]) == ("resolved", "done", "root")
    assert await lossy_lab.fetch_state(call) == "unknown"
    with pytest.raises(HumanTaskClosed):
        await tasks.resolve_task(admin, task.id, "dismissed", "never mind")
    # What happens again is a task again.
    reopened = await open_task(lossy_lab, kind, call)
    assert reopened.is_new
    assert (await tasks.resolve_task(admin, reopened.id, "dismissed", "known"))["resolution"] == "dismissed"


async def test_the_resolution_of_a_task_is_audited_as_an_act_of_an_operator(lossy_lab: GatewayLab) -> None:
    task = await open_task(lossy_lab, "fallback", UNKNOWN_ID, tool={"name": "lab.stock", "version": "1.0.0"})
    tasks, admin = HumanTasks(lossy_lab.runtime), await lossy_lab.make_admin()
    shown = await tasks.show_task(admin, task.id)
    # A read has no row of its own: what its task is about stands in the question.
    assert (shown["call"]["state"], shown["call"]["user"], shown["call"]["tool"]["name"]) == (None, None, "lab.stock")
    await tasks.resolve_task(admin, task.id, "done", "answered by telephone")
    body = await lossy_lab.db.fetchval("select entry from deputize.audit_entries order by id desc limit 1")
    entry = orjson.loads(body)
    assert (entry["command"], entry["subject"], entry["confirmation"]) == ("resolve:done", task.id, "operator-sign-in")


async def test_an_unknown_outcome_is_neither_done_nor_dismissed(lossy_lab: GatewayLab) -> None:
    call, task = await make_task(lossy_lab, "not-done")
    with pytest.raises(MalformedRequest, match="happened or did_not_happen"):
        await HumanTasks(lossy_lab.runtime).resolve_task(await lossy_lab.make_admin(), task, "dismissed", "never mind")
    assert await lossy_lab.fetch_state(call) == "unknown"
