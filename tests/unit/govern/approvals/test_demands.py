"""What rules demand of people: defaults, levels, deadlines, and which votes meet them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.decision import Demand
from deputize.core.settings import Approvals
from deputize.govern.approvals.demands import Asked, Vote, asked_from, asked_of, have, met, person, unmet, written
from tests.unit.govern.approvals.people import SETTINGS, demand

pytestmark = pytest.mark.requirement("GOV-3")

CHAIN = ("oncall", "leads", "security")
groups = st.lists(st.sampled_from("abcdef"), min_size=0, max_size=5, unique=True).map(tuple)
demands = st.lists(
    st.builds(
        Demand,
        rule=st.sampled_from(["r1", "r2", "r3"]),
        where=st.just("p.cedar:1"),
        reason=st.just(""),
        groups=groups,
        quorum=st.integers(1, 3),
        deadline_seconds=st.none() | st.integers(60, 30 * 86_400),
        step_up=st.sampled_from(["", "hwk"]),
    ),
    min_size=1,
    max_size=4,
)
steps = st.lists(st.integers(1, 100_000), min_size=1, max_size=5, unique=True).map(lambda found: tuple(sorted(found)))
settings = st.builds(Approvals, step_seconds=steps, groups=groups.filter(bool))
votes = st.lists(
    st.builds(
        Vote,
        voter=st.sampled_from(["ana", "Ana", "ben", "cleo", "dan"]),
        approve=st.booleans(),
        counts=st.frozensets(st.integers(-1, 5), max_size=4),
    ),
    max_size=6,
)


def _yes(voter: str, *counts: int) -> Vote:
    return Vote(voter=voter, approve=True, counts=frozenset(counts))


def test_a_rule_that_names_nobody_asks_whom_the_settings_name() -> None:
    asked = asked_of([demand()], SETTINGS)
    assert asked.demands[0].groups == ("approvers",)
    assert (asked.seconds, asked.levels) == (86_400, ())


def test_a_chain_is_asked_step_by_step_and_nobody_is_taken_out() -> None:
    asked = asked_of([demand(groups=CHAIN)], SETTINGS)
    assert (asked.levels, asked.seconds) == ((3600, 14_400), 86_400)
    assert [asked.groups_of(0, level) for level in range(4)] == [CHAIN[:1], CHAIN[:2], CHAIN, CHAIN]
    assert [asked.level_after(seconds) for seconds in (0, 3599, 3600, 14_400, 90_000)] == [0, 0, 1, 2, 2]


def test_a_nearer_deadline_draws_the_steps_together() -> None:
    asked = asked_of([demand(groups=CHAIN, deadline_seconds=2400)], SETTINGS)
    assert (asked.levels, asked.seconds) == ((100, 400), 2400)


def test_the_nearest_deadline_holds_and_none_beyond_the_settings() -> None:
    hour, week = demand("one", deadline_seconds=3600), demand("two", deadline_seconds=7 * 86_400)
    assert asked_of([hour, week], SETTINGS).seconds == 3600
    assert asked_of([week], SETTINGS).seconds == 86_400


def test_a_chain_longer_than_the_steps_ends_with_everybody() -> None:
    asked = asked_of([demand(groups=("a", "b", "c", "d", "e"))], SETTINGS)
    assert [asked.groups_of(0, level) for level in range(3)] == [("a",), ("a", "b"), ("a", "b", "c", "d", "e")]
    at_once = asked_of([demand(groups=CHAIN)], Approvals(step_seconds=(600,)))
    assert (at_once.levels, at_once.groups_of(0, 0)) == ((), CHAIN)


def test_one_person_counts_for_every_demand_and_once_for_each() -> None:
    asked = asked_of([demand("one"), demand("two", quorum=2)], SETTINGS)
    assert have(asked, [_yes("ben", 0, 1)]) == (1, 1)
    assert have(asked, [_yes("ben", 0, 1), _yes("Ben", 1), _yes("\uff22EN", 1)]) == (1, 1)
    assert unmet(asked, [_yes("ben", 0, 1)]) == {1}
    assert met(asked, [_yes("ben", 0, 1), _yes("cleo", 1)])


def test_a_no_meets_nothing() -> None:
    assert not met(asked_of([demand()], SETTINGS), [Vote(voter="ben", approve=False, counts=frozenset({0}))])


def test_where_nothing_is_demanded_nothing_is_met() -> None:
    assert not met(Asked(demands=(), levels=(), seconds=60), [_yes("ben", 0)])
    with pytest.raises(ValueError, match="nobody asked"):
        asked_of([], SETTINGS)


def test_the_same_rule_said_twice_is_one_demand() -> None:
    assert len(asked_of([demand("b"), demand("a"), demand("b")], SETTINGS).demands) == 2


@given(demands, settings)
def test_what_is_written_down_is_read_again(wanted: list[Demand], these: Approvals) -> None:
    asked = asked_of(wanted, these)
    assert asked_from(written(asked), levels=asked.levels, seconds=asked.seconds) == asked


@given(st.data(), demands, settings)
def test_the_order_rules_spoke_in_changes_nothing(data: st.DataObject, wanted: list[Demand], these: Approvals) -> None:
    assert asked_of(data.draw(st.permutations(wanted)), these) == asked_of(wanted, these)


@given(demands, settings)
def test_each_level_asks_everybody_of_the_one_before_and_the_last_asks_all(
    wanted: list[Demand], these: Approvals
) -> None:
    asked = asked_of(wanted, these)
    assert list(asked.levels) == sorted(asked.levels)
    assert all(0 < begins < asked.seconds <= these.step_seconds[-1] for begins in asked.levels)
    for place, each in enumerate(asked.demands):
        at = [set(asked.groups_of(place, level)) for level in range(len(asked.levels) + 1)]
        assert at[0]
        assert all(before <= after for before, after in pairwise(at))
        assert at[-1] == set(each.groups) == set(each.groups or these.groups)


@given(demands, settings, votes, votes)
def test_further_votes_never_undo_what_is_met(
    wanted: list[Demand], these: Approvals, cast: list[Vote], more: list[Vote]
) -> None:
    asked = asked_of(wanted, these)
    before, after = have(asked, cast), have(asked, [*cast, *more])
    assert all(one <= other for one, other in zip(before, after, strict=True))
    assert unmet(asked, [*cast, *more]) <= unmet(asked, cast)
    assert not met(asked, cast) or met(asked, [*cast, *more])


@given(demands, settings, votes)
def test_all_demands_are_met_only_by_enough_different_people_for_each(
    wanted: list[Demand], these: Approvals, cast: list[Vote]
) -> None:
    asked = asked_of(wanted, these)
    people = [{person(vote.voter) for vote in cast if vote.approve and place in vote.counts} for place in range(9)]
    enough = all(len(people[place]) >= each.quorum for place, each in enumerate(asked.demands))
    assert met(asked, cast) == enough
