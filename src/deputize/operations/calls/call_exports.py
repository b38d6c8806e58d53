"""Export calls as objects of the tool standard, from their facts, outcome, progress and audit entries.

Arguments are not in it: they are sealed, and entries contain commitments to them only.
"""

import asyncio
import re
from typing import Any, Final

import orjson

from deputize.catalog.exchange.agent_tool.call_mapping import export_record
from deputize.catalog.exchange.agent_tool.object_kinds import SCHEMA_VERSION, ObjectKind
from deputize.core.caller import Caller
from deputize.core.decision import Behavior
from deputize.core.errors import list_problem_types
from deputize.core.sensitive.marks import MARK_PATTERN
from deputize.core.states import TERMINAL_STATES, State, ToolEvent
from deputize.evidence.agent_tool_events import list_states, list_steps
from deputize.operations.calls.queries import CallQueries

_MARK: Final = re.compile(MARK_PATTERN)
_REFUSED_STATES = frozenset({State.DENIED, State.BLOCKED})


class CallExports:
    def __init__(self, calls: CallQueries) -> None:
        self._calls = calls

    async def export_call(self, caller: Caller, call_id: str) -> dict[str, Any]:
        """Export a call that the caller may see, with at most 200 progress reports, oldest first."""
        view = await self._calls.show_call(caller, call_id)
        envelope = await view.envelope.load_fields()
        facts = await self._calls.describe_call(caller, call_id)
        described_entries = await self._calls.describe_entries(caller, call_id)
        entries = [each["entry"] for each in described_entries]
        if "user" not in facts:
            facts = {**facts, **_describe_read_facts(described_entries[-1])}
        progress = await self._calls.list_progress(caller, call_id)
        return await asyncio.to_thread(_build_document, facts, envelope, entries, progress)


Fields = dict[str, Any]


def _build_document(facts: Fields, envelope: Fields, entries: list[Fields], progress: list[Fields]) -> Fields:
    document: Fields = {
        "schema_version": SCHEMA_VERSION,
        ObjectKind.TOOL_INVOCATION.value: _export_invocation(facts, envelope, entries),
    }
    decision = _export_decision(facts, entries)
    if decision is not None:
        document[ObjectKind.TOOL_PERMISSION_DECISION.value] = decision
    document[ObjectKind.TOOL_PROGRESS.value] = [export_record(ObjectKind.TOOL_PROGRESS, each) for each in progress]
    document |= _export_result(facts, envelope)
    document[ObjectKind.TOOL_EVENT.value] = _export_events(facts, entries, progress)
    return document


def _describe_read_facts(described_entry: Fields) -> Fields:
    """Describe of a read what the row of another call has: who made it, in which session, and when it ended."""
    entry = described_entry["entry"]
    return {
        "user": described_entry["user"],
        "agent": next(iter(described_entry["agents"]), None),
        "session": entry.get("session"),
        "mutation_class": entry.get("mutation_class"),
        "ended_at": entry["time"],
    }


def _export_invocation(facts: Fields, envelope: Fields, entries: list[Fields]) -> Fields:
    actors = [{"kind": kind, "id": facts[kind]} for kind in ("user", "agent") if facts.get(kind)]
    runtime = [{"session": facts["session"]}] if facts.get("session") else []
    record = {
        **{name: facts.get(name) for name in ("call_id", "state", "tool", "created_at", "ended_at", "trace_id")},
        "mutation_class": facts.get("mutation_class"),
        "actors": actors or None,
        "runtime": runtime or None,
        "rules": next((each["rules"] for each in entries if "rules" in each), None),
        "entries": [{"entry_id": each["id"], "kind": each["kind"], "time": each["time"]} for each in entries],
        "transitions": _list_transitions(facts, entries),
        "mutations": (envelope.get("input") or {}).get("mutations"),
        "native_call_id": next((each["native_call"] for each in entries if "native_call" in each), None),
        "error": facts.get("error_slug"),
    }
    return export_record(ObjectKind.TOOL_INVOCATION, record)


def _list_transitions(facts: Fields, entries: list[Fields]) -> list[Fields]:
    """List the states that audit entries name; at least the one that the call is in."""
    transitions = []
    for entry in entries:
        transitions += [{"status": state.value, "at": entry["time"]} for state in list_states(entry)]
    if not transitions or transitions[-1]["status"] != facts["state"]:
        transitions.append({"status": facts["state"], "at": facts.get("ended_at") or facts["created_at"]})
    return transitions


def _export_decision(facts: Fields, entries: list[Fields]) -> Fields | None:
    entry = next((each for each in entries if "rules" in each), None)
    if entry is None:
        return None
    approval = facts.get("approval")
    if State(facts["state"]) in _REFUSED_STATES:
        behavior = Behavior.DENY
    else:
        behavior = Behavior.ALLOW if approval is None else Behavior.ASK
    record = {
        "decision_id": entry.get("decision") or f"{facts['call_id']}:decision",
        "call_id": facts["call_id"],
        "behavior": behavior.value,
        "mode": "rules" if approval is None else "approval",
        "source": "policy",
        "reason": None if approval is None else approval.get("reason"),
        "rules": entry["rules"],
        "policies": [entry["policy"]] if "policy" in entry else None,
        # An approval is bound to the arguments as they are, and no classifier decides after the rules.
        "user_modified": False,
        "pending_classifier_check": False,
        "decided_at": entry["time"],
        "expires_at": None if approval is None else approval.get("expires_at"),
        "approval": approval,
    }
    return export_record(ObjectKind.TOOL_PERMISSION_DECISION, record)


def _export_result(facts: Fields, envelope: Fields) -> Fields:
    """Export how the call ended. Results of reads are not stored, and their bytes may be erased: the rest remains."""
    if State(facts["state"]) not in TERMINAL_STATES:
        return {}
    call_id, is_stored = facts["call_id"], "is_error" in envelope
    result_id = f"{call_id}:result"
    fields = envelope if is_stored else {**facts, "is_error": facts["state"] != State.SUCCEEDED}
    result = export_record(ObjectKind.TOOL_RESULT, {**fields, "result_id": result_id})
    document: Fields = {
        ObjectKind.TOOL_RESULT.value: {
            **result,
            "redaction_state": _judge_redaction(envelope) if is_stored else "full",
        },
        ObjectKind.TOOL_RESULT_PERSISTENCE.value: export_record(
            ObjectKind.TOOL_RESULT_PERSISTENCE,
            {
                "call_id": call_id,
                "result_id": result_id,
                "mode": "inline" if is_stored else "redact",
                "reason": None if is_stored else fields.get("detail", "the stored result was erased"),
            },
        ),
    }
    error = envelope.get("error") or _describe_error(facts)
    if error is not None:
        document[ObjectKind.TOOL_ERROR.value] = export_record(ObjectKind.TOOL_ERROR, error)
    return document


def _judge_redaction(envelope: Fields) -> str:
    """Tell whether something is hidden in what is shown.

    The envelope says so: what redacted a result or an error knows, and a mark in either may be the tool's own text.
    In errors of calls that no tool answered, and of earlier releases, marks tell: in doubt something is hidden.
    """
    if "redaction_state" in envelope:
        return str(envelope["redaction_state"])
    if envelope["is_error"]:
        is_partial = _MARK.search(orjson.dumps(envelope.get("error")).decode()) is not None
    else:
        is_partial = (envelope.get("persistence") or {}).get("redaction") == "redacted"
    return "partial" if is_partial else "none"


def _describe_error(facts: Fields) -> Fields | None:
    """Describe the error of a call whose envelope is not stored, from the number or the slug that is."""
    for problem_type in list_problem_types():
        spec = problem_type.spec
        if facts.get("error_slug") == spec.slug or facts.get("error_number") == spec.e_number:
            return {
                "code": spec.code.value,
                "class": spec.error_class,
                "number": spec.e_number,
                "slug": facts.get("error_slug"),
                "message": spec.title,
                "retryable": spec.retryable,
                "trace_id": facts.get("trace_id"),
            }
    return None


def _export_events(facts: Fields, entries: list[Fields], progress: list[Fields]) -> list[Fields]:
    call_facts = {"call_id": facts["call_id"], "tool": facts.get("tool"), "trace_id": facts.get("trace_id")}
    records = [
        {
            **call_facts,
            "id": f"{entry['id']}:{place}",
            "event": event.value,
            "state": state.value,
            "time": entry["time"],
        }
        for entry in entries
        for place, (event, state) in enumerate(list_steps(entry))
    ]
    for each in progress:
        is_partial = each["status"] == "partial_result"
        event = ToolEvent.PARTIAL_RESULT if is_partial else ToolEvent.PROGRESS
        records.append(
            {
                **call_facts,
                "id": each["progress_id"],
                "event": event.value,
                "time": each.get("timestamp"),
                "facts": each,
            }
        )
    records.sort(key=lambda record: record["time"] or "")
    return [export_record(ObjectKind.TOOL_EVENT, each) for each in records]
