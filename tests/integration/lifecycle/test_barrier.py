"""A call that commits after a change of authority is decided again before it acts or is shown; one before it is not."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from deputize.catalog import registry
from deputize.core.caller import Epochs
from deputize.core.contract.contract import LifecycleState
from deputize.core.states import State
from deputize.govern.identity import revocations
from deputize.govern.policy import active_policies
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.lifecycle.tenant_snapshot import TenantAuthority
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab
from tests.support.scripted_tools import list_effects

pytestmark = pytest.mark.requirement("NEW-7")


async def test_a_mutation_whose_claim_commits_after_a_revocation_never_acts(lab: GatewayLab) -> None:
    by = await lab.make_caller("gone")
    assert (await lab.call("note", "before", by=by)).state is State.SUCCEEDED
    async with lab.hold_barrier() as admin:
        call = asyncio.create_task(lab.call("note", "barred", key="barred", by=by))
        await lab.wait_for_blocked_query()
        await revocations.revoke(admin, "dev", "subject", "gone", by="test")
    refused = await call
    assert (refused.state, error_slug(refused), refused.http_status) == (State.DENIED, "revoked", 401)
    assert not list_effects("barred")
    assert not await lab.has_claim(refused.call_id)
    assert await lab.fetch_state(refused.call_id) == "denied"
    assert await lab.fetch_entry_kinds(refused.call_id) == ["intent", "outcome", "refusal"]
    assert {entry["outcome"] for entry in (await lab.fetch_entries(refused.call_id))[1:]} == {"denied"}


async def test_a_read_whose_entry_commits_after_a_revocation_is_not_released(lab: GatewayLab) -> None:
    by = await lab.make_caller("peeper")
    assert (await lab.call("look", "warm", by=by)).state is State.SUCCEEDED
    async with lab.hold_barrier() as admin:
        call = asyncio.create_task(lab.call("look", "unreleased", by=by))
        await lab.wait_for_blocked_query()
        await revocations.revoke(admin, "dev", "token", by.token_id, by="test")
    refused = await call
    assert (refused.state, error_slug(refused)) == (State.DENIED, "revoked")
    assert b"unreleased" not in refused.body
    assert await lab.fetch_entry_kinds(refused.call_id) == ["read", "refusal"]


async def test_a_replay_that_commits_after_a_revocation_is_not_given(lab: GatewayLab) -> None:
    by = await lab.make_caller("again")
    first = await lab.call("note", "mine", key="mine", by=by)
    async with lab.hold_barrier() as admin:
        call = asyncio.create_task(lab.call("note", "mine", key="mine", by=by))
        await lab.wait_for_blocked_query()
        await revocations.revoke(admin, "dev", "subject", "again", by="test")
    refused = await call
    assert (refused.state, error_slug(refused)) == (State.DENIED, "revoked")
    assert refused.body != first.body
    assert await lab.has_claim(first.call_id)


@pytest.mark.parametrize("name", ["put", "brief_look"])
async def test_a_call_that_commits_after_its_tools_retirement_is_refused(lab: GatewayLab, name: str) -> None:
    async with lab.hold_barrier() as admin:
        call = asyncio.create_task(lab.call(name, f"retired-{name}", key="retired"))
        await lab.wait_for_blocked_query()
        await registry.set_version_state(admin, "dev", f"lab.{name}", "0.1.0", LifecycleState.RETIRED)
    refused = await call
    assert (refused.state, error_slug(refused)) == (State.BLOCKED, "tool-retired")
    assert f"retired-{name}".encode() not in refused.body
    if name == "put":
        assert await lab.fetch_state(refused.call_id) == refused.state
    assert len(list_effects(f"retired-{name}")) == (1 if name == "brief_look" else 0)


async def test_a_change_that_does_not_concern_the_call_lets_it_through(lab: GatewayLab) -> None:
    async with lab.hold_barrier() as admin:
        calls = [asyncio.create_task(lab.call(name, "unconcerned")) for name in ("note", "look")]
        await lab.wait_for_blocked_query()
        await revocations.revoke(admin, "dev", "subject", "somebody-else", by="test")
    assert [(await call).state for call in calls] == [State.SUCCEEDED] * 2


async def test_a_retirement_that_came_after_the_claim_does_not_hold_against_it(
    lab: GatewayLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something else changed before the claim, so it is decided again, from a snapshot that is newer than the claim."""
    refresh = lab.runtime.authority.refresh

    async def retire_first(tenant: str, at_least: Epochs) -> TenantAuthority:
        monkeypatch.undo()
        await lab.gateway.commands.set_state(await lab.make_admin(), "lab.assign", "0.1.0", LifecycleState.RETIRED)
        return await refresh(tenant, at_least)

    async with lab.hold_barrier() as admin:
        call = asyncio.create_task(lab.call("assign", "too-late", key="too-late"))
        await lab.wait_for_blocked_query()
        monkeypatch.setattr(lab.runtime.authority, "refresh", retire_first)
        await revocations.revoke(admin, "dev", "subject", "nobody", by="test")
    assert (await call).state is State.SUCCEEDED
    assert error_slug(await lab.call("assign", "too-late", key="later")) == "tool-retired"


async def test_a_call_that_came_before_the_revocation_acts(lab: GatewayLab, other_lab: GatewayLab) -> None:
    by = await lab.make_caller("just-in-time")
    async with lab.hold_barrier():
        call = asyncio.create_task(lab.call("note", "in-time", key="in-time", by=by))
        await lab.wait_for_blocked_query()
        revoking = asyncio.create_task(
            other_lab.gateway.commands.revoke(await other_lab.make_admin(), "subject", "just-in-time")
        )
        await other_lab.wait_for_blocked_query("%pg_advisory_xact_lock(%")
    assert (await call).state is State.SUCCEEDED
    await revoking
    assert error_slug(await lab.call("note", "in-time", key="in-time", by=by)) == "revoked"
    assert len(list_effects("in-time")) == 1


async def test_another_tenants_change_holds_nobody_up(lab: GatewayLab) -> None:
    async with lab.hold_barrier("elsewhere"):
        assert (await lab.call("note", "other-tenant")).state is State.SUCCEEDED


async def _put_rule(connection: asyncpg.Connection, text: str) -> None:
    """Add one rule to the default policies, in the transaction that holds the barrier."""
    files = [*active_policies.load_default_files(), PolicyFile(path="late.cedar", text=text)]
    policies = await active_policies.parse_for_activation(files, {})
    await active_policies.put_policies(connection, "dev", policies, by="test")


@pytest_asyncio.fixture(loop_scope="session")
async def policy_lab(fresh_database: str, tmp_path: Path) -> AsyncIterator[GatewayLab]:
    """A gateway whose policies a test may change."""
    async with open_lab(fresh_database, tmp_path) as opened:
        yield opened


@pytest.mark.requirement("GOV-2")
@pytest.mark.parametrize("name", ["note", "look"])
@pytest.mark.parametrize(
    ("rule", "slug"),
    [
        ('@id("late") @decision("ask") forbid (principal, action, resource);', "approval-required"),
        ('@id("late") forbid (principal, action, resource);', "permission-denied"),
    ],
)
async def test_a_call_that_commits_after_a_stricter_policy_is_refused(
    policy_lab: GatewayLab, name: str, rule: str, slug: str
) -> None:
    """It was allowed when it was decided; what the policies say when it commits is what counts."""
    tag = f"{slug}-{name}"
    assert (await policy_lab.call(name, "before")).state is State.SUCCEEDED
    async with policy_lab.hold_barrier() as admin:
        call = asyncio.create_task(policy_lab.call(name, tag, key=tag))
        await policy_lab.wait_for_blocked_query()
        await _put_rule(admin, rule)
    refused = await call
    assert error_slug(refused) == slug
    assert tag.encode() not in refused.body
    if name == "note":
        assert not list_effects(tag)
        assert not await policy_lab.has_claim(refused.call_id)
