"""Follows one call to its end: a live bar on a terminal, a line for each event in a pipe, JSON where asked for.

A stream that breaks off is taken up again after the last event that was seen. Above: `call` and `calls`.
"""

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from deputize.core.mistakes import Misconfigured
from deputize.core.plain import plain
from deputize.doors.cli.output import REFUSED, dim, give_up, pretty, printer
from deputize.doors.cli.remote import call_path

if TYPE_CHECKING:
    from deputize.doors.cli.exchange import Gateway

_TRIES = 30
_PAUSE_SECONDS = 1.0
_ENDS = frozenset({"succeeded", "failed", "canceled", "timed_out", "denied", "blocked", "validation_failed", "unknown"})
_Event = tuple[str, dict[str, Any]]


def follow(gateway: "Gateway", call_id: str, *, aside: bool = False) -> str:
    """Until the call has ended; the state it ended in. `aside` where the answer is what comes after the events."""
    events = _events(gateway, call_id)
    try:
        if printer.as_json:
            return _as_json(events, aside)
        return _as_bar(events, call_id, aside) if sys.stderr.isatty() else _as_lines(events, aside)
    except KeyboardInterrupt:
        give_up(f"Stopped watching; the call goes on without you: deputize calls show {call_id}", REFUSED)


def _events(gateway: "Gateway", call_id: str) -> Iterator[_Event]:
    seen, tries = "", 0
    while tries < _TRIES:
        try:
            for known_by, name, facts in gateway.events(f"{call_path(call_id)}/events", seen):
                seen, tries = known_by or seen, 0
                if name == "error":
                    give_up(str(facts.get("detail", "the gateway could not follow the call")), REFUSED)
                yield name, facts
                if facts.get("state") in _ENDS:
                    return
        except Misconfigured:
            # Away at the first look is somebody's mistake; later, a gateway that is being replaced.
            if not seen:
                raise
        tries += 1
        time.sleep(_PAUSE_SECONDS)
    raise Misconfigured("The gateway did not come back: the call goes on, look for it with deputize calls show.")


def _as_json(events: Iterator[_Event], aside: bool) -> str:
    state = ""
    for name, facts in events:
        if not aside:
            printer.json({"event": name, **facts})
        state = str(facts.get("state") or state)
    return state


def _as_lines(events: Iterator[_Event], aside: bool) -> str:
    """For a pipe or a log: one line for each event."""
    state = ""
    for name, facts in events:
        state = str(facts.get("state") or state)
        _line(f"{state:<12} {_said(name, facts)}", aside)
    return state


def _line(text: str, aside: bool) -> None:
    if aside:
        printer.aside(dim(text, sys.stderr))
    else:
        printer.line(text)


def _said(name: str, facts: dict[str, Any]) -> str:
    if name.endswith(".progress"):
        percent = facts.get("percent")
        return " ".join(part for part in (f"{percent:g}%" if percent is not None else "", _message(facts)) if part)
    if name.endswith(".partial_result"):
        return f"so far: {pretty(facts.get('partial_result'))}"
    return _decided(facts) or name


def _decided(facts: dict[str, Any]) -> str:
    """Whom a call waits for, or why they said no."""
    approval = facts.get("approval") or {}
    if approval.get("state") == "open":
        from deputize.doors.cli.approval_shown import asked

        return asked(approval, now=datetime.now(UTC))
    return f"a person said no: {plain(approval['reason'])}" if approval.get("reason") else ""


def _message(facts: dict[str, Any]) -> str:
    done, total = facts.get("current_step"), facts.get("total_steps")
    counted = f"{done:g} of {total:g}" if done is not None and total is not None else ""
    return " · ".join(part for part in (counted, plain(str(facts.get("message") or ""))) if part)


def _as_bar(events: Iterator[_Event], call_id: str, aside: bool) -> str:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    state = said = ""
    with Progress(*columns, TextColumn("{task.fields[told]}"), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(call_id[:8], total=None, told="")
        for name, facts in events:
            state = str(facts.get("state") or state)
            bar.update(task, description=state or call_id[:8], told=_decided(facts).replace("[", r"\["))
            if name.endswith(".progress"):
                bar.update(
                    task, completed=facts.get("current_step") or 0, total=facts.get("total_steps"),
                    # Words of a tool are words, whatever brackets they have.
                    told=_message(facts).replace("[", r"\["),
                )  # fmt: skip
            elif name.endswith(".partial_result"):
                bar.console.print(_said(name, facts), markup=False, highlight=False)
            said = _decided(facts)
    if not aside:
        printer.line(f"{state} {said}" if said else state)
    return state
