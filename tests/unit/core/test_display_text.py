"""Texts of callers before people: nothing hides, nothing moves, nothing pretends to be ours."""

import ast
import json
import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deputize.core.display_text import clip_text, to_display_lines, to_display_text

pytestmark = pytest.mark.requirement("GOV-3")

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
ZERO_WIDTH = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u180e"
TAGS = "".join(map(chr, range(0xE0000, 0xE0080)))
SELECTORS = "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
PRIVATE = "\ue000\uf8ff\U000f0000\U0010fffd"
INVISIBLE = frozenset(BIDI + ZERO_WIDTH + TAGS + SELECTORS + FILLERS + PRIVATE)
HOSTILE = st.text(st.sampled_from(sorted(INVISIBLE) + list('\x00\x07\x1b\x9b\n\r\t\x7f\\⟨⟩…" a<é҉\u0301\u2028\ud800')))
TEXTS = st.one_of(st.text(st.characters()), HOSTILE)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def _is_visible(text: str) -> bool:
    seen = all(unicodedata.category(each)[0] != "C" and unicodedata.category(each) not in ("Zl", "Zp") for each in text)
    return seen and not INVISIBLE.intersection(text) and set(re.findall(r"\s", text)) <= {" "}


@given(TEXTS)
@example("\x1b[31mred\x1b[0m \x9b2J")
@example(BIDI + ZERO_WIDTH + TAGS + SELECTORS + FILLERS + PRIVATE)
def test_everything_that_is_shown_can_be_seen(text: str) -> None:
    assert _is_visible(to_display_text(text))


@given(TEXTS)
def test_what_was_there_can_be_read_back_so_no_two_texts_look_alike(text: str) -> None:
    shown = to_display_text(text, limit=100_000)
    quoted = '"' + shown.replace('"', '\\"') + '"'
    assert ast.literal_eval(quoted) == text


@given(TEXTS, st.integers(min_value=0, max_value=40))
def test_what_is_left_out_is_counted_and_no_escape_is_cut(text: str, most: int) -> None:
    shown, rest = clip_text(text, most)
    assert len(shown) <= most
    assert 0 <= rest <= len(text)
    assert shown == clip_text(text[: len(text) - rest], 100_000)[0]
    if rest:
        assert to_display_text(text, most) == f"{shown}⟨… {rest:,} more of {len(text):,} characters⟩"


@given(TEXTS)
def test_nobody_can_write_what_looks_like_our_marks(text: str) -> None:
    assert not set("⟨⟩").intersection(to_display_text(text, limit=100_000))


@given(VALUES)
def test_a_value_is_shown_in_lines_that_can_be_seen_and_read_back(value: object) -> None:
    lines = to_display_lines(value, limit=100_000, line_limit=100_000)
    assert all(_is_visible(line) for line in lines)
    words = "\n".join(lines)
    # JSON's words for what Python calls otherwise, outside of texts.
    python = re.sub(
        r'"(?:[^"\\]|\\.)*"|null|true|false',
        lambda found: {"null": "None", "true": "True", "false": "False"}.get(found[0], found[0]),
        words,
    )
    assert json.dumps(ast.literal_eval(python)) == json.dumps(value)


def test_ordinary_texts_of_many_scripts_stay_as_they_are() -> None:
    for text in ("Ana O'Neill <ana@acme.example>", "Zoë Đặng", "山田太郎", "שלום", "مرحبا", "สวัสดี", "🚀 done", ""):
        assert to_display_text(text) == text


def test_escapes_say_what_stood_there() -> None:
    assert to_display_text("a\u202eb\x1b[2J\n\t\\ \U000e0041\u200b") == r"a\u202eb\x1b[2J\n\t\\ \U000e0041\u200b"


def test_marks_that_pile_up_and_marks_without_a_letter_are_escapes() -> None:
    assert to_display_text("a" + "\u0301" * 6) == "a" + "\u0301" * 4 + r"\u0301\u0301"
    assert to_display_text("\u0338x") == r"\u0338x"


def test_fifty_kilobytes_are_clipped_and_marked() -> None:
    shown = to_display_text("x" * 51_200, limit=100)
    assert shown == "x" * 100 + "⟨… 51,100 more of 51,200 characters⟩"
    assert len(to_display_text("\u202e" * 51_200, limit=100)) < 160


def test_a_value_of_many_lines_says_how_many_more_there_are() -> None:
    assert to_display_lines({"a": [1, "1"], "b": {}}) == [
        "{",
        '  "a": [',
        "    1,",
        '    "1"',
        "  ],",
        '  "b": {}',
        "}",
    ]
    assert to_display_lines(list(range(10)), line_limit=3) == ["[", "  0,", "  1,", "⟨… 9 more lines⟩"]
    assert to_display_lines("x" * 20, limit=5) == ['"xxxxx⟨… 15 more of 20 characters⟩']
