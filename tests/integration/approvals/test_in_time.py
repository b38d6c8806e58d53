"""Time is up when it is up: also for whoever began in time, and had to wait before their word or their call counted."""

import asyncio
from pathlib import Path

import pytest

from deputize.core.errors import ApprovalExpired, NotAnApprover
from deputize.lifecycle.carried import Desk
from deputize.lifecycle.resume import NotNow
from tests.integration.approvals.house import House, open_house
from tests.integration.lifecycle.tools import effects_of

pytestmark = pytest.mark.requirement("GOV-3")
SECONDS = 8


async def asked_until_soon(house: House, tag: str) -> tuple[str, str]:
    """For an agent whose authority ends in a moment: nobody can decide about its call for longer."""
    return await house.asked("put", tag, by=await house.lab.caller("ana", agent="bot", lifetime=SECONDS))


async def over(house: House, ticket: str) -> None:
    wait = "select pg_sleep_until(expires_at + interval '50 milliseconds') from deputize.approvals where id = $1"
    await house.lab.db.execute(wait, ticket)


async def test_a_yes_that_waited_until_it_was_too_late_is_none(fresh_database: str, tmp_path: Path) -> None:
    async with open_house(fresh_database, tmp_path, working=False) as house:
        call, ticket = await asked_until_soon(house, "t1")
        async with house.lab.barrier_closed():
            saying = asyncio.create_task(house.approvals.approve(await house.person("bo"), ticket))
            await house.lab.until_waiting("%barrier%")
            await over(house, ticket)
        with pytest.raises(ApprovalExpired):
            await saying
        # The sweeper may have been there already.
        assert await house.lab.state(call) in ("awaiting_approval", "denied")
        assert not await house.lab.db.fetchval("select count(*) from deputize.votes where id = $1", ticket)


async def test_a_sign_in_that_grew_old_while_its_word_waited_is_not_fresh(fresh_database: str, tmp_path: Path) -> None:
    async with open_house(fresh_database, tmp_path, working=False) as house:
        _, ticket = await house.asked("put", "t2")
        fresh = house.lab.rooms.settings.approvals.fresh_seconds
        person = await house.person("bo", auth_time=house.lab.rooms.clock.epoch_ms() // 1000 - fresh + 1)
        async with house.lab.barrier_closed():
            saying = asyncio.create_task(house.approvals.approve(person, ticket))
            await house.lab.until_waiting("%barrier%")
            await house.lab.db.execute("select pg_sleep(2.1)")
        with pytest.raises(NotAnApprover) as refused:
            await saying
        assert refused.value.details["rule"] == "fresh-sign-in"


async def test_a_call_that_waited_until_it_was_too_late_is_not_begun(fresh_database: str, tmp_path: Path) -> None:
    async with open_house(fresh_database, tmp_path, working=False) as house:
        call, ticket = await asked_until_soon(house, "t3")
        await house.approvals.approve(await house.person("bo"), ticket)
        async with house.lab.barrier_closed():
            beginning = asyncio.create_task(
                house.lab.gateway.lifecycle.resume("dev", call, Desk(house.lab.rooms))
            )  # fmt: skip
            await house.lab.until_waiting("%begin_runs%")
            await over(house, ticket)
        with pytest.raises(NotNow, match="approval"):
            await beginning
        assert (await house.ticket(ticket))["state"] == "approved"
        await house.lab.gateway.lifecycle.resume("dev", call, Desk(house.lab.rooms))
        assert await house.lab.state(call) == "denied"
        assert effects_of("t3") == []
