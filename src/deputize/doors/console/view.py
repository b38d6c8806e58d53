"""A ticket as it is put before a person: every word that somebody else wrote made plain, every state a word and a sign.

Templates see nothing but what is made here. Above: `app.py`. Below: the dicts of `lifecycle/approvals/decide.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from deputize.core.plain import plain, plain_lines

_LINE, _NAME = 300, 120
_SHORT, _SHORT_LINES = 300, 12
# What can be unfolded. Longer than this is read nowhere on a page, and says so.
_WHOLE, _WHOLE_LINES = 60_000, 3000
_MOST_ON_A_PAGE = 400_000
_MOST_LISTED = 50
_STATES = {
    "open": ("●", "Waiting for a decision", "waits"),
    "approved": ("✓", "Approved; the call is about to begin", "good"),
    "used": ("✓", "Approved, and the call was begun", "good"),
    "denied": ("✕", "Denied", "bad"),
    "expired": ("✕", "Expired: nobody decided in time, so the answer is no", "bad"),
    "void": ("✕", "Void: something changed after it was asked", "bad"),
    "canceled": ("✕", "Taken back by whoever asked", "bad"),
}
_EFFECTS = {
    "read": ("○", "Only reads", "good"),
    "write": ("△", "Changes data", "waits"),
    "destructive": ("▲", "Destroys data, or cannot simply be taken back", "bad"),
}
_UNKNOWN = {
    "before": "what is there now",
    "after": "what would be there then",
    "count": "how many",
    "preconditions": "whether it could be done",
    "impact": "what else follows",
}
_ACCOUNTS = {
    "not linked": ("○", "Not linked", "waits"),
    "linked": ("✓", "Linked", "good"),
    "wants more": ("●", "Linked, but the server wants you to allow more", "waits"),
    "broken": ("✕", "The link does not work any more", "bad"),
}
_OPS = {"create": ("+", "create"), "update": ("~", "change"), "delete": ("−", "delete")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    """A state: the icon for a glance, the words for everybody, the tone for a colour that says nothing more."""

    icon: str
    text: str
    tone: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    iso: str
    text: str
    away: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A value of a caller's: what is seen at once, and the whole to unfold where that is more."""

    name: str
    shown: str
    whole: str = ""
    size: str = ""


def account_view(shown: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """A server where the person has an account, or may have one."""
    at = shown["linked_at"]
    return {
        "name": shown["name"],
        "address": _line(shown["address"]),
        "state": _sign(_ACCOUNTS, shown["state"]),
        "linked": moment(at, now=now),
        "is_linked": at is not None,
        "wanted": [_line(each) for each in shown["wanted"]],
    }


def ticket_view(shown: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """Everything the page of one ticket says."""
    tool, arguments, answers = shown["tool"], _values(shown["arguments"]), _values(shown.get("answers") or {})
    preview = _preview(shown.get("preview") or {}, now=now)
    undo = shown.get("undo")
    return {
        **_heading(shown, now=now),
        "call_id": _line(shown["call_id"]),
        "title": _line(tool.get("title") or ""),
        "effects": _sign(_EFFECTS, str(shown["effects"])),
        "digest": _line(tool["digest"]),
        "description": plain(str(tool.get("description") or ""), 400),
        "task": _line(shown.get("task") or ""),
        "session": _line(shown.get("session") or ""),
        "environment": _line(shown.get("environment") or ""),
        "arguments": arguments,
        "answers": answers,
        "undo": _line(undo) if undo else "",
        "preview": preview,
        # Nobody should have to find out that they saw only a part.
        "shortened": any(value.whole for value in (*arguments, *answers, *preview["impact"], *preview["values"])),
        "rules": [
            {"id": _line(rule["id"]), "where": _line(rule["where"]), "reason": plain(str(rule["reason"]), 600)}
            for rule in shown["rules"][:_MOST_LISTED]
        ],
        "demands": [_demand(demand, shown["groups"]) for demand in shown["demands"][:_MOST_LISTED]],
        "votes": [_vote(vote, now=now) for vote in shown["votes"][:_MOST_LISTED]],
        "escalates": moment(shown.get("escalates_at"), now=now),
        "binding": _line(shown["binding"]),
        "may_approve": bool(shown["may_decide"]) and shown["state"] == "open",
        "may_deny": bool(shown["may_deny"]) and shown["state"] == "open",
        "why_not": plain(str(shown.get("why_not") or ""), 600),
    }


def list_view(found: Sequence[Mapping[str, Any]], *, now: datetime) -> list[dict[str, Any]]:
    """What waits, a few words of each."""
    return [_heading({**each, "agents": [each["agent"]] if each["agent"] else []}, now=now) for each in found]


def _heading(shown: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    return {
        "id": _line(shown["ticket_id"]),
        "state": _sign(_STATES, str(shown["state"])),
        "is_open": shown["state"] == "open",
        "tool": _line(shown["tool"]["name"]),
        "version": _line(shown["tool"]["version"]),
        "for_user": plain(str(shown["for_user"]), _NAME),
        "agents": [plain(str(agent), _NAME) for agent in shown["agents"]],
        "opened": moment(shown["opened_at"], now=now),
        "expires": moment(shown["expires_at"], now=now),
    }


def moment(value: object, *, now: datetime) -> Moment | None:
    """A time as written down, as said, and from here."""
    if value is None:
        return None
    at = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    at = at.astimezone(UTC)
    return Moment(iso=at.isoformat(timespec="seconds"), text=f"{at:%d %b %Y, %H:%M} UTC", away=_away(at - now))


def _away(distance: timedelta) -> str:
    seconds = abs(int(distance.total_seconds()))
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        length = f"{days} d {hours} h" if hours and days < 7 else f"{days} d"
    elif hours:
        length = f"{hours} h {minutes} min" if minutes else f"{hours} h"
    else:
        length = f"{minutes} min" if minutes else "less than a minute"
    return f"in {length}" if distance >= timedelta() else f"{length} ago"


def _line(text: object) -> str:
    return plain(str(text), _LINE)


def _sign(known: Mapping[str, tuple[str, str, str]], name: str) -> Sign:
    icon, text, tone = known.get(name, ("?", plain(name, 60) or "Unknown", "waits"))
    return Sign(icon=icon, text=text, tone=tone)


def _values(arguments: object) -> list[Value]:
    """Arguments by name, in the order they were sent. What is unfolded of all together has a limit."""
    named = arguments.items() if isinstance(arguments, dict) else [("", arguments)]
    values, room = [], _MOST_ON_A_PAGE
    for name, each in list(named)[:200]:
        value = value_view(str(name), each, room=room)
        room -= len(value.whole)
        values.append(value)
    if len(named) > len(values):
        values.append(Value(name="⟨…⟩", shown=f"⟨… {len(named) - len(values):,} more arguments⟩"))
    return values


def value_view(name: str, value: object, *, room: int = _MOST_ON_A_PAGE) -> Value:
    shown = "\n".join(plain_lines(value, _SHORT, _SHORT_LINES))
    whole = "\n".join(plain_lines(value, min(_WHOLE, room), _WHOLE_LINES)) if room > 0 else shown
    if whole == shown:
        return Value(name=_line(name), shown=shown)
    size = f"{len(value):,} characters" if isinstance(value, str) else f"{whole.count(chr(10)) + 1:,} lines"
    return Value(name=_line(name), shown=shown, whole=whole[:room], size=size)


def _preview(preview: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """What it would change. A preview says what it does not know; a page that left that out would promise."""
    changes = preview.get("changes") or ()
    resources = preview.get("resources") or ()
    touched = {f"{each.get('resource')}/{each.get('scope')}" for each in changes}
    foretold = [_change(each) for each in changes[:_MOST_LISTED]]
    return {
        "values": [each[side] for each in foretold for side in ("before", "after") if each[side] is not None],
        "by_contract": preview.get("by") == "contract",
        "problem": plain(str(preview.get("problem") or ""), 600),
        "looked": moment(preview.get("previewed_at"), now=now) if preview.get("by") == "tool" else None,
        "changes": foretold,
        "more_changes": max(0, len(changes) - _MOST_LISTED),
        "resources": [_line(each) for each in resources if each not in touched][:_MOST_LISTED],
        "preconditions": [_precondition(each) for each in (preview.get("preconditions") or ())[:_MOST_LISTED]],
        "impact": _values(preview.get("impact") or {}),
        "unknown": [_UNKNOWN.get(each) or _line(each) for each in (preview.get("unknown") or ())][:_MOST_LISTED],
    }


def _change(change: Mapping[str, Any]) -> dict[str, Any]:
    icon, verb = _OPS.get(str(change.get("op")), ("?", _line(change.get("op"))))
    count = change.get("count")
    return {
        "icon": icon,
        "verb": verb,
        "tone": "bad" if change.get("op") == "delete" else "waits",
        "what": _line(f"{change.get('resource')}/{change.get('scope', '*')}"),
        "count": None if count is None else f"{int(count):,}",
        "before": value_view("before", change["before"]) if "before" in change else None,
        "after": value_view("after", change["after"]) if "after" in change else None,
    }


def _precondition(condition: Mapping[str, Any]) -> dict[str, Any]:
    holds = condition.get("holds") is True
    return {
        "sign": Sign(
            icon="✓" if holds else "✕", text="holds" if holds else "does not hold", tone="good" if holds else "bad"
        ),
        "name": _line(condition.get("name", "")),
        "detail": plain(str(condition.get("detail") or ""), 500),
    }


def _demand(demand: Mapping[str, Any], asked_now: Sequence[str]) -> dict[str, Any]:
    """Who is asked, and who would be if nobody decides: the chain a rule names is gone along step by step."""
    return {
        "now": [_line(group) for group in demand["groups"] if group in asked_now],
        "later": [_line(group) for group in demand["groups"] if group not in asked_now],
        "quorum": int(demand["quorum"]),
        "have": int(demand["have"]),
        "step_up": _line(demand.get("step_up") or ""),
    }


def _vote(vote: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    said = ("✓", "approved", "good") if vote["approve"] else ("✕", "denied", "bad")
    if vote["broke_glass"]:
        said = ("⚠", "broke the glass", "bad")
    return {
        "by": _line(vote["by"]),
        "sign": Sign(icon=said[0], text=said[1], tone=said[2]),
        "reason": plain(str(vote.get("reason") or ""), 1000),
        "at": moment(vote["at"], now=now),
    }
