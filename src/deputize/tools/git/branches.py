"""The branches of agents: each with its own folder, in a git directory of ours that borrows the repository's objects.

Nothing here is in the repository, and its checkout is never touched. A branch moves by compare-and-set: whoever changes
it names the head that they saw. What one call does to a branch is done when its ref has moved, which is the last step,
so a call that a crash interrupted happened or did not; its id, which follows from the key of the call, is in the
commit or in the record of the branch, where a repeated call finds it.
"""

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import orjson

from deputize import ToolConflict, ToolFailed, ToolPrecondition
from deputize.tools.files.folder import RESERVED_NAME, Folder
from deputize.tools.git.process import (
    ATTRIBUTES,
    CONFIG,
    Deadline,
    GitFailed,
    GitOutput,
    GitSandbox,
    OpenGitSandbox,
    find_program,
    run_git,
)
from deputize.tools.git.repository import AGENT_PREFIX, Refs, Repository, require_agent_branch

NO_COMMIT: Final = "0" * 40
# Ends the message of each commit, so that a call that is repeated after a crash finds what it did.
_CHANGE_TRAILER: Final = "Deputize-Change: "
_PERSON_TRAILER: Final = "On-behalf-of: "
_SEARCHED_COMMITS: Final = 50
_MAX_BRANCHES: Final = 200
# Of the files that one branch begins with. Those of all branches must leave as much of the disk free.
_MAX_TREE_FILES: Final = 100_000
_MAX_TREE_BYTES: Final = 2_147_483_648
_LISTING_BYTES: Final = 33_554_432
_WAIT_SECONDS: Final = 2.0
_GITLINK: Final = "160000"
_SUBMODULE: Final = "submodule"
_CHANGE_NAMES: Final = {"A": "added", "D": "deleted", "T": "type changed"}
_EMAIL: Final = "agent@deputize.invalid"


@dataclass(frozen=True, kw_only=True, slots=True)
class BranchMove:
    """The head of a branch before and after; 40 zeros stand for no branch."""

    branch: str
    before: str
    head: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedPath:
    """A path that differs between two trees."""

    path: str
    change: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Author:
    """Who made a commit, and for whom."""

    agent: str
    person: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenBranch:
    """A branch that no other call changes meanwhile."""

    name: str
    head: str
    place: Path

    @property
    def tree(self) -> Path:
        return self.place / "tree"


class Branches:
    """The agents' branches of one repository, and the folders in which they are worked on."""

    def __init__(
        self, path: Path, data: Path, remote: Path | None = None, open_sandbox: OpenGitSandbox | None = None
    ) -> None:
        self.program = find_program()
        self.repository = Repository(self.program, path)
        self.remote = self.repository if remote is None else Repository(self.program, remote)
        self.data = data
        self._open_sandbox = open_sandbox
        # The sandbox of the call that this thread works on.
        self._current = threading.local()
        self._lock = threading.Lock()
        self._is_prepared = False
        self._folders: dict[str, Folder] = {}

    @property
    def store(self) -> Path:
        return self.data / "store"

    def git(self, *arguments: str, deadline: Deadline, max_bytes: int = 8 * 1024 * 1024) -> GitOutput:
        """Run git in the directory of ours, to read: in a sandbox that can write nothing, where there are any."""
        with self.share_sandbox() as sandbox:
            self._prepare()
            return run_git(
                self.program, self.store, *arguments, deadline=deadline, max_bytes=max_bytes, sandbox=sandbox
            )

    @contextmanager
    def share_sandbox(self) -> Iterator[GitSandbox | None]:
        """Let what this thread reads meanwhile have one sandbox. It starts with the first command."""
        shared: GitSandbox | None = getattr(self._current, "sandbox", None)
        if shared is not None or self._open_sandbox is None:
            yield shared
            return
        self._prepare()
        folders = [self.store, self.data / "view", self.data / "remote", *self.repository.list_readable()]
        folders += [each for each in self.remote.list_readable() if each not in folders]
        with self._open_sandbox(folders) as sandbox:
            self._current.sandbox = sandbox
            try:
                yield sandbox
            finally:
                self._current.sandbox = None

    def _change(
        self, *arguments: str, deadline: Deadline, environment: Mapping[str, str] | None = None,
        cwd: Path | None = None, stdin: bytes = b"",
    ) -> GitOutput:  # fmt: skip
        """Run git in the directory of ours as the gateway: it writes there, or reads what only the gateway wrote."""
        self._prepare()
        return run_git(
            self.program, self.store, *arguments, deadline=deadline, environment=environment, cwd=cwd, stdin=stdin
        )

    def read_heads(self, deadline: Deadline) -> dict[str, str]:
        """Read the heads of all branches of agents."""
        listed = self._change(
            "for-each-ref", "--format=%(objectname) %(refname:lstrip=2)", f"refs/heads/{AGENT_PREFIX}",
            deadline=deadline,
        )  # fmt: skip
        pairs = (line.split(" ", 1) for line in listed.text.splitlines())
        return {name: commit for commit, name in pairs}

    def read_refs(self, deadline: Deadline) -> Refs:
        """Read the names of the operator's repository."""
        with self.share_sandbox() as sandbox:
            self._prepare()
            return self.repository.read_refs(self.data / "view", deadline, sandbox)

    def read_remote_head(self, branch: str, deadline: Deadline) -> str:
        """Read the commit of a branch where it is pushed to."""
        with self.share_sandbox() as sandbox:
            self._prepare()
            refs = self.remote.read_refs(self.data / "remote", deadline, sandbox)
        return refs.heads.get(branch, NO_COMMIT)

    def find_commit(self, ref: str, deadline: Deadline) -> str:
        """Find the commit of a name or id. Names are looked up here: git gets ids alone."""
        commit = self.read_heads(deadline).get(ref) or self.read_refs(deadline).find(ref)
        if commit is None and len(ref) == len(NO_COMMIT) and set(ref) <= set("0123456789abcdef"):
            commit = ref
        if commit is not None:
            try:
                return self.git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", deadline=deadline).line
            except GitFailed as error:
                if error.status is None:
                    raise
        raise ToolPrecondition(f"there is no branch, tag or commit {ref}: git.branches lists what there is")

    def find_base(self, commit: str, remote: str, deadline: Deadline) -> str | None:
        """Find what a push would be compared with: what is there, or where the branch began; None for no commit."""
        if commit == NO_COMMIT:
            return None
        heads = sorted(set(self.read_refs(deadline).heads.values()))[:_MAX_BRANCHES]
        for others in ([remote], heads):
            with suppress(GitFailed):
                return self.git("merge-base", commit, *others, deadline=deadline).line
        return None

    @contextmanager
    def open_branch(self, name: str, deadline: Deadline) -> Iterator[OpenBranch]:
        """Open a branch that there is, for one call at a time in all processes."""
        with self._hold(name, deadline) as place:
            head = self._read_head(name, deadline)
            if head == NO_COMMIT:
                raise _describe_absence(name)
            yield OpenBranch(name=name, head=head, place=place)

    def open_folder(self, branch: OpenBranch) -> Folder:
        """Open the folder of a branch, to read and change its files."""
        with self._lock:
            if branch.name not in self._folders:
                self._folders[branch.name] = Folder(branch.tree)
            return self._folders[branch.name]

    def start(self, change: str, name: str, commit: str, deadline: Deadline) -> BranchMove:
        """Begin a branch at a commit, with the files of that commit."""
        self._locate(name).mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._hold(name, deadline) as place:
            move, head = BranchMove(branch=name, before=NO_COMMIT, head=commit), self._read_head(name, deadline)
            if head != NO_COMMIT:
                record = _read_record(place) or {}
                if (record.pop("change", ""), record.get("before")) == (change, NO_COMMIT):
                    return BranchMove(**record)
                raise ToolConflict(f"there is a branch {name} already, at {head}: choose another name")
            if len(self.read_heads(deadline)) >= _MAX_BRANCHES:
                raise ToolPrecondition(f"there are {_MAX_BRANCHES} branches already: end one with git.drop")
            self._check_out(place, commit, deadline)
            _write_record(place, {"change": change, **asdict(move)})
            self._move(move, deadline)
            return move

    def drop(self, change: str, name: str, expected: str, deadline: Deadline) -> BranchMove:
        """End a branch whose files are all committed; its commits stay, so it can be begun there again."""
        with self._hold(name, deadline) as place:
            move, head = BranchMove(branch=name, before=expected, head=NO_COMMIT), self._read_head(name, deadline)
            record = {"change": change, **asdict(move)}
            if head == NO_COMMIT and _read_record(place) == record:
                self._remove_files(place)
                return move
            branch = _require_head(OpenBranch(name=name, head=head, place=place), expected)
            if unsaved := self.describe_unsaved(branch, deadline):
                raise ToolPrecondition(f"{name} {unsaved}")
            _write_record(place, record)
            self._move(move, deadline)
            self._remove_files(place)
            return move

    def commit(
        self, change: str, name: str, message: str, expected: str, author: Author, deadline: Deadline, *,
        expected_tree: str | None = None,
    ) -> BranchMove:  # fmt: skip
        """Commit the files of a branch as they are."""
        with self.open_branch(name, deadline) as branch:
            done = None if branch.head == expected else self._find_done(change, branch.head, deadline)
            if done is not None:
                return BranchMove(branch=name, before=done[0], head=done[1])
            _require_head(branch, expected)
            tree = self.write_tree(branch, deadline)
            if expected_tree not in (None, tree):
                raise ToolConflict(f"the files of {name} are not those that were approved: preview the commit again")
            self.require_committable(branch, tree, deadline)
            commit = self._write_commit(tree, expected, _end_message(message, author, change), author, deadline)
            move = BranchMove(branch=name, before=expected, head=commit)
            self._move(move, deadline)
            return move

    def reset(self, name: str, to: str, expected: str, deadline: Deadline) -> BranchMove:
        """Set a branch to another commit of its own line; its files stay as they are."""
        with self.open_branch(name, deadline) as branch:
            move = BranchMove(branch=name, before=expected, head=to)
            if branch.head == to != expected:
                return move
            _require_head(branch, expected)
            if not (self._is_ancestor(to, expected, deadline) or self._is_ancestor(expected, to, deadline)):
                raise ToolPrecondition(f"{to} is neither before nor after {expected} on {name}")
            self._move(move, deadline)
            return move

    def push(
        self, name: str, expected: str, deadline: Deadline, *, require: Callable[[], None] | None = None
    ) -> BranchMove:
        """Hand a branch over, if it comes after what is there and what is required of it holds then."""
        with self.open_branch(name, deadline) as branch:
            _require_head(branch, expected)
            before = self.read_remote_head(name, deadline)
            if before != NO_COMMIT and not self._is_ancestor(before, expected, deadline):
                raise ToolConflict(
                    f"{name} was not pushed: the branch there has commits that yours does not, and is never "
                    "overwritten. Start a new branch",
                    details={"remote_head": before},
                )
            if before != expected:
                if require is not None:
                    require()
                self.remote.hand_over(self.data / "remote", self.store, name, deadline)
            return BranchMove(branch=name, before=before, head=expected)

    def write_tree(self, branch: OpenBranch, deadline: Deadline) -> str:
        """Write the files of a branch as a tree, without those that it ignores, and return its id."""
        return self._write_tree(branch, branch.place / "index", deadline)

    def write_whole_tree(self, branch: OpenBranch, deadline: Deadline) -> str:
        """Write all files of a branch as a tree, also those that it ignores, as they are read now; return its id."""
        index = branch.place / "whole-index"
        index.unlink(missing_ok=True)
        return self._write_tree(branch, index, deadline, "--force")

    def describe_unsaved(self, branch: OpenBranch, deadline: Deadline) -> str | None:
        """Say which files of a branch its head does not have; None if it has all, so that it can begin there again."""
        if self.list_changes(branch.head, self.write_tree(branch, deadline), deadline):
            return "has changes that are not committed: commit or restore them first"
        others = self._git_in_tree(branch, branch.place / "index", deadline, "ls-files", "--others", "-z").text
        if others:
            path = others.partition("\0")[0]
            return f"has files that .gitignore names, which no commit has, such as {path[:200]}: delete them first"
        return None

    def require_committable(self, branch: OpenBranch, tree: str, deadline: Deadline) -> None:
        """Raise `ToolPrecondition` if a tree is not to be committed."""
        changes = self.list_changes(branch.head, tree, deadline)
        if not changes:
            raise ToolPrecondition(f"nothing in {branch.name} differs from its head, so there is nothing to commit")
        for each in changes:
            if each.change == _SUBMODULE:
                raise ToolPrecondition(f"{each.path} is a repository of its own, which is not committed: remove it")

    def list_changes(self, before: str, after: str, deadline: Deadline) -> list[ChangedPath]:
        """List what differs between two trees or commits."""
        listed = self.git(
            "diff-tree", "--raw", "-r", "-z", "--no-renames", "--ignore-submodules=none", before, after, "--",
            deadline=deadline,
        )  # fmt: skip
        if listed.is_cut:
            raise ToolPrecondition("too many files differ to list them: make smaller changes")
        fields = listed.text.split("\0")[:-1]
        changes = []
        for facts, path in zip(fields[::2], fields[1::2], strict=True):
            _, new_mode, _, _, letter = facts.split(" ")
            change = _SUBMODULE if new_mode == _GITLINK else _CHANGE_NAMES.get(letter[0], "modified")
            changes.append(ChangedPath(path=path, change=change))
        return changes

    def _prepare(self) -> None:
        """Create the git directories of ours, once."""
        with self._lock:
            if self._is_prepared:
                return
            store = self.store
            for folder in ("refs/heads", "objects/info", "info"):
                (store / folder).mkdir(parents=True, exist_ok=True)
                # The user of a sandbox enters these, and no other user gets here.
                (store / folder).chmod(0o755)
            self.data.chmod(0o700)
            (store / "config").write_text(CONFIG)
            (store / "info" / "attributes").write_text(ATTRIBUTES)
            (store / "info" / "exclude").write_text("")
            (store / "objects" / "info" / "alternates").write_text(f"{self.repository.objects}\n")
            (store / "HEAD").write_text("ref: refs/heads/none\n")
            self.repository.make_view(self.data / "view")
            self.remote.make_view(self.data / "remote")
            self._is_prepared = True

    @contextmanager
    def _hold(self, name: str, deadline: Deadline) -> Iterator[Path]:
        """Wait until no other call works on a branch, and remove the locks of those that were killed."""
        self._prepare()
        place = self._locate(name)
        try:
            descriptor = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            raise _describe_absence(name) from None
        try:
            _lock(descriptor, name, min(_WAIT_SECONDS, deadline.seconds_left / 2))
            (self.store / "refs" / "heads" / f"{name}.lock").unlink(missing_ok=True)
            yield place
        finally:
            os.close(descriptor)

    def _write_tree(self, branch: OpenBranch, index: Path, deadline: Deadline, *options: str) -> str:
        # Left by a git that was ended; nobody else uses it while the branch is held.
        index.with_name(f"{index.name}.lock").unlink(missing_ok=True)
        self._git_in_tree(branch, index, deadline, "add", "--all", *options, "--no-warn-embedded-repo")
        return self._change("write-tree", deadline=deadline, environment={"GIT_INDEX_FILE": str(index)}).line

    def _git_in_tree(self, branch: OpenBranch, index: Path, deadline: Deadline, *arguments: str) -> GitOutput:
        """Run git on all files of a branch but what is kept of their changes."""
        return self._change(
            *arguments, "--", ".", f":(top,exclude,literal){RESERVED_NAME}",
            deadline=deadline, cwd=branch.tree,
            environment={"GIT_WORK_TREE": str(branch.tree), "GIT_INDEX_FILE": str(index)},
        )  # fmt: skip

    def _locate(self, name: str) -> Path:
        return self.data / "branches" / require_agent_branch(name)

    def _read_head(self, name: str, deadline: Deadline) -> str:
        return self.read_heads(deadline).get(name, NO_COMMIT)

    def _move(self, move: BranchMove, deadline: Deadline) -> None:
        """Move a branch, if it still is where it was."""
        ref = f"refs/heads/{move.branch}"
        try:
            self._change("update-ref", "--no-deref", ref, move.head, move.before, deadline=deadline)
        except GitFailed as error:
            raise error.replace(nothing_happened=error.status is not None) from error

    def _check_out(self, place: Path, commit: str, deadline: Deadline) -> None:
        """Write the files of a commit into a new folder, with what is kept of their changes from before a drop."""
        self._remove_files(place)
        self._require_room(commit, deadline)
        new = place / "new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        environment = {"GIT_WORK_TREE": str(new), "GIT_INDEX_FILE": str(place / "index")}
        try:
            for arguments in (("read-tree", commit), ("checkout-index", "--all", "--force", "-u", "--quiet")):
                self._change(*arguments, deadline=deadline, environment=environment, cwd=new)
        except GitFailed:
            shutil.rmtree(new, ignore_errors=True)
            raise
        # Changes of files are kept there, and those of a commit would be taken for them. It stays in the index.
        reserved = new / RESERVED_NAME
        if reserved.is_symlink() or reserved.is_file():
            reserved.unlink()
        elif reserved.exists():
            shutil.rmtree(reserved)
        new.rename(place / "tree")
        if (place / "kept").exists():
            (place / "kept").rename(place / "tree" / RESERVED_NAME)

    def _require_room(self, commit: str, deadline: Deadline) -> None:
        """Raise `ToolPrecondition` if the files of a commit are too many, or too large, before any is written."""
        listed = self.git("ls-tree", "-r", "-l", "-z", commit, deadline=deadline, max_bytes=_LISTING_BYTES)
        sizes = [line.partition("\t")[0].split()[-1] for line in listed.text.split("\0")[:-1]]
        total = sum(int(size) for size in sizes if size.isdecimal())
        if listed.is_cut or len(sizes) > _MAX_TREE_FILES or total > _MAX_TREE_BYTES:
            raise ToolPrecondition(
                f"this commit has more files than a branch may begin with: {_MAX_TREE_FILES:,} files, and "
                f"{_MAX_TREE_BYTES // 1_048_576:,} MiB together"
            )
        free = shutil.disk_usage(self.data).free
        if 2 * total > free:
            raise ToolPrecondition(
                f"the files of this commit take {total // 1_048_576:,} MiB, and there are {free // 1_048_576:,} MiB "
                "left for all branches: end a branch with git.drop, or ask the operator for a larger disk"
            )

    def _remove_files(self, place: Path) -> None:
        """Remove the files of a branch. What is kept of their changes stays, since a drop can be undone."""
        with self._lock:
            self._folders = {name: each for name, each in self._folders.items() if not _is_of(name, place)}
        for name in ("index", "index.lock", "whole-index", "whole-index.lock"):
            (place / name).unlink(missing_ok=True)
        if (place / "tree" / RESERVED_NAME).exists():
            shutil.rmtree(place / "kept", ignore_errors=True)
            (place / "tree" / RESERVED_NAME).rename(place / "kept")
        shutil.rmtree(place / "tree", ignore_errors=True)
        if (place / "tree").exists():
            raise ToolFailed(f"the files of {place.name} cannot be removed: ask the operator", nothing_happened=True)

    def _write_commit(self, tree: str, parent: str, message: str, author: Author, deadline: Deadline) -> str:
        name = _clean_name(author.agent)
        identity = {
            "GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": _EMAIL, "GIT_COMMITTER_NAME": name,
            "GIT_COMMITTER_EMAIL": _EMAIL,
        }  # fmt: skip
        arguments = ("commit-tree", "--no-gpg-sign", "-p", parent, "-F", "-", tree)
        return self._change(*arguments, deadline=deadline, environment=identity, stdin=message.encode()).line

    def _find_done(self, change: str, head: str, deadline: Deadline) -> tuple[str, str] | None:
        """Find the commit that a call with the same key made, and the one before it."""
        listed = self.git(
            "log", "-z", "--first-parent", f"--max-count={_SEARCHED_COMMITS}", "--format=%H %P%x00%B", head, "--",
            deadline=deadline,
        )  # fmt: skip
        fields = listed.text.split("\0")
        for ids, message in zip(fields[::2], fields[1::2], strict=False):
            if message.rstrip().endswith(f"\n{_CHANGE_TRAILER}{change}"):
                commit, parent, *_ = ids.split()
                return parent, commit
        return None

    def _is_ancestor(self, commit: str, other: str, deadline: Deadline) -> bool:
        try:
            self.git("merge-base", "--is-ancestor", commit, other, deadline=deadline)
        except GitFailed as error:
            # Also for a commit that is unknown here.
            if error.status is not None:
                return False
            raise
        return True


def _require_head(branch: OpenBranch, expected: str) -> OpenBranch:
    if branch.head != expected:
        raise ToolConflict(
            f"{branch.name} is not at {expected}, but at {branch.head}: look at what happened with git.log",
            details={"expected_head": expected, "current_head": branch.head},
        )
    return branch


def _describe_absence(name: str) -> ToolPrecondition:
    return ToolPrecondition(f"there is no branch {name}: begin it with git.start")


def _end_message(message: str, author: Author, change: str) -> str:
    trailers = f"{_PERSON_TRAILER}{_clean_name(author.person)}\n{_CHANGE_TRAILER}{change}"
    return f"{message.strip()}\n\n{trailers}\n"


def _clean_name(name: str) -> str:
    """Take what would end a name in a commit out of it."""
    return "".join(each for each in name if each.isprintable() and each not in "<>")[:200].strip(" .,:;\"'") or "agent"


def _is_of(name: str, place: Path) -> bool:
    return name.removeprefix(AGENT_PREFIX) == place.name


def _read_record(place: Path) -> dict[str, str] | None:
    try:
        record: dict[str, str] = orjson.loads((place / "record.json").read_bytes())
    except (OSError, ValueError):
        return None
    return record


def _write_record(place: Path, record: dict[str, str]) -> None:
    new = place / "record.new"
    new.write_bytes(orjson.dumps(record))
    new.replace(place / "record.json")


def _lock(descriptor: int, name: str, wait_seconds: float) -> None:
    end = time.monotonic() + wait_seconds
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise ToolConflict(f"another call works on {name}: call again") from None
            time.sleep(0.005)
