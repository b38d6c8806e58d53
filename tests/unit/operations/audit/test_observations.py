"""Test how calls are put together from their entries."""

from itertools import permutations
from typing import Any

import orjson
import pytest

from deputize.govern.observation.observed_call import parse_call
from deputize.operations.audit.observations import CallCollection

pytestmark = pytest.mark.requirement("NEW-8")
FIRST_ID = "01a1ebe2-d5fa-7000-8000-000000000000"
LATER_ID = "01a1ebe2-d5fb-7000-8000-000000000000"
RECORD: dict[str, Any] = {
    "tool": {"server": "orders", "namespace": "orders", "effects": "destructive"},
    "context": {"facts": {"customer_text": "a" * 500, "amount_number": 7, "to_list": ["x"] * 150, "pin_text": None}},
    "redacted": ["facts.pin_text"],
}


def make_entry(kind: str, entry_id: str, **fields: Any) -> dict[str, Any]:
    entry = {"id": entry_id, "kind": kind, "call": "1", "tool": "orders.get_order", "caller": ["p1", "p2"]}
    return {**entry, "decision": "r1", **fields}


def test_the_end_of_a_call_counts_in_whatever_order_its_entries_come() -> None:
    entries = [
        make_entry("intent", FIRST_ID, suspicions=["sql /customer"]),
        make_entry("outcome", LATER_ID, outcome="failed", error="E3701", cost_micros=5, summary={"bytes": 9}),
    ]
    for ordered_entries in permutations(entries):
        collection = CallCollection()
        assert collection.list_new_records(ordered_entries) == ["r1"]
        for entry in ordered_entries:
            collection.add_entries([entry], {"p1": "ana", "p2": "bot"}, {"r1": orjson.dumps(RECORD)})
        call = collection.calls["1"]
        assert (call["outcome"], call["error"], call["cost"], call["bytes"]) == ("failed", "E3701", 5, 9)
        assert call["at"] == int(FIRST_ID[:8] + FIRST_ID[9:13], 16)
        assert (call["user"], call["agents"]) == ("ana", ["bot"])
        assert call["suspicions"] == ["sql /customer"]


def test_a_tool_that_does_not_exist_belongs_to_no_system() -> None:
    collection = CallCollection()
    entry = make_entry("outcome", FIRST_ID, outcome="denied", error="E3101", tool="helo.greet", decision="")
    collection.add_entries([entry], {}, {})
    assert collection.calls["1"]["system"] == ""


def test_long_values_are_cut_and_their_length_is_kept_and_secrets_are_only_named() -> None:
    collection = CallCollection()
    collection.add_entries([make_entry("read", FIRST_ID, outcome="succeeded")], {}, {"r1": orjson.dumps(RECORD)})
    call = parse_call(orjson.loads(orjson.dumps(collection.calls["1"])))
    assert call.facts == {"customer_text": "a" * 200, "amount_number": 7, "to_list": ("x",) * 100}
    assert call.lengths == {"customer_text": 500, "to_list": 150}
    assert call.secret_facts == ("pin_text",)
    assert call.inferred_effects == "read"
    assert call.user == "p1"
