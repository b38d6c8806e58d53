"""What a client can be asked, in the words of both sides."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.mcp.elicitation import (
    ClientCapability,
    build_client_capabilities,
    find_required_capability,
    parse_client_capabilities,
)


@given(st.frozensets(st.sampled_from(ClientCapability)))
def test_capabilities_survive_a_round_trip_to_the_server(abilities: frozenset[ClientCapability]) -> None:
    assert parse_client_capabilities(build_client_capabilities(abilities)) == abilities


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        ({"elicitation": {}}, {ClientCapability.FORM}),
        ({"elicitation": {"url": {}}}, {ClientCapability.URL}),
        ({"elicitation": {"form": {}, "url": {}}}, {ClientCapability.FORM, ClientCapability.URL}),
        (
            {"sampling": {"tools": {}}, "roots": {"listChanged": True}},
            {ClientCapability.SAMPLING, ClientCapability.ROOTS},
        ),
        ({"elicitation": True, "sampling": None, "tasks": {}}, set()),
    ],
)
def test_what_clients_declare_is_taken_at_its_word_and_no_further(
    told: dict[str, Any], meant: set[ClientCapability]
) -> None:
    assert parse_client_capabilities(told) == meant


@pytest.mark.parametrize(
    ("question", "takes"),
    [
        ({"method": "elicitation/create", "params": {"message": "?"}}, ClientCapability.FORM),
        ({"method": "elicitation/create", "params": {"mode": "url"}}, ClientCapability.URL),
        ({"method": "elicitation/create", "params": {"mode": "telepathy"}}, None),
        ({"method": "elicitation/create", "params": {"mode": ["form"]}}, None),
        ({"method": "elicitation/create"}, None),
        ({"method": "roots/list"}, ClientCapability.ROOTS),
        ({"method": "tools/call"}, None),
        ({}, None),
    ],
)
def test_a_question_takes_one_ability_or_is_none(question: dict[str, Any], takes: ClientCapability | None) -> None:
    assert find_required_capability(question) == takes
