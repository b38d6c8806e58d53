"""What a session has cost so far is not forgotten for other sessions."""

from dataclasses import replace

import pytest

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.govern.limits import session_costs
from deputize.govern.limits.session_costs import SessionCosts

ANA = Caller(tenant="acme", user="ana", agents=("bot",))
BEN = replace(ANA, user="ben")
_MAX = 4


@pytest.fixture(autouse=True)
def few_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_costs, "MAX_SESSIONS", _MAX)


def _flood(costs: SessionCosts, caller: Caller) -> None:
    for number in range(_MAX + 1):
        costs.add_cost(caller, f"new-{number}", 1)


def test_another_tenants_sessions_do_not_make_room_for_themselves_here() -> None:
    costs = SessionCosts(Clock())
    costs.add_cost(ANA, "s", 7)
    _flood(costs, replace(ANA, tenant="other"))
    assert (costs.get_cost(ANA, "s"), costs.get_cost(ANA, "t")) == (7, 0)


def test_a_session_is_not_forgotten_for_newer_ones_within_a_day() -> None:
    now = 1000.0
    costs = SessionCosts(Clock(monotonic=lambda: now))
    costs.add_cost(ANA, "s", 7)
    for number in range(3 * _MAX):
        costs.add_cost(ANA, "kept", 1)
        costs.add_cost(BEN, f"{number}", number + 1)
    assert (costs.get_cost(ANA, "s"), costs.get_cost(ANA, "kept")) == (7, 3 * _MAX)
    # More than these may share a place, which only raises what they count as.
    counted = [costs.get_cost(BEN, f"{number}") for number in range(3 * _MAX)]
    assert all(cost >= number + 1 for number, cost in enumerate(counted))
    assert costs.get_cost(ANA, "never used") < 7
    now += 86_400
    _flood(costs, BEN)
    costs.add_cost(ANA, "s", 1)
    assert costs.get_cost(ANA, "s") == 8
    now += 86_400
    _flood(costs, BEN)
    assert len(costs._tenants["acme"]._costs) == _MAX
    assert len(costs._tenants["acme"]._sketches) == 2
