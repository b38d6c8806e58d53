"""What was approved is begun as it was approved, or not at all: whatever changed in between stops it or asks again."""

import asyncio
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from deputize import Preview, ToolContext
from deputize.core.clock import Clock
from deputize.core.contract.contract import LifecycleState
from deputize.core.errors import ApprovalExpired, ApprovalVoid
from deputize.core.hooks import HookCall, LoadedHook, Permission
from deputize.govern.policy.active_policies import parse_for_activation, put_policies
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.lifecycle.durable.active_runs import ActiveRuns
from deputize.lifecycle.durable.resume import claim_run, load_pending_run
from tests.support.approval_lab import RULES, ApprovalLab, open_approval_lab
from tests.support.gateway_internals import get_lifecycle
from tests.support.gateway_lab import error_slug, parse_body, wait_until
from tests.support.scripted_tools import TOOLS, list_effects, previews, set_behaviour

pytestmark = [pytest.mark.requirement("GOV-3"), pytest.mark.requirement("GOV-4")]


def make_shifted_clock(seconds: int) -> Clock:
    """A machine whose clock is off by so many seconds."""
    return Clock(epoch_ms=lambda: time.time_ns() // 1_000_000 + 1000 * seconds)


async def run_worker_once(approval_lab: ApprovalLab, call: str) -> str:
    """One try of a worker; the state it leaves behind."""
    await get_lifecycle(approval_lab.lab.gateway).resume_run("dev", call, ActiveRuns(approval_lab.lab.runtime))

    async def has_moved() -> bool:
        return await approval_lab.lab.fetch_state(call) not in ("queued", "running")

    await wait_until(has_moved)
    return await approval_lab.lab.fetch_state(call)


async def approve_by_two(approval_lab: ApprovalLab, ticket: str) -> None:
    for name in ("k1", "k2"):
        await approval_lab.approve(await approval_lab.make_approver(name, groups=("keepers", "approvers")), ticket)


async def age_preview(approval_lab: ApprovalLab, ticket: str) -> None:
    await approval_lab.lab.db.execute(
        "update deputize.approvals set previewed_at = previewed_at - interval '1 hour' where id = $1", ticket
    )


def preview_deletes(count: int, **impact: Any) -> Any:
    return lambda _: Preview(
        changes=[{"resource": "lab.notes", "op": "delete", "scope": "x", "count": count}],
        impact=impact,
        guards={"etag": f"e{count}"},
    )


async def test_a_preview_that_differs_asks_again_and_shows_the_new_one(fresh_database: str, tmp_path: Path) -> None:
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        previews["c1"] = preview_deletes(1)
        call, first = await approval_lab.request_approval("erase", "c1")
        await approve_by_two(approval_lab, first)
        previews["c1"] = preview_deletes(14)
        await age_preview(approval_lab, first)
        assert await run_worker_once(approval_lab, call) == "awaiting_approval"
        assert (await approval_lab.fetch_request(first))["state"] == "void"
        told = parse_body(await approval_lab.lab.call("erase", "c1", key="erase-c1"))
        second = told["approval"]["approval_id"]
        assert second != first
        shown = await approval_lab.approvals.get_request(
            await approval_lab.make_approver("k1", groups=("keepers",)), second
        )
        assert shown["preview"]["changes"][0]["count"] == 14
        assert list_effects("c1") == []
        met: list[Any] = []

        def run_erase(context: ToolContext) -> dict[str, str]:
            met.append(context.guards)
            return {"value": "gone"}

        set_behaviour("c1", run_erase)
        await approve_by_two(approval_lab, second)
        assert await run_worker_once(approval_lab, call) == "succeeded"
        assert met == [{"etag": "e14"}]


async def test_a_stale_preview_that_shows_the_same_is_no_reason_to_ask(fresh_database: str, tmp_path: Path) -> None:
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        previews["c2"] = preview_deletes(1, seen_at="09:00")
        call, ticket = await approval_lab.request_approval("erase", "c2")
        await approve_by_two(approval_lab, ticket)
        previews["c2"] = preview_deletes(1, seen_at="10:00")
        await age_preview(approval_lab, ticket)
        assert await run_worker_once(approval_lab, call) == "succeeded"
        assert len(list_effects("c2")) == 1


async def test_a_tool_that_was_taken_away_ends_what_was_approved(fresh_database: str, tmp_path: Path) -> None:
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        call, ticket = await approval_lab.request_approval("put", "c3")
        await approval_lab.approve(await approval_lab.make_approver("bo"), ticket)
        await approval_lab.lab.gateway.commands.set_state(
            await approval_lab.lab.make_admin(), "lab.put", "0.1.0", LifecycleState.RETIRED
        )
        assert await run_worker_once(approval_lab, call) in ("blocked", "denied")
        assert list_effects("c3") == []


async def test_an_input_that_was_swapped_is_not_what_was_approved(fresh_database: str, tmp_path: Path) -> None:
    """Someone who can write to the database puts another call's sealed input in its place."""
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        call, ticket = await approval_lab.request_approval("put", "c4")
        keys = approval_lab.lab.runtime.keys.find("dev")
        assert keys is not None
        box = await approval_lab.lab.db.fetchval(
            "select ciphertext from deputize.sealed_payloads where id = $1 and kind = 'input'", call
        )
        swapped = keys.unseal(call, "input", box).replace(b"c4", b"c5")
        await approval_lab.lab.db.execute(
            "update deputize.sealed_payloads set ciphertext = $2 where id = $1 and kind = 'input'",
            call,
            keys.seal(call, "input", swapped),
        )
        await approval_lab.approve(await approval_lab.make_approver("bo"), ticket)
        assert await run_worker_once(approval_lab, call) == "denied"
        outcome = await approval_lab.lab.call("put", "c4", key="put-c4")
        assert error_slug(outcome) == "approval-void"
        assert "input" in parse_body(outcome)["error"]["details"]["changed"]
        assert list_effects("c4") == list_effects("c5") == []


async def test_code_that_changed_since_the_approval_does_not_run(fresh_database: str, tmp_path: Path) -> None:
    """Approve a call, edit the tool, start again: the worker that would execute it has other code."""
    approved, edited = ([replace(tool, code_digest=digest) for tool in TOOLS] for digest in ("sha256:aa", "sha256:bb"))
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False, tools=approved) as approval_lab:
        call, ticket = await approval_lab.request_approval("put", "c41")
        same_call, same_ticket = await approval_lab.request_approval("put", "c42")
        for each in (ticket, same_ticket):
            await approval_lab.approve(await approval_lab.make_approver("bo"), each)
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False, tools=approved) as approval_lab:
        assert await run_worker_once(approval_lab, same_call) == "succeeded"
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False, tools=edited) as approval_lab:
        assert await run_worker_once(approval_lab, call) == "denied"
        outcome = await approval_lab.lab.call("put", "c41", key="put-c41")
        assert error_slug(outcome) == "approval-void"
        error = parse_body(outcome)["error"]
        assert error["details"]["changed"] == ["code"]
        assert "the code of the tool changed" in error["message"]
    assert list_effects("c41") == []


async def test_anyone_who_was_revoked_meanwhile_gets_nothing_done(fresh_database: str, tmp_path: Path) -> None:
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        call, ticket = await approval_lab.request_approval("put", "c6")
        await approval_lab.approve(await approval_lab.make_approver("bo"), ticket)
        await approval_lab.lab.gateway.commands.revoke(await approval_lab.lab.make_admin(), "subject", "ana")
        assert await run_worker_once(approval_lab, call) == "denied"
        assert list_effects("c6") == []


@pytest.mark.parametrize("seconds", [45 * 60, -45 * 60])
async def test_a_clock_that_is_off_only_ever_says_no_sooner(fresh_database: str, tmp_path: Path, seconds: int) -> None:
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        call, ticket = await approval_lab.request_approval("put", "c7")
        row = await approval_lab.fetch_request(ticket)
        await approval_lab.lab.db.execute(
            "update deputize.approvals set expires_at = $2 where id = $1",
            ticket,
            row["opened_at"] + timedelta(minutes=30),
        )
        async with open_approval_lab(
            fresh_database, tmp_path, with_worker=False, rules=None, clock=make_shifted_clock(seconds)
        ) as other:
            bo = await approval_lab.make_approver("bo")
            if seconds > 0:
                bo = replace(bo, auth_time=other.lab.runtime.clock.epoch_ms() // 1000)
                with pytest.raises(ApprovalExpired):
                    await other.approve(bo, ticket)
            else:
                await approval_lab.lab.db.execute(
                    "update deputize.approvals set expires_at = now() where id = $1", ticket
                )
                with pytest.raises(ApprovalExpired):
                    await other.approve(bo, ticket)
        assert await approval_lab.lab.fetch_state(call) == "awaiting_approval"


async def test_what_a_hook_asks_holds_although_it_is_not_heard_again(fresh_database: str, tmp_path: Path) -> None:
    heard: list[str] = []

    def require_approval(call: HookCall) -> Permission:
        heard.append(call.tool)
        return Permission(behavior="ask", reason="after hours")

    hook = LoadedHook(
        name="wary", moment="before", function=require_approval, is_async=False, tools="lab.assign", seconds=60
    )
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False, hooks=[hook]) as approval_lab:
        call, ticket = await approval_lab.request_approval("assign", "c8")
        shown = await approval_lab.approvals.get_request(await approval_lab.make_approver("bo"), ticket)
        assert [rule["id"] for rule in shown["rules"]] == ["hook:wary"]
        await approval_lab.approve(await approval_lab.make_approver("bo"), ticket)
        assert await run_worker_once(approval_lab, call) == "succeeded"
        assert len(heard) == 1


@pytest.mark.requirement("NEW-7")
async def test_policies_that_change_before_the_begin_commits_void_the_approval(
    fresh_database: str, tmp_path: Path
) -> None:
    """It was checked under the policies of that moment; those of the commit count, even if they are milder."""
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        call, ticket = await approval_lab.request_approval("put", "c10")
        await approval_lab.approve(await approval_lab.make_approver("bo"), ticket)
        other_rules = RULES.replace("Somebody agrees before", "Nobody minds that")
        policies = await parse_for_activation([PolicyFile(path="rules.cedar", text=other_rules)], {})
        async with approval_lab.lab.hold_barrier() as admin:
            worker = asyncio.create_task(run_worker_once(approval_lab, call))
            await approval_lab.lab.wait_for_blocked_query("%deputize.begin_%")
            await put_policies(admin, "dev", policies, by="test")
        with pytest.raises(ApprovalVoid):
            await worker
        row = await approval_lab.lab.fetch_call(call)
        assert (row["state"], row["error"]) == ("denied", "approval-void")
        assert list_effects("c10") == []


async def test_a_worker_that_died_with_an_approved_call_is_taken_over(fresh_database: str, tmp_path: Path) -> None:
    """The approval request was used for this very call: going on with it is no second use."""
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False, lease_seconds=300) as dead:
        call, ticket = await dead.request_approval("put", "c9")
        await dead.approve(await dead.make_approver("bo"), ticket)
        await _claim_and_abandon(dead, call)
        assert (await dead.fetch_request(ticket))["state"] == "used"
        async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
            await approval_lab.lab.expire_lease(dead.lab, call)
            assert await run_worker_once(approval_lab, call) == "succeeded"
            assert [effect.key for effect in list_effects("c9")] == [call]
            assert (await approval_lab.lab.fetch_call(call))["owner_epoch"] == 2


async def _claim_and_abandon(approval_lab: ApprovalLab, call: str) -> None:
    found = await load_pending_run(approval_lab.lab.runtime, "dev", call)
    assert found is not None
    assert await claim_run(approval_lab.lab.runtime, found) is not None
