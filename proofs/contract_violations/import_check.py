"""Check by their source that the checkers and the generator share nothing."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_FOLDER = Path(__file__).parent
CHECKER_FILES = (
    _FOLDER / "checker.py",
    *sorted((_ROOT / "src" / "deputize" / "testing").rglob("*.py")),
    *sorted((_ROOT / "src" / "deputize" / "lifecycle").rglob("*.py")),
)
GENERATOR_FILES = tuple(
    _FOLDER / f"{name}.py" for name in ("base_tools", "faults", "generator", "kinds", "module_source")
)


def find_shared_imports() -> list[str]:
    """Name each import of a checker from the proofs, and each of the generator from the product or a checker."""
    product_or_checker = ("deputize", f"proofs.{_FOLDER.name}.checker")
    return [*find_imports(CHECKER_FILES, ("proofs",)), *find_imports(GENERATOR_FILES, product_or_checker)]


def find_imports(files: Iterable[Path], packages: tuple[str, ...]) -> list[str]:
    """Find what files import from packages, wherever it stands in them; a relative import may lead anywhere."""
    return [
        f"{file.name} imports {module}"
        for file in files
        for module in _list_modules(ast.parse(file.read_text(encoding="utf-8")))
        if module.startswith((".", *(f"{package}." for package in packages))) or module in packages
    ]


def _list_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            yield from (f"{start}.{alias.name}" for alias in node.names)
