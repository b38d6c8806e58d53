"""Two workers may be handed the same approved run. What one of them saw then ends nothing that people decide since."""

from pathlib import Path

import pytest

from deputize.lifecycle.resume import Waiting, take, waiting
from tests.integration.approvals.house import House, open_house
from tests.integration.approvals.test_changed import agreed, carried, deletes, stale
from tests.integration.lifecycle.lab import body
from tests.integration.lifecycle.tools import effects_of, previews

pytestmark = [pytest.mark.requirement("GOV-3"), pytest.mark.requirement("GOV-4")]


async def asked_again(house: House, tag: str) -> tuple[str, str, Waiting]:
    """The call, its second ticket, and the run as a worker saw it before there was one."""
    previews[tag] = deletes(1)
    call, first = await house.asked("erase", tag)
    await agreed(house, first)
    seen = await waiting(house.lab.rooms, "dev", call)
    assert seen is not None
    previews[tag] = deletes(14)
    await stale(house, first)
    assert await carried(house, call) == "awaiting_approval"
    told = body(await house.lab.call("erase", tag, key=f"erase-{tag}"))
    return call, told["approval"]["ticket_id"], seen


async def test_what_is_put_to_people_again_is_not_ended_by_who_looked_before(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_house(fresh_database, tmp_path, working=False) as house:
        call, second, seen = await asked_again(house, "w1")
        assert await take(house.lab.rooms, seen) is None
        assert (await house.lab.state(call), (await house.ticket(second))["state"]) == ("awaiting_approval", "open")
        await agreed(house, second)
        assert await carried(house, call) == "succeeded"
        assert len(effects_of("w1")) == 1


async def test_what_people_approved_again_is_ended_only_by_who_saw_that(fresh_database: str, tmp_path: Path) -> None:
    async with open_house(fresh_database, tmp_path, working=False) as house:
        call, second, seen = await asked_again(house, "w2")
        await agreed(house, second)
        await house.lab.gateway.commands.revoke(await house.lab.admin(), "user", "ana")
        assert await take(house.lab.rooms, seen) is None
        assert await house.lab.state(call) == "queued"
        assert await carried(house, call) == "denied"
        assert effects_of("w2") == []
