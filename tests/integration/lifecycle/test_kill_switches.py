"""Kill switches: what is off begins nothing on any gateway, from the commit on, until someone turns it on again."""

import asyncio
from dataclasses import replace

import pytest

from deputize.core.caller import Epochs
from deputize.core.contract.tools import ToolContext
from deputize.core.errors import (
    DisabledByKillSwitch,
    MalformedRequest,
    OperatorConfirmationRequired,
    ScopeMissing,
    ToolNotFound,
)
from deputize.core.states import State
from deputize.govern import kill_switches
from deputize.lifecycle.tenant_snapshot import TenantAuthority
from tests.integration.operations.admin.test_commands import _fetch_command_entries
from tests.support.gateway_lab import GatewayLab, error_slug, parse_body, wait_until
from tests.support.scripted_tools import list_effects, set_behaviour

pytestmark = pytest.mark.requirement("GOV-8")


async def _set_switch(
    lab: GatewayLab, kind: kill_switches.SwitchKind, value: str, *, off: bool, reason: str = ""
) -> int:
    return await lab.gateway.commands.set_switch(await lab.make_admin(), kind, value, off=off, reason=reason)


async def test_a_tool_that_is_off_says_who_when_and_why_until_it_is_on_again(
    lab: GatewayLab, other_lab: GatewayLab
) -> None:
    await _set_switch(lab, "tool", "lab.look", off=True, reason="it lies")
    for each in (lab, other_lab):
        refused = await each.call("look", "off")
        assert (error_slug(refused), refused.state, refused.http_status) == ("switched-off", State.DENIED, 403)
        details = parse_body(refused)["error"]["details"]
        assert (details["kind"], details["value"], details["by"]) == ("tool", "lab.look", "root")
        assert (details["reason"], details["rule"], details["since"][:2]) == ("it lies", "switch:tool", "20")
        assert error_slug(await each.call("brief_look", "on")) is None
    await _set_switch(other_lab, "tool", "lab.look", off=False)
    assert error_slug(await other_lab.call("look", "on")) is None
    assert not list_effects("off")

    async def is_on() -> bool:
        return error_slug(await lab.call("look", "on")) is None

    # A no waits for no commit, so the other gateway may go on saying it until it has heard.
    await wait_until(is_on)


async def test_an_agent_that_is_off_is_off_wherever_it_stands_in_a_chain(lab: GatewayLab) -> None:
    await _set_switch(lab, "agent", "crawler", off=True)
    by = await lab.make_caller("ana", agent="crawler")
    assert error_slug(await lab.call("look", "agent", by=by)) == "switched-off"
    own_token = replace(await lab.make_caller("crawler"), human=False)
    assert error_slug(await lab.call("look", "own", by=own_token)) == "switched-off"
    assert error_slug(await lab.call("look", "other", by=await lab.make_caller("ana", agent="reader"))) is None
    assert error_slug(await lab.call("look", "person")) is None
    await _set_switch(lab, "agent", "crawler", off=False)
    assert error_slug(await lab.call("look", "agent", by=by)) is None


@pytest.mark.parametrize(("tool", "ends"), [("look", "switched-off"), ("put", "outcome-unknown")])
async def test_what_is_switched_off_between_two_attempts_makes_no_second_one(
    lab: GatewayLab, tool: str, ends: str
) -> None:
    tag = f"attempts-{tool}"

    async def fails_and_is_switched_off(_: ToolContext) -> None:
        await _set_switch(lab, "tool", f"lab.{tool}", off=True)
        raise ConnectionError("reset")

    set_behaviour(tag, fails_and_is_switched_off)
    try:
        outcome = await lab.call(tool, tag, key=tag)
    finally:
        await _set_switch(lab, "tool", f"lab.{tool}", off=False)
    assert (error_slug(outcome), len(list_effects(tag))) == (ends, 1)


async def test_an_agent_that_is_off_cannot_turn_itself_on(lab: GatewayLab) -> None:
    by = await lab.make_caller("root", scopes=("deputize:admin",), agent="butler")
    await _set_switch(lab, "agent", "butler", off=True)
    with pytest.raises(DisabledByKillSwitch):
        await lab.gateway.commands.set_switch(by, "agent", "butler", off=False)
    await _set_switch(lab, "agent", "butler", off=False)
    with pytest.raises(OperatorConfirmationRequired):
        await lab.gateway.commands.set_switch(by, "agent", "somebody", off=False)


async def test_a_tenant_that_is_off_can_be_turned_on_by_its_administrator(lab: GatewayLab) -> None:
    await _set_switch(lab, "tenant", "dev", off=True, reason="fire")
    assert error_slug(await lab.call("look", "tenant")) == "switched-off"
    assert error_slug(await lab.call("note", "tenant", key="tenant", by=await lab.make_admin())) in (
        "switched-off",
        "scope-missing",
    )
    assert [each.kind for each in await lab.gateway.commands.list_switches(await lab.make_admin())] == ["tenant"]
    await _set_switch(lab, "tenant", "dev", off=False)
    assert error_slug(await lab.call("look", "tenant")) is None


async def test_what_is_off_is_listed_as_it_was_first_turned(lab: GatewayLab) -> None:
    first = await _set_switch(lab, "tool", "lab.put", off=True, reason="first")
    again = await _set_switch(lab, "tool", "lab.put", off=True, reason="second")
    # A reason that was missing is taken.
    for reason in ("", "late", "later"):
        await _set_switch(lab, "agent", "a", off=True, reason=reason)
    assert again == first + 1
    listed = await lab.gateway.commands.list_switches(await lab.make_admin())
    assert [(each.kind, each.value, each.reason, each.by) for each in listed] == [
        ("agent", "a", "late", "root"),
        ("tool", "lab.put", "first", "root"),
    ]
    for kind, value in (("tool", "lab.put"), ("agent", "a"), ("agent", "never")):
        await _set_switch(lab, "tool" if kind == "tool" else "agent", value, off=False)
    assert await lab.gateway.commands.list_switches(await lab.make_admin()) == []


async def test_only_administrators_turn_and_see_switches_and_only_of_what_there_is(lab: GatewayLab) -> None:
    nobody, commands = await lab.make_caller(), lab.gateway.commands
    before = len(await _fetch_command_entries(lab))
    with pytest.raises(ScopeMissing):
        await commands.set_switch(nobody, "tool", "lab.look", off=True)
    with pytest.raises(ScopeMissing):
        await commands.list_switches(nobody)
    with pytest.raises(ToolNotFound):
        await _set_switch(lab, "tool", "lab.lok", off=True)
    with pytest.raises(MalformedRequest):
        await _set_switch(lab, "tenant", "other", off=True)
    assert len(await _fetch_command_entries(lab)) == before
    await _set_switch(lab, "tool", "lab__put", off=True, reason="by its other name")
    await _set_switch(lab, "tool", "lab.put", off=False)
    assert [(entry["command"], entry["subject"]) for entry in (await _fetch_command_entries(lab))[before:]] == [
        ("switch_off:tool", "lab.put"),
        ("switch_on:tool", "lab.put"),
    ]


@pytest.mark.requirement("NEW-7")
async def test_a_write_whose_claim_commits_after_the_switch_never_acts(lab: GatewayLab) -> None:
    async with lab.hold_barrier() as admin:
        call = asyncio.create_task(lab.call("note", "switched", key="switched"))
        await lab.wait_for_blocked_query()
        await kill_switches.set_switch(admin, "dev", "tool", "lab.note", turn_off=True, by="test")
    refused = await call
    assert (refused.state, error_slug(refused)) == (State.DENIED, "switched-off")
    assert not list_effects("switched")
    assert not await lab.has_claim(refused.call_id)
    await _set_switch(lab, "tool", "lab.note", off=False)
    assert error_slug(await lab.call("note", "switched", key="switched")) is None


@pytest.mark.requirement("NEW-7")
async def test_a_read_whose_entry_commits_after_the_switch_is_not_released(lab: GatewayLab) -> None:
    async with lab.hold_barrier() as admin:
        call = asyncio.create_task(lab.call("look", "unreleased"))
        await lab.wait_for_blocked_query()
        await kill_switches.set_switch(admin, "dev", "tenant", "dev", turn_off=True, by="test")
    refused = await call
    assert error_slug(refused) == "switched-off"
    assert b"unreleased" not in refused.body
    await _set_switch(lab, "tenant", "dev", off=False)


@pytest.mark.requirement("NEW-7")
async def test_a_switch_turned_on_after_the_commit_does_not_help_it(
    lab: GatewayLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decided as of its commit, from a snapshot that already knows that the switch is on again."""
    refresh = lab.runtime.authority.refresh

    async def turn_on_first(tenant: str, at_least: Epochs) -> TenantAuthority:
        monkeypatch.undo()
        await _set_switch(lab, "tool", "lab.note", off=False)
        return await refresh(tenant, at_least)

    async with lab.hold_barrier() as admin:
        call = asyncio.create_task(lab.call("note", "too-early", key="too-early"))
        await lab.wait_for_blocked_query()
        monkeypatch.setattr(lab.runtime.authority, "refresh", turn_on_first)
        await kill_switches.set_switch(admin, "dev", "tool", "lab.note", turn_off=True, by="test")
    assert error_slug(await call) == "switched-off"
    assert error_slug(await lab.call("note", "too-early", key="too-early")) is None


@pytest.mark.requirement("NEW-7")
async def test_a_switch_turned_off_after_the_commit_is_not_held_against_it(
    lab: GatewayLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh = lab.runtime.authority.refresh

    async def turn_off_first(tenant: str, at_least: Epochs) -> TenantAuthority:
        monkeypatch.undo()
        await _set_switch(lab, "tool", "lab.note", off=True)
        return await refresh(tenant, at_least)

    async with lab.hold_barrier() as admin:
        call = asyncio.create_task(lab.call("note", "just-so", key="just-so"))
        await lab.wait_for_blocked_query()
        monkeypatch.setattr(lab.runtime.authority, "refresh", turn_off_first)
        await kill_switches.set_switch(admin, "dev", "agent", "nobody", turn_off=True, by="test")
    assert (await call).state is State.SUCCEEDED
    assert error_slug(await lab.call("note", "just-so", key="later")) == "switched-off"
    await _set_switch(lab, "tool", "lab.note", off=False)
    await _set_switch(lab, "agent", "nobody", off=False)
