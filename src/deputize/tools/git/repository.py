"""The repository of the operator, as data: its refs and objects, and never its configuration, hooks or attributes.

git sees it through a *view*: a git directory of ours whose refs and objects are links to those of the repository. All
that decides what git does is in the view, so nothing that is written into the repository runs a program. The one thing
that is ever written there is an `agent/…` branch that a person approved (`hand_over`).
"""

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deputize import SemanticViolation, ToolPrecondition
from deputize.tools.git.process import CONFIG, Deadline, GitFailed, GitSandbox, run_git

AGENT_PREFIX: Final = "agent/"
BRANCH_PATTERN: Final = r"^agent/[a-z0-9]+(?:[-_][a-z0-9]+)*$"
MAX_BRANCH: Final = 80
# A branch, tag or branch of a remote by its name, or a commit by its id. Nothing that git would take for more.
REF_PATTERN: Final = r"^[A-Za-z0-9_][A-Za-z0-9_+-]*(?:[./][A-Za-z0-9_+-]+)*$"
MAX_REF: Final = 200
COMMIT_PATTERN: Final = r"^[0-9a-f]{40}$"
_BRANCH: Final = re.compile(BRANCH_PATTERN)
_COMMIT: Final = re.compile(COMMIT_PATTERN)
_SYMBOLIC: Final = re.compile(r"ref: refs/heads/([^\s\x00-\x1f]{1,200})\s*")
_MAX_REFS: Final = 20_000
_MAX_DATA_BYTES: Final = 1024 * 1024
# What git must not read by these tools, since it is elsewhere or of another kind.
_UNREADABLE: Final = {
    "partialclone": "it is a partial clone, whose objects come from elsewhere; clone it whole",
    "objectformat": "it has another kind of object names than SHA-1",
    "refstorage": "it keeps refs in another format than files",
    "relativeworktrees": "it needs a newer git",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Refs:
    """The commits that names stand for now. `head` is the checked out branch, or its commit if there is none."""

    heads: dict[str, str]
    tags: dict[str, str]
    remotes: dict[str, str]
    head: str

    def find(self, name: str) -> str | None:
        if name == "HEAD":
            name = self.head
        for names in (self.heads, self.tags, self.remotes):
            if name in names:
                return names[name]
        return name if name == self.head and _COMMIT.fullmatch(name) else None


class Repository:
    """One repository. Raise ValueError, with the file and line at fault, if it cannot be read as data."""

    def __init__(self, program: str, path: Path) -> None:
        self.program = program
        self.path = path
        self.git_dir = _find_git_dir(path)
        self.require_plain()

    @property
    def objects(self) -> Path:
        return self.git_dir / "objects"

    def list_readable(self) -> list[Path]:
        """List what git reads of it: not its configuration, in which there may be secrets."""
        return [each for name in ("refs", "objects", "packed-refs") if (each := self.git_dir / name).exists()]

    def require_plain(self) -> None:
        """Raise ValueError unless all that git would follow from here stays in the repository."""
        for name in ("", "refs", "refs/heads", "refs/tags", "refs/remotes", "objects"):
            _require_kind(self.git_dir, name, stat.S_ISDIR, "folder")
        for name in ("HEAD", "config", "packed-refs", "shallow"):
            _require_kind(self.git_dir, name, stat.S_ISREG, "file")
        for name in (*_walk_folders(self.git_dir, "refs"), *_walk_folders(self.git_dir, "objects", depth=1)):
            _require_kind(self.git_dir, name, stat.S_ISDIR, "folder")
        for name in ("commondir", "shallow", "objects/info/alternates", "objects/info/http-alternates"):
            line = next(iter(_read_lines(self.git_dir / name)), None)
            if line is not None:
                raise ValueError(
                    f"{name} line {line[0]} ({line[1][:100]!r}) says that parts of it are elsewhere or missing; use a "
                    "whole clone"
                )
        self._require_extensions()

    def read_refs(self, view: Path, deadline: Deadline, sandbox: GitSandbox | None = None) -> Refs:
        """Read what names stand for now."""
        listed = run_git(
            self.program, view, "for-each-ref", f"--count={_MAX_REFS}",
            "--format=%(objectname) %(*objectname) %(refname)", "refs/heads", "refs/tags", "refs/remotes",
            deadline=deadline, sandbox=sandbox,
        )  # fmt: skip
        found: dict[str, dict[str, str]] = {"heads": {}, "tags": {}, "remotes": {}}
        for line in listed.text.splitlines():
            own, peeled, name = line.split(" ", 2)
            _, kind, short = name.split("/", 2)
            found[kind][short] = peeled or own
        return Refs(heads=found["heads"], tags=found["tags"], remotes=found["remotes"], head=self._read_head())

    def make_view(self, view: Path) -> Path:
        """Create the view of this repository in a folder of ours."""
        view.mkdir(parents=True, exist_ok=True)
        for name in ("refs", "objects", "packed-refs"):
            if not (view / name).is_symlink():
                (view / name).symlink_to(self.git_dir / name)
        (view / "HEAD").write_text("ref: refs/heads/none\n")
        (view / "config").write_text(CONFIG)
        return view

    def hand_over(self, view: Path, store: Path, branch: str, deadline: Deadline) -> None:
        """Bring a branch of an agent here. git refuses one that does not come after what is here by then."""
        require_agent_branch(branch)
        try:
            self.require_plain()
        except ValueError as error:
            raise ToolPrecondition(f"the repository is not written to: {error}") from error
        if branch in self._list_checked_out():
            raise ToolPrecondition(f"{branch} is checked out there: ask its owner to check out another branch first")
        refspec = f"refs/heads/{branch}:refs/heads/{branch}"
        try:
            run_git(
                self.program, view, "fetch", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance",
                "--no-recurse-submodules", "--no-prune", "--", str(store), refspec,
                deadline=deadline, environment={"GIT_ALLOW_PROTOCOL": "file"},
            )  # fmt: skip
        except GitFailed as error:
            raise error.replace(nothing_happened=error.status is not None) from error

    def _read_head(self) -> str:
        text = _read_data(self.git_dir / "HEAD").strip()
        symbolic = _SYMBOLIC.fullmatch(text)
        return symbolic[1] if symbolic else text[:40]

    def _list_checked_out(self) -> list[str]:
        files = [self.git_dir / "HEAD", *sorted((self.git_dir / "worktrees").glob("*/HEAD"))]
        found = (_SYMBOLIC.fullmatch(_read_data(each)) for each in files)
        return [each[1] for each in found if each is not None]

    def _require_extensions(self) -> None:
        section = ""
        for number, line in _read_lines(self.git_dir / "config"):
            header = re.match(r"\[\s*([\w.-]+)[^\]]*\](.*)", line)
            section, rest = (header[1].lower(), header[2].strip()) if header else (section, line)
            name, _, value = (each.strip().lower() for each in rest.partition("="))
            reason = _UNREADABLE.get(name) if section == "extensions" else None
            if reason is not None and value not in ("sha1", "files", "false"):
                raise ValueError(f"config line {number} ({line[:100]!r}): {reason}")


def require_agent_branch(name: str) -> str:
    """Return the name of a branch without its prefix; raise `SemanticViolation` if it is no branch of an agent."""
    if len(name) > MAX_BRANCH or _BRANCH.fullmatch(name) is None:
        raise SemanticViolation(
            f"{name[:100]} is no branch of an agent: write agent/ and a name, as in agent/fix-login"
        )
    return name.removeprefix(AGENT_PREFIX)


def _find_git_dir(path: Path) -> Path:
    inner = path / ".git"
    if inner.is_symlink() or inner.is_file():
        raise ValueError("its .git leads elsewhere, as in a submodule or linked working tree; name the main one")
    git_dir = inner if inner.is_dir() else path
    if not ((git_dir / "objects").is_dir() and (git_dir / "HEAD").exists()):
        raise ValueError("there is no git repository; create it with git init")
    return git_dir


def _require_kind(git_dir: Path, name: str, is_kind: Callable[[int], bool], what: str) -> None:
    try:
        mode = os.lstat(git_dir / name).st_mode
    except FileNotFoundError:
        return
    if not is_kind(mode):
        raise ValueError(f"{name or git_dir.name} is no plain {what}, so it may lead elsewhere; use a whole clone")


def _walk_folders(git_dir: Path, name: str, *, depth: int = 16) -> Iterator[str]:
    """List what is below a folder but plain files, with what could lead elsewhere."""
    with os.scandir(git_dir / name) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                continue
            yield f"{name}/{entry.name}"
            if depth > 0 and entry.is_dir(follow_symlinks=False):
                yield from _walk_folders(git_dir, f"{name}/{entry.name}", depth=depth - 1)


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(_read_data(path).splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith(("#", ";")):
            yield number, line.strip()


def _read_data(path: Path) -> str:
    """Read a file of the repository, unless it is none: opening a pipe would wait."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return file.read(_MAX_DATA_BYTES).decode(errors="replace")
