"""Events follow from entries: what was decided, run, created and redacted, in the order it happened."""

from typing import Any

import pytest

from deputize.core.states import State, ToolEvent
from deputize.evidence.agent_tool_events import EVENT_EMISSIONS, STATE_EMISSIONS, list_events
from deputize.evidence.audit_entries import VERSION

pytestmark = pytest.mark.requirement("INV-2")

READ = {"call": "c", "kind": "read", "rules": ["r"], "v": 2, "result": "ab", "summary": {"bytes": 1, "type": "null"}}
PATH = ["planned", "selected", "arguments_ready", "running", "succeeded"]


def _list_names(**fields: Any) -> list[str]:
    return [event.removeprefix("tool.") for event in list_events({**READ, **fields})]


def test_a_read_tells_its_whole_way() -> None:
    assert _list_names(states=PATH) == [
        "invocation.planned", "invocation.selected", "invocation.arguments_ready", "permission.decided",
        "invocation.started", "result.created", "invocation.succeeded",
    ]  # fmt: skip


def test_hooks_and_redactions_are_told_where_they_happened() -> None:
    states = [*PATH[:3], "pre_hooks_running", "running", "post_hooks_running", "succeeded"]
    summary = {"bytes": 1, "redacted": 2, "type": "object"}
    assert _list_names(states=states, summary=summary)[3:] == [
        "hook.pre.started", "hook.pre.completed", "permission.decided", "invocation.started", "hook.post.started",
        "hook.post.completed", "result.created", "result.redacted", "invocation.succeeded",
    ]  # fmt: skip


def test_a_hook_that_refused_a_call_did_not_complete() -> None:
    entry = {"call": "c", "kind": "refusal", "v": 2, "states": [*PATH[:3], "pre_hooks_running", "blocked"]}
    assert list_events(entry)[-2:] == (ToolEvent.PRE_HOOK_STARTED, ToolEvent.FAILED)


def test_a_stored_result_is_persisted_and_one_of_a_read_is_not() -> None:
    outcome = {**READ, "kind": "outcome", "states": ["succeeded"]}
    assert ToolEvent.RESULT_PERSISTED in list_events(outcome)
    assert ToolEvent.RESULT_PERSISTED not in list_events({**READ, "states": PATH})


def test_an_entry_of_version_1_tells_only_the_state_it_led_to() -> None:
    assert list_events({**READ, "v": 1, "outcome": "failed"}) == (ToolEvent.FAILED,)
    assert list_events({**READ, "v": 1, "kind": "intent"}) == ()
    assert list_events({"call": "c", "kind": "command", "v": 1, "outcome": "succeeded", "command": "cancel"}) == ()


def test_an_entry_of_a_later_version_is_not_guessed_at() -> None:
    assert list_events({**READ, "v": VERSION + 1, "states": ["a state of later"]}) == ()


def test_only_the_registration_of_a_tool_declares_it() -> None:
    act = {"kind": "command", "v": 2, "outcome": "succeeded"}
    assert list_events({**act, "command": "register:available"}) == (ToolEvent.TOOL_DECLARED,)
    assert list_events({**act, "command": "revoke"}) == ()


def test_few_events_and_no_states_are_not_applicable_and_each_says_why() -> None:
    assert EVENT_EMISSIONS.keys() == set(ToolEvent)
    assert STATE_EMISSIONS.keys() == set(State)
    skipped = [each for each in EVENT_EMISSIONS.values() if each.source == "not applicable"]
    assert len(skipped) <= 6
    assert all(each.reason for each in skipped)
    assert all(each.source == "audit entry" for each in STATE_EMISSIONS.values())
