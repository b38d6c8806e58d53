"""Texts that match the patterns of schemas."""

import random
import re

import pytest

from deputize.testing.pattern_texts import UnsupportedPattern, generate_matching_text


@pytest.mark.parametrize(
    "pattern",
    [
        "^[a-z]{3,5}$", r"^\d{4}-\d{2}$", "^(red|green|blue)$", "^[A-Z][a-z_-]*$", r"^(?:ab)+c?$", r"^\w+@\w+\.com$",
        r"^[a-z](?:_?[a-z0-9])*$", "^a|b$", "", r"^\[x\]$", r"^.{2}$",
    ],
)  # fmt: skip
def test_generated_texts_match_their_pattern(pattern: str) -> None:
    rng = random.Random(7)
    for _ in range(50):
        text = generate_matching_text(pattern, rng)
        assert re.search(pattern, text), (pattern, text)


@pytest.mark.parametrize(
    "pattern", ["(?=a)b", "[^a]", r"\p{L}", "a{,}", "(a", "*", "[]", "a{999}", "(" * 40 + ")" * 40]
)
def test_a_construct_that_is_not_understood_has_no_text(pattern: str) -> None:
    with pytest.raises(UnsupportedPattern):
        generate_matching_text(pattern, random.Random(7))
