"""Test what a report keeps of calls: agents choose how long arguments are, and not how much memory a report takes."""

from typing import Any

import orjson
import pytest

from deputize.core.clock import make_first_id
from deputize.govern.observation.observed_call import MAX_TEXT_LENGTH, ObservedCall, parse_call
from deputize.operations.audit.observations import MAX_FACT_BYTES, CallCollection

pytestmark = pytest.mark.requirement("NEW-8")
_OTHER_BYTES = 4096


def make_entry(call: str, decision: str) -> dict[str, Any]:
    return {
        "id": make_first_id(1000), "call": call, "kind": "read", "tool": "orders.get_order", "caller": ["ana", "bot"],
        "decision": decision,
    }  # fmt: skip


def make_record(facts: dict[str, Any]) -> bytes:
    tool = {"server": "orders", "namespace": "orders", "effects": "destructive"}
    return orjson.dumps({"context": {"facts": facts}, "tool": tool, "redacted": []})


def collect_call(facts: dict[str, Any]) -> tuple[ObservedCall, int]:
    """Collect one call; also return how many bytes it takes."""
    collection = CallCollection()
    collection.add_entries([make_entry("1", "a")], {}, {"a": make_record(facts)})
    text = orjson.dumps(collection.calls["1"])
    return parse_call(orjson.loads(text)), len(text)


@pytest.mark.parametrize(
    "facts",
    [
        {f"list{number}": ["x" * 500] * 200 for number in range(10)},
        {f"text{number}": "\x00" * 500 for number in range(100)},
        {f"emoji{number}": "\U0001f600" * 500 for number in range(100)},
    ],
)
def test_a_call_with_large_arguments_takes_bounded_memory_and_keeps_their_names(facts: dict[str, Any]) -> None:
    call, size = collect_call(facts)
    assert size <= MAX_FACT_BYTES + _OTHER_BYTES
    assert call.facts.keys() == facts.keys()
    assert call.lengths == {name: len(value) for name, value in facts.items()}


def test_small_arguments_are_kept_as_they_are() -> None:
    facts = {"customer_text": "ana", "amount": 20, "is_paid": True, "tags": ["a", "b"], "gone": None}
    call, _ = collect_call(facts)
    assert call.facts == {"customer_text": "ana", "amount": 20, "is_paid": True, "tags": ("a", "b")}
    assert collect_call({"note": "x" * 900})[0].facts == {"note": "x" * MAX_TEXT_LENGTH}


def test_a_report_ends_when_its_calls_take_too_much_memory() -> None:
    collection = CallCollection(max_bytes=20_000)
    for number in range(100):
        if collection.is_full:
            break
        record = make_record({"note": ["x" * 200] * 50})
        collection.add_entries([make_entry(str(number), str(number))], {}, {str(number): record})
    assert 2 < len(collection.calls) < 10


def test_a_shared_record_counts_for_each_of_its_calls_and_is_read_once_for_each_page() -> None:
    collection = CallCollection(max_bytes=20_000)
    entries = [make_entry(str(number), "a") for number in range(10)]
    assert collection.list_new_records(entries) == ["a"]
    collection.add_entries(entries, {}, {"a": make_record({"note": ["x" * 200] * 50})})
    assert collection.is_full
    assert collection.list_new_records(entries) == []
