"""Map what is recorded of calls, surfaces and hooks to objects of the standard.

The records are those that interfaces show: call facts, envelopes, progress reports, errors, surfaces. A foreign object
of such a kind is read into the same record; it never becomes a call here, because only calls that were made through
this gateway are in its audit log.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from deputize.catalog.exchange.agent_tool.field_mapping import MISSING, FieldMapping, ObjectMapping, Record
from deputize.catalog.exchange.agent_tool.foreign_fields import ForeignField, apply_differences, find_differences
from deputize.catalog.exchange.agent_tool.object_kinds import SCHEMA_VERSION, ObjectKind, find_object_problems
from deputize.catalog.registration_rules import build_refusal

_MOMENTS: Final = {"before": "pre", "after": "post", "failure": "failure"}
_OWN_MOMENTS: Final = {moment: name for name, moment in _MOMENTS.items()}
_ANSWERS: Final = {
    "before": ["message", "context", "permission", "stop", "updated_input"],
    "after": ["message", "context"],
    "failure": ["message", "context"],
}
_DEFERRED: Final = "deferred"


def _move(*names: str) -> tuple[FieldMapping, ...]:
    return tuple(FieldMapping(name, name) for name in names)


def _wrap_trace(trace_id: Any) -> list[Record]:
    return [{"trace_id": trace_id}]


def _unwrap_trace(references: Any) -> Any:
    match references:
        case [{"trace_id": str(trace_id)}]:
            return trace_id
        case _:
            return MISSING


def _unwrap_single(values: Any) -> Any:
    return values[0] if isinstance(values, list) and len(values) == 1 else MISSING


def _convert_milliseconds(value: Any) -> Any:
    return round(value * 1000) if isinstance(value, int | float) else MISSING


_CALL: Final = FieldMapping("call_id", "invocation_id")
_TRACE: Final = FieldMapping("trace_id", "telemetry_refs", _wrap_trace, _unwrap_trace)

INVOCATION: Final = ObjectMapping(
    kind=ObjectKind.TOOL_INVOCATION,
    fields=(
        _CALL,
        _TRACE,
        FieldMapping("state", "status"),
        FieldMapping("tool", "tool_ref"),
        FieldMapping("transitions", "status_transitions"),
        FieldMapping("created_at", "started_at"),
        FieldMapping("actors", "actor_refs"),
        FieldMapping("runtime", "runtime_refs"),
        FieldMapping("rules", "policy_refs"),
        FieldMapping("entries", "evidence_refs"),
        FieldMapping("mutations", "input_mutations"),
        FieldMapping("error", "error_ref"),
        *_move(
            "native_call_id", "ended_at", "mutation_class", "model_input", "observable_input", "permission_input",
            "call_input",
        ),
    ),
)  # fmt: skip
PERMISSION_DECISION: Final = ObjectMapping(
    kind=ObjectKind.TOOL_PERMISSION_DECISION,
    fields=(
        _CALL,
        FieldMapping("rules", "rule_refs"),
        FieldMapping("policies", "policy_refs"),
        *_move(
            "decision_id", "behavior", "mode", "source", "reason", "updated_input", "user_modified",
            "suggested_updates", "pending_classifier_check", "blocked_path", "content_blocks", "accept_feedback",
            "decided_at", "expires_at", "approval",
        ),
    ),
)  # fmt: skip
PROGRESS: Final = ObjectMapping(
    kind=ObjectKind.TOOL_PROGRESS,
    fields=(
        _CALL,
        *_move(
            "progress_id", "sequence", "status", "message", "percent", "current_step", "total_steps", "elapsed_ms",
            "partial_result", "redactions", "timestamp",
        ),
    ),
)  # fmt: skip
ERROR: Final = ObjectMapping(
    kind=ObjectKind.TOOL_ERROR,
    fields=(
        _TRACE,
        FieldMapping("code", "error_code"),
        FieldMapping("class", "error_class"),
        FieldMapping(
            "retryable",
            "recoverability",
            lambda is_retryable: "retryable" if is_retryable else "not_retryable",
            lambda word: {"retryable": True, "not_retryable": False}.get(word, MISSING),
        ),
        FieldMapping("retry_after_ms", "retry_after", lambda value: value / 1000, _convert_milliseconds),
        *_move("message", "number", "slug", "advice", "details"),
    ),
)
RESULT: Final = ObjectMapping(
    kind=ObjectKind.TOOL_RESULT,
    fields=(
        _CALL,
        _TRACE,
        FieldMapping("state", "status"),
        FieldMapping("result", "structured_content"),
        FieldMapping("search_text", "transcript_search_text"),
        FieldMapping("decision/rules", "policy_refs"),
        FieldMapping("error", "error", ERROR.export_object, ERROR.restore_record),
        *_move(
            "result_id", "is_error", "summary", "provenance", "pagination", "execution", "warnings", "context",
            "created_at", "redaction_state",
        ),
    ),
    computations={"ui_facing_summary": lambda record: record.get("summary")},
)  # fmt: skip
RESULT_PERSISTENCE: Final = ObjectMapping(
    kind=ObjectKind.TOOL_RESULT_PERSISTENCE,
    fields=(_CALL, *_move("result_id", "mode", "reason", "persisted_payload_ref", "max_inline_chars", "opt_out")),
)
EVENT: Final = ObjectMapping(
    kind=ObjectKind.TOOL_EVENT,
    fields=(
        _CALL,
        _TRACE,
        FieldMapping("id", "event_id"),
        FieldMapping("event", "event_class"),
        FieldMapping("time", "occurred_at"),
        FieldMapping("tool", "tool_ref"),
        FieldMapping("state", "status"),
        FieldMapping("facts", "payload"),
    ),
)


def _list_tools(record: Record, status: str) -> list[Any]:
    tools = [each for each in record.get("tools", ()) if isinstance(each, dict) and each.get("status") == status]
    return [{"tool_id": each.get("name"), "reason": each.get("reason")} for each in tools]


SURFACE: Final = ObjectMapping(
    kind=ObjectKind.TOOL_SURFACE,
    fields=(
        FieldMapping("tools", "tool_refs"),
        FieldMapping("selection", "selection_policy"),
        FieldMapping("policy_digest", "policy_refs", lambda digest: [digest], _unwrap_single),
        *_move("surface_id", "scope", "created_at", "producer", "next_after"),
    ),
    computations={
        "loaded_tools": lambda record: [each["tool_id"] for each in _list_tools(record, "loaded")],
        "deferred_tools": lambda record: [each["tool_id"] for each in _list_tools(record, _DEFERRED)],
        "blocked_tools": lambda record: _list_tools(record, "blocked"),
        "excluded_tools": lambda record: _list_tools(record, "excluded"),
        "default_tool_choice": lambda record: "auto",
    },
)
DEFERRED_TOOL: Final = ObjectMapping(
    kind=ObjectKind.DEFERRED_TOOL_REF,
    fields=(
        FieldMapping("name", "tool_id"),
        FieldMapping("short_name", "name"),
        FieldMapping("server", "pending_provider_or_server"),
        FieldMapping("status", "loading_state"),
        *_move("namespace", "version", "search_hint", "reason", "source", "selection_ref"),
    ),
    computations={"schema_visibility": lambda record: "name"},
)
HOOK: Final = ObjectMapping(
    kind=ObjectKind.TOOL_HOOK,
    fields=(
        FieldMapping("name", "hook_id"),
        FieldMapping(
            "moment",
            "moment",
            lambda moment: _MOMENTS.get(moment, moment),
            lambda moment: _OWN_MOMENTS.get(moment, MISSING),
        ),
        FieldMapping("seconds", "timeout_seconds"),
        *_move("tools", "source"),
    ),
    computations={"capabilities": lambda record: _ANSWERS.get(record.get("moment", ""))},
)
RECORD_MAPPINGS: Final[Mapping[ObjectKind, ObjectMapping]] = {
    each.kind: each
    for each in (
        INVOCATION, PERMISSION_DECISION, PROGRESS, ERROR, RESULT, RESULT_PERSISTENCE, EVENT, SURFACE, DEFERRED_TOOL,
        HOOK,
    )
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignRecord:
    """An object as it was read: our record of it, and what the object says beyond it."""

    kind: ObjectKind
    record: Record
    differences: tuple[ForeignField, ...] = ()


def export_record(kind: ObjectKind, record: Record, differences: Iterable[ForeignField] = ()) -> Record:
    """Write the object of a record, with what a foreign object said beyond it."""
    document = RECORD_MAPPINGS[kind].export_object(record)
    apply_differences(document, differences)
    return document


def import_record(kind: ObjectKind, document: Record) -> ForeignRecord:
    """Read an object, or raise `ToolNotAdmitted` with every reason why it is invalid."""
    problems = find_object_problems(kind, document)
    if problems:
        raise build_refusal(f"this {kind}", SCHEMA_VERSION, problems)
    record = RECORD_MAPPINGS[kind].restore_record(document)
    differences = find_differences(RECORD_MAPPINGS[kind].export_object(record), document)
    return ForeignRecord(kind=kind, record=record, differences=tuple(differences))
