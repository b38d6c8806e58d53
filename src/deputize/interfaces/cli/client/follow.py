"""Follow a call to its end: a live bar on a terminal, a line per event in a pipe, JSON with --json.

A broken stream is resumed after the last event received.
"""

import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from deputize.core.config_error import ConfigError
from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.client.target import build_call_path
from deputize.interfaces.cli.render.output import EXIT_FAILED, dim_text, exit_with_error, format_json, printer

if TYPE_CHECKING:
    from deputize.interfaces.cli.client.rest_client import GatewayClient

_MAX_TRIES = 30
_PAUSE_SECONDS = 1.0
_TERMINAL_STATES = frozenset(
    {"succeeded", "failed", "canceled", "timed_out", "denied", "blocked", "validation_failed", "unknown"}
)
_Event = tuple[str, dict[str, Any]]


def follow_call(gateway: "GatewayClient", call_id: str, *, to_stderr: bool = False) -> str:
    """Follow a call until it ends, and return its final state. With `to_stderr`, stdout is left for the result."""
    events = _stream_events(gateway, call_id)
    try:
        if printer.as_json:
            return _print_json(events, to_stderr)
        return _show_bar(events, call_id, to_stderr) if sys.stderr.isatty() else _print_lines(events, to_stderr)
    except KeyboardInterrupt:
        exit_with_error(f"Stopped watching. The call continues: deputize calls show {call_id}", EXIT_FAILED)


def wait_for_outcome(load_state: Callable[[], str]) -> str:
    """Print each new state of a call that only its state may be read of, until it ends; return the last one."""
    last_state = ""
    try:
        while last_state not in _TERMINAL_STATES:
            state = load_state()
            if state != last_state:
                printer.line(f"  {state}")
            last_state = state
            if state not in _TERMINAL_STATES:
                time.sleep(_PAUSE_SECONDS)
    except KeyboardInterrupt:
        exit_with_error("Stopped watching. The call continues.", EXIT_FAILED)
    return last_state


def _stream_events(gateway: "GatewayClient", call_id: str) -> Iterator[_Event]:
    last_event_id, tries = "", 0
    while tries < _MAX_TRIES:
        try:
            for event_id, name, facts in gateway.stream_events(f"{build_call_path(call_id)}/events", last_event_id):
                last_event_id, tries = event_id or last_event_id, 0
                if name == "error":
                    exit_with_error(
                        str(facts.get("detail", "The gateway cannot report on this call: try again.")), EXIT_FAILED
                    )
                yield name, facts
                if facts.get("state") in _TERMINAL_STATES:
                    return
        except ConfigError:
            # Unreachable at first is a wrong address; later, the gateway is probably restarting.
            if not last_event_id:
                raise
        tries += 1
        time.sleep(_PAUSE_SECONDS)
    raise ConfigError(
        f"The gateway stopped answering. The call may still continue: check it with deputize calls show {call_id}."
    )


def _print_json(events: Iterator[_Event], is_quiet: bool) -> str:
    state = ""
    for name, facts in events:
        if not is_quiet:
            printer.json({"event": name, **facts})
        state = str(facts.get("state") or state)
    return state


def _print_lines(events: Iterator[_Event], to_stderr: bool) -> str:
    """Print one line for each event, for a pipe or a log."""
    state = ""
    for name, facts in events:
        state = str(facts.get("state") or state)
        _print_line(f"{state:<12} {_describe_event(name, facts)}", to_stderr)
    return state


def _print_line(text: str, to_stderr: bool) -> None:
    if to_stderr:
        printer.note(dim_text(text, sys.stderr))
    else:
        printer.line(text)


def _describe_event(name: str, facts: dict[str, Any]) -> str:
    if name.endswith(".progress"):
        percent = facts.get("percent")
        return " ".join(
            part for part in (f"{percent:g}%" if percent is not None else "", _describe_progress(facts)) if part
        )
    if name.endswith(".partial_result"):
        return f"partial result: {format_json(facts.get('partial_result'))}"
    return _describe_approval(facts) or name


def _describe_approval(facts: dict[str, Any]) -> str:
    """Describe who must approve the call, or why it was denied."""
    approval = facts.get("approval") or {}
    if approval.get("state") == "open":
        from deputize.interfaces.cli.render.approvals import describe_pending_approval

        return describe_pending_approval(approval, now=datetime.now(UTC))
    return f"denied: {to_display_text(approval['reason'])}" if approval.get("reason") else ""


def _describe_progress(facts: dict[str, Any]) -> str:
    current_step, total_steps = facts.get("current_step"), facts.get("total_steps")
    step_text = f"{current_step:g} of {total_steps:g}" if current_step is not None and total_steps is not None else ""
    return " · ".join(part for part in (step_text, to_display_text(str(facts.get("message") or ""))) if part)


def _show_bar(events: Iterator[_Event], call_id: str, to_stderr: bool) -> str:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    state = approval_text = ""
    with Progress(*columns, TextColumn("{task.fields[detail]}"), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(call_id[:8], total=None, detail="")
        for name, facts in events:
            state = str(facts.get("state") or state)
            bar.update(task, description=state or call_id[:8], detail=_describe_approval(facts).replace("[", r"\["))
            if name.endswith(".progress"):
                bar.update(
                    task, completed=facts.get("current_step") or 0, total=facts.get("total_steps"),
                    # Escape brackets, which the bar would read as markup.
                    detail=_describe_progress(facts).replace("[", r"\["),
                )  # fmt: skip
            elif name.endswith(".partial_result"):
                bar.console.print(_describe_event(name, facts), markup=False, highlight=False)
            approval_text = _describe_approval(facts)
    if not to_stderr:
        printer.line(f"{state} {approval_text}" if approval_text else state)
    return state
