"""Load the planted faults, and apply one to a copy of the source."""

import hashlib
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FAULTS: Final = Path(__file__).parent / "faults"
_FIELDS: Final = frozenset({"fault", "file", "old", "new", "tests", "equivalent"})


class MutantOutdated(Exception):
    """A mutant whose text is not exactly once in the source, so that it changes nothing or too much."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """One fault: what to replace in which file, and the tests that have to notice."""

    name: str
    fault: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    equivalent: str | None = None
    """Why no test can notice it; then it is not run."""

    def find_problem(self, root: Path) -> str | None:
        """Say why the mutant cannot be applied to this tree, or return None."""
        source = root / "src" / "deputize" / self.file
        if not source.is_file():
            return f"{self.name}: there is no src/deputize/{self.file}"
        count = source.read_text(encoding="utf-8").count(self.old)
        if count != 1:
            return f"{self.name}: its text is {count} times in src/deputize/{self.file}; adapt the mutant to the code"
        missing = [test for test in self.tests if not _has_test(root / "tests", test)]
        if missing or not self.tests or self.old == self.new:
            return f"{self.name}: it changes nothing, or these tests do not exist: {', '.join(missing) or 'none named'}"
        return None

    @contextmanager
    def apply(self, root: Path) -> Iterator[None]:
        """Apply the mutant to a tree, and restore the file afterwards."""
        problem = self.find_problem(root)
        if problem is not None:
            raise MutantOutdated(problem)
        source = root / "src" / "deputize" / self.file
        text = source.read_text(encoding="utf-8")
        source.write_text(text.replace(self.old, self.new), encoding="utf-8")
        try:
            yield
        finally:
            source.write_text(text, encoding="utf-8")


def _has_test(folder: Path, test: str) -> bool:
    """Tell whether a test file is there, and has the function if one is named: `unit/test_x.py::test_y`."""
    name, _, function = test.partition("::")
    file = folder / name
    return file.is_file() and (not function or f"def {function}(" in file.read_text(encoding="utf-8"))


def load_mutants(folder: Path = FAULTS) -> list[Mutant]:
    """Load the mutants of all packages; each file is named after its package."""
    mutants = [
        _read_mutant(file, name, table)
        for file in sorted(folder.glob("*.toml"))
        for name, table in tomllib.loads(file.read_text(encoding="utf-8")).items()
    ]
    names = [each.name for each in mutants]
    if len(set(names)) != len(names):
        raise ValueError(f"two mutants have one name: {', '.join({name for name in names if names.count(name) > 1})}")
    return mutants


def _read_mutant(file: Path, name: str, table: dict[str, Any]) -> Mutant:
    if table.keys() - _FIELDS or not str(table.get("file", "")).startswith(f"{file.stem}/"):
        raise ValueError(f"{file.name}: [{name}] has unknown fields, or changes a file of another package")
    return Mutant(**{**table, "name": name, "tests": tuple(table["tests"])})


def choose_mutants(mutants: Sequence[Mutant], seed: str, count: int) -> list[Mutant]:
    """Choose a few by a seed, such as a commit: with every commit others, and the same again for the same one."""

    def compute_rank(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed} {mutant.name}".encode()).digest()

    return sorted(mutants, key=compute_rank)[:count]
