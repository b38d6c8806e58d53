"""Filters of audit entries: what they match, and what the database is asked for."""

from typing import Any

import pytest

from deputize.evidence.entry_filters import EntryFilter, get_decision, list_resources

ENTRY: dict[str, Any] = {
    "caller": ["u" * 64, "a" * 64, "b" * 64], "kind": "read", "outcome": "succeeded", "rules": ["reads-are-free"],
    "scopes": ["read orders orders/{id}", "…"], "session": 's "1"', "tool": "crm.get_user", "trace": "0" * 32,
}  # fmt: skip


@pytest.mark.parametrize(
    ("matching", "other"),
    [
        ({"user": "u" * 64}, {"user": "a" * 64}),
        ({"agent": "b" * 64}, {"agent": "u" * 64}),
        ({"tool": "crm.get_user"}, {"tool": "crm.get"}),
        ({"rule": "reads-are-free"}, {"rule": "reads"}),
        ({"resource": "orders"}, {"resource": "order"}),
        ({"session": 's "1"'}, {"session": "s "}),
        ({"trace": "0" * 32}, {"trace": "1" * 32}),
        ({"kind": "read"}, {"kind": "refusal"}),
        ({"outcome": "succeeded"}, {"outcome": "failed"}),
        ({"decision": "allow"}, {"decision": "deny"}),
        ({"chain": ("u" * 64, "a" * 64, "b" * 64)}, {"chain": ("u" * 64, "a" * 64)}),
    ],
)
def test_a_filter_matches_what_is_equal_and_nothing_like_it(matching: dict[str, Any], other: dict[str, Any]) -> None:
    assert EntryFilter(**matching).is_match(ENTRY)
    assert not EntryFilter(**other).is_match(ENTRY)
    assert not EntryFilter(**{"tool": "crm.get_user", **matching, **other}).is_match(ENTRY)


def test_what_most_entries_have_in_common_is_not_looked_up_in_the_index() -> None:
    common = EntryFilter(kind="read", outcome="succeeded", decision="allow")
    assert common.list_labels() == []
    assert common.list_needles() == [['"outcome":"succeeded"'], ['"kind":"read"'], ['"rules":[']]
    assert EntryFilter(kind="command", outcome="failed", decision="deny").list_labels() == [
        "decision=deny", "outcome=failed", "kind=command",
    ]  # fmt: skip


def test_a_quote_in_a_value_is_spelled_as_json_spells_it() -> None:
    wanted = EntryFilter(session='s "1"')
    assert wanted.list_labels() == ["session=s \\"]
    assert wanted.list_needles() == [['"session":"s \\"1\\""']]


def test_decisions_follow_from_the_outcome_the_approval_and_the_rules() -> None:
    assert get_decision({**ENTRY, "outcome": "denied"}) == "deny"
    assert get_decision({**ENTRY, "approval": "x"}) == "ask"
    assert get_decision(ENTRY) == "allow"
    assert get_decision({"kind": "command", "outcome": "succeeded"}) is None
    assert list_resources({**ENTRY, "scopes": ["", "x y", "a b c d"]}) == ["b"]
