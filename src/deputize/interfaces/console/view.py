"""Build what the templates show: approval requests and linked accounts, with every caller's text made safe to read.

Templates get nothing else, so no text of a caller reaches a page without passing `core/display_text.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson

from deputize.core.display_text import to_display_lines, to_display_text
from deputize.core.errors import (
    GrantNotFound,
    MalformedRequest,
    NoSuchRoute,
    PolicyInvalid,
    Problem,
    RateLimited,
    ScopeMissing,
    Unavailable,
)

_MAX_LINE_LENGTH, _MAX_NAME_LENGTH = 300, 120
# What a person who unlinked an account is told about its tokens at the server.
UNLINK_NOTICES = {
    "revoked": "Unlinked. The server's access was revoked at its authorization server.",
    "not_offered": (
        "Unlinked. The authorization server offers no revocation: remove the access there too, in your account's "
        "settings."
    ),
    "pending": (
        "Unlinked. The authorization server did not confirm the revocation; it is tried again in the background."
    ),
    "given_up": (
        "Unlinked. The authorization server did not revoke the access: remove it there too, in your account's settings."
    ),
}
_EXCERPT_LENGTH, _EXCERPT_LINES = 300, 12
# The longest text that can be expanded on a page; a longer one is cut, and says so.
_MAX_VALUE_LENGTH, _MAX_VALUE_LINES = 60_000, 3000
_PAGE_BUDGET = 400_000
_MAX_ITEMS = 50
_REVOKED_SLUG = "revoked"
_STATE_BADGES = {
    "open": ("●", "Waiting for a decision", "pending"),
    "approved": ("✓", "Approved; the call starts soon", "good"),
    "used": ("✓", "Approved; the call has started", "good"),
    "denied": ("✕", "Denied", "bad"),
    "expired": ("✕", "Denied automatically: no decision before the deadline", "bad"),
    "void": ("✕", "Void: something changed after the request", "bad"),
    "canceled": ("✕", "Canceled by the caller", "bad"),
    "withdrawn": ("✕", "Withdrawn: the authority of its caller was revoked", "bad"),
}
EFFECT_BADGES = {
    "read": ("○", "Only reads", "good"),
    "write": ("△", "Changes data", "pending"),
    "destructive": ("▲", "Destroys data or cannot be undone", "bad"),
}
# Of a step of an undo that is approved with others.
_STEP_BADGES = {
    "ask": ("●", "needs this approval", "pending"),
    "allow": ("✓", "needs no approval", "plain"),
    "approved": ("✓", "was approved before", "plain"),
    "alone": ("●", "asks on its own", "plain"),
    "refused": ("✕", "would be refused", "bad"),
}
_ORIGIN_TEXTS = {
    "arguments": "written by {names}",
    "result": "returned by the call of {names}",
    "before": "as it was before the call",
    "contract": "set by the contract",
    "unknown": "it was not recorded where from",
}
_UNKNOWN_TEXTS = {
    "before": "the state before",
    "after": "the state after",
    "count": "how many items",
    "preconditions": "whether it can be done",
    "impact": "other consequences",
}
# States of an approved call. Any other one has ended without a result.
_CALL_BADGES = {
    "awaiting_approval": ("…", "waiting for more approvals", "plain"),
    "queued": ("…", "waiting for a worker", "plain"),
    "running": ("▶", "running", "plain"),
    "succeeded": ("✓", "succeeded", "good"),
    "unknown": ("?", "outcome unknown", "warn"),
}
_APPROVED_STATES = ("approved", "used")
_ONGOING_STATES = ("awaiting_approval", "queued", "running")
_ACCOUNT_BADGES = {
    "not linked": ("○", "Not linked", "pending"),
    "linked": ("✓", "Linked", "good"),
    "wants more": ("●", "Linked, but the server requires more permissions: link again", "pending"),
    "broken": ("✕", "The link no longer works: link again", "bad"),
}
_OPERATION_SIGNS = {"create": ("+", "create"), "update": ("~", "change"), "delete": ("−", "delete")}


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusBadge:
    """A state as an icon, a text and a colour. The text alone says everything."""

    icon: str
    text: str
    tone: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeView:
    """A time for programs, for people, and as a distance from now."""

    iso: str
    text: str
    distance: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueView:
    """A caller's value: an excerpt, and if that is shorter, the full text to expand and its size."""

    name: str
    excerpt: str
    full_text: str = ""
    size: str = ""


def build_account_view(account: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """Describe a user's account at an MCP server, linked or not."""
    linked_at = account["linked_at"]
    return {
        "name": account["name"],
        "address": format_line(account["address"]),
        "state": build_badge(_ACCOUNT_BADGES, account["state"]),
        "linked_at": build_time_view(linked_at, now=now),
        "is_linked": linked_at is not None,
        "missing_scopes": [format_line(each) for each in account["wanted"]],
    }


def _build_outcome(approval_request: Mapping[str, Any]) -> "StatusBadge | None":
    """Describe how far the approved call has come; None for a request that was not approved."""
    if approval_request["state"] not in _APPROVED_STATES:
        return None
    state = str(approval_request["call_state"])
    icon, text, tone = _CALL_BADGES.get(state, ("✕", state.replace("_", " "), "bad"))
    return StatusBadge(icon=icon, text=text, tone=tone)


def is_ongoing(approval_request: Mapping[str, Any]) -> bool:
    """Tell whether the call of a request was approved and has not ended."""
    return approval_request["state"] in _APPROVED_STATES and approval_request["call_state"] in _ONGOING_STATES


def _build_state(approval_request: Mapping[str, Any]) -> StatusBadge:
    """Name the state of a request; once its call has ended, how that did."""
    state, call_state = _get_shown_state(approval_request), str(approval_request["call_state"])
    if state != "used" or call_state in _ONGOING_STATES:
        return build_badge(_STATE_BADGES, state)
    _, text, tone = _CALL_BADGES.get(call_state, ("✕", call_state.replace("_", " "), "bad"))
    return StatusBadge(icon="✓", text=f"Approved; the call has ended: {text}", tone=tone)


def _build_suspicions(suspicions: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    return [{name: format_line(each[name]) for name in ("number", "text")} for each in suspicions[:_MAX_ITEMS]]


def build_request_view(approval_request: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """Describe an approval request for its own page."""
    tool = approval_request["tool"]
    arguments = build_value_views(approval_request["arguments"])
    input_responses = build_value_views(approval_request.get("input_responses") or {})
    preview = _build_preview(approval_request.get("preview") or {}, now=now)
    undo = approval_request.get("undo")
    steps = _build_steps(approval_request, now=now)
    return {
        **_build_heading(approval_request, now=now),
        "state": _build_state(approval_request),
        "call_id": format_line(approval_request["call_id"]),
        "outcome": _build_outcome(approval_request),
        "is_ongoing": is_ongoing(approval_request),
        "title": format_line(tool.get("title") or ""),
        "effects": build_badge(EFFECT_BADGES, str(approval_request["effects"])),
        "digest": format_line(tool["digest"]),
        "description": to_display_text(" ".join(str(tool.get("description") or "").split()), 400),
        "task": format_line(approval_request.get("task") or ""),
        "session": format_line(approval_request.get("session") or ""),
        "environment": format_line(approval_request.get("environment") or ""),
        "arguments": arguments,
        "input_responses": input_responses,
        "suspicions": _build_suspicions(approval_request.get("suspicions") or ()),
        "undo": format_line(undo) if undo else "",
        "preview": preview,
        "steps": steps,
        "step_count": sum(each["needs_this"] for each in steps),
        # The page warns before a decision is made on an excerpt.
        "is_shortened": any(
            value.full_text
            for value in (
                *arguments,
                *input_responses,
                *preview["impact"],
                *preview["values"],
                *(value for each in steps for value in each["values"]),
            )
        ),
        "rules": [
            {
                "id": format_line(rule["id"]),
                "where": format_line(rule["where"]),
                "reason": to_display_text(str(rule["reason"]), 600),
            }
            for rule in approval_request["rules"][:_MAX_ITEMS]
        ],
        "requirements": [
            _build_requirement(each, approval_request["groups"]) for each in approval_request["demands"][:_MAX_ITEMS]
        ],
        "votes": [_build_vote(vote, now=now) for vote in approval_request["votes"][:_MAX_ITEMS]],
        "escalates_at": build_time_view(approval_request.get("escalates_at"), now=now),
        "binding": format_line(approval_request["binding"]),
        "may_approve": bool(approval_request["may_decide"]) and approval_request["state"] == "open",
        "may_deny": bool(approval_request["may_deny"]) and approval_request["state"] == "open",
        "why_not": to_display_text(str(approval_request.get("why_not") or ""), 600),
    }


def _build_steps(approval_request: Mapping[str, Any], *, now: datetime) -> list[dict[str, Any]]:
    """Describe the steps of an undo that are approved together: all of them, however many."""
    steps = approval_request.get("undo_steps") or ()
    budget = _PAGE_BUDGET // max(len(steps), 1)
    views = []
    for step in steps:
        sent = build_sent_values(step, approval_request["for_user"], budget=budget) if step["arguments"] else []
        preview = None if step["preview"] is None else _build_preview(step["preview"], now=now)
        shown_values = [] if preview is None else [*preview["impact"], *preview["values"]]
        views.append(
            {
                "tool": format_line(step["tool"]),
                "decision": build_badge(_STEP_BADGES, step["decision"]),
                "needs_this": step["decision"] == "ask",
                "detail": to_display_text(str(step["detail"] or ""), 600),
                "rules": [format_line(each["id"]) for each in step["rules"][:_MAX_ITEMS]],
                "undone_tool": format_line(step["undone_tool"]),
                "sent": sent,
                "suspicions": _build_suspicions(step.get("suspicions") or ()),
                "preview": preview,
                "values": [*(each["value"] for each in sent), *shown_values],
            }
        )
    return views


def build_sent_values(step: Mapping[str, Any], user: str, *, budget: int = _PAGE_BUDGET) -> list[dict[str, Any]]:
    """Describe each value that a step of an undo sends, and where it is from."""
    names = ", ".join(format_line(each) for each in step["source_agents"] or [user])
    unknown = _ORIGIN_TEXTS["unknown"]
    origins = [
        _ORIGIN_TEXTS.get(step["origins"].get(name, ""), unknown).format(names=names) for name in step["arguments"]
    ]
    # The last one may say how many more there are.
    return [
        {"value": value, "origin": origin}
        for value, origin in zip(build_value_views(step["arguments"], budget=budget), [*origins, ""], strict=False)
    ]


def build_list_view(approval_requests: Sequence[Mapping[str, Any]], *, now: datetime) -> list[dict[str, Any]]:
    """Describe approval requests for the list."""
    return [
        {
            **_build_heading({**each, "agents": [each["agent"]] if each["agent"] else []}, now=now),
            "arguments": _build_argument_line(each["arguments"] or {}),
        }
        for each in approval_requests
    ]


def _build_argument_line(arguments: Mapping[str, Any]) -> str:
    """Write arguments in one line, as far as they fit; the page of the request shows them all."""
    words = [
        f"{name}={value if isinstance(value, str) else orjson.dumps(value).decode()}"
        for name, value in list(arguments.items())[:_MAX_ITEMS]
    ]
    return format_line(", ".join(words))


def _get_shown_state(approval_request: Mapping[str, Any]) -> str:
    is_withdrawn = approval_request["state"] == "void" and approval_request.get("call_error") == _REVOKED_SLUG
    return "withdrawn" if is_withdrawn else str(approval_request["state"])


def _build_heading(approval_request: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    return {
        "id": format_line(approval_request["approval_id"]),
        "state": build_badge(_STATE_BADGES, _get_shown_state(approval_request)),
        "is_open": approval_request["state"] == "open",
        "tool": format_line(approval_request["tool"]["name"]),
        "version": format_line(approval_request["tool"]["version"]),
        "for_user": to_display_text(str(approval_request["for_user"]), _MAX_NAME_LENGTH),
        "agents": [to_display_text(str(agent), _MAX_NAME_LENGTH) for agent in approval_request["agents"]],
        "opened_at": build_time_view(approval_request["opened_at"], now=now),
        "expires_at": build_time_view(approval_request["expires_at"], now=now),
    }


def build_time_view(value: object, *, now: datetime) -> TimeView | None:
    """Format a time, which may be text in ISO 8601."""
    if value is None:
        return None
    at = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    at = at.astimezone(UTC)
    return TimeView(
        iso=at.isoformat(timespec="seconds"), text=f"{at:%d %b %Y, %H:%M} UTC", distance=_format_distance(at - now)
    )


def _format_distance(distance: timedelta) -> str:
    seconds = abs(int(distance.total_seconds()))
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        length = f"{days} d {hours} h" if hours and days < 7 else f"{days} d"
    elif hours:
        length = f"{hours} h {minutes} min" if minutes else f"{hours} h"
    else:
        length = f"{minutes} min" if minutes else "less than a minute"
    return f"in {length}" if distance >= timedelta() else f"{length} ago"


def format_line(text: object) -> str:
    return to_display_text(str(text), _MAX_LINE_LENGTH)


def build_badge(badges: Mapping[str, tuple[str, str, str]], name: str) -> StatusBadge:
    icon, text, tone = badges.get(name, ("?", to_display_text(name, 60) or "Unknown", "pending"))
    return StatusBadge(icon=icon, text=text, tone=tone)


def build_value_views(arguments: object, *, budget: int = _PAGE_BUDGET) -> list[ValueView]:
    """Describe values by name, in the order they were sent. All texts to expand share one budget."""
    items = arguments.items() if isinstance(arguments, dict) else [("", arguments)]
    values = []
    for name, each in list(items)[:200]:
        value = build_value_view(str(name), each, budget=budget)
        budget -= len(value.full_text)
        values.append(value)
    if len(items) > len(values):
        values.append(ValueView(name="⟨…⟩", excerpt=f"⟨… {len(items) - len(values):,} more arguments⟩"))
    return values


def build_value_view(name: str, value: object, *, budget: int = _PAGE_BUDGET) -> ValueView:
    """Describe a value by an excerpt, and by its full text if that is longer."""
    excerpt = "\n".join(to_display_lines(value, _EXCERPT_LENGTH, _EXCERPT_LINES))
    full_text = (
        "\n".join(to_display_lines(value, min(_MAX_VALUE_LENGTH, budget), _MAX_VALUE_LINES)) if budget > 0 else excerpt
    )
    if full_text == excerpt:
        return ValueView(name=format_line(name), excerpt=excerpt)
    size = f"{len(value):,} characters" if isinstance(value, str) else f"{full_text.count(chr(10)) + 1:,} lines"
    return ValueView(name=format_line(name), excerpt=excerpt, full_text=full_text[:budget], size=size)


def _build_preview(preview: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """Describe what a call would change, and what its preview does not know."""
    changes = preview.get("changes") or ()
    resources = preview.get("resources") or ()
    changed_resources = {f"{each.get('resource')}/{each.get('scope')}" for each in changes}
    change_views = [_build_change(each) for each in changes[:_MAX_ITEMS]]
    return {
        "values": [each[side] for each in change_views for side in ("before", "after") if each[side] is not None],
        "is_by_contract": preview.get("by") == "contract",
        "problem": to_display_text(str(preview.get("problem") or ""), 600),
        "previewed_at": build_time_view(preview.get("previewed_at"), now=now) if preview.get("by") == "tool" else None,
        "changes": change_views,
        "more_changes": max(0, len(changes) - _MAX_ITEMS),
        "resources": [format_line(each) for each in resources if each not in changed_resources][:_MAX_ITEMS],
        "preconditions": [_build_precondition(each) for each in (preview.get("preconditions") or ())[:_MAX_ITEMS]],
        "impact": build_value_views(preview.get("impact") or {}),
        "unknown": [_UNKNOWN_TEXTS.get(each) or format_line(each) for each in (preview.get("unknown") or ())][
            :_MAX_ITEMS
        ],
    }


def _build_change(change: Mapping[str, Any]) -> dict[str, Any]:
    icon, verb = _OPERATION_SIGNS.get(str(change.get("op")), ("?", format_line(change.get("op"))))
    count = change.get("count")
    return {
        "icon": icon,
        "verb": verb,
        "tone": "bad" if change.get("op") == "delete" else "pending",
        "resource": format_line(f"{change.get('resource')}/{change.get('scope', '*')}"),
        "count": None if count is None else f"{int(count):,}",
        "before": build_value_view("before", change["before"]) if "before" in change else None,
        "after": build_value_view("after", change["after"]) if "after" in change else None,
    }


def _build_precondition(condition: Mapping[str, Any]) -> dict[str, Any]:
    holds = condition.get("holds") is True
    return {
        "badge": StatusBadge(
            icon="✓" if holds else "✕", text="holds" if holds else "does not hold", tone="good" if holds else "bad"
        ),
        "name": format_line(condition.get("name", "")),
        "detail": to_display_text(str(condition.get("detail") or ""), 500),
    }


def _build_requirement(requirement: Mapping[str, Any], current_groups: Sequence[str]) -> dict[str, Any]:
    """Describe what one rule requires: from which groups now, and from which after escalation."""
    groups = requirement["groups"]
    return {
        "current_groups": [format_line(each) for each in groups if each in current_groups],
        "later_groups": [format_line(each) for each in groups if each not in current_groups],
        "quorum": int(requirement["quorum"]),
        "approval_count": int(requirement["have"]),
        "step_up": format_line(requirement.get("step_up") or ""),
    }


def _build_vote(vote: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    badge = ("✓", "approved", "good") if vote["approve"] else ("✕", "denied", "bad")
    if vote["broke_glass"]:
        badge = ("⚠", "approved by break-glass", "bad")
    return {
        "by": format_line(vote["by"]),
        "badge": StatusBadge(icon=badge[0], text=badge[1], tone=badge[2]),
        "reason": to_display_text(str(vote.get("reason") or ""), 1000),
        "at": build_time_view(vote["at"], now=now),
    }


def build_alert(problem: Problem) -> dict[str, str]:
    """Describe a refusal above what was typed."""
    return {"message": format_sentence(problem.message), "advice": format_advice(problem)}


_ADVICE_AT_PAGE: Final[Mapping[type[Problem], str]] = {
    GrantNotFound: "Choose one on the page of agents.",
    MalformedRequest: "Go back to the page, correct what you entered or the address, and try again.",
    NoSuchRoute: "Go back to the page that you came from.",
    PolicyInvalid: "Fix the errors that are listed by file and line.",
    RateLimited: "Wait a moment, then try again.",
    ScopeMissing: "Ask an administrator for the permission, then sign in again.",
    Unavailable: "Wait a moment, then try again. If it persists, ask the operator of this gateway.",
}


def format_sentence(message: str) -> str:
    """Make a message a sentence: names of files, tools and settings at its start stay as they are written."""
    start = message.partition(" ")[0].rstrip(",;:").replace("'", "")
    text = message[:1].upper() + message[1:] if start.isalpha() and start.islower() else message
    return to_display_text(text if text.endswith((".", "?", "!", "…")) else f"{text}.", 600)


def format_advice(problem: Problem) -> str:
    """Format what a person at a page can do: headers, routes and keys are advice for programs."""
    is_general = problem.advice == problem.spec.advice
    return to_display_text(_ADVICE_AT_PAGE.get(type(problem), problem.advice) if is_general else problem.advice, 600)


def strip_unprintable(text: str) -> str:
    """Remove characters that a user cannot type, before a text goes back into their form."""
    return "".join(each for each in text if each.isprintable() or each == "\n")[:2000]


def remove_unseen(text: str) -> str:
    """Remove what cannot be seen from a text that is edited, so that what is tested is what the page shows."""
    return "".join(each for each in text if each.isprintable() or each in "\n\t")


def to_display_block(text: str) -> str:
    """Make a text of several lines safe to read, and keep its lines."""
    lines = text.splitlines()
    shown_lines = [to_display_text(each.replace("\t", "    "), _MAX_LINE_LENGTH) for each in lines[:_MAX_VALUE_LINES]]
    rest = len(lines) - len(shown_lines)
    return "\n".join([*shown_lines, f"⟨… {rest:,} more lines⟩"] if rest else shown_lines)
