"""Report how a build or a test ended: what failed first, then the end of what it wrote."""

import re
from dataclasses import dataclass
from typing import Final

from deputize.core.contract.tools import FolderRun

MAX_FAILURES: Final = 50
MAX_LINE: Final = 300
MAX_OUTPUT: Final = 8_000
# How compilers, linters, type checkers and test runners begin or mark the line of a failure.
_FAILURE: Final = re.compile(
    r"^(?:FAILED\b|FAIL\b|ERROR\b|E  |not ok\b|--- FAIL)|^\s{0,20}[✗✘×]|^\s{0,20}(?:error|fatal)(?:\[\w{1,20}\])?:"
    r"|^[^\s:][^:]{0,200}:\d{1,7}(?::\d{1,5})?:|^\w{0,60}(?:Error|Exception|Failure)\b|\bpanicked at\b|: error\b",
    re.IGNORECASE,
)
_COLOR: Final = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_CONTROLS: Final = dict.fromkeys((*range(9), 11, 12, 13, *range(14, 32), 127))
_ENDINGS: Final = {
    "deadline": "ended, because its time was over",
    "memory": "ended, because it needed more memory than it may",
    "processes": "ended, because it started more processes than it may",
    "output": "ended, because it wrote more than it may",
    "crash": "crashed",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """How it ended. `failures` are the lines that look like one; `output` is the end of what it wrote."""

    passed: bool
    ended_by: str
    exit_code: int | None
    summary: str
    failures: list[str]
    output: str
    is_cut: bool


def build_report(run: FolderRun) -> Report:
    """Build the report of a run."""
    text = _clean(f"{run.stdout}\n{run.stderr}")
    lines = [each[:MAX_LINE] for each in text.split("\n")]
    passed = run.ended_by == "exit" and run.exit_code == 0
    # A test that passes may print what looks like a failure.
    failures = [] if passed else list(dict.fromkeys(each.rstrip() for each in lines if _FAILURE.search(each)))
    last_lines = (_clean(each).rpartition("\n")[2].strip()[:MAX_LINE] for each in (run.stdout, run.stderr))
    return Report(
        passed=passed,
        ended_by=run.ended_by,
        exit_code=run.exit_code,
        summary=_ENDINGS.get(run.ended_by) or next(filter(None, last_lines), "passed" if passed else "failed"),
        failures=failures[:MAX_FAILURES],
        output=text[-MAX_OUTPUT:],
        is_cut=len(text) > MAX_OUTPUT or len(failures) > MAX_FAILURES,
    )


def _clean(text: str) -> str:
    return _COLOR.sub("", text).translate(_CONTROLS).strip()
