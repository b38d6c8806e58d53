"""Test contracts of MCP servers' tools: the settings decide, and the server's annotations are never trusted."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.catalog.compiled_tool import CompiledTool
from deputize.catalog.importers.mcp import (
    build_tool_contract,
    increment_major,
    is_tool_served,
    list_scopes,
)
from deputize.catalog.importers.server_schemas import move_schema
from deputize.catalog.importers.tool_names import assign_names
from deputize.core.contract.contract import (
    CircuitBreaker,
    Contract,
    Effects,
    Freshness,
    RetryPolicy,
    TimeoutClass,
    ToolKind,
    UpstreamIdempotency,
)
from deputize.core.errors import ToolNotAdmitted
from deputize.core.mcp.servers import Definition
from deputize.core.settings import McpServerSettings
from tests.unit.catalog.drift.definition_strategies import DEFINITIONS

DRAFT_07 = "http://json-schema.org/draft-07/schema#"


def make_server(**more: Any) -> McpServerSettings:
    return McpServerSettings.model_validate({"name": "shop", "url": "http://shop.example/mcp", **more})


def make_tool(name: str = "pay", **more: Any) -> Definition:
    return Definition.from_declaration(
        {"name": name, "description": "Pays an invoice.", "inputSchema": {"type": "object"}, **more}
    )


def import_contract(definition: Definition | None = None, **more: Any) -> Contract:
    definition, at = definition or make_tool(), make_server(**more)
    return build_tool_contract(
        at, definition, registered_name=assign_names(at.name, [definition.name], {})[definition.name]
    )


def compile_schema(schema: dict[str, Any]) -> CompiledTool:
    return CompiledTool(import_contract(make_tool(inputSchema=schema)))


def check_arguments(schema: dict[str, Any], *arguments: Any) -> list[bool]:
    made = compile_schema(schema)
    return [made.is_valid_input(each) for each in arguments]


def test_a_tool_leads_back_to_its_server_and_is_pinned_to_what_it_declared() -> None:
    definition = make_tool("Pay/Now", title="Pay now")
    made = import_contract(definition)
    assert made.full_name == "shop.pay_now"
    assert (made.version, made.kind, made.title) == ("1.0.0", ToolKind.MCP_TOOL, "Pay now")
    assert made.handler.model_dump() == {"driver": "mcp", "target": "shop/Pay/Now", "pin": definition.digest}
    assert (made.external_service, made.provider) == ("shop", "shop")


def test_nothing_is_believed_of_what_a_server_says_its_tools_do() -> None:
    hints = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True}
    made = import_contract(make_tool(annotations=hints))
    assert made.effects is Effects.DESTRUCTIVE
    assert made.idempotency.upstream is UpstreamIdempotency.CANNOT
    assert made.annotations == {}
    assert made.external_mappings == {"mcp": {"tool": "pay", "annotations": hints}}


@pytest.mark.parametrize(
    ("said", "effects", "upstream"),
    [
        ({}, Effects.DESTRUCTIVE, UpstreamIdempotency.CANNOT),
        ({"reads": ["p*"]}, Effects.READ, UpstreamIdempotency.IDEMPOTENT),
        ({"writes": ["pay"]}, Effects.WRITE, UpstreamIdempotency.CANNOT),
        ({"reads": ["*"], "writes": ["pa?"]}, Effects.WRITE, UpstreamIdempotency.CANNOT),
        ({"reads": ["Pay"]}, Effects.DESTRUCTIVE, UpstreamIdempotency.CANNOT),
        ({"repeatable": ["pay"]}, Effects.DESTRUCTIVE, UpstreamIdempotency.DEDUPLICATES),
        ({"reads": ["pay"], "repeatable": ["pay"]}, Effects.READ, UpstreamIdempotency.IDEMPOTENT),
    ],
)
def test_what_a_tool_does_is_the_operators_word(
    said: dict[str, Any], effects: Effects, upstream: UpstreamIdempotency
) -> None:
    made = import_contract(**said)
    assert (made.effects, made.idempotency.upstream) == (effects, upstream)
    assert bool(made.resources) == (effects is not Effects.READ)


def test_who_may_call_it_and_with_what_is_the_operators_word() -> None:
    assert import_contract().auth.scopes == ("shop:write",)
    assert import_contract(reads=["*"]).auth.scopes == ()
    assert import_contract(reads=["*"], scopes=["shop:use"]).auth.scopes == ("shop:use",)
    assert list_scopes(make_server()) == ("shop:write",)
    assert list_scopes(make_server(scopes=["shop:use"])) == ("shop:use",)
    vault = import_contract(credential="vault", secret="shop/key", audience="https://unused.example").auth
    assert (vault.credential, vault.secret, vault.audience) == ("vault", "shop/key", None)
    delegated = import_contract(credential="delegated", audience="https://shop.example").auth
    assert (delegated.credential, delegated.secret, delegated.audience) == ("delegated", None, "https://shop.example")


def test_slow_tools_have_minutes() -> None:
    assert import_contract().timeout.timeout_class is TimeoutClass.STANDARD
    assert import_contract(slow=["p*"]).timeout.timeout_class is TimeoutClass.LONG_RUNNING


def test_the_settings_say_how_a_tool_survives_a_failing_server() -> None:
    said: dict[str, Any] = {
        "breaker": {"failure_threshold": 2},
        "retry": {"p*": {"max_attempts": 1}, "*": {"max_attempts": 9}},
        "freshness": {"*": {"max_age_seconds": 60, "shared_by": "tenant"}},
    }
    plain = import_contract()
    paying, reading = import_contract(**said), import_contract(make_tool("look"), reads=["look"], **said)
    assert paying.breaker == reading.breaker == CircuitBreaker(failure_threshold=2)
    assert (paying.retry, reading.retry) == (RetryPolicy(max_attempts=1), RetryPolicy(max_attempts=9))
    assert (paying.freshness, reading.freshness) == (None, Freshness(max_age_seconds=60, shared_by="tenant"))
    # Contracts without these settings stay as they are.
    assert import_contract(retry={"other": {"max_attempts": 2}}, breaker={}).digest == plain.digest


def test_a_description_is_the_servers_or_a_plain_sentence() -> None:
    assert import_contract().description == "Pays an invoice."
    assert import_contract(make_tool(description="", title="Pay an invoice")).description == "Pay an invoice"
    assert import_contract(make_tool(description="Pays")).description == "Pays. The tool pay of the server shop."
    assert import_contract(make_tool(description=None)).description == "The tool pay of the server shop."
    long = import_contract(make_tool(description="word " * 1000)).description
    assert len(long) == 2000
    assert long.endswith("…")


def test_only_what_the_operator_serves_is_served() -> None:
    assert is_tool_served(make_server(), "anything")
    assert not is_tool_served(make_server(tools=["get_*"]), "pay")


def test_names_become_words_and_stay_what_they_became() -> None:
    names = ["getUser", "get-user", "get_user", "HTTPGet", "2fa", "issues/list.all", "é", "x" * 60]
    given = assign_names(make_server().name, names, {})
    assert given["get_user"] == "get_user"
    assert given["HTTPGet"] == "http_get"
    assert given["2fa"] == "tool_2fa"
    assert given["issues/list.all"] == "issues_list_all"
    assert given["é"] == "tool"
    assert given["x" * 60] == "x" * 48
    assert sorted((given["get-user"], given["getUser"])) == ["get_user_2", "get_user_3"]
    later = assign_names(make_server().name, ["GetUser", *names], given)
    assert later == given | {"GetUser": "get_user_4"}


@given(st.lists(st.text(max_size=70), unique=True, max_size=12), st.integers(1, 48), st.integers(0, 2**32))
def test_words_fit_are_apart_and_do_not_depend_on_the_servers_order(names: list[str], length: int, seed: int) -> None:
    at = make_server(name="s" * length)
    given = assign_names(at.name, names, {})
    assert assign_names(at.name, random.Random(seed).sample(names, len(names)), {}) == given
    assert len(set(given.values())) == len(names)
    assert given.keys() == set(names)
    for name, word in given.items():
        assert (
            build_tool_contract(at, make_tool(name or "empty"), registered_name=word).outward_name
            == f"{at.name}__{word}"
        )


def test_an_accepted_change_is_the_next_major_version() -> None:
    assert increment_major("1.0.0") == "2.0.0"
    assert increment_major("9.3.1") == "10.0.0"
    assert build_tool_contract(make_server(), make_tool(), registered_name="pay", version="2.0.0").version == "2.0.0"


def test_properties_without_words_are_admitted_as_they_are() -> None:
    made = import_contract(
        make_tool(inputSchema={"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]})
    )
    assert made.input_schema["properties"] == {"id": {"type": "string"}}
    assert made.examples == ()
    said = {"type": "object", "properties": {"id": {"type": "string", "examples": ["7"]}}, "required": ["id"]}
    assert import_contract(make_tool(inputSchema=said)).examples == ({"id": "7"},)


def test_arguments_that_were_not_declared_are_not_taken_unless_the_server_says_so() -> None:
    named_ones = {"type": "object", "properties": {"id": {"type": "string"}, "more": {"type": "object"}}}
    assert check_arguments(named_ones, {"id": "7"}, {"id": "7", "bcc": "me"}, {"more": {"any": 1}}) == [
        True,
        False,
        True,
    ]
    assert check_arguments({**named_ones, "additionalProperties": True}, {"bcc": "me"}) == [True]
    assert check_arguments({"type": "object"}, {"bcc": "me"}) == [True]
    assert check_arguments({"type": "object", "properties": {}}, {}, {"bcc": "me"}) == [True, False]


def test_an_object_that_several_schemas_describe_is_not_closed_by_one_of_them() -> None:
    text = {"type": "string"}
    branches = {
        "type": "object",
        "properties": {"kind": text},
        "oneOf": [
            {"type": "object", "properties": {"card": text}, "required": ["card"]},
            {"type": "object", "properties": {"iban": text}, "required": ["iban"]},
        ],
    }
    assert check_arguments(branches, {"kind": "a", "card": "1"}, {"kind": "a"}, {"card": 1}) == [True, False, False]
    shared = {
        "type": "object",
        "properties": {"to": {"allOf": [{"$ref": "#/$defs/Base"}, {"type": "object", "properties": {"b": text}}]}},
        "$defs": {"Base": {"type": "object", "properties": {"a": text}}},
    }
    assert check_arguments(shared, {"to": {"a": "1", "b": "2"}}, {"to": {"a": 1}}) == [True, False]
    apart = {
        "type": "object",
        "properties": {"to": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}},
        "$defs": {"A": {"type": "object", "properties": {"a": text}}},
    }
    assert check_arguments(apart, {"to": None}, {"to": {"a": "1"}}, {"to": {"a": "1", "b": "2"}}) == [True, True, False]


def test_earlier_drafts_are_read() -> None:
    said = {
        "$schema": DRAFT_07,
        "$id": "https://shop.example/pay",
        "type": "object",
        "properties": {
            "pair": {"type": "array", "items": [{"type": "string"}, {"type": "integer"}], "additionalItems": False},
            "who": {"$ref": "#/definitions/Who"},
            "more": {"type": "integer", "minimum": 1, "exclusiveMinimum": True},
            "card": {"type": "string"},
            "code": {"type": "string"},
        },
        "definitions": {"Who": {"type": "string", "enum": ["me", "you"]}},
        "dependencies": {"card": ["code"]},
    }
    assert check_arguments(said, {"pair": ["a", 1]}, {"pair": [1, "a"]}, {"pair": ["a", 1, 2]}) == [True, False, False]
    assert check_arguments(said, {"who": "me"}, {"who": "them"}, {"more": 2}, {"more": 1}) == [True, False, True, False]
    assert check_arguments(said, {"card": "1"}, {"card": "1", "code": "2"}) == [False, True]


def test_what_cannot_be_enforced_here_is_left_to_the_server_and_listed() -> None:
    said = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "format": "uint64", "minimum": 0, "maximum": 2**64 - 1},
            "b": {"type": "string", "pattern": "^(?=.*x)y"},
        },
    }
    made = import_contract(
        make_tool(inputSchema=said, outputSchema={"type": "object", "properties": {"n": {"format": "int32"}}})
    )
    assert made.external_mappings["mcp"]["unenforced"] == [
        "/inputSchema/properties/a/format",
        "/inputSchema/properties/a/maximum",
        "/inputSchema/properties/b/pattern",
        "/outputSchema/properties/n/format",
    ]
    assert made.input_schema["properties"]["a"] == {"type": "integer", "minimum": 0}


def test_marks_of_our_own_are_not_for_servers_to_set() -> None:
    marks = {"x-internal": True, "x-policy": True, "x-sensitivity": "odd", "x-open": True, "x-token-cost": -1}
    part = {"type": "object", "properties": {"id": {"type": "string", "x-mcp-header": "Id", **marks}}}
    made = import_contract(make_tool(inputSchema=part))
    assert made.input_schema["properties"]["id"] == {"type": "string", "x-mcp-header": "Id"}


def test_hints_that_their_own_schema_refuses_are_dropped() -> None:
    said = {"type": "object", "properties": {"id": {"type": "string", "default": None, "examples": ["7", 7]}}}
    assert import_contract(make_tool(inputSchema=said)).input_schema["properties"]["id"] == {
        "type": "string",
        "examples": ["7"],
    }


def test_a_result_comes_in_an_envelope_that_loses_nothing() -> None:
    plain = CompiledTool(import_contract())
    assert plain.is_valid_output({"content": [{"type": "text", "text": "paid"}]})
    assert plain.is_valid_output({"content": [], "structured": {"any": 1}})
    assert not plain.is_valid_output({"structured": {}})
    tree = {"$ref": "#/$defs/Node", "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#"}}}}}
    made = CompiledTool(import_contract(make_tool(outputSchema=tree)))
    assert made.is_valid_output({"content": [], "structured": {"next": {"next": {}}}})
    assert not made.is_valid_output({"content": [], "structured": {"next": {"next": 7}}})
    assert not made.is_valid_output({"content": []})


def test_a_schema_that_is_moved_takes_its_references_along() -> None:
    tree: dict[str, Any] = {
        "type": "object",
        "properties": {"$ref": {"$ref": "#/$defs/a"}, "b": {"const": {"$ref": "#/$defs/a"}}},
    }
    away = move_schema(tree, "", "/properties/structured")
    assert away["properties"]["$ref"] == {"$ref": "#/properties/structured/$defs/a"}
    assert away["properties"]["b"] == tree["properties"]["b"]
    assert move_schema(away, "/properties/structured", "") == tree


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"inputSchema": None}, "/inputSchema"),
        ({"inputSchema": "object"}, "/inputSchema"),
        ({"inputSchema": {"type": "array"}}, "/input_schema"),
        ({"inputSchema": {"$ref": "https://elsewhere.example/schema"}}, "/input_schema/$ref"),
        ({"inputSchema": {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}}, "/input_schema"),
        ({"inputSchema": {"type": "object", "properties": [1]}}, "/input_schema/properties"),
        ({"outputSchema": []}, "/outputSchema"),
        ({"outputSchema": {"type": "nothing"}}, "/output_schema/properties/structured/type"),
        ({"inputSchema": {"type": "object", "description": "x" * 300_000}}, ""),
        ({"inputSchema": {"type": "object", "properties": {"a": {"enum": [2**60]}}}}, ""),
    ],
)
def test_a_tool_that_cannot_be_admitted_returns_the_reason(more: dict[str, Any], where: str) -> None:
    with pytest.raises(ToolNotAdmitted) as refused:
        import_contract(make_tool(**more))
    assert where in {each["path"] for each in refused.value.details["reasons"]}


def test_a_schema_that_nests_too_deep_is_refused_and_not_followed() -> None:
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        nested = {"type": "object", "properties": {"a": nested}}
    with pytest.raises(ToolNotAdmitted, match="is nested deeper"):
        import_contract(make_tool(inputSchema=nested))


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=5)),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["type", "properties", "required", "items", "$ref", "$defs", "definitions", "anyOf", "allOf", "enum",
                 "default", "examples", "additionalProperties", "format", "pattern", "dependencies", "$schema", "a"]
            ),
            inside,
            max_size=4,
        ),
    ),
    max_leaves=15,
)  # fmt: skip


def import_or_reasons(definition: Definition) -> Contract | list[Any]:
    try:
        return import_contract(definition)
    except ToolNotAdmitted as refused:
        return list(refused.details["reasons"])


@given(_JSON, _JSON)
def test_whatever_a_server_sends_for_schemas_ends_in_a_contract_or_a_reason(takes_: Any, gives: Any) -> None:
    made = import_or_reasons(make_tool(inputSchema=takes_, outputSchema=gives, annotations=gives, title=takes_))
    assert CompiledTool(made) if isinstance(made, Contract) else made


@given(DEFINITIONS)
def test_a_definition_that_somebody_meant_ends_in_a_contract_or_a_reason(said: dict[str, Any]) -> None:
    made = import_or_reasons(Definition.from_declaration(said))
    assert made
    if isinstance(made, Contract):
        assert made.handler.pin == Definition.from_declaration(said).digest
        assert Contract.model_validate(made.model_dump(mode="json")).digest == made.digest


@pytest.mark.parametrize("odd", [{"enum": {"a": 1}}, {"examples": {"a": 1}}, {"enum": "abc"}, {"required": {"a": 1}}])
def test_a_schema_whose_lists_are_none_ends_in_a_reason(odd: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", **odd}}, "required": ["x"]}
    assert import_or_reasons(make_tool(inputSchema=schema))
