"""Two workers may be handed the same approved run. What one of them saw then ends nothing that people decide since."""

from pathlib import Path

import pytest

from deputize.lifecycle.durable.resume import PendingRun, claim_run, load_pending_run
from tests.integration.lifecycle.approval.test_recheck_approval import (
    age_preview,
    approve_by_two,
    preview_deletes,
    run_worker_once,
)
from tests.support.approval_lab import ApprovalLab, open_approval_lab
from tests.support.gateway_lab import parse_body
from tests.support.scripted_tools import list_effects, previews

pytestmark = [pytest.mark.requirement("GOV-3"), pytest.mark.requirement("GOV-4")]


async def request_second_approval(approval_lab: ApprovalLab, tag: str) -> tuple[str, str, PendingRun]:
    """The call, its second approval request, and the run as a worker saw it before there was one."""
    previews[tag] = preview_deletes(1)
    call, first = await approval_lab.request_approval("erase", tag)
    await approve_by_two(approval_lab, first)
    seen = await load_pending_run(approval_lab.lab.runtime, "dev", call)
    assert seen is not None
    previews[tag] = preview_deletes(14)
    await age_preview(approval_lab, first)
    assert await run_worker_once(approval_lab, call) == "awaiting_approval"
    told = parse_body(await approval_lab.lab.call("erase", tag, key=f"erase-{tag}"))
    return call, told["approval"]["approval_id"], seen


async def test_a_renewed_approval_request_is_not_ended_by_a_worker_with_older_state(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        call, second, seen = await request_second_approval(approval_lab, "w1")
        assert await claim_run(approval_lab.lab.runtime, seen) is None
        assert (await approval_lab.lab.fetch_state(call), (await approval_lab.fetch_request(second))["state"]) == (
            "awaiting_approval",
            "open",
        )
        await approve_by_two(approval_lab, second)
        assert await run_worker_once(approval_lab, call) == "succeeded"
        assert len(list_effects("w1")) == 1


async def test_what_people_approved_again_is_ended_only_by_who_saw_that(fresh_database: str, tmp_path: Path) -> None:
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        call, second, seen = await request_second_approval(approval_lab, "w2")
        await approve_by_two(approval_lab, second)
        await approval_lab.lab.gateway.commands.revoke(await approval_lab.lab.make_admin(), "user", "ana")
        assert await claim_run(approval_lab.lab.runtime, seen) is None
        assert await approval_lab.lab.fetch_state(call) == "queued"
        assert await run_worker_once(approval_lab, call) == "denied"
        assert list_effects("w2") == []
