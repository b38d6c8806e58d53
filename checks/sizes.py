"""Asks about every file over 400 lines and every function over 50.

Such a size is a question about the room the code lives in, not a number to dodge. The answer is either a
better shape or an entry in `sizes.toml` beside this file, with the reason. An entry that is no longer needed
fails too, so that the list stays a list of living exceptions.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "verifier", "proofs", "tests", "checks")
SUFFIXES = (".py", ".sql")
MAX_LINES = {"file": 400, "function": 50}


@dataclass(frozen=True, kw_only=True, slots=True)
class LargeItem:
    """Something longer than its kind may be: a file, or `file::Class.function`."""

    kind: str
    name: str
    lines: int


def find_large(root: Path) -> list[LargeItem]:
    """Find everything that is too large under the folders of a checkout."""
    large_items: list[LargeItem] = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                large_items += _measure_file(path, name=path.relative_to(root).as_posix())
    return large_items


def _measure_file(path: Path, *, name: str) -> list[LargeItem]:
    text = path.read_text(encoding="utf-8")
    sizes = [LargeItem(kind="file", name=name, lines=len(text.splitlines()))]
    if path.suffix == ".py":
        sizes += _walk_functions(ast.parse(text, filename=str(path)), prefix=f"{name}::")
    return [size for size in sizes if size.lines > MAX_LINES[size.kind]]


def _walk_functions(node: ast.AST, *, prefix: str) -> Iterator[LargeItem]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                lines = (child.end_lineno or child.lineno) - child.lineno + 1
                yield LargeItem(kind="function", name=prefix + name, lines=lines)
                yield from _walk_functions(child, prefix=f"{prefix}{name}.")
            case ast.ClassDef(name=name):
                yield from _walk_functions(child, prefix=f"{prefix}{name}.")
            case _:
                yield from _walk_functions(child, prefix=prefix)


def find_problems(large_items: Sequence[LargeItem], excuses: Mapping[str, str]) -> list[str]:
    """Compare what is large with what is excused, in both directions."""
    names = {size.name for size in large_items}
    unexcused_items = [
        f"{size.name}: {size.lines} lines in a {size.kind}, {MAX_LINES[size.kind]} asked. "
        "Does it belong in two places? If not, give the reason in checks/sizes.toml."
        for size in large_items
        if not excuses.get(size.name, "").strip()
    ]
    idle = [f"{name}: no longer too large; take it out of checks/sizes.toml" for name in excuses if name not in names]
    return unexcused_items + idle


def main() -> int:
    """Run the check over this checkout."""
    excuses: dict[str, str] = tomllib.loads((ROOT / "checks" / "sizes.toml").read_text(encoding="utf-8"))
    problems = find_problems(find_large(ROOT), excuses)
    for problem in problems:
        print(f"sizes: {problem}", file=sys.stderr)
    if not problems:
        print(f"sizes: every file and function fits, {len(excuses)} excused")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
