"""Changed files of a project are taken over only by the code that the terminal shows for them."""

import io
import re
import sys
from pathlib import Path

import pytest

from deputize.interfaces.cli.commands.service.dev_user import update_copy
from deputize.interfaces.cli.local.separate_user.project_snapshot import ProjectFile
from deputize.interfaces.cli.local.separate_user.working_copy import WorkingCopy

OLD = {"tools/hello.py": ProjectFile(content=b"safe()\n"), "policies/default.cedar": ProjectFile(content=b"forbid\n")}
NEW = {"tools/hello.py": ProjectFile(content=b"evil()\n"), "policies/loose.cedar": ProjectFile(content=b"permit\n")}


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Keyboard(io.TextIOBase):
    """A person who reads the screen and types an answer, in which CODE stands for the code on the screen."""

    def __init__(self, screen: _Screen, answer: str, page_answer: str) -> None:
        self._screen = screen
        self._answer = answer
        self._page_answer = page_answer

    def isatty(self) -> bool:
        return True

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # the stub says bytes, for binary files
        shown = self._screen.getvalue()
        if "type the code" not in shown and shown.rstrip().endswith("n to run the confirmed files:"):
            return self._page_answer + "\n"
        code = re.search(r"type the code (\S+)", shown)
        assert code is not None, self._screen.getvalue()
        return self._answer.replace("CODE", code[1]) + "\n"


def _sit_down(monkeypatch: pytest.MonkeyPatch, answer: str, page_answer: str = "") -> _Screen:
    """Give the test a terminal, at which a person answers."""
    screen = _Screen()
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdin", _Keyboard(screen, answer, page_answer))
    return screen


@pytest.fixture
def copy(tmp_path: Path) -> WorkingCopy:
    copy = WorkingCopy(tmp_path)
    update_copy(copy, OLD, Path("/home/ana/shop"))
    return copy


def test_the_first_start_takes_the_files_as_they_are(copy: WorkingCopy, capsys: pytest.CaptureFixture[str]) -> None:
    assert copy.read_file("tools/hello.py") == b"safe()\n"


def test_without_a_terminal_the_confirmed_files_stay(copy: WorkingCopy, capsys: pytest.CaptureFixture[str]) -> None:
    update_copy(copy, NEW, Path("/home/ana/shop"))
    shown = capsys.readouterr().err
    assert (copy.read_file("tools/hello.py"), copy.read_file("policies/loose.cedar")) == (b"safe()\n", None)
    assert "3 changes ignored" in shown
    assert "type the code" not in shown


@pytest.mark.parametrize("answer", ["", "y", "yes", "0000-0000"])
def test_no_other_answer_than_the_code_takes_them(
    copy: WorkingCopy, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    screen = _sit_down(monkeypatch, answer)
    update_copy(copy, NEW, Path("/home/ana/shop"))
    assert copy.read_file("tools/hello.py") == b"safe()\n"
    assert "3 changes ignored" in screen.getvalue()


def test_the_code_takes_what_was_shown(copy: WorkingCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _sit_down(monkeypatch, "CODE")
    update_copy(copy, NEW, Path("/home/ana/shop"))
    shown = screen.getvalue()
    assert copy.read_file("tools/hello.py") == b"evil()\n"
    assert copy.read_file("policies/loose.cedar") == b"permit\n"
    assert copy.read_file("policies/default.cedar") is None
    for line in (
        "removed policies/default.cedar (+0 −1 lines)", "added policies/loose.cedar (+1 −0 lines)",
        "changed tools/hello.py (+1 −1 lines)", "-safe()", "+evil()",
    ):  # fmt: skip
        assert line in shown


def test_the_code_of_a_long_difference_is_on_its_last_page(copy: WorkingCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"#\n" * 2_500 + b"evil()\n" + b"#\n" * 2_501
    changed_files = {**OLD, "tools/hello.py": ProjectFile(content=content)}
    screen = _sit_down(monkeypatch, "CODE", page_answer="n")
    update_copy(copy, changed_files, Path("/home/ana/shop"))
    assert (copy.read_file("tools/hello.py"), "type the code" in screen.getvalue()) == (b"safe()\n", False)
    screen = _sit_down(monkeypatch, "CODE")
    update_copy(copy, changed_files, Path("/home/ana/shop"))
    assert copy.read_file("tools/hello.py") == content
    before, _, _ = screen.getvalue().partition("type the code")
    assert (before.count("+#"), before.count("+evil()")) == (5_001, 1)


def test_what_no_line_tells_is_shown_too(copy: WorkingCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy.files / "policies/default.cedar").write_bytes(b"permit\n")
    changed_files = {
        "tools/hello.py": ProjectFile(content=b"safe()\n", is_executable=True),
        "policies/default.cedar": ProjectFile(content=b"permit\n"),
        "data.bin": ProjectFile(content=b"\xe9\n"),
    }
    screen = _sit_down(monkeypatch, "")
    update_copy(copy, changed_files, Path("/home/ana/shop"))
    for line in ("changed tools/hello.py, now executable", "+permit", "+\\udce9"):
        assert line in screen.getvalue()
