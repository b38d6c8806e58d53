"""An act is checked against the authority that it meets, and a tenant's acts are limited."""

import pytest

from deputize.acts.act import change_authority
from deputize.core.errors import RateLimited
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
    monkeypatch.setattr(lab.runtime.act_limits, "_burst", 2)
    monkeypatch.setattr(lab.runtime.act_limits, "_per_second", 0.001)
    admin = await lab.make_admin()
    for number in range(2):
        await lab.gateway.commands.revoke(admin, "token", f"t{number}")
    with pytest.raises(RateLimited) as refused:
        await lab.gateway.commands.revoke(admin, "token", "t3")
    assert refused.value.spec.http == 429
    assert refused.value.retry_after_ms
