"""What takes a call back gets its arguments from the call, and says what is missing."""

from typing import Any

import pytest

from deputize.core.contract.compensation_binding import (
    BoundCompensation,
    bind_compensation,
    get_compensation_class,
)
from tests.support.policy_inputs import make_tool

VALUES = {"arguments": {"id": 7, "tags": ["a", "b"]}, "result": {"order": {"id": "o1"}}}


def _make_contract(**compensation: Any) -> Any:
    compensation = {"compensation_class": "full", "tool": "crm.cancel", **compensation}
    return make_tool(effects="write", undo="crm.cancel", compensation=compensation)


def test_arguments_come_from_pointers_and_constants() -> None:
    bind = {"order": "/result/order/id", "tag": "/arguments/tags/1", "all": "/arguments"}
    bound = bind_compensation(_make_contract(bind=bind, constants={"reason": "undo"}), VALUES)
    assert bound is not None
    assert bound.arguments == {"order": "o1", "tag": "b", "all": VALUES["arguments"], "reason": "undo"}
    assert bound.origins == {"order": "result", "tag": "arguments", "all": "arguments", "reason": "contract"}
    assert BoundCompensation.from_json(bound.to_json()) == bound


def test_a_pointer_that_leads_nowhere_is_named() -> None:
    bind = {"order": "/result/order/id", "text": "/before/text"}
    bound = bind_compensation(_make_contract(bind=bind), {"arguments": {}})
    assert bound is not None
    assert (bound.arguments, bound.missing) == ({}, ("/result/order/id", "/before/text"))


@pytest.mark.parametrize(
    ("declared", "compensation_class", "is_bound"),
    [
        ({"effects": "destructive"}, "irreversible", False),
        ({"effects": "destructive", "compensation": {"compensation_class": "irreversible"}}, "irreversible", False),
        ({"effects": "write", "undo": "crm.cancel"}, "semantic", True),
    ],
)
def test_nothing_declared_is_irreversible_and_an_undo_tool_gets_values_by_name(
    declared: dict[str, Any], compensation_class: str, is_bound: bool
) -> None:
    contract = make_tool(**declared)
    assert get_compensation_class(contract) == compensation_class
    bound = bind_compensation(contract, VALUES)
    assert (bound is not None and bound.is_by_name) is is_bound


def test_by_name_what_the_tool_returned_counts_more_and_undeclared_arguments_nothing() -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "number": {"type": "integer"}}}
    contract = make_tool(effects="write", undo="crm.cancel", input_schema=schema)
    arguments = {"id": 7, "number": 1, "order": "somebody else's"}
    bound = bind_compensation(contract, {"arguments": arguments, "result": {"number": 5, "lines": [1]}})
    assert bound is not None
    assert bound.arguments == {"id": 7, "number": 5}
    assert bound.origins == {"id": "arguments", "number": "result"}
