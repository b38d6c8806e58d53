"""What a build wrote is reported with its failures first, and never at any length."""

import time

import pytest

from deputize.core.contract.tools import FolderRun
from deputize.tools.builds.report import MAX_FAILURES, MAX_LINE, MAX_OUTPUT, Report, build_report

pytestmark = pytest.mark.requirement("EXE-4")


def report(stdout: str, stderr: str = "", *, code: int | None = 1, ended_by: str = "exit") -> Report:
    return build_report(FolderRun(ended_by=ended_by, exit_code=code, stdout=stdout, stderr=stderr))


@pytest.mark.parametrize(
    ("line"),
    [
        "FAILED tests/test_a.py::test_b - assert 1 == 2", "E       assert 1 == 2", "FAIL: test_b (test_a.A)",
        "src/a.py:7:5: F401 [*] `os` imported but unused", "src/a.py:7: error: Name 'x' is not defined  [name-defined]",
        "error[E0308]: mismatched types", "a.c:3:1: error: expected ';'", "not ok 3 - adds", "--- FAIL: TestAdd",
        "thread 'main' panicked at src/main.rs:2:5:", "AssertionError: 1 is not 2", "  \u2717 adds",
        "src/a.ts(1,2): error TS2322: no", "ERROR collecting tests/test_a.py",
    ],
)  # fmt: skip
def test_lines_that_look_like_a_failure_come_first(line: str) -> None:
    found = report(f"collected 3 items\n{line}\nall of the rest\n{line}\n")
    assert (found.passed, [each.strip() for each in found.failures]) == (False, [line.strip()])
    assert found.summary == line.strip()


def test_what_passes_has_no_failures() -> None:
    found = report("ERROR is a word\n12 passed in 0.10s\n\n", "a warning", code=0)
    assert (found.passed, found.failures, found.summary) == (True, [], "12 passed in 0.10s")
    assert found.output == "ERROR is a word\n12 passed in 0.10s\n\n\na warning"
    assert report("", "Ran 2 tests\n\nOK\n", code=0).summary == "OK"
    assert report("", code=0).summary == "passed"


@pytest.mark.parametrize("ended_by", ["deadline", "memory", "processes", "output", "crash"])
def test_who_ended_it_is_the_summary(ended_by: str) -> None:
    found = report("1 passed", code=0, ended_by=ended_by)
    assert (found.passed, found.ended_by) == (False, ended_by)
    assert found.summary != "1 passed"


def test_colors_and_controls_are_left_out() -> None:
    assert report("\x1b[31mFAILED\x1b[0m a\x07b").failures == ["FAILED ab"]


def test_long_output_is_cut_to_its_end_in_linear_time() -> None:
    began = time.process_time()
    for part in ("FAILED x\n", "a", "\n", "a:1:", "\x1b[", " ", "Error", "x" * 5_000 + "\n"):
        found = report(part * (1_000_000 // len(part)) + "\nend")
        assert found.is_cut or len(found.output) <= MAX_OUTPUT
        assert len(found.output) <= MAX_OUTPUT
        assert len(found.failures) <= MAX_FAILURES
        assert all(len(each) <= MAX_LINE for each in found.failures)
    assert time.process_time() - began < 20
