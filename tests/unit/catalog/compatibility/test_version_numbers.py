"""The number of a new version: what it announces, which one is right, and with which releases it is compared."""

import pytest

from deputize.catalog.compatibility.changes import ChangeLevel
from deputize.catalog.compatibility.version_numbers import (
    find_neighbours,
    find_release_reasons,
    measure_bump,
    suggest_version,
)
from deputize.catalog.versions import is_in_range
from deputize.core.contract.contract import Contract
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("CON-8")


def make_breaking(version: str, **more: object) -> Contract:
    return make_contract(version=version, auth={"scopes": ["crm:read", "crm:more"]}, **more)


@pytest.mark.parametrize(
    ("old", "new", "level"),
    [
        ("1.4.2", "2.0.0", "major"),
        ("1.4.2", "1.5.0", "minor"),
        ("1.4.2", "1.4.3", "patch"),
        ("1.4.2", "1.4.2+build", "patch"),
        ("1.4.2", "2.0.0-rc.1", "major"),
        ("0.4.2", "0.5.0", "major"),
        ("0.4.2", "0.4.3", "minor"),
        ("0.0.2", "0.0.3", "major"),
        ("0.4.2", "1.0.0", "major"),
    ],
)
def test_a_number_announces_a_change(old: str, new: str, level: str) -> None:
    bump = measure_bump(old, new)
    assert bump.label == level
    # A caller who asks for a compatible version is never given one that announces a break.
    assert is_in_range(f"^{old}", new) == (bump is not ChangeLevel.MAJOR)


@pytest.mark.parametrize("old", ["1.4.2", "0.4.2", "0.0.2", "3.0.0"])
@pytest.mark.parametrize("level", list(ChangeLevel))
def test_the_suggested_number_is_higher_and_announces_enough(old: str, level: ChangeLevel) -> None:
    assert measure_bump(old, suggest_version(old, level)) >= level
    assert find_neighbours(suggest_version(old, level), [old]) == (old, None)


def test_a_version_is_compared_with_the_releases_around_it() -> None:
    registered = ["1.0.0", "1.10.0", "1.2.0", "2.0.0-rc.1", "2.0.0"]
    assert find_neighbours("1.9.0", registered) == ("1.2.0", "1.10.0")
    assert find_neighbours("2.0.0", registered) == ("1.10.0", None)
    assert find_neighbours("0.1.0", registered) == (None, "1.0.0")
    assert find_neighbours("1.0.0", []) == (None, None)


def test_a_version_that_says_less_than_it_changes_is_refused_with_the_right_number() -> None:
    reasons = list(find_release_reasons(make_breaking("1.1.0"), older=make_contract()))
    assert [each.path for each in reasons] == ["/version", "/auth"]
    assert "this is a major one" in reasons[0].reason
    assert "2.0.0" in reasons[0].fix


def test_an_addition_needs_more_than_a_patch() -> None:
    added = {"tags": ["crm"]}
    assert [
        each.path for each in find_release_reasons(make_contract(version="1.0.1", **added), older=make_contract())
    ] == ["/version", "/tags"]
    assert not list(find_release_reasons(make_contract(version="1.1.0", **added), older=make_contract()))


def test_a_declared_break_and_a_found_one_have_to_agree() -> None:
    declared_only = find_release_reasons(make_contract(version="1.1.0", breaking_changes=True), older=make_contract())
    assert [each.path for each in declared_only] == ["/breaking_changes"]
    found_only = find_release_reasons(make_breaking("2.0.0"), older=make_contract())
    assert [each.path for each in found_only] == ["/breaking_changes"]
    assert not list(find_release_reasons(make_breaking("2.0.0", breaking_changes=True), older=make_contract()))
    # Behaviour can break callers without any trace in the contract.
    assert not list(find_release_reasons(make_contract(version="2.0.0", breaking_changes=True), older=make_contract()))


def test_below_1_0_0_the_minor_number_announces_a_break_and_nothing_has_to_be_declared() -> None:
    old = make_contract(version="0.1.0")
    assert not list(find_release_reasons(make_breaking("0.2.0"), older=old))
    assert list(find_release_reasons(make_breaking("0.1.1"), older=old))


def test_a_version_between_two_others_does_not_break_on_the_way_up() -> None:
    later = make_contract(version="1.9.0")
    wider = make_contract(version="1.5.0", aliases=["crm.fetch"])
    (reason,) = find_release_reasons(wider, older=make_contract(), newer=later)
    assert "1.9.0" in reason.reason
    assert not list(find_release_reasons(make_contract(version="1.5.0"), older=make_contract(), newer=later))
