"""Whom the kill switch of an agent stops: the agent in any chain, and with the tokens it got for itself."""

import pytest

from deputize.core.caller import Caller
from deputize.core.errors import DisabledByKillSwitch
from deputize.govern.kill_switches import KillSwitch, TenantKillSwitches

pytestmark = pytest.mark.requirement("GOV-8")
BOT_OFF = TenantKillSwitches(
    epoch=4,
    switches={
        ("agent", "bot"): (
            KillSwitch(
                kind="agent", value="bot", off_epoch=4, on_epoch=None, reason="", by="root", since="2026-01-01T00:00:00"
            ),
        )
    },
)


@pytest.mark.parametrize(
    "caller",
    [
        Caller(tenant="acme", user="bot"),
        Caller(tenant="acme", user="issuer=https://b.example bot"),
        Caller(tenant="acme", user="bot", agents=("helper",)),
        Caller(tenant="acme", user="ana", agents=("helper", "bot")),
    ],
)
def test_an_agent_that_is_off_acts_neither_in_a_chain_nor_with_its_own_token(caller: Caller) -> None:
    with pytest.raises(DisabledByKillSwitch) as refusal:
        BOT_OFF.check(caller, "shop.refund")
    assert refusal.value.details["rule"] == "switch:agent"
    with pytest.raises(DisabledByKillSwitch):
        BOT_OFF.check_agents(caller)
    BOT_OFF.check(caller, "shop.refund", until=3)


@pytest.mark.parametrize(
    "caller",
    [
        Caller(tenant="acme", user="bot", human=True),
        Caller(tenant="acme", user="ana"),
        Caller(tenant="acme", user="ana", agents=("helper",)),
    ],
)
def test_a_person_who_signed_in_is_not_stopped_by_the_name_of_an_agent(caller: Caller) -> None:
    BOT_OFF.check(caller, "shop.refund")
