"""An act is checked against the authority that it meets, and a tenant's acts are limited."""

from dataclasses import replace
from uuid import uuid4

import pytest

from deputize.acts.act import change_authority
from deputize.core.bounded_dict import BoundedDict
from deputize.core.errors import AuthorityRevoked, GrantNotFound, RateLimited
from deputize.core.states import State
from deputize.govern.identity import revocations
from deputize.lifecycle.tenant_snapshot import TenantAuthority
from deputize.store.pool import Connection
from tests.support.gateway_lab import GatewayLab

pytestmark = pytest.mark.requirement("NEW-7")


async def test_a_change_is_checked_before_the_barrier_is_closed(lab: GatewayLab) -> None:
    """And again if another change came first, so that what is committed was checked against what it meets."""
    checked_epochs: list[int] = []
    admin = await lab.make_admin()

    async def prepare(authority: TenantAuthority) -> None:
        checked_epochs.append(authority.epochs.revocation)
        # Calls of the same tenant commit meanwhile.
        assert (await lab.call("note", "during-the-check")).state is State.SUCCEEDED
        if len(checked_epochs) == 1:
            async with lab.hold_barrier() as other_admin:
                await revocations.revoke(other_admin, "dev", "token", "another", reason="", by="root")

    async def act(connection: Connection) -> int:
        return await revocations.revoke(connection, "dev", "token", "mine", reason="", by="root")

    epoch = await change_authority(lab.runtime, admin, "revoke:token", "mine", act, prepare=prepare)
    assert checked_epochs == [epoch - 2, epoch - 1]


async def test_too_many_acts_of_a_tenant_are_refused(lab: GatewayLab, monkeypatch: pytest.MonkeyPatch) -> None:
    _allow_acts(lab, monkeypatch, 4)
    admin = await lab.make_admin()
    for number in range(2):
        await lab.gateway.commands.revoke(admin, "token", f"t{number}")
    with pytest.raises(RateLimited) as refused:
        await lab.gateway.commands.revoke(admin, "token", "t3")
    assert refused.value.spec.http == 429
    assert refused.value.retry_after_ms


async def test_an_agent_that_may_not_act_neither_uses_up_the_rate_nor_closes_the_barrier(
    lab: GatewayLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks to revoke grants that are not there, without end: its administrators revoke it all the same."""
    _allow_acts(lab, monkeypatch, 2)
    agent = await lab.make_caller("eve", agent="bot")
    # Whoever waits for the barrier would wait for ever.
    async with lab.hold_barrier():
        for _ in range(10):
            with pytest.raises(GrantNotFound):
                await lab.gateway.delegations.revoke_grant(agent, str(uuid4()))
    assert len(lab.runtime.act_limits._buckets) == 0

    await lab.gateway.commands.revoke(await lab.make_admin(), "agent", "bot")
    counted = len(lab.runtime.act_limits._buckets)
    with pytest.raises(AuthorityRevoked):
        await change_authority(lab.runtime, agent, "revoke:grant", "any", _fail)
    assert len(lab.runtime.act_limits._buckets) == counted


async def test_acts_of_others_that_are_allowed_delay_no_revocation(
    lab: GatewayLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    _allow_acts(lab, monkeypatch, 2)
    admin, limits = await lab.make_admin(), lab.runtime.act_limits
    for user in ("eve", "bob"):
        limits.count_act(replace(admin, user=user, scopes=frozenset()), is_tightening=True)
    async with limits.take_turn(replace(admin, scopes=frozenset()), is_tightening=True):
        await lab.gateway.commands.set_switch(admin, "agent", "bot", off=True, reason="it is hostile")
    with pytest.raises(RateLimited):
        await lab.gateway.commands.set_switch(admin, "agent", "bot", off=False, reason="it is not")


def _allow_acts(lab: GatewayLab, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Allow a number of acts, whoever acted before, and no more while a test lasts."""
    limits = lab.runtime.act_limits
    monkeypatch.setattr(limits, "_burst", count)
    monkeypatch.setattr(limits, "_per_second", 0.001)
    monkeypatch.setattr(limits, "_buckets", BoundedDict(100))


async def _fail(_: Connection) -> None:
    raise AssertionError("this act is not performed")
