"""What a server's definition means, apart from how it was written."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.canonical import NotCanonical
from deputize.core.mcp.servers import AMBIGUOUS_DIGEST, Definition, DiscoveredServer
from tests.unit.catalog.drift.definition_strategies import DEFINITIONS, change_definition, rewrite_definition

SEEDS = st.integers(min_value=0, max_value=2**32)


@given(DEFINITIONS, SEEDS)
def test_written_in_another_order_and_spelling_a_definition_is_the_same(said: dict[str, Any], seed: int) -> None:
    assert (
        Definition.from_declaration(rewrite_definition(said, seed)).digest == Definition.from_declaration(said).digest
    )


@given(DEFINITIONS, SEEDS)
def test_with_any_one_value_changed_it_is_another(said: dict[str, Any], seed: int) -> None:
    assert Definition.from_declaration(change_definition(said, seed)).digest != Definition.from_declaration(said).digest


@given(DEFINITIONS)
def test_what_was_said_is_kept_as_it_was_said_but_for_asides(said: dict[str, Any]) -> None:
    assert Definition.from_declaration(said).declaration == {
        name: value for name, value in said.items() if name != "_meta"
    }


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"default": {"required": ["a", "b"]}}, {"default": {"required": ["b", "a"]}}),
        ({"prefixItems": [{"type": "string"}, {}]}, {"prefixItems": [{}, {"type": "string"}]}),
        ({"examples": [1, 2]}, {"examples": [2, 1]}),
        ({"x-order": ["a", "b"]}, {"x-order": ["b", "a"]}),
        ({"required": ["a"]}, {"required": ["a", "a"]}),
        ({"maximum": 2**60}, {"maximum": 2**60 + 1}),
        ({"maximum": 2**60}, {"maximum": {"\0": str(2**60)}}),
        ({"maximum": {"\0": "1"}}, {"maximum": {"\0\0": "1"}}),
        ({"const": "1"}, {"const": 1}),
        ({"const": True}, {"const": 1}),
        ({"description": "é"}, {"description": "e\u0301"}),
    ],
)
def test_where_order_or_spelling_means_something_it_counts(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert Definition.from_declaration({"name": "x", "inputSchema": one}).digest != (
        Definition.from_declaration({"name": "x", "inputSchema": two}).digest
    )


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"required": ["a", "b"]}, {"required": ["b", "a"]}),
        ({"type": ["string", "null"]}, {"type": ["null", "string"]}),
        ({"enum": [2, "a", None]}, {"enum": ["a", None, 2.0]}),
        ({"oneOf": [{"type": "string"}, True]}, {"oneOf": [True, {"type": "string"}]}),
        ({"dependencies": {"a": ["b", "c"]}}, {"dependencies": {"a": ["c", "b"]}}),
        ({"maximum": 2**60}, {"maximum": float(2**60)}),
        ({"properties": {"enum": {"enum": [1, 2]}}}, {"properties": {"enum": {"enum": [2, 1]}}}),
    ],
)
def test_where_json_schema_knows_no_order_there_is_none(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert Definition.from_declaration({"name": "x", "inputSchema": one}).digest == (
        Definition.from_declaration({"name": "x", "inputSchema": two}).digest
    )


def test_what_json_cannot_say_is_refused() -> None:
    nested: dict[str, Any] = {}
    for _ in range(20_000):
        nested = {"not": nested}
    for schema in ({"const": float("inf")}, {"const": "\ud800"}, nested):
        with pytest.raises(NotCanonical):
            Definition.from_declaration({"name": "x", "inputSchema": schema})


def test_a_name_declared_twice_in_different_ways_is_nothing_anybody_agreed_to() -> None:
    one, two = ({"name": "pay", "description": text} for text in ("Pays.", "Pays me."))
    found = DiscoveredServer(
        protocol="2026-07-28",
        title="shop",
        version="1",
        instructions="",
        tools=tuple(map(Definition.from_declaration, (one, two, {"name": "get"}, {"name": "get"}, one))),
    )
    assert found.digests == {"pay": AMBIGUOUS_DIGEST, "get": Definition.from_declaration({"name": "get"}).digest}
