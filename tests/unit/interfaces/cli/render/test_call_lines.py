"""Test the line that `deputize dev` prints for each call."""

import io
from datetime import UTC, datetime
from typing import Any

import pytest

from deputize.core.call_report import CallReport
from deputize.core.decision import Behavior
from deputize.core.states import State
from deputize.interfaces.cli.render.call_lines import CallLinePrinter, describe_call, format_call

AT = datetime(2026, 11, 17, 9, 30, 5, 123_000, UTC)


class Terminal(io.StringIO):
    """A stream that shows colours."""

    def isatty(self) -> bool:
        return True


def make_report(**changes: Any) -> CallReport:
    fields: dict[str, Any] = {
        "call_id": "01a1e8d4",
        "user": "ana",
        "agent": "",
        "tool": "hello.greet",
        "behavior": Behavior.ALLOW,
        "rules": ("token-scopes", "reads-are-free"),
        "state": State.SUCCEEDED,
        "seconds": 0.0064,
    }
    return CallReport(**(fields | changes))


def test_a_call_is_one_line_from_the_time_to_the_id() -> None:
    line = format_call(make_report(), AT, io.StringIO())
    assert line == "09:30:05 ana · hello.greet · allow by token-scopes, reads-are-free · succeeded · 6 ms · 01a1e8d4"


def test_a_dry_run_is_called_so_unless_it_was_refused() -> None:
    assert " · dry run · " in format_call(make_report(is_dry_run=True), AT, io.StringIO())
    refused = format_call(make_report(is_dry_run=True, state=State.DENIED), AT, io.StringIO())
    assert " · denied · " in refused


def test_a_refusal_names_the_agent_the_error_and_the_reason() -> None:
    report = make_report(
        agent="notes-bot", behavior=None, rules=(), state=State.BLOCKED, seconds=1.25, error_number="E3101",
        error_message="there is no tool hello.greet",
    )  # fmt: skip
    line = format_call(report, AT, io.StringIO())
    expected = "ana via notes-bot · hello.greet · blocked E3101 · 1.2 s · 01a1e8d4 · there is no tool hello.greet"
    assert line == f"09:30:05 {expected}"


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (State.SUCCEEDED, "32"),
        (State.AWAITING_APPROVAL, "33"),
        (State.DENIED, "31"),
        (State.FAILED, "31"),
        (State.UNKNOWN, "35"),
    ],
)
def test_the_outcome_has_a_colour(state: State, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert f"\x1b[{code}m{state.value.replace('_', ' ')}\x1b[0m" in format_call(
        make_report(state=state), AT, Terminal()
    )


def test_what_a_caller_chose_cannot_draw_on_the_terminal() -> None:
    report = make_report(tool="x\x1b[2Jy\nz", error_message="line\nline", error_number="E1")
    line = format_call(report, AT, io.StringIO())
    assert "\x1b" not in line
    assert "\n" not in line


def test_a_program_gets_every_field() -> None:
    assert describe_call(make_report(is_replay=True), AT) == {
        "event": "call",
        "time": "2026-11-17T09:30:05.123+00:00",
        "user": "ana",
        "agent": None,
        "tool": "hello.greet",
        "decision": "allow",
        "rules": ("token-scopes", "reads-are-free"),
        "outcome": "succeeded",
        "replay": True,
        "dry_run": False,
        "error": None,
        "message": None,
        "duration_ms": 6.4,
        "call_id": "01a1e8d4",
    }


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    CallLinePrinter(is_quiet=True)(make_report())
    assert capsys.readouterr().out == ""
    CallLinePrinter(is_quiet=False)(make_report())
    assert "hello.greet" in capsys.readouterr().out


def test_a_closed_terminal_does_not_reach_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr("sys.stdout", stream)
    print_call = CallLinePrinter(is_quiet=False)
    print_call(make_report())
    print_call(make_report())
