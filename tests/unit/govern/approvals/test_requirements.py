"""Approval requirements: defaults, escalation levels, deadlines, and the votes that meet them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.decision import ApprovalRequirement
from deputize.core.settings import ApprovalSettings
from deputize.govern.approvals.requirements import (
    ApprovalPlan,
    Vote,
    build_approval_plan,
    count_approvals,
    find_unmet_requirements,
    is_plan_met,
    normalize_person,
    parse_plan,
    serialize_plan,
)
from tests.unit.govern.approvals.sample_approvers import SETTINGS, make_requirement

pytestmark = pytest.mark.requirement("GOV-3")

CHAIN = ("oncall", "leads", "security")
groups = st.lists(st.sampled_from("abcdef"), min_size=0, max_size=5, unique=True).map(tuple)
requirements = st.lists(
    st.builds(
        ApprovalRequirement,
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
settings = st.builds(ApprovalSettings, step_seconds=steps, groups=groups.filter(bool))
votes = st.lists(
    st.builds(
        Vote,
        voter=st.sampled_from(["ana", "Ana", "ben", "cleo", "dan"]),
        approve=st.booleans(),
        requirement_indexes=st.frozensets(st.integers(-1, 5), max_size=4),
    ),
    max_size=6,
)


def _make_approval(voter: str, *counts: int) -> Vote:
    return Vote(voter=voter, approve=True, requirement_indexes=frozenset(counts))


def test_a_rule_without_approvers_uses_the_default_groups() -> None:
    asked = build_approval_plan([make_requirement()], SETTINGS)
    assert asked.requirements[0].groups == ("approvers",)
    assert (asked.seconds, asked.levels) == (86_400, ())


def test_each_level_adds_a_group_and_removes_none() -> None:
    asked = build_approval_plan([make_requirement(groups=CHAIN)], SETTINGS)
    assert (asked.levels, asked.seconds) == ((3600, 14_400), 86_400)
    assert [asked.get_requirement_groups(0, level) for level in range(4)] == [CHAIN[:1], CHAIN[:2], CHAIN, CHAIN]


def test_an_earlier_deadline_shortens_the_escalation_steps() -> None:
    asked = build_approval_plan([make_requirement(groups=CHAIN, deadline_seconds=2400)], SETTINGS)
    assert (asked.levels, asked.seconds) == ((100, 400), 2400)


def test_the_earliest_deadline_applies_within_the_settings() -> None:
    hour, week = make_requirement("one", deadline_seconds=3600), make_requirement("two", deadline_seconds=7 * 86_400)
    assert build_approval_plan([hour, week], SETTINGS).seconds == 3600
    assert build_approval_plan([week], SETTINGS).seconds == 86_400


def test_the_last_level_adds_all_remaining_groups() -> None:
    asked = build_approval_plan([make_requirement(groups=("a", "b", "c", "d", "e"))], SETTINGS)
    assert [asked.get_requirement_groups(0, level) for level in range(3)] == [
        ("a",),
        ("a", "b"),
        ("a", "b", "c", "d", "e"),
    ]
    at_once = build_approval_plan([make_requirement(groups=CHAIN)], ApprovalSettings(step_seconds=(600,)))
    assert (at_once.levels, at_once.get_requirement_groups(0, 0)) == ((), CHAIN)


def test_one_person_counts_once_for_each_requirement() -> None:
    asked = build_approval_plan([make_requirement("one"), make_requirement("two", quorum=2)], SETTINGS)
    assert count_approvals(asked, [_make_approval("ben", 0, 1)]) == (1, 1)
    assert count_approvals(
        asked, [_make_approval("ben", 0, 1), _make_approval("Ben", 1), _make_approval("\uff22EN", 1)]
    ) == (1, 1)
    assert find_unmet_requirements(asked, [_make_approval("ben", 0, 1)]) == {1}
    assert is_plan_met(asked, [_make_approval("ben", 0, 1), _make_approval("cleo", 1)])


def test_a_denial_meets_no_requirement() -> None:
    assert not is_plan_met(
        build_approval_plan([make_requirement()], SETTINGS),
        [Vote(voter="ben", approve=False, requirement_indexes=frozenset({0}))],
    )


def test_a_plan_without_requirements_is_never_met() -> None:
    assert not is_plan_met(ApprovalPlan(requirements=(), levels=(), seconds=60), [_make_approval("ben", 0)])
    with pytest.raises(ValueError, match="at least one requirement"):
        build_approval_plan([], SETTINGS)


def test_duplicate_requirements_are_merged() -> None:
    assert (
        len(
            build_approval_plan(
                [make_requirement("b"), make_requirement("a"), make_requirement("b")], SETTINGS
            ).requirements
        )
        == 2
    )


@given(requirements, settings)
def test_a_serialized_plan_parses_to_the_same_plan(wanted: list[ApprovalRequirement], these: ApprovalSettings) -> None:
    asked = build_approval_plan(wanted, these)
    assert parse_plan(serialize_plan(asked), levels=asked.levels, seconds=asked.seconds) == asked


@given(st.data(), requirements, settings)
def test_the_order_of_requirements_does_not_matter(
    data: st.DataObject, wanted: list[ApprovalRequirement], these: ApprovalSettings
) -> None:
    assert build_approval_plan(data.draw(st.permutations(wanted)), these) == build_approval_plan(wanted, these)


@given(requirements, settings)
def test_levels_only_add_groups_and_the_last_has_all(
    wanted: list[ApprovalRequirement], these: ApprovalSettings
) -> None:
    asked = build_approval_plan(wanted, these)
    assert list(asked.levels) == sorted(asked.levels)
    assert all(0 < begins < asked.seconds <= these.step_seconds[-1] for begins in asked.levels)
    for place, each in enumerate(asked.requirements):
        at = [set(asked.get_requirement_groups(place, level)) for level in range(len(asked.levels) + 1)]
        assert at[0]
        assert all(before <= after for before, after in pairwise(at))
        assert at[-1] == set(each.groups) == set(each.groups or these.groups)


@given(requirements, settings, votes, votes)
def test_further_votes_never_unmeet_a_requirement(
    wanted: list[ApprovalRequirement], these: ApprovalSettings, cast: list[Vote], more: list[Vote]
) -> None:
    asked = build_approval_plan(wanted, these)
    before, after = count_approvals(asked, cast), count_approvals(asked, [*cast, *more])
    assert all(one <= other for one, other in zip(before, after, strict=True))
    assert find_unmet_requirements(asked, [*cast, *more]) <= find_unmet_requirements(asked, cast)
    assert not is_plan_met(asked, cast) or is_plan_met(asked, [*cast, *more])


@given(requirements, settings, votes)
def test_a_plan_is_met_only_by_enough_people_for_each_requirement(
    wanted: list[ApprovalRequirement], these: ApprovalSettings, cast: list[Vote]
) -> None:
    asked = build_approval_plan(wanted, these)
    people = [
        {normalize_person(vote.voter) for vote in cast if vote.approve and place in vote.requirement_indexes}
        for place in range(9)
    ]
    enough = all(len(people[place]) >= each.quorum for place, each in enumerate(asked.requirements))
    assert is_plan_met(asked, cast) == enough
