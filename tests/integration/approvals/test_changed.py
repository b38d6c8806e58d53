"""What was approved is begun as it was approved, or not at all: whatever changed in between stops it or asks again."""

import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from deputize import Preview, ToolContext
from deputize.core.clock import Clock
from deputize.core.contract import LifecycleState
from deputize.core.errors import ApprovalExpired
from deputize.core.hooks import HookCall, LoadedHook, Permission
from deputize.lifecycle.carried import Desk
from deputize.lifecycle.resume import take, waiting
from tests.integration.approvals.house import House, open_house
from tests.integration.lifecycle.lab import body, slug, until
from tests.integration.lifecycle.tools import effects_of, on, previews

pytestmark = [pytest.mark.requirement("GOV-3"), pytest.mark.requirement("GOV-4")]


def shifted(seconds: int) -> Clock:
    """A machine whose clock is off by so many seconds."""
    return Clock(epoch_ms=lambda: time.time_ns() // 1_000_000 + 1000 * seconds)


async def carried(house: House, call: str) -> str:
    """One try of a worker; the state it leaves behind."""
    await house.lab.gateway.lifecycle.resume("dev", call, Desk(house.lab.rooms))

    async def moved() -> bool:
        return await house.lab.state(call) not in ("queued", "running")

    await until(moved)
    return await house.lab.state(call)


async def agreed(house: House, ticket: str) -> None:
    for name in ("k1", "k2"):
        await house.approvals.approve(await house.person(name, groups=("keepers", "approvers")), ticket)


async def stale(house: House, ticket: str) -> None:
    await house.lab.db.execute(
        "update deputize.approvals set previewed_at = previewed_at - interval '1 hour' where id = $1", ticket
    )


def deletes(count: int, **impact: Any) -> Any:
    return lambda _: Preview(
        changes=[{"resource": "lab.notes", "op": "delete", "scope": "x", "count": count}],
        impact=impact,
        guards={"etag": f"e{count}"},
    )


async def test_a_preview_that_differs_asks_again_and_shows_the_new_one(fresh_database: str, tmp_path: Path) -> None:
    async with open_house(fresh_database, tmp_path, working=False) as house:
        previews["c1"] = deletes(1)
        call, first = await house.asked("erase", "c1")
        await agreed(house, first)
        previews["c1"] = deletes(14)
        await stale(house, first)
        assert await carried(house, call) == "awaiting_approval"
        assert (await house.ticket(first))["state"] == "void"
        told = body(await house.lab.call("erase", "c1", key="erase-c1"))
        second = told["approval"]["ticket_id"]
        assert second != first
        shown = await house.approvals.show(await house.person("k1", groups=("keepers",)), second)
        assert shown["preview"]["changes"][0]["count"] == 14
        assert effects_of("c1") == []
        met: list[Any] = []

        def erased(context: ToolContext) -> dict[str, str]:
            met.append(context.guards)
            return {"value": "gone"}

        on("c1", erased)
        await agreed(house, second)
        assert await carried(house, call) == "succeeded"
        assert met == [{"etag": "e14"}]


async def test_a_stale_preview_that_shows_the_same_is_no_reason_to_ask(fresh_database: str, tmp_path: Path) -> None:
    async with open_house(fresh_database, tmp_path, working=False) as house:
        previews["c2"] = deletes(1, seen_at="09:00")
        call, ticket = await house.asked("erase", "c2")
        await agreed(house, ticket)
        previews["c2"] = deletes(1, seen_at="10:00")
        await stale(house, ticket)
        assert await carried(house, call) == "succeeded"
        assert len(effects_of("c2")) == 1


async def test_a_tool_that_was_taken_away_ends_what_was_approved(fresh_database: str, tmp_path: Path) -> None:
    async with open_house(fresh_database, tmp_path, working=False) as house:
        call, ticket = await house.asked("put", "c3")
        await house.approvals.approve(await house.person("bo"), ticket)
        await house.lab.gateway.commands.set_state(await house.lab.admin(), "lab.put", "0.1.0", LifecycleState.RETIRED)
        assert await carried(house, call) in ("blocked", "denied")
        assert effects_of("c3") == []


async def test_an_input_that_was_swapped_is_not_what_was_approved(fresh_database: str, tmp_path: Path) -> None:
    """Somebody who can write to the database puts another call's sealed input in its place."""
    async with open_house(fresh_database, tmp_path, working=False) as house:
        call, ticket = await house.asked("put", "c4")
        keys = house.lab.rooms.keys.ready("dev")
        assert keys is not None
        box = await house.lab.db.fetchval("select box from deputize.sealed where id = $1 and kind = 'input'", call)
        swapped = keys.open(call, "input", box).replace(b"c4", b"c5")
        await house.lab.db.execute(
            "update deputize.sealed set box = $2 where id = $1 and kind = 'input'",
            call,
            keys.seal(call, "input", swapped),
        )
        await house.approvals.approve(await house.person("bo"), ticket)
        assert await carried(house, call) == "denied"
        outcome = await house.lab.call("put", "c4", key="put-c4")
        assert slug(outcome) == "approval-void"
        assert "input" in body(outcome)["error"]["details"]["changed"]
        assert effects_of("c4") == effects_of("c5") == []


async def test_whoever_was_revoked_meanwhile_gets_nothing_done(fresh_database: str, tmp_path: Path) -> None:
    async with open_house(fresh_database, tmp_path, working=False) as house:
        call, ticket = await house.asked("put", "c6")
        await house.approvals.approve(await house.person("bo"), ticket)
        await house.lab.gateway.commands.revoke(await house.lab.admin(), "subject", "ana")
        assert await carried(house, call) == "denied"
        assert effects_of("c6") == []


@pytest.mark.parametrize("seconds", [45 * 60, -45 * 60])
async def test_a_clock_that_is_off_only_ever_says_no_sooner(fresh_database: str, tmp_path: Path, seconds: int) -> None:
    async with open_house(fresh_database, tmp_path, working=False) as house:
        call, ticket = await house.asked("put", "c7")
        row = await house.ticket(ticket)
        await house.lab.db.execute(
            "update deputize.approvals set expires_at = $2 where id = $1",
            ticket,
            row["opened_at"] + timedelta(minutes=30),
        )
        async with open_house(fresh_database, tmp_path, working=False, rules=None, clock=shifted(seconds)) as other:
            bo = await house.person("bo")
            if seconds > 0:
                bo = replace(bo, auth_time=other.lab.rooms.clock.epoch_ms() // 1000)
                with pytest.raises(ApprovalExpired):
                    await other.approvals.approve(bo, ticket)
            else:
                await house.lab.db.execute("update deputize.approvals set expires_at = now() where id = $1", ticket)
                with pytest.raises(ApprovalExpired):
                    await other.approvals.approve(bo, ticket)
        assert await house.lab.state(call) == "awaiting_approval"


async def test_what_a_hook_asks_holds_although_it_is_not_heard_again(fresh_database: str, tmp_path: Path) -> None:
    heard: list[str] = []

    def wary(call: HookCall) -> Permission:
        heard.append(call.tool)
        return Permission(behavior="ask", reason="after hours")

    hook = LoadedHook(name="wary", moment="before", function=wary, is_async=False, tools="lab.assign")
    async with open_house(fresh_database, tmp_path, working=False, hooks=[hook]) as house:
        call, ticket = await house.asked("assign", "c8")
        shown = await house.approvals.show(await house.person("bo"), ticket)
        assert [rule["id"] for rule in shown["rules"]] == ["hook:wary"]
        await house.approvals.approve(await house.person("bo"), ticket)
        assert await carried(house, call) == "succeeded"
        assert len(heard) == 1


async def test_a_worker_that_died_with_an_approved_call_is_taken_over(fresh_database: str, tmp_path: Path) -> None:
    """The ticket was used for this very call: going on with it is no second use."""
    async with open_house(fresh_database, tmp_path, working=False, lease_seconds=300) as dead:
        call, ticket = await dead.asked("put", "c9")
        await dead.approvals.approve(await dead.person("bo"), ticket)
        await _begin_and_die(dead, call)
        assert (await dead.ticket(ticket))["state"] == "used"
        async with open_house(fresh_database, tmp_path, working=False) as house:
            await house.lab.bury(dead.lab, call)
            assert await carried(house, call) == "succeeded"
            assert [effect.key for effect in effects_of("c9")] == [call]
            assert (await house.lab.row(call))["owner_epoch"] == 2


async def _begin_and_die(house: House, call: str) -> None:
    found = await waiting(house.lab.rooms, "dev", call)
    assert found is not None
    assert await take(house.lab.rooms, found) is not None
