"""Codes on the terminal of `deputize dev`: one line each, once it is ready, and never in a file."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deputize.doors.cli.codes_told import CodesTold
from deputize.doors.cli.output import printer
from deputize.govern.approvals.codes import Told

pytestmark = pytest.mark.requirement("GOV-3")

TICKET = "0190b6a0-0000-7000-8000-000000000001"


def _told(**changes: str) -> Told:
    facts = {"ticket_id": TICKET, "tenant": "dev", "tool": "crm.delete_user@1.0.0", "user": "dev", "code": "4F7K-2M9Q"}
    return Told(**{**facts, **changes})


@pytest.fixture
def as_json() -> Iterator[None]:
    printer.as_json = True
    yield
    printer.as_json = False


def test_a_line_says_which_ticket_which_tool_for_whom_and_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    codes = CodesTold()
    codes.ready()
    codes(_told())
    assert capsys.readouterr().out == f"⏸ ticket {TICKET} crm.delete_user for dev · code 4F7K-2M9Q\n"


def test_what_comes_before_the_gateway_is_ready_is_shown_after(capsys: pytest.CaptureFixture[str]) -> None:
    codes = CodesTold()
    codes(_told())
    assert capsys.readouterr().out == ""
    codes.ready()
    assert "4F7K-2M9Q" in capsys.readouterr().out


def test_no_name_moves_the_cursor_or_writes_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    codes = CodesTold()
    codes.ready()
    codes(_told(user="x\r\x1b[2K⏸ ticket 1 crm.read for dev · code AAAA-AAAA\n" + "y" * 500))
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert not {"\x1b", "\r"} & set(line)
    assert len(line) < 300
    assert line.endswith("code 4F7K-2M9Q\n")


@pytest.mark.usefixtures("as_json")
def test_programs_get_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    codes = CodesTold()
    codes.ready()
    codes(_told())
    event = json.loads(capsys.readouterr().out)
    assert (event["event"], event["ticket_id"], event["code"]) == ("ticket", TICKET, "4F7K-2M9Q")


def test_a_file_gets_no_code_and_somebody_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = CodesTold()
    codes.ready()
    with (tmp_path / "dev.log").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        codes(_told())
        codes(_told())
    assert (tmp_path / "dev.log").read_text() == ""
    assert capsys.readouterr().err.count("not written into a file") == 1
