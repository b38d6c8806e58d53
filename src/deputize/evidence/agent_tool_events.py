"""Derive the events of the tool standard from audit entries, and list where each event and state is emitted.

An entry names the states that its call passed and what was decided, created and redacted on the way, so its events
follow from it and cannot contradict it. Progress is not audited: it is in the event stream of the call.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from deputize.core.states import EVENT_BY_STATE, State, ToolEvent
from deputize.core.value_types import frozen
from deputize.evidence.audit_entries import VERSION

E = ToolEvent
S = State


@frozen
class Emission:
    """Where an event or a state is emitted, or why it is not applicable here."""

    source: Literal["audit entry", "event stream", "not applicable"] = "audit entry"
    reason: str = ""


_IN_ENTRY: Final = Emission()
_NO_STORED_SURFACE: Final = Emission(
    source="not applicable",
    reason="a surface is computed for each request from the caller's authority; none is stored that could be announced",
)
_NO_DEFERRED_SCHEMA: Final = Emission(
    source="not applicable",
    reason="the gateway sends no schema on its own: a client reads the one it searched for, and reading is not a call",
)
_NOT_FROM_ENTRIES: Final[Mapping[ToolEvent, Emission]] = {
    E.SURFACE_CREATED: _NO_STORED_SURFACE,
    E.SURFACE_UPDATED: _NO_STORED_SURFACE,
    E.DEFERRED_DISCOVERED: _NO_DEFERRED_SCHEMA,
    E.DEFERRED_LOADED: _NO_DEFERRED_SCHEMA,
    E.PROGRESS: Emission(source="event stream", reason="progress is no decision and no effect, so it is not audited"),
}
# Every event of the standard and every state of a call; no state is left out.
EVENT_EMISSIONS: Final[Mapping[ToolEvent, Emission]] = {
    event: _NOT_FROM_ENTRIES.get(event, _IN_ENTRY) for event in ToolEvent
}
STATE_EMISSIONS: Final[Mapping[State, Emission]] = dict.fromkeys(State, _IN_ENTRY)

_STATE_NAMES: Final = frozenset(state.value for state in State)
_REGISTER_COMMAND: Final = "register:"
# A call that enters one of these was allowed by the rules that its entry names.
_ALLOWED_STATES: Final = frozenset({S.RUNNING, S.QUEUED})
_DECIDED_KINDS: Final = frozenset({"read", "intent"})
# A stored outcome can be read and replayed; the result of a read is not stored.
_STORED_KINDS: Final = frozenset({"outcome", "decision"})


def list_events(entry: Mapping[str, Any]) -> tuple[ToolEvent, ...]:
    """List the events that an entry records, in order.

    An entry of version 1 names only the state it led to. What a later version records, this release cannot tell.
    """
    if "call" not in entry:
        is_declaration = entry["v"] <= VERSION and str(entry.get("command", "")).startswith(_REGISTER_COMMAND)
        return (E.TOOL_DECLARED,) if is_declaration else ()
    return tuple(event for event, _ in list_steps(entry))


def list_steps(entry: Mapping[str, Any]) -> tuple[tuple[ToolEvent, State], ...]:
    """List the events that an entry of a call records, each with the state that the call enters with it."""
    return tuple((event, state) for state in list_states(entry) for event in _list_events_of(entry, state))


def list_states(entry: Mapping[str, Any]) -> tuple[State, ...]:
    """List the states that an entry adds to its call."""
    if entry["v"] > VERSION:
        return ()
    if "states" in entry:
        return tuple(State(each) for each in entry["states"])
    is_step = entry["v"] == 1 and entry["kind"] != "command" and entry.get("outcome") in _STATE_NAMES
    return (State(entry["outcome"]),) if is_step else ()


def _list_events_of(entry: Mapping[str, Any], state: State) -> Iterator[ToolEvent]:
    if state in _ALLOWED_STATES and entry["kind"] in _DECIDED_KINDS and "rules" in entry:
        is_first = "states" not in entry or _ALLOWED_STATES.isdisjoint(entry["states"][: entry["states"].index(state)])
        if is_first:
            yield E.PERMISSION_DECIDED
    if state is S.SUCCEEDED and "result" in entry:
        yield from _iterate_result_events(entry)
    yield EVENT_BY_STATE[state]
    if state is S.PRE_HOOKS_RUNNING and entry["kind"] != "refusal":
        yield E.PRE_HOOK_COMPLETED
    if state is S.POST_HOOKS_RUNNING:
        yield E.POST_HOOK_COMPLETED


def _iterate_result_events(entry: Mapping[str, Any]) -> Iterator[ToolEvent]:
    yield E.RESULT_CREATED
    if entry.get("summary", {}).get("redacted"):
        yield E.RESULT_REDACTED
    if entry["kind"] in _STORED_KINDS:
        yield E.RESULT_PERSISTED
