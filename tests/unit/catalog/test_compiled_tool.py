"""Test compiled contracts: validation errors, hidden values and affected resources."""

from typing import Any

import pytest

from deputize.catalog.compiled_tool import AffectedResource, CompiledTool
from tests.support.contracts import INPUT, make_contract, make_input_schema


def find_errors(schema: dict[str, Any], value: Any) -> list[dict[str, Any]]:
    return CompiledTool(make_contract(input_schema=schema)).list_input_errors(value)


async def list_failed(tool: CompiledTool, arguments: dict[str, Any], output: Any) -> list[str]:
    async def refuse_job(*_: Any) -> None:
        raise AssertionError("predicates of a small result are checked here")

    assert tool.predicates is not None
    failures = await tool.predicates.find_failed(arguments, output, None, refuse_job)
    return [each.name for each in failures or ()]


@pytest.mark.requirement("CON-4")
def test_every_error_says_where_and_what_would_do() -> None:
    found = find_errors(INPUT, {"plan": "gold", "colour": "red"})
    assert [(each["path"], each["rule"]) for each in found] == [
        ("/colour", "additionalProperties"),
        ("/id", "required"),
        ("/plan", "enum"),
    ]
    assert found[0]["known"] == ["id", "plan"]
    assert found[2]["expected"] == ["free", "pro"]


@pytest.mark.requirement("CON-4")
def test_formats_are_enforced() -> None:
    schema = make_input_schema(
        mail={"type": "string", "format": "email"}, when={"type": "string", "format": "date-time"}
    )
    tool = CompiledTool(make_contract(input_schema=schema))
    assert tool.is_valid_input({"mail": "ana@example.org", "when": "2030-01-31T09:00:00Z"})
    assert [each["path"] for each in tool.list_input_errors({"mail": "ana", "when": "today"})] == ["/mail", "/when"]


def test_paths_are_json_pointers() -> None:
    schema = make_input_schema(
        **{"a/b": {"type": "array", "items": {"type": "object", "properties": {"~": {"type": "null"}}}}}
    )
    assert [each["path"] for each in find_errors(schema, {"a/b": [{}, {"~": 1}]})] == ["/a~1b/1/~0"]


@pytest.mark.requirement("CON-4")
def test_no_message_repeats_a_value() -> None:
    secret = "hunter2-and-more"
    schema = make_input_schema(
        word={"type": "string", "pattern": "^x", "x-sensitivity": "secret"},
        size={"type": "integer"},
        kind={"enum": ["a"]},
        one={"const": 1},
        few={"type": "object", "maxProperties": 0},
        some={"anyOf": [{"type": "integer"}, {"type": "null"}]},
    )
    everywhere = {"word": secret, "size": secret, "kind": secret, "one": secret, "few": {"a": secret}, "some": secret}
    found = find_errors(schema, everywhere)
    assert len(found) == 6
    assert secret not in repr(found)


def test_a_pattern_is_told_with_the_description_of_its_property_and_a_long_one_by_that_alone() -> None:
    long = {"type": "string", "pattern": f"^({'a|' * 60}b)$", "description": "Path of a file, as in src/main.py."}
    bare = {"type": "string", "pattern": "^x"}
    schema = make_input_schema(
        bare=bare, short={**bare, "description": "An id, as in x1."}, files={"type": "array", "items": long}
    )
    found = find_errors(schema, {"bare": "a", "short": "a", "files": ["/a"]})
    assert {each["path"]: each["message"] for each in found} == {
        "/bare": "must match ^x",
        "/files/0": "does not have the form that this needs: Path of a file, as in src/main.py.",
        "/short": "must match ^x: An id, as in x1.",
    }


def test_a_flood_of_errors_is_cut_short() -> None:
    assert len(find_errors(INPUT, {f"unknown{place}": 1 for place in range(100)})) == 20


@pytest.mark.requirement("CON-11")
def test_internal_properties_are_not_shown_and_not_taken_from_callers() -> None:
    hidden = {"type": "string", "x-internal": True}
    schema = {
        **make_input_schema(
            name={"type": "string"},
            trace=hidden,
            inner={"type": "object", "properties": {"deep": hidden, "seen": {"type": "string"}}, "required": ["seen"]},
        ),
    }
    tool = CompiledTool(make_contract(input_schema=schema))
    assert "x-internal" not in repr(tool.model_schema)
    assert tool.model_schema["properties"].keys() == {"name", "inner"}
    assert tool.contract.input_schema is not tool.model_schema
    assert not tool.is_valid_input({"name": "a", "trace": "b"})
    assert "trace" not in tool.list_input_errors({"trace": "b"})[0]["known"]


def test_a_schema_without_internal_properties_is_compiled_once() -> None:
    made = make_contract()
    assert CompiledTool(made).model_schema is made.input_schema


@pytest.mark.requirement("CON-1")
async def test_outputs_and_predicates_are_judged() -> None:
    holds = {"properties": {"output": {"properties": {"total": {"minimum": 0}}}}}
    made = make_contract(
        output_schema={"type": "object", "required": ["total"], "properties": {"total": {"type": "number"}}},
        predicates=[{"name": "never_negative", "holds": holds}],
    )
    tool = CompiledTool(made)
    assert tool.is_valid_output({"total": 1})
    assert not tool.is_valid_output({"total": "1"})
    assert await list_failed(tool, {}, {"total": 1}) == []
    assert await list_failed(tool, {}, {"total": -1}) == ["never_negative"]


@pytest.mark.requirement("INV-7")
async def test_a_predicate_compares_what_was_asked_with_what_came_back() -> None:
    tool = CompiledTool(
        make_contract(
            predicates=[
                {"name": "within_limit", "compare": ["count(/output/items) <= /input/limit"], "severity": "warning"},
                {"name": "ordered", "holds": {"required": ["input"]}, "compare": ["/output/low <= /output/high"]},
            ]
        )
    )
    good = {"items": [1], "low": 1, "high": 2}

    assert await list_failed(tool, {"limit": 1}, good) == []
    assert await list_failed(tool, {"limit": 0}, good) == ["within_limit"]
    assert await list_failed(tool, {"limit": 1}, {**good, "low": 3}) == ["ordered"]


@pytest.mark.requirement("INV-8")
def test_what_a_call_may_change_is_filled_from_its_arguments() -> None:
    made = make_contract(
        effects="destructive",
        resources=[
            {"resource": "crm.users", "op": "delete", "scope": "users/{id}"},
            {"resource": "crm.log", "op": "create"},
        ],
    )
    tool = CompiledTool(made)
    assert tool.resolve_writes({"id": 7}) == (
        AffectedResource("crm.users", "delete", "users/7"),
        AffectedResource("crm.log", "create", "*"),
    )


@pytest.mark.requirement("INV-8")
@pytest.mark.parametrize(
    ("value", "scope"),
    [("*", "users/%2A"), ("a/b", "users/a%2Fb"), ("{id}", "users/%7Bid%7D"), (None, "users/*"), ([1], "users/*"),
     ("", "users/*"), (True, "users/true"), (7.0, "users/7"), (7.5, "users/7.5"),
     ("ana@example.org", "users/ana@example.org")],
)  # fmt: skip
def test_no_argument_can_widen_or_bend_a_scope_unnoticed(value: Any, scope: str) -> None:
    effect = {"resource": "crm.users", "op": "update", "scope": "users/{id}"}
    tool = CompiledTool(make_contract(effects="destructive", resources=[effect]))
    assert tool.resolve_writes({"id": value})[0].scope == scope


def test_the_check_of_valid_input_is_the_validator_itself() -> None:
    assert type(CompiledTool(make_contract()).is_valid_input).__name__ == "builtin_function_or_method"
