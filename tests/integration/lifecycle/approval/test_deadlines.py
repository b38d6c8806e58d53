"""Time is up when it is up: also for anyone who began in time, and had to wait before their word or their call
counted.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from deputize.core.errors import ApprovalExpired, NotAnApprover
from deputize.lifecycle.durable.active_runs import ActiveRuns
from deputize.lifecycle.durable.resume import RunNotReady
from deputize.lifecycle.run import Lifecycle
from tests.support.approval_lab import ApprovalLab, open_approval_lab
from tests.support.gateway_internals import get_lifecycle
from tests.support.scripted_tools import list_effects

pytestmark = pytest.mark.requirement("GOV-3")
SECONDS = 8


async def request_short_approval(approval_lab: ApprovalLab, tag: str) -> tuple[str, str]:
    """For an agent whose authority ends in a moment: no one can decide about its call for longer."""
    return await approval_lab.request_approval(
        "put", tag, by=await approval_lab.lab.make_caller("ana", agent="bot", lifetime=SECONDS)
    )


async def wait_until_expired(approval_lab: ApprovalLab, ticket: str) -> None:
    wait = "select pg_sleep_until(expires_at + interval '50 milliseconds') from deputize.approvals where id = $1"
    await approval_lab.lab.db.execute(wait, ticket)


async def test_a_yes_that_waited_until_it_was_too_late_is_none(fresh_database: str, tmp_path: Path) -> None:
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        call, ticket = await request_short_approval(approval_lab, "t1")
        async with approval_lab.lab.hold_barrier():
            saying = asyncio.create_task(approval_lab.approve(await approval_lab.make_approver("bo"), ticket))
            await approval_lab.lab.wait_for_blocked_query("%barrier%")
            await wait_until_expired(approval_lab, ticket)
        with pytest.raises(ApprovalExpired):
            await saying
        # The sweeper may have been there already.
        assert await approval_lab.lab.fetch_state(call) in ("awaiting_approval", "denied")
        assert not await approval_lab.lab.db.fetchval("select count(*) from deputize.votes where id = $1", ticket)


@pytest.mark.nightly
async def test_a_sign_in_that_grew_old_while_its_word_waited_is_not_fresh(fresh_database: str, tmp_path: Path) -> None:
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        _, ticket = await approval_lab.request_approval("put", "t2")
        fresh = approval_lab.lab.runtime.settings.approvals.fresh_seconds
        async with approval_lab.lab.hold_barrier():
            now = approval_lab.lab.runtime.clock.epoch_ms() // 1000
            person = await approval_lab.make_approver("bo", auth_time=now - fresh + SECONDS)
            saying = asyncio.create_task(approval_lab.approve(person, ticket))
            await approval_lab.lab.wait_for_blocked_query("%barrier%")
            await approval_lab.lab.db.execute("select pg_sleep($1)", SECONDS + 1.1)
        with pytest.raises(NotAnApprover) as refused:
            await saying
        assert refused.value.details["rule"] == "fresh-sign-in"


@pytest.mark.nightly
async def test_a_call_that_waited_until_it_was_too_late_is_not_begun(fresh_database: str, tmp_path: Path) -> None:
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        call, ticket = await request_short_approval(approval_lab, "t3")
        await approval_lab.approve(await approval_lab.make_approver("bo"), ticket)
        async with approval_lab.lab.hold_barrier():
            beginning = asyncio.create_task(
                get_lifecycle(approval_lab.lab.gateway).resume_run("dev", call, ActiveRuns(approval_lab.lab.runtime))
            )  # fmt: skip
            await approval_lab.lab.wait_for_blocked_query("%begin_runs%")
            await wait_until_expired(approval_lab, ticket)
        with pytest.raises(RunNotReady, match="approval"):
            await beginning
        assert (await approval_lab.fetch_request(ticket))["state"] == "approved"
        await get_lifecycle(approval_lab.lab.gateway).resume_run("dev", call, ActiveRuns(approval_lab.lab.runtime))
        assert await approval_lab.lab.fetch_state(call) == "denied"
        assert list_effects("t3") == []


async def test_an_approval_that_expired_by_this_process_clock_starts_nothing(
    fresh_database: str, tmp_path: Path
) -> None:
    """PostgreSQL's clock may be behind: either clock ends an approval."""
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        call, ticket = await approval_lab.request_approval("put", "t4")
        await approval_lab.approve(await approval_lab.make_approver("bo"), ticket)
        expires_ms = int((await approval_lab.fetch_request(ticket))["expires_at"].timestamp() * 1000)
        lifecycle = get_lifecycle(approval_lab.lab.gateway)
        fast_clock = replace(lifecycle.runtime.clock, epoch_ms=lambda: expires_ms + 1)
        fast_lifecycle = Lifecycle(replace(lifecycle.runtime, clock=fast_clock))
        await fast_lifecycle.resume_run("dev", call, ActiveRuns(fast_lifecycle.runtime))
        assert await approval_lab.lab.fetch_state(call) == "denied"
        assert list_effects("t4") == []


@pytest.mark.nightly
async def test_the_database_approves_nothing_that_expired_by_its_own_clock(fresh_database: str, tmp_path: Path) -> None:
    """Whichever process asks, and whatever it checked before."""
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        call, ticket = await request_short_approval(approval_lab, "t5")
        # The transaction began in time; only the clock of the moment says that it is too late.
        connection = await asyncpg.connect(fresh_database)
        async with connection.transaction():
            assert await connection.fetchval("select now() < expires_at from deputize.approvals where id = $1", ticket)
            await wait_until_expired(approval_lab, ticket)
            approve = "select deputize.approve_call('dev', $1, 'bo', '')"
            if await connection.fetchval("select state = 'open' from deputize.approvals where id = $1", ticket):
                assert not await connection.fetchval(approve, ticket)
        await connection.close()
        assert await approval_lab.lab.fetch_state(call) in ("awaiting_approval", "denied")
