"""Patterns that are not written in the source are compiled by one module, which matches them in linear time."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "deputize"
OWNER = SOURCE / "core" / "patterns.py"
_FUNCTIONS = frozenset({"compile", "match", "search", "fullmatch", "sub", "subn", "split", "findall", "finditer"})


def find_foreign_patterns(path: Path) -> Iterator[str]:
    """Find where a module gives `re` a pattern that is no constant, or uses another matcher."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = _list_constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            yield from (f"{path.name}:{node.lineno} imports {name}" for name in names if name in ("fnmatch", "re2"))
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and node.func.attr in _FUNCTIONS
            and not _is_constant(node.args[0], constants)
        ):
            yield f"{path.name}:{node.lineno} compiles a pattern at run time"


def _list_constants(tree: ast.Module) -> frozenset[str]:
    """List the module's own constants; imported ones are constants of other modules."""
    names = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id.isupper()
    }
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    return frozenset(names | {each.name for node in imports for each in node.names if each.name.isupper()})


def _is_constant(node: ast.expr, constants: frozenset[str]) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name in constants
        case ast.Attribute(value=ast.Name(id=name), attr="pattern"):
            return name in constants
        case ast.BinOp(left=left, right=right):
            return _is_constant(left, constants) and _is_constant(right, constants)
        case ast.JoinedStr(values=values):
            return all(_is_constant(each, constants) for each in values)
        case ast.FormattedValue(value=value):
            return _is_constant(value, constants)
        case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="join"), args=[ast.Name(id=name)]):
            return name in constants
        case _:
            return False


def test_only_one_module_compiles_patterns_that_come_from_outside() -> None:
    found = [each for path in sorted(SOURCE.rglob("*.py")) if path != OWNER for each in find_foreign_patterns(path)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    ["import re\ndef f(p): return re.compile(p)", "import re\ndef f(p): return re.search('a' + p, 'b')",
     "from fnmatch import fnmatch", "import re2"],
)  # fmt: skip
def test_a_pattern_from_outside_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.py").write_text(line)
    assert len(list(find_foreign_patterns(tmp_path / "a.py"))) == 1
