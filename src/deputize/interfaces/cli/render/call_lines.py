"""Render one line for each call in the terminal of `deputize dev`, coloured by the outcome."""

import sys
from datetime import datetime
from typing import Any, TextIO

from deputize.core.call_report import CallReport
from deputize.core.display_text import to_display_text
from deputize.core.states import State
from deputize.interfaces.cli.render.output import colour_text, dim_text, printer

_MAX_NAME_LENGTH = 80
_MAX_MESSAGE_LENGTH = 160
_WAITING_STATES = frozenset({State.AWAITING_APPROVAL, State.QUEUED, State.NEEDS_INPUT, State.RUNNING})


class CallLinePrinter:
    """Print each call as it ends. `--quiet` turns it off; `--json` prints events."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet

    def __call__(self, report: CallReport) -> None:
        if self._is_quiet:
            return
        try:
            if printer.as_json:
                printer.json(describe_call(report, datetime.now().astimezone()))
            else:
                printer.line(format_call(report, datetime.now().astimezone(), sys.stdout))
        except (OSError, ValueError):
            # The terminal is gone. The call is not: it must end as if there had never been one.
            self._is_quiet = True


def describe_call(report: CallReport, at: datetime) -> dict[str, Any]:
    """Describe a call for programs."""
    return {
        "event": "call",
        "time": at.isoformat(timespec="milliseconds"),
        "user": report.user,
        "agent": report.agent or None,
        "tool": report.tool,
        "decision": None if report.behavior is None else report.behavior.value,
        "rules": report.rules,
        "outcome": report.state.value,
        "replay": report.is_replay,
        "dry_run": report.is_dry_run,
        "error": report.error_number,
        "message": report.error_message or None,
        "duration_ms": round(report.seconds * 1000, 3),
        "call_id": report.call_id,
    }


def format_call(report: CallReport, at: datetime, stream: TextIO) -> str:
    """Format a call for people: time, caller, tool, decision and rule, outcome, duration and id."""
    user, agent, tool = (to_display_text(text, _MAX_NAME_LENGTH) for text in (report.user, report.agent, report.tool))
    rules = ", ".join(to_display_text(each, _MAX_NAME_LENGTH) for each in report.rules)
    decision = "" if report.behavior is None else f"{report.behavior} by {rules}" if rules else str(report.behavior)
    is_dry_run = report.is_dry_run and report.state is State.SUCCEEDED
    outcome = "dry run" if is_dry_run else report.state.value.replace("_", " ")
    outcome += " (replay)" if report.is_replay else ""
    if report.error_number is not None:
        outcome += f" {report.error_number}"
    parts = [
        f"{user} via {agent}" if agent else user,
        tool,
        decision,
        colour_text(outcome, _choose_colour(report.state), stream),
        _format_seconds(report.seconds),
        dim_text(report.call_id, stream),
        to_display_text(report.error_message, _MAX_MESSAGE_LENGTH),
    ]
    return f"{at:%H:%M:%S} {' · '.join(part for part in parts if part)}"


def _choose_colour(state: State) -> str:
    if state is State.SUCCEEDED:
        return "green"
    return "yellow" if state in _WAITING_STATES else "magenta" if state is State.UNKNOWN else "red"


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
