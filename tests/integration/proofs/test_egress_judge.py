"""The judge of the sandbox_egress proof finds each planted fault."""

from dataclasses import replace

import pytest

from proofs.sandbox_egress.attempts import ATTEMPTS
from proofs.sandbox_egress.judge import Arrival, Attempt, Client, compute_figures
from tests.support.proof_bars import list_exact_bars, list_missed_bars

pytestmark = pytest.mark.nightly

ALLOWED = Arrival(kind="tcp", address="93.184.215.20", port=443, name="shop.example", has_data=True)
ASKED = Arrival(kind="dns", name="shop.example")
FORBIDDEN = (
    replace(ALLOWED, address="93.184.216.34"),
    replace(ALLOWED, address="169.254.169.254"),
    replace(ALLOWED, port=80),
    replace(ALLOWED, name="other.example"),
    replace(ALLOWED, name="turning.example"),
    replace(ALLOWED, name=None),
    Arrival(kind="udp", port=443),
    Arrival(kind="unix"),
    Arrival(kind="dns", name="other.example"),
)
GOOD = [
    Attempt(name=name, control=FORBIDDEN[:1], listed=(ALLOWED, ASKED), alone=(), is_recorded=True) for name in ATTEMPTS
]
CLIENTS = [
    Client(name=name, has_reached=True, refusal="E3406", arrivals=(ALLOWED,)) for name in ("curl", "git", "pip", "npm")
]
LAST = GOOD[-1]


def test_a_good_run_misses_no_bar() -> None:
    figures = compute_figures(GOOD, CLIENTS)
    assert list_missed_bars("sandbox_egress", figures) == set()
    assert list_exact_bars("sandbox_egress", among=figures.keys()) == {
        "forbidden_connections", "not_tried", "refusals_unrecorded", "clients_that_reach_nothing", "clients_not_told",
    }  # fmt: skip


@pytest.mark.parametrize("arrival", FORBIDDEN)
def test_what_arrives_where_it_must_not_misses_its_bar(arrival: Arrival) -> None:
    planted = [*GOOD[:-1], replace(LAST, listed=(ALLOWED, arrival))]
    assert list_missed_bars("sandbox_egress", compute_figures(planted, CLIENTS)) == {"forbidden_connections"}


def test_the_gateway_may_connect_before_it_knows_what_a_program_says() -> None:
    connected = replace(ALLOWED, name=None, has_data=False)
    figures = compute_figures([*GOOD[:-1], replace(LAST, listed=(connected,))], CLIENTS)
    assert list_missed_bars("sandbox_egress", figures) == set()


@pytest.mark.parametrize(
    ("last", "missed"),
    [
        (replace(LAST, alone=(ALLOWED,)), "forbidden_connections"),
        (replace(LAST, problem="it did not begin"), "not_tried"),
        (replace(LAST, is_recorded=False), "refusals_unrecorded"),
    ],
)
def test_each_planted_fault_misses_its_bar(last: Attempt, missed: str) -> None:
    assert list_missed_bars("sandbox_egress", compute_figures([*GOOD[:-1], last], CLIENTS)) == {missed}


def test_clients_that_fail_or_are_not_told_miss_their_bars() -> None:
    broken = [*CLIENTS, replace(CLIENTS[0], name="wget", has_reached=False, refusal="E3401")]
    assert list_missed_bars("sandbox_egress", compute_figures(GOOD, broken)) == {
        "clients_that_reach_nothing", "clients_not_told",
    }  # fmt: skip
    assert "attempts_with_control" in list_missed_bars(
        "sandbox_egress", compute_figures([replace(each, control=(ALLOWED,)) for each in GOOD], CLIENTS)
    )
