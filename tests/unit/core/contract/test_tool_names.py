"""The two spellings of a tool's name: one for people, one for model APIs, each leading back to the other."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.contract.names import to_full_name, to_outward_name

pytestmark = pytest.mark.requirement("CON-1")

word = st.from_regex(re.compile(r"[a-z](?:_?[a-z0-9]){0,20}"), fullmatch=True)
full = st.builds("{}.{}".format, word, word)


@given(full)
def test_the_outward_spelling_leads_back(name: str) -> None:
    assert to_full_name(to_outward_name(name)) == name
    assert to_full_name(name) == name


@given(full)
def test_the_outward_spelling_is_legal_for_model_apis(name: str) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", to_outward_name(name))


@given(full, full)
def test_two_names_never_share_an_outward_spelling(one: str, other: str) -> None:
    assert (to_outward_name(one) == to_outward_name(other)) == (one == other)
