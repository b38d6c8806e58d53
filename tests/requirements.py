"""Keep the ledger of promises: which requirement rows exist, their state, and which tests show them.

The rows are data (`docs/reference/requirements.toml`); the tests name them with
`@pytest.mark.requirement("INV-5")` on a function, a class or a module's `pytestmark`. The marks are read from
the source, so nothing has to be imported or started. Run `python -m tests.requirements` to check both
directions and `--write` to bring `docs/reference/promises.md` up to date.
"""

import argparse
import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEDGER = ROOT / "docs" / "reference" / "requirements.toml"
PAGE = ROOT / "docs" / "reference" / "promises.md"
STATES = ("done", "partial", "planned")
GROUPS = {
    "CON": "Tool contracts",
    "REG": "Registry",
    "INV": "Invocation",
    "GOV": "Governance",
    "RES": "Resilience and composition",
    "EXE": "Execution",
    "OBS": "Observability",
    "QUA": "Quality",
    "NEW": "New features",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One promise of the ledger."""

    id: str
    promise: str
    state: str
    missing: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """One test that says which row it shows."""

    row: str
    test: str


Function = ast.FunctionDef | ast.AsyncFunctionDef


def read_ledger(text: str) -> dict[str, Row]:
    """Read the rows; a misspelt field or state is an error here, not a silent gap later."""
    rows = {}
    for key, fields in tomllib.loads(text).items():
        row = Row(id=key, **fields)
        if row.state not in STATES:
            raise ValueError(f"{key}: state {row.state!r} is not one of {', '.join(STATES)}")
        if key.partition("-")[0] not in GROUPS:
            raise ValueError(f"{key}: no group of that name; known are {', '.join(GROUPS)}")
        rows[key] = row
    return rows


def collect_marks(folder: Path) -> list[Mark]:
    """Find every requirement mark in the test files under a folder."""
    marks: list[Mark] = []
    for path in sorted(folder.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        marks.extend(_find_marks(tree.body, name=path.relative_to(folder.parent).as_posix(), inherited=()))
    return marks


def _find_marks(body: Sequence[ast.stmt], *, name: str, inherited: tuple[str, ...]) -> Iterator[Mark]:
    inherited += tuple(row for statement in body for row in _rows_of_pytestmark(statement))
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            own = tuple(_find_rows(statement.decorator_list))
            yield from _find_marks(statement.body, name=f"{name}::{statement.name}", inherited=inherited + own)
        elif isinstance(statement, Function) and statement.name.startswith("test"):
            for row in dict.fromkeys((*inherited, *_find_rows(statement.decorator_list))):
                yield Mark(row=row, test=f"{name}::{statement.name}")


def _rows_of_pytestmark(statement: ast.stmt) -> list[str]:
    if not isinstance(statement, ast.Assign):
        return []
    if not any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in statement.targets):
        return []
    value = statement.value
    return list(_find_rows(value.elts if isinstance(value, ast.List | ast.Tuple) else [value]))


def _find_rows(expressions: Sequence[ast.expr]) -> Iterator[str]:
    for expression in expressions:
        if not (isinstance(expression, ast.Call) and ast.unparse(expression.func).endswith("mark.requirement")):
            continue
        for argument in expression.args:
            if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                raise ValueError(f"line {expression.lineno}: write the row's id as a plain string")
            yield argument.value


def find_problems(rows: Mapping[str, Row], marks: Sequence[Mark]) -> list[str]:
    """Say where ledger and tests disagree."""
    shown = {mark.row for mark in marks}
    unshown = [
        f"{row.id} is {row.state}, but no test shows it: mark one with @pytest.mark.requirement({row.id!r})"
        for row in rows.values()
        if row.state != "planned" and row.id not in shown
    ]
    unknown = [
        f"{mark.test} names {mark.row}, which is no row of {LEDGER.relative_to(ROOT)}"
        for mark in marks
        if mark.row not in rows
    ]
    return unshown + unknown


def render_page(rows: Mapping[str, Row], marks: Sequence[Mark]) -> str:
    """Draw the page that says what is promised, how far, and where it is shown."""
    tests: dict[str, list[str]] = defaultdict(list)
    for mark in marks:
        tests[mark.row].append(mark.test)
    counts = ", ".join(f"{sum(row.state == state for row in rows.values())} {state}" for state in STATES)
    lines = [
        "# Promises",
        "",
        "<!-- Written by `python -m tests.requirements --write`; change the ledger or a test. -->",
        "",
        "Every requirement has a row. A row that is done or partial is shown by the tests listed below its table.",
        f"Now: {counts}, of {len(rows)} rows.",
    ]
    for prefix, title in GROUPS.items():
        group = [row for row in rows.values() if row.id.partition("-")[0] == prefix]
        lines += ["", f"## {title}", "", "| row | promise | state |", "|---|---|---|", *map(_render_row, group)]
        lines += _render_tests([(row.id, tests[row.id]) for row in group if tests[row.id]])
    return "\n".join(lines) + "\n"


def _render_row(row: Row) -> str:
    promise = row.promise + (f" *Missing: {row.missing}.*" if row.missing else "")
    return f"| {row.id} | {promise} | {row.state} |"


def _render_tests(group: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """List the tests of each row of a group, below its table."""
    for row_id, names in group:
        yield from ("", f"Tests of {row_id}:", "")
        yield from (f"- `{name}`" for name in names)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the ledger against the tests, or write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.requirements", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    write = parser.parse_args(arguments).write
    rows, marks = read_ledger(LEDGER.read_text(encoding="utf-8")), collect_marks(ROOT / "tests")
    found = find_problems(rows, marks)
    page = render_page(rows, marks)
    if write:
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        found.append(f"{PAGE.relative_to(ROOT)} is not current: run python -m tests.requirements --write")
    for problem in found:
        print(f"requirements: {problem}", file=sys.stderr)
    if not found:
        print(f"requirements: {len(rows)} rows, {len(marks)} marks")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
