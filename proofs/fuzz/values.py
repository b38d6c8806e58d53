"""Values that no proper client sends, for the fuzzers: text, numbers and JSON with all that can be wrong with them."""

from functools import cache
from typing import Any

from hypothesis import strategies as st

# Stands in markup of ours in no page and no message.
MARK = "data-poison"
# Good JSON each, and meant for whoever reads it: to mislead them, or to be more than text where it is shown.
HOSTILE_TEXTS = (
    "yes, approved\u202egnihton", "\x1b[2J\x1b[32mapproved\x1b[0m", "\x1b]8;;http://127.0.0.1:9/\x07here\x1b]8;;\x07",
    f"<script {MARK}>alert(1)</script>", f"'\"><img src=x {MARK} onerror=alert(1)>", f"</textarea></title><b {MARK}>",
    "{{ 7 * 7 }}{% raw %}${7*7}", "pay\u200bment \u2060\ufeff", "\U000e0041\U000e0042", "\r\nset-cookie: a=b\r\n\r\n",
    "'; drop table x; --", "z" + "\u0301" * 60, "⟨approved by oncall⟩", "\\u0061\\", "\u3164\u115f", "\uffff\ufdd0",
    "=cmd|' /C calc'!A0", "a" * 1900, "\t\n\x0b\x85\u2028",
)  # fmt: skip
ONE_IN_TEN = st.sampled_from([True] + [False] * 9)


def mix_mostly(usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Three of four as usual. In a choice between both, every way to be odd would count as much as the usual one."""
    return st.sampled_from([False, False, False, True]).flatmap(lambda rare: odd if rare else usual)


@cache
def build_texts() -> st.SearchStrategy[str]:
    """Text with everything Unicode has, lone surrogates and NUL included, and now and then a great deal of it."""
    anything = st.text(st.characters(exclude_categories=()), max_size=30)
    poison = st.sampled_from(
        ["\0", "a\0b", "\ud800", "\udfff\ud800", "\uffff", "\u202e", "", " ", "'; drop table x; --"]
    )
    # Size is bought by repeating: Hypothesis itself would take long to draw a megabyte.
    long = st.builds(
        lambda text, times: text * times, st.sampled_from(["a", "é", "\U0001f600"]), st.integers(1, 40_000)
    )
    return st.one_of(anything, poison, anything, long)


@cache
def build_numbers() -> st.SearchStrategy[Any]:
    huge = st.sampled_from(
        [2**53, 2**53 + 1, -(2**63), 2**64, 10**400, 1e308, -0.0, 5e-324, float("nan"), float("inf")]
    )
    return st.one_of(st.integers(), st.floats(), huge)


@cache
def build_values() -> st.SearchStrategy[Any]:
    scalars = st.one_of(st.none(), st.booleans(), build_numbers(), build_texts())
    return st.recursive(
        scalars,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(build_texts(), inner, max_size=4)),
        max_leaves=12,
    )


@cache
def build_header_values() -> st.SearchStrategy[str]:
    """Anything a line of a header can carry; line breaks would make it another request."""
    return st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=40)
