"""A call that waits for people, as it is told in a terminal: in two lines to who made it, on one screen to who decides.

Every word that somebody else wrote is shown so that it can be read and does nothing else. Above: `call`, `calls` and
`approvals`.
"""

import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from deputize.core.plain import plain, plain_lines
from deputize.doors.cli.output import NO, OK, PAUSE, dim, lasting, mark, printer
from deputize.doors.cli.previewed import preview_lines

_LONGEST: Final = 300
_NAME: Final = 120
_MOST_LINES: Final = 40
_TO_THE_MINUTE: Final = 600
_STATES: Final = {
    "open": (PAUSE, "waits for a decision"),
    "approved": (OK, "approved; the call is about to begin"),
    "used": (OK, "approved, and the call was begun"),
    "denied": (NO, "denied"),
    "expired": (NO, "expired: nobody decided in time, so the answer is no"),
    "void": (NO, "void: something changed after it was asked"),
    "canceled": (NO, "taken back by whoever asked"),
}


def show_waiting(envelope: Mapping[str, Any], key: str | None) -> None:
    """To whoever made the call: which rule wants whom, until when, and how to look."""
    approval, call_id = envelope["approval"], envelope["call_id"]
    for line in waiting_lines(approval, now=datetime.now(UTC)):
        printer.aside(line)
    if approval.get("url"):
        printer.aside(f"  people decide at {_line(approval['url'])}")
    printer.aside(f"  look: deputize approvals show {call_id}   follow: deputize calls watch {call_id}")
    told = [f"call {call_id}", f"ticket {approval['ticket_id']}", *([f"key {key}"] if key else ())]
    printer.aside(dim(f"  {' · '.join(told)}", sys.stderr))


def waiting_lines(approval: Mapping[str, Any], *, now: datetime) -> Iterator[str]:
    for rule in approval["rules"]:
        yield f"{mark(PAUSE, sys.stderr)} needs approval: {_rule(rule)}"
    yield f"  {asked(approval, now=now)} · you may disconnect"


def asked(approval: Mapping[str, Any], *, now: datetime) -> str:
    """Who is asked, and what happens when they say nothing."""
    parts = [f"asked {_named(approval['groups'])}"]
    if approval.get("escalates_at"):
        parts.append(f"escalates {away(approval['escalates_at'], now=now)}")
    parts.append(f"a no unless decided {away(approval['expires_at'], now=now).replace('in ', 'within ', 1)}")
    return " · ".join(parts)


def one_screen(shown: Mapping[str, Any], *, now: datetime) -> Iterator[str]:
    """To whoever decides: who for whom, what exactly, what it would change, why, until when, and who else may."""
    sign, said = _STATES[shown["state"]]
    yield f"{mark(sign, sys.stdout)} {said} · ticket {_line(shown['ticket_id'])}"
    yield from _who_and_what(shown)
    yield from _headed("arguments", arguments_told(shown["arguments"]))
    if shown.get("answers"):
        yield from _headed("answers to its server", arguments_told(shown["answers"]))
    by = "the tool's own preview" if shown["preview"]["by"] == "tool" else "as far as its contract says"
    yield from _headed(f"would change ({by})", preview_lines(shown["preview"]))
    undo = shown["undo"]
    yield f"  undo: {_line(undo)}" if undo else "  undo: nothing takes it back"
    yield from _headed("asked because of", (_rule(each) for each in shown["rules"]))
    yield from _headed("who decides", _deciding(shown, now))
    yield from _headed("said so far", (_voice(each) for each in shown["votes"]))


def _who_and_what(shown: Mapping[str, Any]) -> Iterator[str]:
    tool = shown["tool"]
    digest = str(tool["digest"]).removeprefix("sha256:")[:12]
    yield f"  {who(shown)}   {_line(tool['name'])} {_line(tool['version'])} (digest {_line(digest)}…)"
    facts = [f"{shown['effects']} in {_line(shown['environment'])}"]
    facts += [f"{name} {_line(shown[name])}" for name in ("task", "session") if shown.get(name)]
    yield f"  {' · '.join(facts)}"
    yield f"  {plain(str(tool['description']).partition(chr(10))[0], _LONGEST)}"


def who(shown: Mapping[str, Any]) -> str:
    """The nearest agent first, as it was lent."""
    return " for ".join(plain(str(name), _NAME) for name in (*shown["agents"], shown["for_user"]))


def arguments_told(arguments: Mapping[str, Any]) -> Iterator[str]:
    if not arguments:
        yield "none"
        return
    opening, *lines = plain_lines(dict(arguments), _LONGEST, _MOST_LINES)
    for line in (opening, *lines):
        if line not in ("{", "}"):
            yield line.removeprefix("  ")


def _deciding(shown: Mapping[str, Any], now: datetime) -> Iterator[str]:
    for demand in shown["demands"]:
        several = f"{demand['have']} of {demand['quorum']} said yes" if demand["quorum"] > 1 else "one person"
        strong = f", signed in with {_line(demand['step_up'])}" if demand["step_up"] else ""
        chain = ", then ".join(_line(group) for group in demand["groups"])
        yield f"{chain}: {several}{strong}"
    if shown["state"] == "open":
        yield f"{asked(shown, now=now)} ({_moment(shown['expires_at'])})"


def _voice(vote: Mapping[str, Any]) -> str:
    sign = mark(OK if vote["approve"] else NO, sys.stdout)
    glass = " broke the glass" if vote["broke_glass"] else ""
    reason = f": {_line(vote['reason'])}" if vote["reason"] else ""
    return f"{sign} {plain(str(vote['by']), _NAME)}{glass} at {_moment(vote['at'])}{reason}"


def _headed(heading: str, lines: Iterator[str]) -> Iterator[str]:
    first = next(lines, None)
    if first is not None:
        yield f"  {heading}"
        yield f"    {first}"
        yield from (f"    {line}" for line in lines)


def _rule(rule: Mapping[str, Any]) -> str:
    where = f" ({_line(rule['where'])})" if rule["where"] else ""
    why = f": {_line(rule['reason'])}" if rule["reason"] else ""
    return f"{_line(rule['id'])}{where}{why}"


def _named(groups: list[str]) -> str:
    return ", ".join(plain(str(group), _NAME) for group in groups) or "nobody any more"


def _line(text: Any) -> str:
    return plain(str(text), _LONGEST)


def _moment(at: str) -> str:
    return datetime.fromisoformat(at).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def away(at: str, *, now: datetime) -> str:
    seconds = int((datetime.fromisoformat(at) - now).total_seconds())
    if seconds > _TO_THE_MINUTE:
        seconds += -seconds % 60
    return f"in {lasting(seconds)}" if seconds > 0 else "now"
