"""Fail when a fault that `python -m proofs mutants` plants does not fit the source, or its tests do not exist."""

import ast
import sys
from pathlib import Path

from proofs.mutants.mutant import Mutant, load_mutants

ROOT = Path(__file__).resolve().parent.parent


def find_problems(mutants: list[Mutant], root: Path) -> list[str]:
    """Name each mutant that cannot be applied, changes no syntax tree, or breaks it."""
    problems = []
    for mutant in mutants:
        problem = mutant.find_problem(root) or _find_syntax_problem(mutant, root)
        if problem is not None:
            problems.append(problem)
    packages = {path.parent.name for path in (root / "src" / "deputize").glob("*/__init__.py")}
    missing = sorted(packages - {mutant.file.partition("/")[0] for mutant in mutants})
    return problems + [f"no fault is planted in src/deputize/{package}" for package in missing]


def _find_syntax_problem(mutant: Mutant, root: Path) -> str | None:
    """Parse a changed Python file: a fault that does not even parse shows nothing about the tests."""
    if not mutant.file.endswith(".py"):
        return None
    text = (root / "src" / "deputize" / mutant.file).read_text(encoding="utf-8")
    try:
        changed_tree = ast.parse(text.replace(mutant.old, mutant.new))
    except SyntaxError as error:
        return f"{mutant.name}: src/deputize/{mutant.file} does not parse with it: {error.msg}"
    return f"{mutant.name}: it changes nothing" if ast.dump(changed_tree) == ast.dump(ast.parse(text)) else None


def main() -> int:
    mutants = load_mutants()
    problems = find_problems(mutants, ROOT)
    for problem in problems:
        print(f"mutants: {problem}")
    if not problems:
        print(f"mutants: {len(mutants)} faults fit the source")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
