"""Approvers are freshly signed-in people of the right groups, and never part of the call."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.caller import BREAK_GLASS_SCOPE, Caller
from deputize.core.errors import NotAnApprover
from deputize.govern.approvals.approvers import (
    OpenApproval,
    check_approver,
    check_break_glass,
    is_break_glass_met,
    parse_participants,
)
from deputize.govern.approvals.requirements import Vote, normalize_person
from tests.unit.govern.approvals.sample_approvers import (
    ISSUER,
    NOW,
    SETTINGS,
    make_approver,
    make_request,
    make_requirement,
)

pytestmark = pytest.mark.requirement("GOV-3")

BREAK_GLASS = {BREAK_GLASS_SCOPE}


def _check_approver(caller: Caller, request: OpenApproval, *, is_denial: bool = False) -> frozenset[int]:
    return check_approver(caller, request, now=NOW, settings=SETTINGS, is_denial=is_denial)


def _approver_refusal(caller: Caller, request: OpenApproval, **how: Any) -> NotAnApprover:
    with pytest.raises(NotAnApprover) as refused:
        _check_approver(caller, request, **how)
    assert refused.value.advice.endswith(".")
    return refused.value


def _make_approval(voter: str, *counts: int, glass: bool = False) -> Vote:
    return Vote(voter=voter, approve=True, requirement_indexes=frozenset(counts), is_break_glass=glass)


def test_a_freshly_signed_in_group_member_may_decide() -> None:
    assert _check_approver(make_approver(), make_request()) == {0}


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
def test_a_refused_approver_learns_the_refusing_rule(changes: dict[str, Any], rule: str) -> None:
    assert _approver_refusal(make_approver(**changes), make_request()).details["rule"] == rule
    if rule != "no-self-approval":
        assert _approver_refusal(make_approver(**changes), make_request(), is_denial=True).details["rule"] == rule


@pytest.mark.parametrize("user", ["ana", "ANA", "bot"])
def test_those_who_took_part_may_deny(user: str) -> None:
    assert _check_approver(make_approver(user=user), make_request(), is_denial=True) == {0}


def test_an_agent_does_not_exclude_the_person_of_its_name() -> None:
    request = make_request(participants=("ana", "issuer=https://other.example ben"))
    assert _check_approver(make_approver(), request) == {0}
    agent = Caller(tenant="acme", user="ana", agents=("ben", "Ben", "helper"), agent_issuers=("", "", ISSUER))
    assert agent.participants == ("ana", f"issuer={ISSUER} helper")
    assert _check_approver(make_approver(), make_request(participants=agent.participants)) == {0}
    request = make_request(participants=parse_participants(agent.participants, ISSUER))
    assert _approver_refusal(make_approver(user="Helper"), request).details["rule"] == "no-self-approval"


def test_names_of_agents_in_requests_of_earlier_releases_exclude_no_one() -> None:
    stored_names = ["ana", "ben", f"issuer={ISSUER} bot"]
    assert parse_participants(stored_names, "https://primary.example") == ("ana", f"issuer={ISSUER} bot")
    assert parse_participants(stored_names, ISSUER) == ("ana", "bot")


def test_a_sign_in_is_fresh_for_exactly_as_long_as_the_settings_say() -> None:
    assert _check_approver(make_approver(auth_time=NOW - 900), make_request())


def test_an_administrator_is_not_automatically_an_approver() -> None:
    everything = {"deputize:admin", BREAK_GLASS_SCOPE}
    assert (
        _approver_refusal(make_approver(groups={"admins"}, scopes=everything), make_request()).details["rule"]
        == "approver-group"
    )


def test_a_group_may_decide_from_its_level_on() -> None:
    asked, lead = make_requirement(groups=("oncall", "leads")), make_approver(groups={"leads"})
    assert _approver_refusal(lead, make_request(asked, level=0)).details["groups"] == ["oncall"]
    assert _check_approver(lead, make_request(asked, level=1)) == {0}
    assert _check_approver(make_approver(groups={"oncall"}), make_request(asked, level=1)) == {0}


def test_an_approval_counts_for_requirements_of_own_groups() -> None:
    both = (make_requirement("a", groups=("oncall",)), make_requirement("b", groups=("legal",)))
    assert _check_approver(make_approver(groups={"oncall"}), make_request(*both)) == {0}
    assert _check_approver(make_approver(groups={"legal", "oncall"}), make_request(*both)) == {0, 1}


def test_a_person_votes_once_under_any_spelling() -> None:
    for voter in ("ben", "Ben", "\uff42en"):
        asked = make_request(make_requirement(quorum=3), votes=(_make_approval(voter, 0),))
        assert _approver_refusal(make_approver(), asked).details["rule"] == "one-vote-each"
        assert _approver_refusal(make_approver(), asked, is_denial=True).details["rule"] == "one-vote-each"


def test_a_step_up_requirement_is_met_by_amr_or_acr() -> None:
    asked = make_request(make_requirement(step_up="hwk"))
    refusal = _approver_refusal(make_approver(methods={"pwd"}), asked)
    assert (refusal.details["rule"], refusal.details["step_up"]) == ("step-up", "hwk")
    assert "hwk" in refusal.advice
    assert _check_approver(make_approver(methods={"pwd", "hwk"}), asked) == {0}


def test_a_denial_needs_no_step_up() -> None:
    assert _check_approver(make_approver(), make_request(make_requirement(step_up="hwk")), is_denial=True) == {0}


def test_a_weak_sign_in_is_refused_while_a_step_up_is_unmet() -> None:
    weak, strong = make_requirement("a", quorum=2), make_requirement("b", step_up="hwk")
    ben = make_approver()
    assert _approver_refusal(ben, make_request(weak, strong)).details["step_up"] == "hwk"
    assert _check_approver(ben, make_request(weak, strong, votes=(_make_approval("cleo", 0, 1),))) == {0}
    assert _check_approver(make_approver(methods={"hwk"}), make_request(weak, strong)) == {0, 1}
    assert _approver_refusal(ben, make_request(strong, votes=(_make_approval("cleo", 0),))).details["rule"] == "step-up"


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
requests = st.lists(
    st.builds(
        make_requirement,
        st.sampled_from(["r1", "r2"]),
        groups=st.lists(st.sampled_from(["oncall", "leads", "security"]), min_size=1, unique=True).map(tuple),
        quorum=st.integers(1, 3),
        step_up=st.sampled_from(["", "hwk"]),
    ),
    min_size=1,
    max_size=3,
)
votes = st.lists(st.builds(_make_approval, names, st.integers(0, 2)), max_size=3).map(tuple)


def _require_in_person(caller: Caller, request: OpenApproval, *, is_denial: bool = False) -> None:
    assert (caller.human, caller.console, caller.agents, caller.grants) == (True, True, (), ())
    assert caller.tenant == request.tenant
    participants = {normalize_person(each) for each in request.participants}
    assert is_denial or normalize_person(caller.user) not in participants
    assert caller.auth_time > 0
    assert NOW - caller.auth_time <= SETTINGS.fresh_seconds


@given(callers, requests, st.integers(0, 3), votes, st.booleans())
def test_accepted_approvers_meet_every_rule(
    caller: Caller, wanted: list[Any], level: int, votes: tuple[Vote, ...], denying: bool
) -> None:
    asked = make_request(*wanted, level=level, votes=votes)
    try:
        counts = _check_approver(caller, asked, is_denial=denying)
    except NotAnApprover:
        return
    _require_in_person(caller, asked, is_denial=denying)
    assert counts
    assert normalize_person(caller.user) not in {normalize_person(vote.voter) for vote in votes}
    for place in counts:
        assert caller.groups & set(asked.plan.get_requirement_groups(place, level))
        assert denying or not asked.plan.requirements[place].step_up or "hwk" in caller.methods


@given(callers, requests, st.integers(0, 2), votes)
def test_an_approver_may_still_decide_at_the_next_level(
    caller: Caller, wanted: list[Any], level: int, votes: tuple[Vote, ...]
) -> None:
    now, later = make_request(*wanted, level=level, votes=votes), make_request(*wanted, level=level + 1, votes=votes)
    try:
        before = _check_approver(caller, now, is_denial=True)
    except NotAnApprover:
        return
    assert before <= _check_approver(caller, later, is_denial=True)


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
def test_an_override_needs_a_fresh_person_outside_the_call(changes: dict[str, Any], rule: str) -> None:
    caller = make_approver(**{"scopes": BREAK_GLASS, **changes})
    with pytest.raises(NotAnApprover) as refused:
        check_break_glass(caller, make_request(), now=NOW, settings=SETTINGS)
    assert refused.value.details["rule"] == rule


def test_an_override_needs_two_different_people() -> None:
    ben = make_approver(scopes=BREAK_GLASS, groups=set())
    check_break_glass(ben, make_request(), now=NOW, settings=SETTINGS)
    first = (_make_approval("ben", glass=True),)
    with pytest.raises(NotAnApprover, match="already"):
        check_break_glass(
            make_approver(scopes=BREAK_GLASS, user="BEN"), make_request(votes=first), now=NOW, settings=SETTINGS
        )
    check_break_glass(
        make_approver(scopes=BREAK_GLASS, user="cleo"), make_request(votes=first), now=NOW, settings=SETTINGS
    )
    assert not is_break_glass_met(first)
    assert not is_break_glass_met((*first, _make_approval("Ben", glass=True)))
    assert not is_break_glass_met((*first, _make_approval("cleo", 0)))
    assert is_break_glass_met((*first, _make_approval("cleo", glass=True)))


def test_an_approver_may_also_vote_for_an_override() -> None:
    check_break_glass(
        make_approver(scopes=BREAK_GLASS), make_request(votes=(_make_approval("ben", 0),)), now=NOW, settings=SETTINGS
    )


@given(callers, requests, votes)
def test_accepted_override_votes_come_from_authorised_people(
    caller: Caller, wanted: list[Any], votes: tuple[Vote, ...]
) -> None:
    asked = make_request(*wanted, votes=votes)
    try:
        check_break_glass(caller, asked, now=NOW, settings=SETTINGS)
    except NotAnApprover:
        return
    _require_in_person(caller, asked)
    assert BREAK_GLASS_SCOPE in caller.scopes
