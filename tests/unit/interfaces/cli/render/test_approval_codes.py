"""Codes on the terminal of `deputize dev`: one line each, once it is ready, and never in a file."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deputize.govern.approvals.approval_codes import ApprovalCode
from deputize.govern.approvals.confirmation_codes import ConfirmationCode, DocumentChange
from deputize.interfaces.cli.render.approval_codes import ApprovalCodePrinter
from deputize.interfaces.cli.render.output import printer

pytestmark = pytest.mark.requirement("GOV-3")

REQUEST_ID = "0190b6a0-0000-7000-8000-000000000001"


def _make_code_notice(**changes: str) -> ApprovalCode:
    facts = {
        "approval_id": REQUEST_ID,
        "tenant": "dev",
        "tool": "crm.delete_user@1.0.0",
        "user": "dev",
        "code": "4F7K-2M9Q",
    }
    return ApprovalCode(**{**facts, **changes})


@pytest.fixture
def json_output() -> Iterator[None]:
    printer.as_json = True
    yield
    printer.as_json = False


def test_a_line_names_the_request_the_tool_the_user_and_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    codes = ApprovalCodePrinter()
    codes.flush()
    codes(_make_code_notice())
    assert capsys.readouterr().out == f"⏸ approval request {REQUEST_ID}: crm.delete_user for dev · code 4F7K-2M9Q\n"


def test_what_comes_before_the_gateway_is_ready_is_shown_after(capsys: pytest.CaptureFixture[str]) -> None:
    codes = ApprovalCodePrinter()
    codes(_make_code_notice())
    assert capsys.readouterr().out == ""
    codes.flush()
    assert "4F7K-2M9Q" in capsys.readouterr().out


def test_no_name_moves_the_cursor_or_writes_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    codes = ApprovalCodePrinter()
    codes.flush()
    codes(_make_code_notice(user="x\r\x1b[2K⏸ approval request 1: crm.read for dev · code AAAA-AAAA\n" + "y" * 500))
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert not {"\x1b", "\r"} & set(line)
    assert len(line) < 300
    assert line.endswith("code 4F7K-2M9Q\n")


@pytest.mark.usefixtures("json_output")
def test_programs_get_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    codes = ApprovalCodePrinter()
    codes.flush()
    codes(_make_code_notice())
    event = json.loads(capsys.readouterr().out)
    assert (event["event"], event["approval_id"], event["code"]) == ("approval_requested", REQUEST_ID, "4F7K-2M9Q")


def test_codes_are_never_written_to_a_file_and_a_hint_is_printed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = ApprovalCodePrinter()
    codes.flush()
    with (tmp_path / "dev.log").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        codes(_make_code_notice())
        codes(_make_code_notice())
    assert (tmp_path / "dev.log").read_text() == ""
    assert capsys.readouterr().err.count("not written to a file") == 1


def _make_confirmation(*changes: DocumentChange) -> ConfirmationCode:
    return ConfirmationCode(
        confirmation_id=REQUEST_ID, tenant="dev", caller="dev", command="put_policies", subject="sha256:12",
        code="4F7K-2M9Q", changes=changes,
    )  # fmt: skip


def test_a_confirmation_shows_what_would_change_before_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    change = DocumentChange(name="loose.cedar", old="forbid;\n", new="forbid;\npermit; // \x1b[8m\u202e\n")
    ApprovalCodePrinter().show_confirmation(_make_confirmation(change))
    assert capsys.readouterr().out.splitlines() == [
        "  changed loose.cedar (+1 −0 lines)",
        "    @@ -1 +1,2 @@",
        "     forbid;",
        "    +permit; // \\x1b[8m\\u202e",
        "⏸ confirm put_policies sha256:12 for dev, if you asked for it · code 4F7K-2M9Q",
    ]


def test_a_confirmation_that_cannot_show_all_has_no_code(capsys: pytest.CaptureFixture[str]) -> None:
    policy = "//\n" * 2_500 + "permit;\n" + "//\n" * 2_501
    confirmation = _make_confirmation(DocumentChange(name="a.cedar", old=None, new=policy))
    ApprovalCodePrinter().show_confirmation(confirmation)
    shown = capsys.readouterr().out
    assert "4F7K-2M9Q" not in shown
    assert "cannot be confirmed here: it changes more than the 400 lines shown" in shown.splitlines()[-1]
    confirmation = _make_confirmation(DocumentChange(name="a.cedar", old=None, new="//\n" * 397 + "permit;\n"))
    ApprovalCodePrinter().show_confirmation(confirmation)
    assert "+permit;\n⏸ confirm put_policies sha256:12 for dev, if you asked for it · code" in capsys.readouterr().out


@pytest.mark.usefixtures("json_output")
def test_a_confirmation_as_json_has_the_changes(capsys: pytest.CaptureFixture[str]) -> None:
    ApprovalCodePrinter().show_confirmation(_make_confirmation(DocumentChange(name="a.cedar", old="x\n", new=None)))
    event = json.loads(capsys.readouterr().out)
    assert event["changes"] == ["removed a.cedar (+0 −1 lines)", "  @@ -1 +0,0 @@", "  -x"]
    assert (event["all_shown"], event["code"]) == (True, "4F7K-2M9Q")
    change = DocumentChange(name="a.cedar", old=None, new="permit;\n" * 500)
    ApprovalCodePrinter().show_confirmation(_make_confirmation(change))
    event = json.loads(capsys.readouterr().out)
    assert (event["all_shown"], "code" in event) == (False, False)
