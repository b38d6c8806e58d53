"""Keeps the figures in README.md and docs/reference/figures.md equal to the kept results of the proofs.

Each `proofs/results/*.json` is one full run, as `proofs/kit/report.py` writes it: `name`, `passed`, `form`,
`figures`, `bars` (each with `op` and `bar`), `controls` (broken variants, and whether they were caught),
`commit` and `machine`. Whether figures meet their bars is judged by `python -m proofs kept`; here only runs
that passed in full are shown. README.md gets one line per proof, the reference page every figure that has a bar.
`--write` renders both between their markers.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "proofs" / "results"
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "reference" / "figures.md"
OPEN, CLOSE = "<!-- figures -->", "<!-- /figures -->"
NOTHING_YET = "No results are kept yet. `make proofs` makes them."
MOST_IN_SHORT = 4
SHORT_HEAD = ["| proof | measured (bar) | broken variants caught | commit |", "|---|---|---|---|"]
HEAD = ["| proof | figure | measured | bar | commit |", "|---|---|---|---|---|"]

Result = Mapping[str, Any]


def read_results(folder: Path) -> list[Result]:
    """Read the kept results in a stable order."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def problems(results: Sequence[Result]) -> list[str]:
    """Say which kept results must not be shown."""
    failed = [f"{result['name']}: the kept run did not pass" for result in results if not result["passed"]]
    short = [f"{result['name']}: only full runs are kept" for result in results if result["form"] != "full"]
    return failed + short


def render(results: Sequence[Result]) -> str:
    """Draw the table of every figure that has a bar, and of every control."""
    if not results:
        return NOTHING_YET
    rows = [row for result in results for row in _rows(result)]
    machines = dict.fromkeys(_show(result["machine"]) for result in results)
    return "\n".join([*HEAD, *rows, "", *(f"Measured on: {machine}." for machine in machines)])


def in_short(results: Sequence[Result]) -> str:
    """One line per proof: the figures its author put first."""
    return "\n".join([*SHORT_HEAD, *map(_line, results)]) if results else NOTHING_YET


def _line(result: Result) -> str:
    first = list(result["bars"].items())[:MOST_IN_SHORT]
    figures = (
        f"{_words(name)} {_show(result['figures'].get(name))} ({bar['op']} {_show(bar['bar'])})" for name, bar in first
    )
    controls = result.get("controls", {})
    caught = f"{sum(map(bool, controls.values()))} of {len(controls)}"
    return f"| `{result['name']}` | {'; '.join(figures)} | {caught} | `{str(result['commit'])[:10]}` |"


def _rows(result: Result) -> Iterator[str]:
    proof, commit = f"`{result['name']}`", f"`{str(result['commit'])[:10]}`"
    for name, bar in result["bars"].items():
        measured, wanted = _show(result["figures"].get(name)), f"{bar['op']} {_show(bar['bar'])}"
        yield f"| {proof} | {_words(name)} | {measured} | {wanted} | {commit} |"
    for name, caught in result.get("controls", {}).items():
        seen = "caught" if caught else "missed"
        yield f"| {proof} | broken variant: {_words(name)} | {seen} | caught | {commit} |"


def _words(name: str) -> str:
    return name.replace("_", " ").replace("|", "\\|")


def _show(value: object) -> str:
    match value:
        case None:
            return "–"
        case float():
            return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case Mapping():
            return ", ".join(f"{_words(key)} {_show(item)}" for key, item in value.items())
        case _:
            return str(value).replace("|", "\\|").replace("\n", " ")


def place(page: str, table: str) -> str:
    """Put the table between the markers."""
    if page.count(OPEN) != 1 or page.count(CLOSE) != 1:
        raise ValueError(f"a page with figures needs the markers {OPEN} and {CLOSE} exactly once each")
    before, rest = page.split(OPEN)
    _, after = rest.split(CLOSE)
    return f"{before}{OPEN}\n{table}\n{CLOSE}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the kept results and the pages that show them, or write their figures."""
    parser = argparse.ArgumentParser(prog="python -m checks.figures", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="write the tables")
    write = parser.parse_args(arguments).write
    results = read_results(RESULTS)
    found = problems(results)
    for path, table in ((README, in_short(results)), (PAGE, render(results))):
        page = path.read_text(encoding="utf-8")
        wanted = place(page, table)
        if write and not found:
            path.write_text(wanted, encoding="utf-8")
        elif wanted != page:
            found.append(f"{path.name} shows other figures: run python -m checks.figures --write")
    for problem in found:
        print(f"figures: {problem}", file=sys.stderr)
    if not found:
        print(f"figures: {len(results)} kept results, shown as they are")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
