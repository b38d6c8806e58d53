"""A call that people are asked about waits for them, goes on by itself when they say yes, and never otherwise."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from deputize.core.caller import compute_decision_cache_key
from deputize.core.errors import ApprovalRequestChanged, HumanTaskClosed, HumanTaskNotFound, NotAnApprover, Problem
from deputize.govern.identity import revocations
from deputize.lifecycle.durable.active_runs import ActiveRuns
from tests.support.approval_lab import RULES, ApprovalLab, open_approval_lab
from tests.support.gateway_internals import get_lifecycle
from tests.support.gateway_lab import error_slug, parse_body, wait_until
from tests.support.scripted_tools import list_effects

pytestmark = pytest.mark.requirement("GOV-3")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def approval_lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApprovalLab]:
    async with open_approval_lab(module_database, tmp_path_factory.mktemp("house")) as opened:
        yield opened


async def test_an_approved_call_goes_on_by_itself_once(approval_lab: ApprovalLab) -> None:
    call, ticket = await approval_lab.request_approval("put", "a1")
    assert list_effects("a1") == []
    shown = await approval_lab.approvals.get_request(await approval_lab.make_approver("bo"), ticket)
    assert shown["arguments"] == {"tag": "a1"}
    assert (shown["for_user"], shown["may_decide"], shown["groups"]) == ("ana", True, ["approvers"])
    answer = await approval_lab.approvals.approve(
        await approval_lab.make_approver("bo"), ticket, binding=shown["binding"]
    )
    assert (answer["state"], answer["call_state"]) == ("approved", "queued")
    await approval_lab.lab.wait_for_state(call, "succeeded")
    assert [effect.key for effect in list_effects("a1")] == [call]
    assert (await approval_lab.fetch_request(ticket))["state"] == "used"
    assert await approval_lab.lab.fetch_entry_kinds(call) == ["intent", "decision", "intent", "outcome"]


async def test_the_same_key_returns_the_same_approval_request_and_later_the_outcome(approval_lab: ApprovalLab) -> None:
    call, ticket = await approval_lab.request_approval("put", "a2")
    assert await approval_lab.request_approval("put", "a2") == (call, ticket)
    await approval_lab.approve(await approval_lab.make_approver("bo"), ticket)
    await approval_lab.lab.wait_for_state(call, "succeeded")
    again = await approval_lab.lab.call("put", "a2", key="put-a2")
    assert (again.is_replay, parse_body(again)["result"]) == (True, {"value": "a2"})


async def test_a_no_ends_the_call_with_a_reason_its_caller_reads(approval_lab: ApprovalLab) -> None:
    call, ticket = await approval_lab.request_approval("note", "a3")
    await approval_lab.approvals.deny(await approval_lab.make_approver("bo"), ticket, reason="not on a Sunday")
    assert await approval_lab.lab.fetch_state(call) == "denied"
    again = await approval_lab.lab.call("note", "a3", key="note-a3")
    assert error_slug(again) == "approval-rejected"
    assert "not on a Sunday" in parse_body(again)["error"]["message"]
    with pytest.raises(HumanTaskClosed):
        await approval_lab.approve(await approval_lab.make_approver("cy"), ticket)
    assert list_effects("a3") == []


async def test_how_long_people_took_is_measured_when_they_have_decided(approval_lab: ApprovalLab) -> None:
    def read_histogram() -> dict[str, float]:
        [family] = approval_lab.lab.runtime.metrics.approval_time.collect()
        found = (each for each in family.samples if each.name.endswith("_count"))
        return {each.labels["resolution"]: each.value for each in found if each.labels["tool"] == "lab.put"}

    before = read_histogram()
    _, ticket = await approval_lab.request_approval("put", "a3-measured")
    assert read_histogram() == before
    await approval_lab.approvals.deny(await approval_lab.make_approver("bo"), ticket, reason="no")
    assert read_histogram().get("denied", 0) == before.get("denied", 0) + 1


@pytest.mark.parametrize(
    ("user", "change", "rule"),
    [
        ("ana", {}, "no-self-approval"),
        ("bo", {"human": False}, "humans-only"),
        ("bo", {"agents": ("bot",)}, "humans-only"),
        ("bo", {"console": False}, "console-audience"),
        ("bo", {"auth_time": 1}, "fresh-sign-in"),
    ],
)
async def test_who_may_not_decide_is_refused_and_on_record(
    approval_lab: ApprovalLab, user: str, change: dict[str, Any], rule: str
) -> None:
    tag = f"a4-{user}-{rule}-{len(change)}-{min(change, default='')}"
    call, ticket = await approval_lab.request_approval("put", tag)
    person = replace(await approval_lab.make_approver(user), **{"scopes": frozenset({"deputize:admin"}), **change})
    with pytest.raises(NotAnApprover) as refused:
        await approval_lab.approve(person, ticket)
    assert refused.value.details["rule"] == rule
    assert await approval_lab.lab.fetch_state(call) == "awaiting_approval"
    found = await approval_lab.lab.db.fetchval(
        "select count(*) from deputize.audit_entries where convert_from(entry, 'utf8') like '%' || $1 || '%'"
        " and convert_from(entry, 'utf8') like '%\"refusal\"%'",
        ticket,
    )
    assert found == 1


async def test_an_agent_cannot_exclude_approvers_by_taking_their_names(approval_lab: ApprovalLab) -> None:
    ana = await approval_lab.lab.make_caller()
    agent = replace(ana, agents=("cy", "bo", "helper"), agent_issuers=("", "", ana.issuer))
    agent = replace(agent, decision_cache_key=compute_decision_cache_key(agent))
    call, ticket = await approval_lab.request_approval("put", "a4-names", by=agent)
    helper = await approval_lab.make_approver("helper")
    with pytest.raises(NotAnApprover) as refused:
        await approval_lab.approve(helper, ticket)
    assert refused.value.details["rule"] == "no-self-approval"
    assert (await approval_lab.approve(await approval_lab.make_approver("bo"), ticket))["state"] == "approved"
    await approval_lab.lab.wait_for_state(call, "succeeded")


@pytest.mark.parametrize("user", ["ana", "cy", "helper"])
async def test_everyone_who_was_asked_may_deny(approval_lab: ApprovalLab, user: str) -> None:
    ana = await approval_lab.lab.make_caller()
    agent = replace(ana, agents=("cy", "helper"), agent_issuers=("", ana.issuer))
    call, ticket = await approval_lab.request_approval("put", f"a4-deny-{user}", by=agent)
    person = await approval_lab.make_approver(user)
    assert (await approval_lab.approvals.get_request(person, ticket))["may_deny"] is True
    await approval_lab.approvals.deny(person, ticket, reason="not mine")
    assert await approval_lab.lab.fetch_state(call) == "denied"


async def test_anyone_who_has_nothing_to_do_with_it_learns_nothing(approval_lab: ApprovalLab) -> None:
    _, ticket = await approval_lab.request_approval("put", "a5")
    stranger = await approval_lab.make_approver("eve", groups=("gardeners",))
    for act in (approval_lab.approvals.get_request, approval_lab.approve):
        with pytest.raises(HumanTaskNotFound):
            await act(stranger, ticket)
    assert await approval_lab.approvals.list_requests(stranger) == []
    assert ticket in [
        each["approval_id"]
        for each in await approval_lab.approvals.list_requests(await approval_lab.make_approver("bo"))
    ]


async def test_every_demand_needs_its_people(approval_lab: ApprovalLab) -> None:
    call, ticket = await approval_lab.request_approval("erase", "a6")
    first = await approval_lab.approve(await approval_lab.make_approver("k1", groups=("keepers",)), ticket)
    assert first["state"] == "open"
    with pytest.raises(NotAnApprover, match="already"):
        await approval_lab.approve(await approval_lab.make_approver("k1", groups=("keepers",)), ticket)
    with pytest.raises(NotAnApprover):
        await approval_lab.approve(await approval_lab.make_approver("e1", groups=("elders",)), ticket)
    second = await approval_lab.approve(await approval_lab.make_approver("k2", groups=("keepers",)), ticket)
    assert second["state"] == "approved"
    await approval_lab.lab.wait_for_state(call, "succeeded")
    assert len(list_effects("a6")) == 1


async def test_an_approval_is_bound_to_what_the_approver_saw(approval_lab: ApprovalLab) -> None:
    _, ticket = await approval_lab.request_approval("put", "a7")
    with pytest.raises(ApprovalRequestChanged):
        await approval_lab.approvals.approve(await approval_lab.make_approver("bo"), ticket, binding="00" * 32)


async def test_requests_of_a_revoked_agent_are_withdrawn_and_those_of_others_stay(approval_lab: ApprovalLab) -> None:
    lab = approval_lab.lab
    admin, approver = await lab.make_admin(), await approval_lab.make_approver("judy")
    bot = await lab.make_caller("ann", agent="rogue-bot")
    withdrawn_call, withdrawn_id = await approval_lab.request_approval("put", "rogue", by=bot)
    other_call, other_id = await approval_lab.request_approval("put", "honest")

    await lab.gateway.commands.revoke(admin, "agent", "rogue-bot", reason="rogue")

    assert (await lab.fetch_state(withdrawn_call), await lab.fetch_state(other_call)) == ("denied", "awaiting_approval")
    shown = await approval_lab.approvals.get_request(approver, withdrawn_id)
    assert (shown["state"], shown["call_error"]) == ("void", "revoked")
    assert (await approval_lab.approvals.get_request(approver, other_id))["state"] == "open"
    with pytest.raises(HumanTaskClosed):
        await approval_lab.approve(approver, withdrawn_id)
    assert (await lab.fetch_entries(withdrawn_call))[-1]["outcome"] == "denied"


async def test_changed_rules_void_what_was_approved(fresh_database: str, tmp_path: Path) -> None:
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        call, ticket = await approval_lab.request_approval("put", "v1")
        await approval_lab.approve(await approval_lab.make_approver("bo"), ticket)
        await approval_lab.put_policies(RULES.replace("Somebody agrees", "Anybody agrees"))
        await _run_worker_once(approval_lab, call)
        assert await approval_lab.lab.fetch_state(call) == "denied"
        outcome = await approval_lab.lab.call("put", "v1", key="put-v1")
        assert error_slug(outcome) == "approval-void"
        assert list_effects("v1") == []


async def test_an_approval_that_is_not_used_in_time_is_void(fresh_database: str, tmp_path: Path) -> None:
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        call, ticket = await approval_lab.request_approval("put", "v2")
        await approval_lab.approve(await approval_lab.make_approver("bo"), ticket)
        await approval_lab.lab.db.execute(
            "update deputize.approvals set expires_at = now() - interval '1 second' where id = $1", ticket
        )
        await _run_worker_once(approval_lab, call)
        assert await approval_lab.lab.fetch_state(call) == "denied"
        assert list_effects("v2") == []


async def test_what_nobody_approved_is_not_begun_anyone_who_hands_it_out(fresh_database: str, tmp_path: Path) -> None:
    """Someone with access to the queue, or a fault of ours, hands out what still waits."""
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        call, _ = await approval_lab.request_approval("put", "v3")
        await approval_lab.lab.db.execute("update deputize.calls set state = 'queued' where id = $1", call)
        await _run_worker_once(approval_lab, call)
        assert await approval_lab.lab.fetch_state(call) == "denied"
        assert list_effects("v3") == []


async def test_many_say_yes_at_once_and_it_happens_once(approval_lab: ApprovalLab) -> None:
    call, ticket = await approval_lab.request_approval("note", "a8")
    people = [await approval_lab.make_approver(f"p{number}") for number in range(8)]
    answers = await asyncio.gather(*(approval_lab.approve(person, ticket) for person in people), return_exceptions=True)
    assert sum(isinstance(each, dict) for each in answers) == 1
    assert all(isinstance(each, dict | Problem) for each in answers), answers
    await approval_lab.lab.wait_for_state(call, "succeeded")
    assert len(list_effects("a8")) == 1


async def test_who_made_the_call_takes_it_back(approval_lab: ApprovalLab) -> None:
    call, ticket = await approval_lab.request_approval("put", "a9")
    answer = await approval_lab.lab.gateway.cancellations.cancel_call(await approval_lab.lab.make_caller(), call)
    assert answer["state"] == "canceled"
    assert (await approval_lab.fetch_request(ticket))["state"] == "canceled"
    with pytest.raises(HumanTaskClosed):
        await approval_lab.approve(await approval_lab.make_approver("bo"), ticket)


async def test_calls_that_are_alike_are_decided_together_each_listed(approval_lab: ApprovalLab) -> None:
    made = [await approval_lab.request_approval("put", f"many-{number}") for number in range(3)]
    odd = await approval_lab.request_approval("note", "many-odd")
    bo = await approval_lab.make_approver("bo")
    with pytest.raises(Problem, match="differs"):
        await approval_lab.approve_many(bo, [made[0][1], odd[1]], vary=["tag"])
    with pytest.raises(Problem, match="tag"):
        await approval_lab.approve_many(bo, [each[1] for each in made], vary=[])
    answers = await approval_lab.approve_many(bo, [each[1] for each in made], vary=["tag"])
    assert [each["arguments"]["tag"] for each in answers] == ["many-0", "many-1", "many-2"]
    for call, _ in made:
        await approval_lab.lab.wait_for_state(call, "succeeded")


async def test_who_may_not_even_see_one_of_many_is_on_record_for_it(approval_lab: ApprovalLab) -> None:
    _, ticket = await approval_lab.request_approval("put", "many-unseen")
    stranger = await approval_lab.make_approver("eve", groups=("sales",))
    with pytest.raises(HumanTaskNotFound):
        await approval_lab.approve_many(stranger, [ticket], vary=[])
    kept = await approval_lab.lab.db.fetch(
        "select convert_from(entry, 'utf8')::json as entry from deputize.audit_entries"
        " where convert_from(entry, 'utf8')::json ->> 'subject' = $1",
        ticket,
    )
    (entry,) = [orjson.loads(row["entry"]) for row in kept]
    assert (entry["kind"], entry["command"], entry["error"]) == ("refusal", "approve", HumanTaskNotFound.spec.e_number)


async def test_two_people_break_the_glass_and_all_approvers_are_notified(approval_lab: ApprovalLab) -> None:
    call, ticket = await approval_lab.request_approval("put", "glass")
    first, second = [
        await approval_lab.make_approver(name, groups=("approvers",), scopes=frozenset({"deputize:break-glass"}))
        for name in "xy"
    ]
    opened = await approval_lab.break_glass(first, ticket, reason="the site is down")
    assert opened["state"] == "open"
    with pytest.raises(NotAnApprover):
        await approval_lab.break_glass(first, ticket, reason="still down")
    answer = await approval_lab.break_glass(second, ticket, reason="the site is down")
    assert answer["state"] == "approved"
    await approval_lab.lab.wait_for_state(call, "succeeded")

    async def is_notified() -> bool:
        kinds = await approval_lab.lab.db.fetch("select kind from deputize.notices where approval_id = $1", ticket)
        return "broken-glass" in {each["kind"] for each in kinds}

    assert await is_notified() or await approval_lab.lab.db.fetchval("select count(*) from deputize.notices") == 0
    entries = await approval_lab.lab.fetch_entries(call)
    assert [each.get("command") for each in entries if each["kind"] == "decision"] == ["break_glass"]


async def test_a_read_that_rules_ask_about_waits_too(approval_lab: ApprovalLab) -> None:
    call, ticket = await approval_lab.request_approval("look", "a10", key=None)
    await approval_lab.approve(await approval_lab.make_approver("bo"), ticket)
    await approval_lab.lab.wait_for_state(call, "succeeded")


async def _run_worker_once(approval_lab: ApprovalLab, call: str) -> None:
    """One try of a worker."""
    await get_lifecycle(approval_lab.lab.gateway).resume_run("dev", call, ActiveRuns(approval_lab.lab.runtime))

    async def has_ended() -> bool:
        return await approval_lab.lab.fetch_state(call) not in ("queued", "running")

    await wait_until(has_ended)


async def test_an_approval_request_is_not_a_human_task(approval_lab: ApprovalLab) -> None:
    _, ticket = await approval_lab.request_approval("put", "a-other-door")
    admin = await approval_lab.lab.make_admin()
    assert ticket not in [
        each["approval_id"] for each in await approval_lab.lab.gateway.human_tasks.list_tasks(admin, limit=200)
    ]
    with pytest.raises(HumanTaskNotFound):
        await approval_lab.lab.gateway.human_tasks.resolve_task(admin, ticket, "happened", "seen")


@pytest.mark.requirement("NEW-7")
async def test_no_one_is_asked_for_a_caller_who_was_revoked_before_the_request_committed(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        lab = approval_lab.lab
        by = await lab.make_caller("gone")
        async with lab.hold_barrier() as admin:
            call = asyncio.create_task(lab.call("put", "revoked", key="revoked", by=by))
            await lab.wait_for_blocked_query("%deputize.%")
            await revocations.revoke(admin, "dev", "subject", "gone", by="test")
        refused = await call
        assert (error_slug(refused), refused.http_status) == ("revoked", 401)
        states = await lab.db.fetch("select state from deputize.approvals where call_id = $1", refused.call_id)
        assert "open" not in [row["state"] for row in states]
