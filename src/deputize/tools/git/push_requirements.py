"""Require that commands of `[builtin.build]` passed on exactly the files that are pushed.

What passed is a file beside the branches, which outlives a restart and which no tool of agents reaches. Its name
follows from the tenant, the command and the tree that it ran on. That tree has every file that the command saw, also
the ignored ones that are never committed, so that a run counts for no other files than its own.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from deputize import ToolPrecondition
from deputize.tools.files.folder import RESERVED_NAME
from deputize.tools.git.branches import Branches
from deputize.tools.git.process import Deadline

# What has to pass: the name of the tool in `build.*`, and what it runs. Another command under the same name is another.
RequiredCommands = tuple[tuple[str, tuple[str, ...]], ...]
_MAX_PASSES: Final = 10_000
_OPEN_SECONDS: Final = 60.0


@dataclass(kw_only=True, slots=True)
class BranchRun:
    """One run of a command on the files of a branch. A pass counts for the files that were opened."""

    requirements: "PushRequirements"
    branch: str
    name: str
    tenant: str
    _tree: str | None = field(default=None, init=False)

    @contextmanager
    def open_files(self) -> Iterator[Path]:
        """Open the files of the branch as they are, which no call changes meanwhile."""
        branches, deadline = self.requirements.branches, Deadline.after(_OPEN_SECONDS)
        with branches.open_branch(self.branch, deadline) as opened:
            if self.requirements.find_command(self.name) is not None:
                _remove_empty_folders(opened.tree)
                self._tree = branches.write_whole_tree(opened, deadline)
            yield opened.tree

    def record_pass(self) -> None:
        """Keep that the command passed, if a push needs that."""
        if self._tree is not None:
            self.requirements.record_pass(self.tenant, self.name, self._tree)


@dataclass(frozen=True, kw_only=True, slots=True)
class PushRequirements:
    """The commands that have to pass before a branch is pushed, and on which files they did."""

    branches: Branches
    commands: RequiredCommands = ()

    def find_command(self, name: str) -> Sequence[str] | None:
        return dict(self.commands).get(name)

    def record_pass(self, tenant: str, name: str, tree: str) -> None:
        """Keep that a command passed on a tree."""
        path = self._locate(tenant, name, tree)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_suffix(f".{os.urandom(8).hex()}")
        with new.open("wb") as file:
            file.write(orjson.dumps({"tenant": tenant, "command": name, "tree": tree}))
            os.fsync(file.fileno())
        new.replace(path)
        _remove_oldest(path.parent)

    def list_missing(self, tenant: str, commit: str, deadline: Deadline) -> list[str]:
        """List the commands that have not passed on the files of a commit."""
        if not self.commands:
            return []
        tree = self.branches.git("rev-parse", "--verify", f"{commit}^{{tree}}", deadline=deadline).line
        return [name for name, _ in self.commands if not self._locate(tenant, name, tree).exists()]

    def require_passes(self, tenant: str, branch: str, commit: str, deadline: Deadline) -> None:
        """Raise `ToolPrecondition` unless all have passed on the files of a commit."""
        missing = self.list_missing(tenant, commit, deadline)
        if missing:
            raise ToolPrecondition(
                f"{branch} was not pushed: {' and '.join(missing)} must pass on its files first. "
                f"{describe_remedy(branch, missing)}",
                details={"missing": missing, "head": commit},
            )

    def describe(self, tenant: str, branch: str, commit: str, deadline: Deadline) -> list[dict[str, Any]]:
        """Describe the requirements as preconditions of a preview."""
        if not self.commands:
            return []
        missing = self.list_missing(tenant, commit, deadline)
        names = missing or [name for name, _ in self.commands]
        verb = "passed" if not missing else "has not passed" if len(missing) == 1 else "have not passed"
        detail = f"{' and '.join(names)} {verb} on the files of {commit}"
        if missing:
            detail += f". {describe_remedy(branch, missing)}"
        # A refusal gives the name and then the detail: the name must not say that they passed.
        return [{"name": "required commands", "holds": not missing, "detail": detail}]

    def _locate(self, tenant: str, name: str, tree: str) -> Path:
        identity = orjson.dumps([tenant, name, self.find_command(name), tree])
        return self.branches.data / "passes" / f"{hashlib.sha256(identity).hexdigest()}.json"


def describe_remedy(branch: str, missing: Sequence[str]) -> str:
    """Say which calls would provide what is missing."""
    calls = " and ".join(f"build.{name}" for name in missing)
    return f"Commit or take back all changes, ignored files too, then call {calls} with branch={branch}"


def _remove_empty_folders(folder: Path) -> None:
    """Remove the folders that no commit has, so that the command does not see them either."""
    for parent, _, _ in os.walk(folder, topdown=False):
        if Path(parent) != folder and Path(parent).relative_to(folder).parts[0] != RESERVED_NAME:
            with suppress(OSError):
                os.rmdir(parent)


def _remove_oldest(folder: Path) -> None:
    """Bound how many are kept; one that is removed has to be run again."""
    passes = list(folder.glob("*.json"))
    if len(passes) > _MAX_PASSES:
        for each in sorted(passes, key=lambda path: path.stat().st_mtime)[: _MAX_PASSES // 10]:
            each.unlink(missing_ok=True)
