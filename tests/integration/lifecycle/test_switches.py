"""Kill switches: what is off begins nothing on any gateway, from the commit on, until somebody turns it on again."""

import asyncio

import pytest

from deputize.core.caller import Epochs
from deputize.core.definition import ToolContext
from deputize.core.errors import Malformed, ScopeMissing, SwitchedOff, ToolNotFound
from deputize.core.events import State
from deputize.govern import switches
from deputize.lifecycle.authority import TenantAuthority
from tests.integration.lifecycle.lab import Lab, body, slug, until
from tests.integration.lifecycle.test_commands import _commands
from tests.integration.lifecycle.tools import effects_of, on

pytestmark = pytest.mark.requirement("GOV-8")


async def _turn(lab: Lab, kind: switches.Kind, value: str, *, off: bool, reason: str = "") -> int:
    return await lab.gateway.commands.switch(await lab.admin(), kind, value, off=off, reason=reason)


async def test_a_tool_that_is_off_says_who_when_and_why_until_it_is_on_again(lab: Lab, other_lab: Lab) -> None:
    await _turn(lab, "tool", "lab.look", off=True, reason="it lies")
    for each in (lab, other_lab):
        refused = await each.call("look", "off")
        assert (slug(refused), refused.state, refused.http_status) == ("switched-off", State.DENIED, 403)
        details = body(refused)["error"]["details"]
        assert (details["kind"], details["value"], details["by"]) == ("tool", "lab.look", "root")
        assert (details["reason"], details["rule"], details["since"][:2]) == ("it lies", "switch:tool", "20")
        assert slug(await each.call("brief_look", "on")) is None
    await _turn(other_lab, "tool", "lab.look", off=False)
    assert slug(await other_lab.call("look", "on")) is None
    assert not effects_of("off")

    async def is_on() -> bool:
        return slug(await lab.call("look", "on")) is None

    # A no waits for no commit, so the other gateway may go on saying it until it has heard.
    await until(is_on)


async def test_an_agent_that_is_off_is_off_wherever_it_stands_in_a_chain(lab: Lab) -> None:
    await _turn(lab, "agent", "crawler", off=True)
    by = await lab.caller("ana", agent="crawler")
    assert slug(await lab.call("look", "agent", by=by)) == "switched-off"
    assert slug(await lab.call("look", "other", by=await lab.caller("ana", agent="reader"))) is None
    assert slug(await lab.call("look", "person")) is None
    await _turn(lab, "agent", "crawler", off=False)
    assert slug(await lab.call("look", "agent", by=by)) is None


@pytest.mark.parametrize(("tool", "ends"), [("look", "switched-off"), ("put", "outcome-unknown")])
async def test_what_is_switched_off_between_two_attempts_makes_no_second_one(lab: Lab, tool: str, ends: str) -> None:
    tag = f"attempts-{tool}"

    async def fails_and_is_switched_off(_: ToolContext) -> None:
        await _turn(lab, "tool", f"lab.{tool}", off=True)
        raise ConnectionError("reset")

    on(tag, fails_and_is_switched_off)
    try:
        outcome = await lab.call(tool, tag, key=tag)
    finally:
        await _turn(lab, "tool", f"lab.{tool}", off=False)
    assert (slug(outcome), len(effects_of(tag))) == (ends, 1)


async def test_an_agent_that_is_off_cannot_turn_itself_on(lab: Lab) -> None:
    by = await lab.caller("root", scopes=("deputize:admin",), agent="butler")
    await _turn(lab, "agent", "butler", off=True)
    with pytest.raises(SwitchedOff):
        await lab.gateway.commands.switch(by, "agent", "butler", off=False)
    await _turn(lab, "agent", "butler", off=False)
    await lab.gateway.commands.switch(by, "agent", "somebody", off=False)


async def test_a_tenant_that_is_off_can_be_turned_on_by_its_administrator(lab: Lab) -> None:
    await _turn(lab, "tenant", "dev", off=True, reason="fire")
    assert slug(await lab.call("look", "tenant")) == "switched-off"
    assert slug(await lab.call("note", "tenant", key="tenant", by=await lab.admin())) in (
        "switched-off",
        "scope-missing",
    )
    assert [each.kind for each in await lab.gateway.commands.switched_off(await lab.admin())] == ["tenant"]
    await _turn(lab, "tenant", "dev", off=False)
    assert slug(await lab.call("look", "tenant")) is None


async def test_what_is_off_is_listed_as_it_was_first_turned(lab: Lab) -> None:
    first = await _turn(lab, "tool", "lab.put", off=True, reason="first")
    again = await _turn(lab, "tool", "lab.put", off=True, reason="second")
    await _turn(lab, "agent", "a", off=True)
    assert again == first + 1
    listed = await lab.gateway.commands.switched_off(await lab.admin())
    assert [(each.kind, each.value, each.reason, each.by) for each in listed] == [
        ("agent", "a", "", "root"),
        ("tool", "lab.put", "first", "root"),
    ]
    for kind, value in (("tool", "lab.put"), ("agent", "a"), ("agent", "never")):
        await _turn(lab, "tool" if kind == "tool" else "agent", value, off=False)
    assert await lab.gateway.commands.switched_off(await lab.admin()) == []


async def test_only_administrators_turn_and_see_switches_and_only_of_what_there_is(lab: Lab) -> None:
    nobody, commands = await lab.caller(), lab.gateway.commands
    before = len(await _commands(lab))
    with pytest.raises(ScopeMissing):
        await commands.switch(nobody, "tool", "lab.look", off=True)
    with pytest.raises(ScopeMissing):
        await commands.switched_off(nobody)
    with pytest.raises(ToolNotFound):
        await _turn(lab, "tool", "lab.lok", off=True)
    with pytest.raises(Malformed):
        await _turn(lab, "tenant", "other", off=True)
    assert len(await _commands(lab)) == before
    await _turn(lab, "tool", "lab__put", off=True, reason="by its other name")
    await _turn(lab, "tool", "lab.put", off=False)
    assert [(entry["command"], entry["subject"]) for entry in (await _commands(lab))[before:]] == [
        ("switch_off:tool", "lab.put"),
        ("switch_on:tool", "lab.put"),
    ]


@pytest.mark.requirement("NEW-7")
async def test_a_write_whose_claim_commits_after_the_switch_never_acts(lab: Lab) -> None:
    async with lab.barrier_closed() as admin:
        call = asyncio.create_task(lab.call("note", "switched", key="switched"))
        await lab.until_waiting()
        await switches.turn(admin, "dev", "tool", "lab.note", off=True, by="test")
    refused = await call
    assert (refused.state, slug(refused)) == (State.DENIED, "switched-off")
    assert not effects_of("switched")
    assert not await lab.claimed(refused.call_id)
    await _turn(lab, "tool", "lab.note", off=False)
    assert slug(await lab.call("note", "switched", key="switched")) is None


@pytest.mark.requirement("NEW-7")
async def test_a_read_whose_entry_commits_after_the_switch_is_not_released(lab: Lab) -> None:
    async with lab.barrier_closed() as admin:
        call = asyncio.create_task(lab.call("look", "unreleased"))
        await lab.until_waiting()
        await switches.turn(admin, "dev", "tenant", "dev", off=True, by="test")
    refused = await call
    assert slug(refused) == "switched-off"
    assert b"unreleased" not in refused.body
    await _turn(lab, "tenant", "dev", off=False)


@pytest.mark.requirement("NEW-7")
async def test_a_switch_turned_on_after_the_commit_does_not_help_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decided as of its commit, from a snapshot that already knows that the switch is on again."""
    refresh = lab.rooms.authority.refresh

    async def turn_on_first(tenant: str, at_least: Epochs) -> TenantAuthority:
        monkeypatch.undo()
        await _turn(lab, "tool", "lab.note", off=False)
        return await refresh(tenant, at_least)

    async with lab.barrier_closed() as admin:
        call = asyncio.create_task(lab.call("note", "too-early", key="too-early"))
        await lab.until_waiting()
        monkeypatch.setattr(lab.rooms.authority, "refresh", turn_on_first)
        await switches.turn(admin, "dev", "tool", "lab.note", off=True, by="test")
    assert slug(await call) == "switched-off"
    assert slug(await lab.call("note", "too-early", key="too-early")) is None


@pytest.mark.requirement("NEW-7")
async def test_a_switch_turned_off_after_the_commit_is_not_held_against_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh = lab.rooms.authority.refresh

    async def turn_off_first(tenant: str, at_least: Epochs) -> TenantAuthority:
        monkeypatch.undo()
        await _turn(lab, "tool", "lab.note", off=True)
        return await refresh(tenant, at_least)

    async with lab.barrier_closed() as admin:
        call = asyncio.create_task(lab.call("note", "just-so", key="just-so"))
        await lab.until_waiting()
        monkeypatch.setattr(lab.rooms.authority, "refresh", turn_off_first)
        await switches.turn(admin, "dev", "agent", "nobody", off=True, by="test")
    assert (await call).state is State.SUCCEEDED
    assert slug(await lab.call("note", "just-so", key="later")) == "switched-off"
    await _turn(lab, "tool", "lab.note", off=False)
    await _turn(lab, "agent", "nobody", off=False)
