"""What is published of a tool holds for what it answers."""

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.contract.contract import Contract
from deputize.core.results.model_view import build_model_view
from deputize.interfaces.mcp.tools.tool_definitions import (
    FAILURE_SCHEMA,
    PENDING_SCHEMA,
    build_annotations,
    build_input_schema,
    build_output_schema,
    can_take_key,
)

INVALID_ENVELOPE = {"status": "failed", "call_id": "c", "error": {"code": "X", "message": "m"}}
PENDING_ENVELOPE = {"status": "queued", "call_id": "c", "approval_url": None, "retry_after_ms": 500, "message": "m"}


def make_contract(output: dict[str, Any] | None = None, *, driver: str = "python", **more: Any) -> Contract:
    fields: dict[str, Any] = {
        "namespace": "a", "name": "b", "version": "1.0.0", "description": "Does something or other.",
        "handler": {"driver": driver, "target": "server/b"}, "input_schema": {"type": "object", "properties": {}},
        "output_schema": output or {"type": "object"}, "effects": "read", "auth": {}, "timeout": {},
        "idempotency": {}, "observability": {},
    }  # fmt: skip
    return Contract.model_validate({**fields, **more})


def is_valid(schema: dict[str, Any] | None, value: Any) -> bool:
    assert schema is not None
    return jsonschema_rs.Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize("modern", [True, False])
def test_a_result_or_waiting_or_a_failure_fits_and_nothing_else(modern: bool) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    shown = build_output_schema(make_contract(schema), modern=modern)
    assert is_valid(shown, {"x": 1})
    assert is_valid(shown, PENDING_ENVELOPE)
    assert is_valid(shown, INVALID_ENVELOPE)
    assert not is_valid(shown, {"x": "one"})


@given(st.sampled_from(["string", "integer", "boolean", "array", "null", "number"]))
def test_what_is_no_object_is_published_as_what_it_is_wrapped_in(kind: str) -> None:
    shown = build_output_schema(make_contract({"type": kind}), modern=False)
    value = {"string": "x", "integer": 1, "boolean": True, "array": [], "null": None, "number": 1.5}[kind]
    assert shown is not None
    assert shown["type"] == "object"
    assert is_valid(shown, {"result": value})
    assert is_valid(shown, PENDING_ENVELOPE)


@pytest.mark.requirement("INV-10")
def test_a_tool_that_may_give_a_reference_says_so() -> None:
    view = build_model_view("x" * 9_000, summary=None, reference=None, size=9_002, expires_at=None, max_length=1_000)
    own_schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    for max_inline in (1_000, None):
        shown = build_output_schema(make_contract(own_schema, max_inline=max_inline), modern=True)
        assert is_valid(shown, view.content) is (max_inline is not None)


def test_references_lead_from_the_root_as_before() -> None:
    schema = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/place"}},
        "required": ["at"],
        "$defs": {"place": {"type": "integer"}},
    }
    shown = build_output_schema(make_contract(schema), modern=True)
    assert is_valid(shown, {"at": 1})
    assert not is_valid(shown, {"at": "here"})


def test_a_schema_that_refers_to_itself_otherwise_is_not_published() -> None:
    schema = {"type": "object", "properties": {"child": {"$ref": "#"}}}
    assert build_output_schema(make_contract(schema), modern=True) is None


def test_of_a_servers_answer_the_structured_part_is_published_where_it_promised_one() -> None:
    def envelope(structured: dict[str, Any], *, promised: bool) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"content": {"type": "array"}, "structured": structured},
            "required": ["content", *(["structured"] if promised else [])],
        }

    inner = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    promised = build_output_schema(make_contract(envelope(inner, promised=True), driver="mcp"), modern=False)
    assert is_valid(promised, {"n": 1})
    assert is_valid(promised, PENDING_ENVELOPE)
    assert not is_valid(promised, {"content": []})
    assert build_output_schema(make_contract(envelope({}, promised=False), driver="mcp"), modern=True) is None
    listed = make_contract(envelope({"type": "array"}, promised=True), driver="mcp")
    assert build_output_schema(listed, modern=False) is None
    assert is_valid(build_output_schema(listed, modern=True), [])


def test_only_what_cannot_be_taken_back_asks_the_model_for_a_key() -> None:
    for effects, asks in (("read", False), ("write", False), ("destructive", True)):
        made = make_contract(effects=effects)
        assert can_take_key(made) is asks
        schema = build_input_schema(made, made.input_schema)
        assert ("idempotency_key" in schema["properties"]) is asks
        # A client that leaves out what is optional would be refused.
        assert ("idempotency_key" in schema.get("required", ())) is asks
    assert not can_take_key(make_contract(effects="destructive", idempotency={"key_argument": "order"}))


def test_annotations_are_our_own_word() -> None:
    said = make_contract(effects="destructive", driver="mcp", annotations={"readOnlyHint": True})
    assert build_annotations(said) == {
        "readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True,
    }  # fmt: skip


@pytest.mark.requirement("CON-2")
@pytest.mark.parametrize(("open_world", "hint"), [(None, True), (True, True), (False, False)])
def test_only_a_tool_that_says_so_is_closed_to_the_world(open_world: bool | None, hint: bool) -> None:
    assert build_annotations(make_contract(open_world=open_world))["openWorldHint"] is hint


def test_the_forms_of_waiting_and_of_failing_are_schemas_and_neither_is_the_other() -> None:
    assert is_valid(PENDING_SCHEMA, PENDING_ENVELOPE)
    assert is_valid(FAILURE_SCHEMA, INVALID_ENVELOPE)
    assert not is_valid(PENDING_SCHEMA, INVALID_ENVELOPE)
    assert not is_valid(FAILURE_SCHEMA, PENDING_ENVELOPE)


def test_the_references_of_what_a_server_promises_lead_where_its_parts_are_shown() -> None:
    inner = {
        "type": "object",
        "properties": {"line": {"$ref": "#/properties/structured/$defs/Line"}},
        "$defs": {"Line": {"type": "string"}},
    }
    envelope = {"type": "object", "properties": {"structured": inner}, "required": ["structured"]}
    shown = build_output_schema(make_contract(envelope, driver="mcp"), modern=False)
    assert is_valid(shown, {"line": "one"})
    assert not is_valid(shown, {"line": 1})
