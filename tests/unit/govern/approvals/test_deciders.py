"""Who decides: people, in person, just signed in, of the groups that are asked, and never about their own call."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.caller import BREAK_GLASS_SCOPE, Caller
from deputize.core.errors import NotAnApprover
from deputize.govern.approvals.deciders import Deciding, check, check_glass, glass_broken
from deputize.govern.approvals.demands import Vote, person
from tests.unit.govern.approvals.people import NOW, SETTINGS, demand, somebody, ticket

pytestmark = pytest.mark.requirement("GOV-3")

GLASS = {BREAK_GLASS_SCOPE}


def _check(caller: Caller, asked: Deciding, *, denying: bool = False) -> frozenset[int]:
    return check(caller, asked, now=NOW, settings=SETTINGS, denying=denying)


def _refusal(caller: Caller, asked: Deciding, **how: Any) -> NotAnApprover:
    with pytest.raises(NotAnApprover) as refused:
        _check(caller, asked, **how)
    assert refused.value.advice.endswith(".")
    return refused.value


def _yes(voter: str, *counts: int, glass: bool = False) -> Vote:
    return Vote(voter=voter, approve=True, counts=frozenset(counts), glass=glass)


def test_somebody_of_the_group_who_just_signed_in_decides() -> None:
    assert _check(somebody(), ticket()) == {0}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"human": False}, "humans-only"),
        ({"agents": ("bot",)}, "humans-only"),
        ({"grants": ("0190b6a0-0000-7000-8000-000000000001",)}, "humans-only"),
        ({"console": False}, "console-audience"),
        ({"tenant": "other"}, "approver-group"),
        ({"user": "ana"}, "no-self-approval"),
        ({"user": "ANA"}, "no-self-approval"),
        ({"user": "\uff41na"}, "no-self-approval"),
        ({"user": "bot"}, "no-self-approval"),
        ({"groups": {"everybody"}}, "approver-group"),
        ({"groups": {"Approvers", "approvers "}}, "approver-group"),
        ({"groups": set()}, "approver-group"),
        ({"auth_time": 0}, "fresh-sign-in"),
        ({"auth_time": NOW - 901}, "fresh-sign-in"),
        ({"auth_time": NOW + 61}, "fresh-sign-in"),
    ],
)
def test_everybody_else_is_told_which_rule_says_no(changes: dict[str, Any], rule: str) -> None:
    for denying in (False, True):
        assert _refusal(somebody(**changes), ticket(), denying=denying).details["rule"] == rule


def test_a_sign_in_is_fresh_for_exactly_as_long_as_the_settings_say() -> None:
    assert _check(somebody(auth_time=NOW - 900), ticket())


def test_being_an_administrator_makes_nobody_an_approver() -> None:
    everything = {"deputize:admin", BREAK_GLASS_SCOPE}
    assert _refusal(somebody(groups={"admins"}, scopes=everything), ticket()).details["rule"] == "approver-group"


def test_a_group_decides_from_the_level_on_at_which_it_is_asked() -> None:
    asked, lead = demand(groups=("oncall", "leads")), somebody(groups={"leads"})
    assert _refusal(lead, ticket(asked, level=0)).details["groups"] == ["oncall"]
    assert _check(lead, ticket(asked, level=1)) == {0}
    assert _check(somebody(groups={"oncall"}), ticket(asked, level=1)) == {0}


def test_a_yes_counts_for_the_demands_of_ones_own_groups() -> None:
    both = (demand("a", groups=("oncall",)), demand("b", groups=("legal",)))
    assert _check(somebody(groups={"oncall"}), ticket(*both)) == {0}
    assert _check(somebody(groups={"legal", "oncall"}), ticket(*both)) == {0, 1}


def test_nobody_decides_twice_even_under_another_spelling() -> None:
    for voter in ("ben", "Ben", "\uff42en"):
        asked = ticket(demand(quorum=3), votes=(_yes(voter, 0),))
        assert _refusal(somebody(), asked).details["rule"] == "one-vote-each"
        assert _refusal(somebody(), asked, denying=True).details["rule"] == "one-vote-each"


def test_a_demand_for_a_stronger_sign_in_is_met_by_amr_or_acr() -> None:
    asked = ticket(demand(step_up="hwk"))
    refusal = _refusal(somebody(methods={"pwd"}), asked)
    assert (refusal.details["rule"], refusal.details["step_up"]) == ("step-up", "hwk")
    assert "hwk" in refusal.advice
    assert _check(somebody(methods={"pwd", "hwk"}), asked) == {0}


def test_to_say_no_any_fresh_sign_in_will_do() -> None:
    assert _check(somebody(), ticket(demand(step_up="hwk")), denying=True) == {0}


def test_who_is_needed_with_a_stronger_sign_in_does_not_spend_their_vote_on_a_weaker_one() -> None:
    weak, strong = demand("a", quorum=2), demand("b", step_up="hwk")
    ben = somebody()
    assert _refusal(ben, ticket(weak, strong)).details["step_up"] == "hwk"
    assert _check(ben, ticket(weak, strong, votes=(_yes("cleo", 0, 1),))) == {0}
    assert _check(somebody(methods={"hwk"}), ticket(weak, strong)) == {0, 1}
    assert _refusal(ben, ticket(strong, votes=(_yes("cleo", 0),))).details["rule"] == "step-up"


names = st.sampled_from(["ana", "Ana", "bot", "ben", "cleo", "ana ", "terminal"])
some_groups = st.frozensets(st.sampled_from(["oncall", "leads", "security", "x"]), max_size=3)
callers = st.builds(
    Caller,
    tenant=st.sampled_from(["acme", "acme", "acme", "other"]),
    user=names,
    agents=st.sampled_from([(), (), (), ("bot",)]),
    grants=st.sampled_from([(), (), (), ("g",)]),
    groups=some_groups,
    scopes=st.frozensets(st.sampled_from(["deputize:admin", BREAK_GLASS_SCOPE])),
    human=st.sampled_from([True, True, True, False]),
    console=st.sampled_from([True, True, True, False]),
    auth_time=st.integers(NOW - 1000, NOW + 100) | st.just(0),
    methods=st.frozensets(st.sampled_from(["hwk", "pwd"])),
)
asking = st.lists(
    st.builds(
        demand,
        st.sampled_from(["r1", "r2"]),
        groups=st.lists(st.sampled_from(["oncall", "leads", "security"]), min_size=1, unique=True).map(tuple),
        quorum=st.integers(1, 3),
        step_up=st.sampled_from(["", "hwk"]),
    ),
    min_size=1,
    max_size=3,
)
cast = st.lists(st.builds(_yes, names, st.integers(0, 2)), max_size=3).map(tuple)


def _in_person(caller: Caller, asked: Deciding) -> None:
    assert (caller.human, caller.console, caller.agents, caller.grants) == (True, True, (), ())
    assert caller.tenant == asked.tenant
    assert person(caller.user) not in {person(each) for each in asked.chain}
    assert caller.auth_time > 0
    assert NOW - caller.auth_time <= SETTINGS.fresh_seconds


@given(callers, asking, st.integers(0, 3), cast, st.booleans())
def test_whoever_is_let_through_is_who_was_asked(
    caller: Caller, wanted: list[Any], level: int, votes: tuple[Vote, ...], denying: bool
) -> None:
    asked = ticket(*wanted, level=level, votes=votes)
    try:
        counts = _check(caller, asked, denying=denying)
    except NotAnApprover:
        return
    _in_person(caller, asked)
    assert counts
    assert person(caller.user) not in {person(vote.voter) for vote in votes}
    for place in counts:
        assert caller.groups & set(asked.asked.groups_of(place, level))
        assert denying or not asked.asked.demands[place].step_up or "hwk" in caller.methods


@given(callers, asking, st.integers(0, 2), cast)
def test_who_may_decide_still_may_at_the_next_level(
    caller: Caller, wanted: list[Any], level: int, votes: tuple[Vote, ...]
) -> None:
    now, later = ticket(*wanted, level=level, votes=votes), ticket(*wanted, level=level + 1, votes=votes)
    try:
        before = _check(caller, now, denying=True)
    except NotAnApprover:
        return
    assert before <= _check(caller, later, denying=True)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"scopes": set()}, "break-glass-scope"),
        ({"scopes": {"deputize:admin"}}, "break-glass-scope"),
        ({"human": False}, "humans-only"),
        ({"agents": ("bot",)}, "humans-only"),
        ({"console": False}, "console-audience"),
        ({"user": "ana"}, "no-self-approval"),
        ({"auth_time": NOW - 901}, "fresh-sign-in"),
        ({"tenant": "other"}, "approver-group"),
    ],
)
def test_the_glass_is_broken_by_nobody_else_either(changes: dict[str, Any], rule: str) -> None:
    caller = somebody(**{"scopes": GLASS, **changes})
    with pytest.raises(NotAnApprover) as refused:
        check_glass(caller, ticket(), now=NOW, settings=SETTINGS)
    assert refused.value.details["rule"] == rule


def test_two_different_people_break_the_glass_and_one_does_not() -> None:
    ben = somebody(scopes=GLASS, groups=set())
    check_glass(ben, ticket(), now=NOW, settings=SETTINGS)
    first = (_yes("ben", glass=True),)
    with pytest.raises(NotAnApprover, match="already"):
        check_glass(somebody(scopes=GLASS, user="BEN"), ticket(votes=first), now=NOW, settings=SETTINGS)
    check_glass(somebody(scopes=GLASS, user="cleo"), ticket(votes=first), now=NOW, settings=SETTINGS)
    assert not glass_broken(first)
    assert not glass_broken((*first, _yes("Ben", glass=True)))
    assert not glass_broken((*first, _yes("cleo", 0)))
    assert glass_broken((*first, _yes("cleo", glass=True)))


def test_an_approver_whose_yes_was_not_enough_may_still_break_the_glass() -> None:
    check_glass(somebody(scopes=GLASS), ticket(votes=(_yes("ben", 0),)), now=NOW, settings=SETTINGS)


@given(callers, asking, cast)
def test_whoever_breaks_the_glass_is_there_in_person_and_may(
    caller: Caller, wanted: list[Any], votes: tuple[Vote, ...]
) -> None:
    asked = ticket(*wanted, votes=votes)
    try:
        check_glass(caller, asked, now=NOW, settings=SETTINGS)
    except NotAnApprover:
        return
    _in_person(caller, asked)
    assert BREAK_GLASS_SCOPE in caller.scopes
