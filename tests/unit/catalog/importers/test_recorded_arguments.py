"""Test that `record_arguments` lets decision records have every argument, and refuses no call because of it."""

from typing import Any

from deputize.catalog.compiled_tool import CompiledTool
from deputize.catalog.policy_facts import list_facts
from tests.unit.catalog.importers.test_mcp import import_contract, make_tool

PROPERTIES: dict[str, Any] = {
    "path": {"type": "string"},
    "amount": {"type": "integer", "default": 3},
    "force": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    "to": {"type": "array", "items": {"type": "string"}},
    "content": {"type": "string"},
    "options": {"type": "object"},
    "not-a-name": {"type": "string"},
}


def import_tool(**settings: Any) -> CompiledTool:
    schema = {"type": "object", "properties": PROPERTIES}
    return CompiledTool(import_contract(make_tool(inputSchema=schema), **settings))


def test_every_argument_that_a_rule_could_read_becomes_a_fact_with_its_type_in_its_name() -> None:
    tool = import_tool(record_arguments=True)
    assert {fact.name for fact in list_facts(tool.contract)} == {
        "path_text", "amount_number", "force_flag", "to_list",
    }  # fmt: skip
    facts = tool.read_facts({"path": "../x", "amount": 7, "force": True, "to": ["b", "a"], "content": "long"})
    assert facts == {"path_text": "../x", "amount_number": 7, "force_flag": True, "to_list": ("a", "b")}


def test_a_recorded_argument_is_accepted_in_every_form() -> None:
    tool = import_tool(record_arguments=True)
    for path in ("../../etc/passwd", "C:\\a", "", "/srv//a/"):
        assert tool.is_valid_input({"path": path})


def test_a_fact_of_the_settings_keeps_its_name() -> None:
    tool = import_tool(record_arguments=True, facts={"where": "arguments.path"})
    assert "where" in {fact.name for fact in list_facts(tool.contract)}
    assert "path_text" not in {fact.name for fact in list_facts(tool.contract)}


def test_nothing_is_recorded_unless_the_settings_say_so() -> None:
    assert not list_facts(import_tool().contract)
