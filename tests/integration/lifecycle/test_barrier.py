"""A call that commits after a change of authority is decided again before it acts or is shown; one before it is not."""

import asyncio

import pytest

from deputize.catalog import registry
from deputize.core.caller import Epochs
from deputize.core.contract import LifecycleState
from deputize.core.events import State
from deputize.govern.identity import revocations
from deputize.lifecycle.authority import TenantAuthority
from tests.integration.lifecycle.lab import Lab, slug
from tests.integration.lifecycle.tools import effects_of

pytestmark = pytest.mark.requirement("NEW-7")


async def test_a_mutation_whose_claim_commits_after_a_revocation_never_acts(lab: Lab) -> None:
    by = await lab.caller("gone")
    assert (await lab.call("note", "before", by=by)).state is State.SUCCEEDED
    async with lab.barrier_closed() as admin:
        call = asyncio.create_task(lab.call("note", "barred", key="barred", by=by))
        await lab.until_waiting()
        await revocations.revoke(admin, "dev", "subject", "gone", by="test")
    refused = await call
    assert (refused.state, slug(refused), refused.http_status) == (State.DENIED, "revoked", 401)
    assert not effects_of("barred")
    assert not await lab.claimed(refused.call_id)
    assert await lab.state(refused.call_id) == "denied"
    assert await lab.kinds(refused.call_id) == ["intent", "outcome", "refusal"]
    assert {entry["outcome"] for entry in (await lab.entries(refused.call_id))[1:]} == {"denied"}


async def test_a_read_whose_entry_commits_after_a_revocation_is_not_released(lab: Lab) -> None:
    by = await lab.caller("peeper")
    assert (await lab.call("look", "warm", by=by)).state is State.SUCCEEDED
    async with lab.barrier_closed() as admin:
        call = asyncio.create_task(lab.call("look", "unreleased", by=by))
        await lab.until_waiting()
        await revocations.revoke(admin, "dev", "token", by.token_id, by="test")
    refused = await call
    assert (refused.state, slug(refused)) == (State.DENIED, "revoked")
    assert b"unreleased" not in refused.body
    assert await lab.kinds(refused.call_id) == ["read", "refusal"]


async def test_a_replay_that_commits_after_a_revocation_is_not_given(lab: Lab) -> None:
    by = await lab.caller("again")
    first = await lab.call("note", "mine", key="mine", by=by)
    async with lab.barrier_closed() as admin:
        call = asyncio.create_task(lab.call("note", "mine", key="mine", by=by))
        await lab.until_waiting()
        await revocations.revoke(admin, "dev", "subject", "again", by="test")
    refused = await call
    assert (refused.state, slug(refused)) == (State.DENIED, "revoked")
    assert refused.body != first.body
    assert await lab.claimed(first.call_id)


@pytest.mark.parametrize("name", ["put", "brief_look"])
async def test_a_call_that_commits_after_its_tools_retirement_is_refused(lab: Lab, name: str) -> None:
    async with lab.barrier_closed() as admin:
        call = asyncio.create_task(lab.call(name, f"retired-{name}", key="retired"))
        await lab.until_waiting()
        await registry.set_state(admin, "dev", f"lab.{name}", "0.1.0", LifecycleState.RETIRED)
    refused = await call
    assert (refused.state, slug(refused)) == (State.BLOCKED, "tool-retired")
    assert f"retired-{name}".encode() not in refused.body
    if name == "put":
        assert await lab.state(refused.call_id) == refused.state
    assert len(effects_of(f"retired-{name}")) == (1 if name == "brief_look" else 0)


async def test_a_change_that_does_not_concern_the_call_lets_it_through(lab: Lab) -> None:
    async with lab.barrier_closed() as admin:
        calls = [asyncio.create_task(lab.call(name, "unconcerned")) for name in ("note", "look")]
        await lab.until_waiting()
        await revocations.revoke(admin, "dev", "subject", "somebody-else", by="test")
    assert [(await call).state for call in calls] == [State.SUCCEEDED] * 2


async def test_a_retirement_that_came_after_the_claim_does_not_hold_against_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something else changed before the claim, so it is decided again, from a snapshot that is newer than the claim."""
    refresh = lab.rooms.authority.refresh

    async def retire_first(tenant: str, at_least: Epochs) -> TenantAuthority:
        monkeypatch.undo()
        await lab.gateway.commands.set_state(await lab.admin(), "lab.assign", "0.1.0", LifecycleState.RETIRED)
        return await refresh(tenant, at_least)

    async with lab.barrier_closed() as admin:
        call = asyncio.create_task(lab.call("assign", "too-late", key="too-late"))
        await lab.until_waiting()
        monkeypatch.setattr(lab.rooms.authority, "refresh", retire_first)
        await revocations.revoke(admin, "dev", "subject", "nobody", by="test")
    assert (await call).state is State.SUCCEEDED
    assert slug(await lab.call("assign", "too-late", key="later")) == "tool-retired"


async def test_a_call_that_came_before_the_revocation_acts(lab: Lab, other_lab: Lab) -> None:
    by = await lab.caller("just-in-time")
    async with lab.barrier_closed():
        call = asyncio.create_task(lab.call("note", "in-time", key="in-time", by=by))
        await lab.until_waiting()
        revoking = asyncio.create_task(
            other_lab.gateway.commands.revoke(await other_lab.admin(), "subject", "just-in-time")
        )
        await other_lab.until_waiting("%pg_advisory_xact_lock(%")
    assert (await call).state is State.SUCCEEDED
    await revoking
    assert slug(await lab.call("note", "in-time", key="in-time", by=by)) == "revoked"
    assert len(effects_of("in-time")) == 1


async def test_another_tenants_change_holds_nobody_up(lab: Lab) -> None:
    async with lab.barrier_closed("elsewhere"):
        assert (await lab.call("note", "other-tenant")).state is State.SUCCEEDED
