"""What a client can be asked, in the words of both sides."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.questions import Ability, abilities_in, ability_of, capabilities_of


@given(st.frozensets(st.sampled_from(Ability)))
def test_what_a_server_is_told_is_read_back_as_what_was_meant(abilities: frozenset[Ability]) -> None:
    assert abilities_in(capabilities_of(abilities)) == abilities


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        ({"elicitation": {}}, {Ability.FORM}),
        ({"elicitation": {"url": {}}}, {Ability.ADDRESS}),
        ({"elicitation": {"form": {}, "url": {}}}, {Ability.FORM, Ability.ADDRESS}),
        ({"sampling": {"tools": {}}, "roots": {"listChanged": True}}, {Ability.SAMPLING, Ability.ROOTS}),
        ({"elicitation": True, "sampling": None, "tasks": {}}, set()),
    ],
)
def test_what_clients_declare_is_taken_at_its_word_and_no_further(told: dict[str, Any], meant: set[Ability]) -> None:
    assert abilities_in(told) == meant


@pytest.mark.parametrize(
    ("question", "takes"),
    [
        ({"method": "elicitation/create", "params": {"message": "?"}}, Ability.FORM),
        ({"method": "elicitation/create", "params": {"mode": "url"}}, Ability.ADDRESS),
        ({"method": "elicitation/create", "params": {"mode": "telepathy"}}, None),
        ({"method": "elicitation/create", "params": {"mode": ["form"]}}, None),
        ({"method": "elicitation/create"}, None),
        ({"method": "roots/list"}, Ability.ROOTS),
        ({"method": "tools/call"}, None),
        ({}, None),
    ],
)
def test_a_question_takes_one_ability_or_is_none(question: dict[str, Any], takes: Ability | None) -> None:
    assert ability_of(question) == takes
