"""Fail on a migration that could hold up a live gateway: without a lock timeout, or with an index built in the way.

Fail also where the revisions are not one line in the order of their names: a database could not be migrated; and where
one does not say whether it is an expand or a contract, or drops what older releases use and does not say so.

Every revision begins with `set_lock_timeout()`, and builds indexes on tables that exist with
`create_index_concurrently`, in a revision that does nothing else; `store/migrations/__init__.py` has the rules and the
reasons.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "src" / "deputize" / "store" / "migrations" / "versions"
_COMMENT = re.compile(r"--[^\n]*")
_CREATE_TABLE = re.compile(r"\bcreate\s+table\s+(?:if\s+not\s+exists\s+)?deputize\.(\w+)", re.IGNORECASE)
_CREATE_INDEX = re.compile(
    r"\bcreate\s+(?:unique\s+)?index\s+(?!concurrently)(?:if\s+not\s+exists\s+)?\w+\s+on\s+(?:only\s+)?deputize\.(\w+)",
    re.IGNORECASE,
)
_RELEASE = re.compile(r"\d+\.\d+\.\d+")
_DROPS = re.compile(r"\bdrop\s+(?:table|column)\b|\brename\s+(?:column\s+\w+\s+)?to\b", re.IGNORECASE)


def find_faults(folder: Path) -> list[str]:
    """Find what is wrong with the revisions of a folder, as `file: what, what to do`."""
    return [fault for path in sorted(folder.glob("*.py")) for fault in _faults_of_revision(path)]


def find_chain_faults(folder: Path) -> list[str]:
    """Find revisions that do not bear the name of their file, or do not follow the one before them."""
    faults: list[str] = []
    previous: str | None = None
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        if _read_constant(tree, "revision") != path.stem:
            faults.append(f"{path.name}: revision is not the name of the file: write revision = {path.stem!r}")
        if _read_constant(tree, "down_revision") != previous:
            faults.append(f"{path.name}: does not follow the revision before it: write down_revision = {previous!r}")
        previous = path.stem
    return faults


def find_release_faults(folder: Path) -> list[str]:
    """Find revisions that do not say, or say wrongly, which releases run on the schema after them."""
    faults: list[str] = []
    previous: tuple[int, ...] | None = None
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        kind, oldest = _read_constant(tree, "kind"), _read_constant(tree, "oldest_release")
        if kind not in ("expand", "contract"):
            faults.append(f'{path.name}: kind is neither "expand" nor "contract": write one')
        if not isinstance(oldest, str) or not _RELEASE.fullmatch(oldest):
            faults.append(f'{path.name}: oldest_release is no release: write it as "0.1.0"')
            continue
        numbers = tuple(map(int, oldest.split(".")))
        if previous is not None and (numbers < previous or (kind == "expand" and numbers != previous)):
            faults.append(
                f"{path.name}: oldest_release {oldest} is not that of the revision before: only a contract raises it"
            )
        previous = numbers
        statements = [_COMMENT.sub("", text) for text in (*_strings_of(tree), *map(Path.read_text, _sql_of(path)))]
        dropped = next((found[0] for found in map(_DROPS.search, statements) if found), None)
        if kind == "expand" and dropped is not None:
            faults.append(
                f"{path.name}: {' '.join(dropped.split())} takes away what older releases use: make it a contract"
            )
    return faults


def _read_constant(tree: ast.Module, name: str) -> object:
    """Read the value that a module assigns to a name, with or without a type."""
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(each, ast.Name) and each.id == name for each in targets):
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            return value.value if isinstance(value, ast.Constant) else ...
    return ...


def _faults_of_revision(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    upgrade = next((each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "upgrade"), None)
    if upgrade is None or "set_lock_timeout" not in ast.unparse(upgrade.body[0]):
        yield f"{path.name}: upgrade() does not begin with set_lock_timeout(): add it"
    if "op.create_index" in ast.unparse(tree):
        yield f"{path.name}: op.create_index holds up writers: use create_index_concurrently"
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    if "create_index_concurrently" in called and called & {"run_sql", "run_sql_files"}:
        yield (
            f"{path.name}: create_index_concurrently commits what was done before it, so that the revision cannot be "
            "repeated: build the index in a revision of its own"
        )
    texts = {path: "\n".join(_strings_of(tree))} | {each: each.read_text(encoding="utf-8") for each in _sql_of(path)}
    tables = {table for text in texts.values() for table in _CREATE_TABLE.findall(_COMMENT.sub("", text))}
    for file, text in texts.items():
        for table in _CREATE_INDEX.findall(_COMMENT.sub("", text)):
            if table not in tables:
                yield (
                    f"{file.name}: create index on {table}, which exists, holds up writers: "
                    "use create_index_concurrently"
                )


def _strings_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _sql_of(revision: Path) -> list[Path]:
    """List the SQL files of a revision: the one beside it, or those in the folder of its name."""
    return [*revision.parent.glob(f"{revision.stem}.sql"), *sorted((revision.parent / revision.stem).glob("*.sql"))]


def main() -> int:
    """Check the revisions of this checkout."""
    faults = [*find_chain_faults(FOLDER), *find_release_faults(FOLDER), *find_faults(FOLDER)]
    for fault in faults:
        print(f"migrations: {fault}", file=sys.stderr)
    if not faults:
        print("migrations: every revision sets a lock timeout and holds nobody up")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
