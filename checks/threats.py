"""Keep the table of threats in SECURITY.md and the security explanation equal to `checks/threats.toml`.

Each threat names the mechanism against it, the tests or proofs that show it, and what is not protected. A test or
proof that does not exist is a problem. `--write` renders both pages between their markers.
"""

import argparse
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "checks" / "threats.toml"
PAGES = (ROOT / "SECURITY.md", ROOT / "docs" / "explanation" / "security.md")
OPEN_MARK, CLOSE_MARK = "<!-- threats -->", "<!-- /threats -->"
CATEGORIES = {
    "spoofing": "Spoofing",
    "tampering": "Tampering",
    "repudiation": "Repudiation",
    "disclosure": "Information disclosure",
    "denial": "Denial of service",
    "elevation": "Elevation of privilege",
}
_FIELDS = {"category", "threat", "mechanism", "shown_by", "not_protected"}
_HEAD = ["| threat | mechanism | shown by | not protected |", "|---|---|---|---|"]


def load_threats(source: Path = SOURCE) -> list[dict[str, Any]]:
    """Load the threats in the order of their file."""
    threats: list[dict[str, Any]] = tomllib.loads(source.read_text(encoding="utf-8"))["threats"]
    return threats


def find_problems(threats: Sequence[dict[str, Any]], root: Path = ROOT) -> Iterator[str]:
    """Name threats that are incomplete, and tests and proofs that do not exist."""
    for each in threats:
        name = each.get("threat", "a threat without a name")
        if set(each) != _FIELDS or each["category"] not in CATEGORIES:
            yield f"{name}: write exactly {', '.join(sorted(_FIELDS))}, with a category of STRIDE"
            continue
        if not each["shown_by"]:
            yield f"{name}: name the test or proof that shows the mechanism"
        yield from (f"{name}: {shown} does not exist" for shown in each["shown_by"] if not _exists(shown, root))
    missing = set(CATEGORIES) - {each.get("category") for each in threats}
    yield from (f"no threat of the category {category}" for category in sorted(missing))


def _exists(shown: str, root: Path) -> bool:
    """Look for `tests/a/test_b.py::test_c`, or for a proof as it is run: `python -m proofs NAME`."""
    if shown.startswith("python -m proofs "):
        name = shown.removeprefix("python -m proofs ")
        return (root / "proofs" / f"{name}.py").exists() or (root / "proofs" / name / "experiment.py").exists()
    file, _, function = shown.partition("::")
    path = root / file
    return path.exists() and f"def {function}(" in path.read_text(encoding="utf-8")


def render_threats(threats: Sequence[dict[str, Any]]) -> str:
    """Render one table per category."""
    lines: list[str] = []
    for category, title in CATEGORIES.items():
        lines += ["", f"### {title}", "", *_HEAD]
        for each in threats:
            if each["category"] == category:
                shown = ", ".join(f"`{name}`" for name in each["shown_by"])
                lines.append(f"| {each['threat']} | {each['mechanism']} | {shown} | {each['not_protected']} |")
    return "\n".join([*lines[1:], ""])


def replace_table(page: str, table: str) -> str:
    """Put the table between the markers of a page."""
    before, opening, rest = page.partition(OPEN_MARK)
    _, closing, after = rest.partition(CLOSE_MARK)
    if not opening or not closing:
        raise ValueError(f"the page has no {OPEN_MARK} and {CLOSE_MARK}")
    return f"{before}{OPEN_MARK}\n\n{table}\n{CLOSE_MARK}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check both pages, or write them."""
    parser = argparse.ArgumentParser(prog="python -m checks.threats", description=__doc__)
    parser.add_argument("--write", action="store_true", help="render the table into both pages")
    options = parser.parse_args(arguments)
    threats = load_threats()
    problems = list(find_problems(threats))
    if not problems:
        table = render_threats(threats)
        for path in PAGES:
            page = path.read_text(encoding="utf-8")
            current = replace_table(page, table)
            if options.write:
                path.write_text(current, encoding="utf-8")
            elif page != current:
                problems.append(f"{path.relative_to(ROOT)} is out of date: run python -m checks.threats --write")
    for problem in problems:
        print(f"threats: {problem}", file=sys.stderr)
    if not problems:
        print(f"threats: {len(threats)} threats, in both pages")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
