"""The two spellings of a tool's name: one for people, one for model APIs, each leading back to the other."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.contract import inward, outward

pytestmark = pytest.mark.requirement("CON-1")

word = st.from_regex(re.compile(r"[a-z](?:_?[a-z0-9]){0,20}"), fullmatch=True)
full = st.builds("{}.{}".format, word, word)


@given(full)
def test_the_outward_spelling_leads_back(name: str) -> None:
    assert inward(outward(name)) == name
    assert inward(name) == name


@given(full)
def test_the_outward_spelling_is_legal_for_model_apis(name: str) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", outward(name))


@given(full, full)
def test_two_names_never_share_an_outward_spelling(one: str, other: str) -> None:
    assert (outward(one) == outward(other)) == (one == other)
