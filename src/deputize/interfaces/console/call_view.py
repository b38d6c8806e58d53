"""Build what the templates show of calls and audit entries, with every caller's text made safe to read."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from deputize.core.display_text import to_display_text
from deputize.core.entry_kinds import DRY_RUN
from deputize.core.errors import (
    DisabledByKillSwitch,
    FlowFailed,
    PermissionDenied,
    Problem,
    ScopeMissing,
    find_problem_by_number,
    find_problem_type,
)
from deputize.core.states import TERMINAL_STATES
from deputize.interfaces.console.charts import Span, draw_waterfall, format_milliseconds
from deputize.interfaces.console.paths import is_id
from deputize.interfaces.console.view import (
    StatusBadge,
    build_badge,
    build_sent_values,
    build_time_view,
    build_value_view,
    build_value_views,
    format_line,
    format_sentence,
)

STATE_BADGES: Final = {
    "succeeded": ("✓", "succeeded", "good"),
    "failed": ("✕", "failed", "bad"),
    "denied": ("⊘", "denied", "bad"),
    "blocked": ("⊘", "blocked", "bad"),
    "validation_failed": ("✕", "invalid arguments", "bad"),
    "schema_parse_failed": ("✕", "invalid arguments", "bad"),
    "timed_out": ("✕", "timed out", "bad"),
    "canceled": ("–", "canceled", "plain"),
    "unknown": ("?", "outcome unknown", "pending"),
    "awaiting_approval": ("●", "waits for approval", "pending"),
    "needs_input": ("●", "needs input", "pending"),
    "queued": ("…", "queued", "plain"),
    "running": ("▸", "running", "plain"),
    "yielded": ("…", "continues later", "plain"),
    # Of decisions about calls, and of acts.
    "approved": ("✓", "approved", "good"),
    "recorded": ("✓", "recorded", "good"),
    "refused": ("⊘", "refused", "bad"),
    "happened": ("✓", "happened", "good"),
    "did_not_happen": ("–", "did not happen", "plain"),
}
DECISION_BADGES: Final = {
    "allow": ("✓", "allow", "good"),
    "ask": ("●", "ask", "pending"),
    "deny": ("⊘", "deny", "bad"),
}
# Of a step of an undo, by its verdict or the reason why it stays.
_VERDICT_BADGES: Final = {
    "ready": ("↶", "is taken back", "good"),
    "already_undone": ("✓", "taken back already", "plain"),
    "is_undo": ("–", "took back another one", "plain"),
    "undo_uncertain": ("?", "stays: an undo of it has an unknown outcome", "pending"),
    "uncertain": ("?", "stays: its own outcome is unknown", "pending"),
    "irreversible": ("✕", "stays: cannot be undone", "bad"),
    "window_over": ("✕", "stays: the time to undo it is over", "bad"),
    "not_kept": ("✕", "stays: what an undo needs is no longer kept", "bad"),
    "not_bound": ("✕", "stays: the contract does not say how", "bad"),
    "no_tool": ("✕", "stays: the tool that undoes it is missing", "bad"),
    "changed_since": ("✕", "stays: changed by others since", "bad"),
    "concurrent": ("✕", "stays: others are changing it now", "bad"),
    "not_allowed": ("⊘", "stays: you may not undo it", "bad"),
    "would_fail": ("✕", "stays: its tool says it would fail", "bad"),
}
_DRY_RUN_BADGE: Final = StatusBadge(icon="◌", text="dry run", tone="plain")
_NOT_YOURS: Final = "Its maker and administrators can read what came back."
_NO_ARGUMENTS: Final = (
    "They were not kept: those of a call that is answered at once are not stored. The audit entry has their digest."
)
_KEPT_ARGUMENTS: Final = (
    "They are for its maker and administrators, until they are deleted with its result or the version of its tool."
)
_WAITING_LABELS: Final = {
    "awaiting_approval": ("waits for approval", "pending"),
    "queued": ("queued", "plain"),
    "running": ("running", "good"),
}
# Where the general advice is about the fields that programs get.
_ADVICE: Final[Mapping[type[Problem] | None, str]] = {
    FlowFailed: "Its steps show what was done and what was taken back. Correct the cause, then call it again.",
    PermissionDenied: "Ask the owner of the rule for permission.",
    ScopeMissing: "Make the call with a token that has it.",
}
# Their reasons are those of rules, tokens and switches.
_REFUSALS: Final = (PermissionDenied, ScopeMissing, DisabledByKillSwitch)
_MAX_ITEMS: Final = 50
_MAX_ROW_RULES: Final = 3
_TOKEN_RULES: Final = frozenset({"token-scopes", "token-tools"})


def build_row(found: Mapping[str, Any]) -> dict[str, Any]:
    """Describe one audit entry for a list."""
    entry = found["entry"]
    call_id, latency_us = entry.get("call"), entry.get("latency_us")
    name = entry.get("tool") or entry.get("command") or entry["kind"]
    return {
        "key": call_id or entry["id"],
        "href": f"calls/{call_id}" if call_id is not None else f"audit/{entry['id']}",
        "time": _build_clock_time(found["time"]),
        "name": format_line(name),
        "version": format_line(entry.get("version") or ""),
        "subject": format_line(entry.get("subject") or "") if "tool" not in entry else "",
        "state": _build_state(entry),
        "kind": entry["kind"],
        # A dry run is decided again when the call is made.
        "decision": None
        if found["decision"] is None or entry.get("command") == DRY_RUN
        else build_badge(DECISION_BADGES, found["decision"]),
        "rules": [format_line(each) for each in _choose_rules(entry.get("rules", ()))],
        "error": format_line(entry.get("error") or ""),
        "user": _name_person(found["user"]),
        "agent": _name_person(found["agents"][0]) if found["agents"] else "",
        "latency": "" if latency_us is None else format_milliseconds(latency_us / 1000),
    }


def build_rows(page: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Describe entries, newest first, one row per call: its newest entry says how far it came.

    What earlier pages show of a call is not known here.
    """
    rows: dict[str, dict[str, Any]] = {}
    for found in page:
        row = build_row(found)
        rows.setdefault(row["key"], row)
    return list(rows.values())


def _build_state(entry: Mapping[str, Any]) -> StatusBadge:
    state = str(entry.get("outcome") or (entry.get("states") or ("running",))[-1])
    return build_state_badge(state, is_dry_run=entry.get("command") == DRY_RUN)


def build_state_badge(state: str, *, is_dry_run: bool) -> StatusBadge:
    """Name the state of a call; a dry run that succeeded executed nothing."""
    return _DRY_RUN_BADGE if is_dry_run and state == "succeeded" else build_badge(STATE_BADGES, state)


def _choose_rules(rules: Sequence[str]) -> Sequence[str]:
    """Choose the rules to show in a row: those of policies say more than that the token was enough."""
    policy_rules = [each for each in rules if each not in _TOKEN_RULES]
    return (policy_rules or rules)[:_MAX_ROW_RULES]


def _name_person(name: object) -> str:
    return "(erased)" if name is None else to_display_text(str(name), 80)


def _build_clock_time(text: str) -> dict[str, str]:
    at = datetime.fromisoformat(text).astimezone(UTC)
    return {"iso": at.isoformat(timespec="milliseconds"), "date": f"{at:%d %b}", "clock": f"{at:%H:%M:%S}"}


def build_call_view(
    call: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    decision: Mapping[str, Any],
    *,
    now: datetime,
    is_flow: bool,
    is_step: bool,
    outcome: Mapping[str, Any] | None,
    arguments: Mapping[str, Any] | None,
    keeps_arguments: bool,
    grant: str,
) -> dict[str, Any]:
    """Describe a call for its own page: how it went, why it was decided so, for whom, and what is recorded."""
    raw_entries = [each["entry"] for each in entries]
    last = raw_entries[-1]
    maker = entries[0]
    state = str(call["state"])
    cost_micros = next((each["cost_micros"] for each in reversed(raw_entries) if "cost_micros" in each), None)
    spans = list_spans(raw_entries, now=now, is_ended=state in TERMINAL_STATES)
    return {
        "id": format_line(call["call_id"]),
        "tool": format_line(call["tool"]["name"] or "unknown tool"),
        "version": format_line(call["tool"].get("version") or ""),
        "state": build_state_badge(state, is_dry_run=last.get("command") == DRY_RUN),
        "is_ended": state in TERMINAL_STATES,
        "error": _build_error(last, call),
        "outcome": _build_outcome(call, last, outcome, decision),
        "arguments": None if arguments is None else build_value_views(dict(arguments)),
        "arguments_note": _KEPT_ARGUMENTS if keeps_arguments else _NO_ARGUMENTS,
        "user": _name_person(maker["user"]),
        "agents": [_name_person(each) for each in maker["agents"]],
        "grant": grant if is_id(grant) else "",
        "session": format_line(last.get("session") or ""),
        "trace": format_line(last["trace"]),
        # Callers state these; what is no id leads nowhere.
        **{name: text if is_id(text := str(last.get(name) or "")) else "" for name in ("parent", "flow")},
        "is_flow": is_flow,
        "is_step": is_step,
        "attempts": next((each["attempts"] for each in reversed(raw_entries) if "attempts" in each), None),
        "cost": None if cost_micros is None else f"{cost_micros / 1_000_000:,.6f}".rstrip("0").rstrip("."),
        "mutation_class": format_line(last.get("mutation_class") or ""),
        "began_at": build_time_view(raw_entries[0]["time"], now=now),
        "approval": format_line(next((each["approval"] for each in raw_entries if "approval" in each), "")),
        "spans": spans,
        "waterfall": draw_waterfall(spans) if spans else "",
        "decision": _build_decision(decision),
        "entries": [_build_entry_line(each) for each in entries[:_MAX_ITEMS]],
        "suspicions": [format_line(each) for each in last.get("suspicions", ())[:_MAX_ITEMS]],
    }


def _build_error(last: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, str]:
    kind = find_problem_by_number(str(last.get("error") or ""))
    if kind is None and call.get("error_slug"):
        kind = find_problem_type(str(call["error_slug"]))
    return {"code": "", "title": ""} if kind is None else {"code": kind.spec.e_number, "title": kind.spec.title}


def _build_outcome(
    call: Mapping[str, Any],
    last: Mapping[str, Any],
    outcome: Mapping[str, Any] | None,
    decision: Mapping[str, Any],
) -> dict[str, Any]:
    """Describe what came back, as far as it is stored and this person may read it; of a refusal, its reason."""
    kind = find_problem_by_number(str(last.get("error") or ""))
    if outcome is None:
        note = str(call.get("detail") or "")
        if not note:
            note = "It has not ended yet." if call["state"] not in TERMINAL_STATES else _NOT_YOURS
        reasons = [each["reason"] for each in decision["rules"] if each.get("reason")] if kind in _REFUSALS else []
        return {
            "is_error": kind is not None,
            "message": to_display_text("; ".join(reasons), 600),
            "advice": _ADVICE.get(kind, kind.spec.advice) if kind is not None else "",
            "shown": [],
            # The heading says it otherwise.
            "note": "" if reasons else format_sentence(note),
        }
    error = outcome.get("error")
    if error is not None:
        return {
            "is_error": True,
            "message": to_display_text(str(error["message"]), 600),
            "advice": _ADVICE.get(kind) or to_display_text(str(error["advice"] or ""), 600),
            "shown": build_value_views(error["details"]) if error["details"] else [],
            "note": "",
        }
    values = build_value_views(outcome["result"]) if "result" in outcome else []
    return {"is_error": False, "message": "", "advice": "", "shown": values, "note": ""}


def list_spans(entries: Sequence[Mapping[str, Any]], *, now: datetime, is_ended: bool) -> list[Span]:
    """List what a call did when: the time between two entries is named after the state that the first one left."""
    times = [datetime.fromisoformat(each["time"]) for each in entries]
    timed_entry = next((each for each in reversed(entries) if "latency_us" in each), None)
    tool_ms = 0.0 if timed_entry is None else timed_entry["latency_us"] / 1000
    # A read has one entry, at its end; the tool ran before it.
    begin = times[0].timestamp() * 1000 - (tool_ms if len(entries) == 1 else 0.0)
    offsets = [each.timestamp() * 1000 - begin for each in times]
    spans = []
    for index, entry in enumerate(entries):
        is_last = index == len(entries) - 1
        if is_last and is_ended:
            break
        state = str(entry.get("outcome") or (entry.get("states") or ("running",))[-1])
        label, tone = _WAITING_LABELS.get(state, (state.replace("_", " "), "plain"))
        end = now.timestamp() * 1000 - begin if is_last else offsets[index + 1]
        if end - offsets[index] > 0:
            spans.append(Span(label=to_display_text(label, 40), start_ms=offsets[index], end_ms=end, tone=tone))
    if timed_entry is not None:
        attempts = timed_entry.get("attempts", 1)
        label = "the tool" if attempts == 1 else f"the tool, {attempts} attempts"
        end = offsets[next(index for index, each in enumerate(entries) if each is timed_entry)]
        tone = "good" if timed_entry.get("outcome") == "succeeded" else "bad"
        spans.append(Span(label=label, start_ms=max(end - tool_ms, 0.0), end_ms=max(end, tool_ms), tone=tone))
    return spans[:_MAX_ITEMS]


def _build_decision(decision: Mapping[str, Any]) -> dict[str, Any]:
    behavior = decision.get("behavior")
    now = decision.get("now") or {}
    return {
        "badge": None if behavior is None else build_badge(DECISION_BADGES, str(behavior)),
        "is_by_token": decision["decided_by"] == "token",
        "is_by_switch": any(each["id"].startswith("switch:") for each in decision["rules"]),
        "reason": to_display_text(str(decision.get("reason") or ""), 600),
        "suggestion": to_display_text(str(decision.get("suggestion") or ""), 600),
        "rules": [
            {
                "id": format_line(each["id"]),
                "where": format_line(each.get("where") or ""),
                "reason": to_display_text(str(each.get("reason") or ""), 600),
            }
            for each in decision["rules"][:_MAX_ITEMS]
        ],
        "allowed_if": [to_display_text(str(each), 600) for each in (now.get("allowed_if") or ())[:_MAX_ITEMS]],
        "is_active": decision.get("is_active"),
        "principal": [
            (format_line(str(name).replace("_", " ")), to_display_text(_join_words(value), 600))
            for name, value in (decision.get("principal") or {}).items()
            if value
        ],
    }


def _join_words(value: object) -> str:
    """Write a list of names as words, and True as yes."""
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value)
    return "yes" if value is True else str(value)


def _build_entry_line(found: Mapping[str, Any]) -> dict[str, Any]:
    entry = found["entry"]
    return {
        "id": entry["id"],
        "time": _build_clock_time(entry["time"]),
        "kind": entry["kind"],
        "state": _build_state(entry),
        "user": _name_person(found["user"]),
        "agents": [_name_person(each) for each in found["agents"]],
        "error": format_line(entry.get("error") or ""),
    }


def build_entry_view(found: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """Describe one audit entry as it is stored."""
    return {
        "id": found["id"],
        "time": build_time_view(found["time"], now=now),
        "kind": found["entry"]["kind"],
        "user": _name_person(found["user"]),
        "agents": [_name_person(each) for each in found["agents"]],
        "values": [build_value_view(name, value) for name, value in found["entry"].items()],
    }


def build_undo_view(
    plan: Mapping[str, Any],
    made: Sequence[Mapping[str, Any]],
    approval: Mapping[str, Any] | None,
    *,
    now: datetime,
) -> dict[str, Any]:
    """Describe the plan of an undo, what was done of it, and the approval that it waits for."""
    return {
        "digest": format_line(plan["digest"]),
        "ready": plan["ready"],
        "is_complete": plan["is_complete"],
        "steps": [_build_undo_step(each, now=now) for each in plan["steps"]],
        "made": [
            {
                "call_id": each["call_id"],
                "undone_call_id": each["undone_call_id"],
                "tool": format_line(each["tool"] or ""),
                "state": build_badge(STATE_BADGES, str(each["state"])),
                "error": format_line(each["error"] or ""),
            }
            for each in made
        ],
        "approval": None
        if approval is None
        else {"id": format_line(approval["approval_id"]), "steps": approval["steps"]},
    }


def _build_undo_step(step: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    return {
        "call_id": step["call_id"],
        "tool": format_line(step["tool"]),
        "version": format_line(step["version"]),
        "at": build_time_view(step["at"], now=now),
        "user": _name_person(step["user"]),
        "agents": [_name_person(each) for each in step["agents"]],
        "effects": [format_line(f"{each['op']} {each['resource']}/{each['scope']}") for each in step["effects"]][
            :_MAX_ITEMS
        ],
        "verdict": build_badge(_VERDICT_BADGES, step["reason"] or step["verdict"]),
        "detail": to_display_text(str(step["detail"] or ""), 600),
        "undo_tool": format_line(step["undo_tool"] or "") if step["verdict"] == "ready" else "",
        "until": build_time_view(step["undo_until"], now=now) if step["verdict"] == "ready" else None,
        "is_ready": step["verdict"] == "ready",
        "arguments": None if step["arguments"] is None else build_sent_values(step, step["user"]),
    }
