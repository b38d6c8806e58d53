"""Test SemVer order and ranges, by examples and by properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.catalog.versions import (
    InvalidVersion,
    InvalidVersionRange,
    is_in_range,
    parse_range,
    parse_version,
    resolve_version,
)

pytestmark = pytest.mark.requirement("CON-8")

numbers = st.integers(0, 30)
identifiers = st.one_of(
    st.integers(0, 99).map(str), st.text("abzAZ-", min_size=1, max_size=4), st.sampled_from(["rc", "alpha", "0a"])
)
pre_releases = st.lists(identifiers, max_size=3).map(lambda parts: "-" + ".".join(parts) if parts else "")
releases = st.builds("{}.{}.{}".format, numbers, numbers, numbers)
versions = st.builds("{}{}".format, releases, pre_releases)
ranges = st.one_of(
    st.builds("^{}".format, releases),
    st.builds("~{}".format, releases),
    st.builds("^{}.{}".format, numbers, numbers),
    st.builds("~{}".format, numbers),
    st.builds("{}.x".format, numbers),
    st.builds("{}.{}.x".format, numbers, numbers),
    st.sampled_from(["*", "latest", "LATEST"]),
    versions,
)

IN_ORDER = [
    "0.0.1-0", "0.0.1", "0.1.0", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2",
    "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "2.0.0",
]  # fmt: skip


def test_versions_order_as_semver_says() -> None:
    assert sorted(sorted(IN_ORDER), key=parse_version) == IN_ORDER


@given(versions, versions, versions)
def test_the_order_is_total_and_transitive(a: str, b: str, c: str) -> None:
    first, second, third = sorted((a, b, c), key=parse_version)
    assert parse_version(first) <= parse_version(second) <= parse_version(third)
    assert parse_version(first) <= parse_version(third)
    assert (parse_version(a) == parse_version(b)) == (a == b)


@given(releases, pre_releases.filter(bool))
def test_a_pre_release_comes_before_its_release(release: str, pre: str) -> None:
    assert parse_version(release + pre) < parse_version(release)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.2",
        "v1.2.3",
        "1.2.3.4",
        "01.2.3",
        "1.2.3-",
        "1.2.3-01",
        "1.2.3+",
        "1.2.3\n",
        "1\u0661.0.0",
        "1." * 99,
    ],
)
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(InvalidVersion, match="is not a version; write"):
        parse_version(text)


@pytest.mark.parametrize(
    ("asked", "inside", "outside"),
    [
        ("^1.2", ["1.2.0", "1.9.9", "1.3.0-rc.1"], ["1.1.9", "1.2.0-rc.1", "2.0.0", "2.0.0-rc.1"]),
        ("^0.2.3", ["0.2.3", "0.2.9"], ["0.3.0", "0.2.2"]),
        ("^0.0.3", ["0.0.3"], ["0.0.4"]),
        ("^0", ["0.9.9"], ["1.0.0"]),
        ("~1.2.3", ["1.2.3", "1.2.99"], ["1.3.0", "1.2.2"]),
        ("~1", ["1.0.0", "1.99.0"], ["2.0.0"]),
        ("1.x", ["1.0.0-rc.1", "1.0.0", "1.5.0"], ["0.9.9", "2.0.0-alpha"]),
        ("1.2.x", ["1.2.0"], ["1.3.0"]),
        ("1.x.x", ["1.2.0"], ["2.0.0"]),
        ("1", ["1.5.0"], ["2.0.0"]),
        ("*", ["0.0.0-0", "9.9.9"], []),
        ("Latest", ["1.0.0"], []),
        ("1.2.3", ["1.2.3"], ["1.2.4", "1.2.3-rc.1", "1.2.3+build"]),
    ],
)
def test_ranges_hold_what_they_say(asked: str, inside: list[str], outside: list[str]) -> None:
    assert [version for version in inside if not is_in_range(asked, version)] == []
    assert [version for version in outside if is_in_range(asked, version)] == []


@pytest.mark.parametrize(
    "text",
    ["", "^", "~", "1.x.3", "x.1", ">=1", "newest", "1.2.3 || 2", "^latest", "^" + "1" * 80, "1.2.3-" + "a" * 80],
)
def test_what_is_no_range_is_refused_and_covers_nothing(text: str) -> None:
    with pytest.raises(InvalidVersionRange, match=r"write 1\.2\.3"):
        parse_range(text)
    assert not is_in_range(text, "1.0.0")


@given(ranges, st.lists(versions, max_size=8))
def test_what_is_resolved_is_a_candidate_inside_the_range(asked: str, candidates: list[str]) -> None:
    found = resolve_version(asked, candidates)
    inside = [version for version in candidates if is_in_range(asked, version)]
    assert (found is None) == (not inside)
    assert found is None or found in inside


@given(ranges, st.lists(versions, max_size=8), st.data())
def test_nothing_better_than_the_resolved_version_was_passed_over(
    asked: str, candidates: list[str], data: st.DataObject
) -> None:
    deprecated = data.draw(st.sets(st.sampled_from(candidates))) if candidates else set()
    found = resolve_version(asked, candidates, deprecated_versions=deprecated)
    inside = [version for version in candidates if is_in_range(asked, version)]
    releases_inside = [version for version in inside if parse_version(version).is_release]
    fresh = [version for version in releases_inside if version not in deprecated]
    if fresh:
        assert found == max(fresh, key=parse_version)
    elif releases_inside:
        assert found == max(releases_inside, key=parse_version)


@given(ranges, versions, versions, versions)
def test_a_range_has_no_holes(asked: str, a: str, b: str, c: str) -> None:
    low, middle, high = sorted((a, b, c), key=parse_version)
    if is_in_range(asked, low) and is_in_range(asked, high):
        assert is_in_range(asked, middle)


def test_latest_passes_over_deprecated_and_pre_release_versions_unless_nothing_else_is_left() -> None:
    assert resolve_version("latest", ["1.0.0", "1.1.0", "2.0.0-rc.1"], deprecated_versions={"1.1.0"}) == "1.0.0"
    assert resolve_version("LATEST", ["1.0.0", "2.0.0-rc.1"], deprecated_versions={"1.0.0"}) == "1.0.0"
    assert resolve_version("latest", ["2.0.0-rc.1"]) == "2.0.0-rc.1"
    assert resolve_version("2.0.0-rc.1", ["1.0.0", "2.0.0-rc.1"]) == "2.0.0-rc.1"
    assert resolve_version("latest", []) is None
