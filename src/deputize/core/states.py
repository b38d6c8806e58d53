"""Define the states of a call, the events that announce them, and the allowed transitions.

A trigger of `deputize.calls` refuses every other change of a stored state (`STORED_TRANSITIONS`). Audit entries name
every state that a call passed; their encoder refuses a path that `TRANSITIONS` does not allow.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum


class State(StrEnum):
    """A state of a call."""

    PLANNED = "planned"
    SELECTED = "selected"
    SCHEMA_PARSE_FAILED = "schema_parse_failed"
    ARGUMENTS_READY = "arguments_ready"
    VALIDATION_FAILED = "validation_failed"
    PRE_HOOKS_RUNNING = "pre_hooks_running"
    AWAITING_APPROVAL = "awaiting_approval"
    APPROVED = "approved"
    DENIED = "denied"
    QUEUED = "queued"
    RUNNING = "running"
    NEEDS_INPUT = "needs_input"
    PARTIAL_RESULT = "partial_result"
    POST_HOOKS_RUNNING = "post_hooks_running"
    YIELDED = "yielded"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    TIMED_OUT = "timed_out"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"


S = State

_ENDS_AFTER_DISPATCH = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELED, S.TIMED_OUT, S.UNKNOWN})
# A mutation is RUNNING from its claim on, so a refusal between the claim and the effect ends it from there.
_ENDS_AFTER_CLAIM = frozenset({S.DENIED, S.BLOCKED, S.VALIDATION_FAILED})
# Before its claim a call is refused: it never acted, so its outcome is never unknown.
_ENDS_BEFORE_CLAIM = _ENDS_AFTER_CLAIM | {S.FAILED, S.CANCELED, S.TIMED_OUT}
# A call that waits, for an approval or in the queue, has not acted.
_ENDS_WHILE_WAITING = _ENDS_AFTER_CLAIM | {S.FAILED, S.CANCELED, S.TIMED_OUT, S.UNKNOWN}

# A call that needs input has ended: its answers make a new call, which is authorized again.
# A call that waited in a restored database is UNKNOWN: it may have gone on in the time that the database lost.
# Only UNKNOWN may still be settled: by a late outcome, a retry at an upstream that deduplicates, the tool's status
# contract, or a person.
TRANSITIONS: dict[State, frozenset[State]] = {
    S.PLANNED: frozenset({S.SELECTED} | _ENDS_BEFORE_CLAIM),
    S.SELECTED: frozenset({S.ARGUMENTS_READY, S.SCHEMA_PARSE_FAILED} | _ENDS_BEFORE_CLAIM),
    S.ARGUMENTS_READY: frozenset(
        {S.PRE_HOOKS_RUNNING, S.AWAITING_APPROVAL, S.QUEUED, S.RUNNING} | _ENDS_BEFORE_CLAIM
    ),
    S.PRE_HOOKS_RUNNING: frozenset({S.AWAITING_APPROVAL, S.QUEUED, S.RUNNING} | _ENDS_BEFORE_CLAIM),
    S.AWAITING_APPROVAL: frozenset({S.APPROVED} | _ENDS_WHILE_WAITING),
    S.APPROVED: frozenset({S.QUEUED, S.RUNNING, S.DENIED, S.CANCELED, S.NEEDS_INPUT, S.UNKNOWN}),
    # An approval that became void before the call began is requested again.
    S.QUEUED: frozenset({S.RUNNING, S.AWAITING_APPROVAL} | _ENDS_WHILE_WAITING),
    S.RUNNING: frozenset(
        {S.NEEDS_INPUT, S.PARTIAL_RESULT, S.POST_HOOKS_RUNNING, S.YIELDED, S.QUEUED}
        | _ENDS_AFTER_DISPATCH
        | _ENDS_AFTER_CLAIM
    ),
    S.NEEDS_INPUT: frozenset(),
    S.PARTIAL_RESULT: frozenset(
        {S.RUNNING, S.PARTIAL_RESULT, S.NEEDS_INPUT, S.POST_HOOKS_RUNNING, S.YIELDED}
        | _ENDS_AFTER_DISPATCH
        | _ENDS_AFTER_CLAIM
    ),
    S.POST_HOOKS_RUNNING: _ENDS_AFTER_DISPATCH | _ENDS_AFTER_CLAIM,
    S.YIELDED: frozenset({S.QUEUED, S.RUNNING} | _ENDS_AFTER_DISPATCH),
    S.UNKNOWN: frozenset(
        {S.QUEUED, S.RUNNING, S.NEEDS_INPUT, S.SUCCEEDED, S.FAILED, S.TIMED_OUT, S.CANCELED} | _ENDS_AFTER_CLAIM
    ),
    S.SUCCEEDED: frozenset(),
    S.FAILED: frozenset(),
    S.CANCELED: frozenset(),
    S.TIMED_OUT: frozenset(),
    S.DENIED: frozenset(),
    S.BLOCKED: frozenset(),
    S.SCHEMA_PARSE_FAILED: frozenset(),
    S.VALIDATION_FAILED: frozenset(),
}  # fmt: skip

FINAL_STATES = frozenset(state for state, successors in TRANSITIONS.items() if not successors)
TERMINAL_STATES = FINAL_STATES | {S.UNKNOWN}

# What may follow in a stored call. Other states pass within one commit: an approved call is queued at once.
STORED_TRANSITIONS: Mapping[State, frozenset[State]] = {
    S.AWAITING_APPROVAL: _ENDS_WHILE_WAITING | {S.QUEUED},
    S.QUEUED: TRANSITIONS[S.QUEUED],
    S.RUNNING: _ENDS_AFTER_DISPATCH | _ENDS_AFTER_CLAIM | {S.QUEUED, S.NEEDS_INPUT},
    S.UNKNOWN: TRANSITIONS[S.UNKNOWN],
}


class IllegalTransition(Exception):
    """A change of state that the transitions do not allow: a fault of the gateway, which is not written."""


def require_transition(before: State, after: State) -> State:
    """Return the state that follows; raise `IllegalTransition` if it may not."""
    if after not in STORED_TRANSITIONS.get(before, ()):
        raise IllegalTransition(f"a stored call that is {before} cannot become {after}")
    return after


def require_path(before: State | None, states: Sequence[State]) -> None:
    """Require that each state may follow the one before it; raise `IllegalTransition` at the first that may not.

    These are the states that an audit entry names, also those that pass within one commit. `before` is the state that
    the call was in, or None if that is not known.
    """
    for after in states:
        if before is not None and after not in TRANSITIONS[before]:
            raise IllegalTransition(f"a call that is {before} cannot become {after}")
        before = after


class ToolEvent(StrEnum):
    """An event of the tool standard."""

    TOOL_DECLARED = "tool.declared"
    SURFACE_CREATED = "tool.surface.created"
    SURFACE_UPDATED = "tool.surface.updated"
    DEFERRED_DISCOVERED = "tool.deferred.discovered"
    DEFERRED_LOADED = "tool.deferred.loaded"
    PLANNED = "tool.invocation.planned"
    SELECTED = "tool.invocation.selected"
    ARGUMENTS_READY = "tool.invocation.arguments_ready"
    VALIDATION_FAILED = "tool.invocation.validation_failed"
    PRE_HOOK_STARTED = "tool.hook.pre.started"
    PRE_HOOK_COMPLETED = "tool.hook.pre.completed"
    PERMISSION_REQUESTED = "tool.permission.requested"
    PERMISSION_DECIDED = "tool.permission.decided"
    QUEUED = "tool.invocation.queued"
    STARTED = "tool.invocation.started"
    PROGRESS = "tool.invocation.progress"
    PARTIAL_RESULT = "tool.invocation.partial_result"
    POST_HOOK_STARTED = "tool.hook.post.started"
    POST_HOOK_COMPLETED = "tool.hook.post.completed"
    RESULT_PERSISTED = "tool.result.persisted"
    YIELDED = "tool.invocation.yielded"
    SUCCEEDED = "tool.invocation.succeeded"
    FAILED = "tool.invocation.failed"
    CANCELED = "tool.invocation.canceled"
    TIMED_OUT = "tool.invocation.timed_out"
    UNKNOWN = "tool.invocation.unknown"
    RESULT_CREATED = "tool.result.created"
    RESULT_REDACTED = "tool.result.redacted"


EVENT_BY_STATE: dict[State, ToolEvent] = {
    S.PLANNED: ToolEvent.PLANNED,
    S.SELECTED: ToolEvent.SELECTED,
    S.SCHEMA_PARSE_FAILED: ToolEvent.VALIDATION_FAILED,
    S.ARGUMENTS_READY: ToolEvent.ARGUMENTS_READY,
    S.VALIDATION_FAILED: ToolEvent.VALIDATION_FAILED,
    S.PRE_HOOKS_RUNNING: ToolEvent.PRE_HOOK_STARTED,
    S.AWAITING_APPROVAL: ToolEvent.PERMISSION_REQUESTED,
    S.APPROVED: ToolEvent.PERMISSION_DECIDED,
    S.DENIED: ToolEvent.PERMISSION_DECIDED,
    S.QUEUED: ToolEvent.QUEUED,
    S.RUNNING: ToolEvent.STARTED,
    S.NEEDS_INPUT: ToolEvent.PERMISSION_REQUESTED,
    S.PARTIAL_RESULT: ToolEvent.PARTIAL_RESULT,
    S.POST_HOOKS_RUNNING: ToolEvent.POST_HOOK_STARTED,
    S.YIELDED: ToolEvent.YIELDED,
    S.SUCCEEDED: ToolEvent.SUCCEEDED,
    S.FAILED: ToolEvent.FAILED,
    S.CANCELED: ToolEvent.CANCELED,
    S.TIMED_OUT: ToolEvent.TIMED_OUT,
    S.BLOCKED: ToolEvent.FAILED,
    S.UNKNOWN: ToolEvent.UNKNOWN,
}
