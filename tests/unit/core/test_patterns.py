"""Patterns from outside match in linear time, with the meaning that ECMA-262 gives them, or are refused."""

from fnmatch import fnmatchcase
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.patterns import InvalidPattern, LinearPattern, compile_pattern, matches_glob


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "(.*a){20}", "^(([a-z])+.)+[A-Z]([a-z])+$", "(x+x+)+y"])
def test_a_pattern_that_takes_exponential_time_elsewhere_takes_a_moment(pattern: str) -> None:
    compiled = compile_pattern(pattern)
    began = thread_time()
    compiled.matches_in("a" * 50_000 + "!")
    compiled.matches_in("x" * 50_000)
    assert thread_time() - began < 3


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (r"^\d+$", "12", True),
        (r"^\d+$", "\u0661", False),
        (r"^a$", "a\n", False),
        (r"^\w+$", "\u00e9", False),
        (r"^\s$", "\u00a0", True),
        (r"^\S$", "\u00a0", False),
        (r"^[\s]$", "\u2028", True),
        (r"^.$", "\u2028", False),
        (r"^[^]$", "\n", True),
        (r"[]", "a", False),
        (r"^\u00e9\x41\cJ\/$", "\u00e9A\n/", True),
        (r"^\ud83d\ude00\u{1F600}$", "\U0001f600\U0001f600", True),
        (r"^[\b[&]+$", "\b[&", True),
        (r"^(?<year>\d{4})-\p{Lu}$", "2026-A", True),
        (r"^\p{Script=Greek}+$", "\u03b1\u03b2", True),
        (r"^[\w.+-]+@[\w-]+\.[\w.]+$", "ana@example.com", True),
        ("^.$", "\ud800", True),
    ],
)  # fmt: skip
def test_a_pattern_means_what_it_means_in_a_schema(pattern: str, text: str, expected: bool) -> None:
    assert compile_pattern(pattern).matches_in(text) is expected


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=a)b", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "backreference"),
        (r"(?<x>a)\k<x>", "backreference"),
        ("a{1,2000}", "more than 1,000 times"),
        (r"\p{L}{50}", "the limit is 10,000"),
        ("a" * 5000, "the limit is 4,096"),
        (r"\y", "unknown escape"),
        (r"\u12", "ends too early"),
        (r"\u{110000}", "no character"),
        ("[a", "ends too early"),
        ("a(", "linear"),
        ("\ud800", "surrogate"),
    ],
)
def test_a_pattern_without_a_linear_equivalent_is_refused_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(InvalidPattern, match=reason):
        compile_pattern(pattern)


@given(st.text("ab[]!-*?.^\\", max_size=8), st.text("ab[]!-.^\\", max_size=6))
def test_a_glob_matches_as_in_the_standard_library(glob: str, text: str) -> None:
    if "-" not in glob:
        assert matches_glob(text, glob) == fnmatchcase(text, glob)


def test_a_reversed_range_in_a_glob_matches_nothing() -> None:
    assert not matches_glob("a", "[b-a]")


def test_where_a_pattern_matches_is_counted_in_characters() -> None:
    assert LinearPattern("b+", ignore_case=True).find_first("\u00e9\U0001f600aBb") == (3, 5)
    assert LinearPattern("b").find_first("\ud800b") == (1, 2)
    assert LinearPattern("b").find_first("a") is None
