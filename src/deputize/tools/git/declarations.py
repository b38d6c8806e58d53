"""Declare the tools `git.*` of one repository. No tool takes a repository, a remote or an option of git."""

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from deputize import Fact, Preview, ToolContext, tool
from deputize.catalog.importers.python import ATTRIBUTE, ToolOptions
from deputize.tools.files import reading
from deputize.tools.files.changes import CHANGE_PATTERN, Changes
from deputize.tools.files.declarations import (
    EXAMPLE_CHANGE,
    EXAMPLE_DIGEST,
    Content,
    Digest,
    DigestOrAbsent,
    Encoding,
    Expression,
    Glob,
    IgnoresCase,
    Limit,
    Offset,
    PageLimit,
    Previews,
    decode_content,
    describe_change,
    identify_change,
    name_plainly,
)
from deputize.tools.files.declarations import ChangedFile as ChangedFile
from deputize.tools.files.folder import ABSENT, FILE_PATTERN, FOLDER_PATTERN, MAX_PATH, ROOT
from deputize.tools.git import history
from deputize.tools.git.branches import NO_COMMIT, Author, Branches, BranchMove, OpenBranch
from deputize.tools.git.process import Deadline, OpenGitSandbox
from deputize.tools.git.push_requirements import PushRequirements, RequiredCommands
from deputize.tools.git.repository import BRANCH_PATTERN, COMMIT_PATTERN, MAX_BRANCH, MAX_REF, REF_PATTERN

BranchName = Annotated[
    str,
    Field(description="A branch of an agent, as in agent/fix-login.", pattern=BRANCH_PATTERN, max_length=MAX_BRANCH),
    Fact("branch"),
]
RefName = Annotated[
    str,
    Field(description="A branch, tag, HEAD or the id of a commit.", pattern=REF_PATTERN, max_length=MAX_REF),
]
OptionalRef = Annotated[
    str,
    Field(
        description="What to compare with; empty for the files of the agent's branch that ref names.",
        pattern=rf"^$|{REF_PATTERN}",
        max_length=MAX_REF,
    ),
]
ExpectedHead = Annotated[
    str, Field(description="The head of the branch, as the last answer had it.", pattern=COMMIT_PATTERN)
]
CommitId = Annotated[str, Field(description="The id of a commit.", pattern=COMMIT_PATTERN)]
# Not those of the files tools: the facts of rules are the paths in this namespace.
FilePath = Annotated[
    str,
    Field(description="Path of a file, as in src/main.py.", pattern=FILE_PATTERN, max_length=MAX_PATH),
    Fact("path"),
]
AnyPath = Annotated[
    str,
    Field(description="Path of a file or folder, or . for everything.", pattern=FOLDER_PATTERN, max_length=MAX_PATH),
    Fact("path"),
]
Message = Annotated[
    str, Field(description="What the commit does and why.", min_length=1, max_length=8_000, pattern=r"\S")
]
NameSearch = Annotated[str, Field(description="Part of the names; empty for all.", max_length=MAX_REF)]
LogLimit = Annotated[int, Field(description="The most commits that are returned.", ge=1, le=100)]
DiffLimit = Annotated[int, Field(description="The most bytes of the diff.", ge=256, le=history.MAX_PAGE_BYTES)]
LineLimit = Annotated[int, Field(description="The most lines that are returned.", ge=1, le=500)]
DiffOffset = Annotated[int, Field(description="Where to begin: next_offset of the answer before.", ge=0, le=2**26)]
ChangeId = Annotated[str, Field(description="The change to take back, from its result.", pattern=CHANGE_PATTERN)]

_EXAMPLE_BRANCH: Final = "agent/fix-login"
_EXAMPLE_HEAD: Final = "5a1e0c38c1e3a6f1d5bb8cf7ad26cd6c2fb4e7aa"
_SLOW_SECONDS: Final = 30.0
_PREVIEW_SECONDS: Final = 4.0
_RESOURCE: Final = "git.files"

_READS: Final[ToolOptions] = {
    "namespace": "git", "version": "1.0.0", "kind": "file_operation", "provider": "deputize", "open_world": False,
    "scopes": ["git:read"],
}  # fmt: skip
_SLOW_READS: Final[ToolOptions] = {**_READS, "timeout": _SLOW_SECONDS}


def _build_branch_options(op: str, compensation: str, **bind: str) -> ToolOptions:
    """Build what changes of a branch declare: each is taken back by the tool that expects the head that it left.

    Its beginning and its end are those of its files, too: a change of a file stands on them.
    """
    kinds = ("git.branches",) if op == "update" else ("git.branches", _RESOURCE)
    return {
        **_SLOW_READS,
        "scopes": ["git:write"],
        "resources": tuple(f"{op} {kind}/{{branch}}" for kind in kinds),
        "idempotency": "deduplicates",
        "undo": f"git.{compensation}",
        "compensation": {
            "compensation_class": "full",
            "tool": f"git.{compensation}",
            "bind": {"branch": "/arguments/branch", **bind},
        },
    }


_FILE_CHANGES: Final[ToolOptions] = {
    **_READS,
    "scopes": ["git:write"],
    "resources": (f"update {_RESOURCE}/{{branch}}/{{path}}",),
    "idempotency": "deduplicates",
    "undo": "git.restore",
    "compensation": {
        "compensation_class": "full",
        "tool": "git.restore",
        "bind": {"branch": "/arguments/branch", "path": "/arguments/path", "change": "/result/change"},
    },
}


@lru_cache(maxsize=16)
def open_branches(
    repository: Path, data: Path, remote: Path | None = None, open_sandbox: OpenGitSandbox | None = None
) -> Branches:
    """Open the branches of agents of a repository, once, for its tools and for others that work on them."""
    # Each repository has a folder of its own there, so that naming another one does not mix them.
    places = f"{repository}\0{remote or repository}"
    own_data = data / hashlib.sha256(places.encode(errors="surrogateescape")).hexdigest()[:16]
    return Branches(repository, own_data, remote, open_sandbox)


@lru_cache(maxsize=16)
def declare_tools(
    repository: Path,
    data: Path,
    remote: Path | None = None,
    required: RequiredCommands = (),
    open_sandbox: OpenGitSandbox | None = None,
) -> tuple[Callable[..., Any], ...]:
    """Declare the tools of a repository, once. `data` is the folder for branches of agents, `remote` where they are
    pushed to if it is another one, `required` what has to pass before, and `open_sandbox` opens what git reads in.
    Raise OSError or ValueError if the repository cannot be used.
    """
    branches = open_branches(repository, data, remote, open_sandbox)
    requirements = PushRequirements(branches=branches, commands=required)
    previews = _BranchPreviews(branches, requirements)
    files = _Files(branches)
    functions = (
        *_declare_history(branches),
        *_declare_files(branches, files),
        *_declare_file_changes(files),
        *_declare_moves(branches, previews),
        *_declare_publication(branches, previews, requirements),
    )
    for function in functions:
        # All that a call reads with git, it reads in one sandbox.
        declared = getattr(function, ATTRIBUTE)
        preview = None if declared.preview is None else branches.share_sandbox()(declared.preview)
        setattr(function, ATTRIBUTE, replace(declared, run=branches.share_sandbox()(declared.run), preview=preview))
    return functions


def _declare_history(source: Branches) -> tuple[Callable[..., Any], ...]:
    @tool(effects="read", examples=[{"search": "fix"}], **_SLOW_READS)
    @name_plainly
    def branches(context: ToolContext, search: NameSearch = "") -> history.BranchList:
        """List branches of agents, and the branches and tags of the repository."""
        return history.list_branches(source, search, _begin(context))

    @tool(effects="read", examples=[{"branch": _EXAMPLE_BRANCH}], **_SLOW_READS)
    @name_plainly
    def status(branch: BranchName, context: ToolContext) -> history.Status:
        """List the files of an agent's branch that differ from its head."""
        deadline = _begin(context)
        with source.open_branch(branch, deadline) as opened:
            return history.read_status(source, opened, deadline)

    @tool(effects="read", examples=[{"ref": "main", "path": "src"}], **_SLOW_READS)
    @name_plainly
    def log(
        ref: RefName, context: ToolContext, path: AnyPath = ROOT, offset: Offset = 0, limit: LogLimit = 20
    ) -> history.CommitPage:
        """List the commits that lead to one, newest first."""
        deadline = _begin(context)
        return history.read_log(source, source.find_commit(ref, deadline), path, offset, limit, deadline)

    @tool(effects="read", examples=[{"ref": "main"}], **_SLOW_READS)
    @name_plainly
    def show(
        ref: RefName, context: ToolContext, path: AnyPath = ROOT, offset: DiffOffset = 0, limit: DiffLimit = 20_000
    ) -> history.ShownCommit:
        """Read a commit, and what it changed, as a unified diff."""
        deadline = _begin(context)
        return history.show_commit(source, source.find_commit(ref, deadline), path, offset, limit, deadline)

    @tool(effects="read", examples=[{"ref": "main", "to": _EXAMPLE_BRANCH}], **_SLOW_READS)
    @name_plainly
    def diff(
        ref: RefName, context: ToolContext, to: OptionalRef = "", path: AnyPath = ROOT, offset: DiffOffset = 0,
        limit: DiffLimit = 20_000,
    ) -> history.DiffPage:  # fmt: skip
        """Compare two commits, or the head of an agent's branch with its files, as a unified diff."""
        deadline = _begin(context)
        before = source.find_commit(ref, deadline)
        if to:
            after = source.find_commit(to, deadline)
        else:
            with source.open_branch(ref, deadline) as opened:
                after = source.write_tree(opened, deadline)
        return history.read_diff(source, before, after, path, offset, limit, deadline)

    @tool(effects="read", examples=[{"ref": "main", "path": "src/main.py"}], **_SLOW_READS)
    @name_plainly
    def blame(
        ref: RefName, path: FilePath, context: ToolContext, offset: Offset = 0, limit: LineLimit = 100
    ) -> history.BlamedLines:
        """Tell which commit wrote each line of a file."""
        deadline = _begin(context)
        return history.blame_lines(source, source.find_commit(ref, deadline), path, offset, limit, deadline)

    return branches, status, log, show, diff, blame


class _Files:
    """The files of branches, each branch held while one of them is read or changed."""

    def __init__(self, branches: Branches) -> None:
        self._branches = branches

    def open(self, branch: str, deadline: Deadline) -> AbstractContextManager[OpenBranch]:
        return self._branches.open_branch(branch, deadline)

    def open_changes(self, opened: OpenBranch) -> Changes:
        return Changes(self._branches.open_folder(opened))

    def open_previews(self, opened: OpenBranch) -> Previews:
        folder = self._branches.open_folder(opened)
        return Previews(folder, Changes(folder), _RESOURCE, f"{opened.name}/")

    def preview_write(
        self, branch: str, path: str, content: str, expected_sha256: str, encoding: str = "utf-8"
    ) -> Preview:
        with self.open(branch, Deadline.after(_PREVIEW_SECONDS)) as opened:
            return self.open_previews(opened).write(path, content, expected_sha256, encoding)

    def preview_delete(self, branch: str, path: str, expected_sha256: str) -> Preview:
        with self.open(branch, Deadline.after(_PREVIEW_SECONDS)) as opened:
            return self.open_previews(opened).delete(path, expected_sha256)

    def preview_restore(self, branch: str, path: str, change: str) -> Preview:
        with self.open(branch, Deadline.after(_PREVIEW_SECONDS)) as opened:
            return self.open_previews(opened).restore(path, path, change)


def _declare_files(branches: Branches, files: _Files) -> tuple[Callable[..., Any], ...]:
    @tool(effects="read", examples=[{"branch": _EXAMPLE_BRANCH, "path": "src/main.py"}], **_READS)
    @name_plainly
    def read(
        branch: BranchName, path: FilePath, context: ToolContext, offset: Offset = 0, limit: PageLimit = 65_536
    ) -> reading.FilePage:
        """Read a file of an agent's branch; the digest is what a later change expects."""
        with files.open(branch, _begin(context)) as opened:
            return reading.read_page(branches.open_folder(opened), path, offset, limit)

    @tool(effects="read", examples=[{"branch": _EXAMPLE_BRANCH, "path": "src"}], **_READS)
    @name_plainly
    def list(
        branch: BranchName, context: ToolContext, path: AnyPath = ROOT, offset: Offset = 0, limit: Limit = 200
    ) -> reading.Listing:
        """List what is in a folder of an agent's branch."""
        with files.open(branch, _begin(context)) as opened:
            return reading.list_entries(branches.open_folder(opened), path, offset, limit)

    @tool(effects="read", examples=[{"branch": _EXAMPLE_BRANCH, "pattern": "TODO", "glob": "*.py"}], **_READS)
    @name_plainly
    def search(
        branch: BranchName, pattern: Expression, context: ToolContext, path: AnyPath = ROOT, glob: Glob = "*",
        ignore_case: IgnoresCase = False, limit: Limit = 100,
    ) -> reading.FoundLines:  # fmt: skip
        """Find lines in the files of an agent's branch that match a regular expression."""
        with files.open(branch, _begin(context)) as opened:
            folder = branches.open_folder(opened)
            return reading.search_lines(folder, path, pattern, glob, limit, ignores_case=ignore_case)

    return read, list, search


def _declare_file_changes(files: _Files) -> tuple[Callable[..., Any], ...]:
    @tool(
        effects="write",
        preview=files.preview_write,
        examples=[
            {"branch": _EXAMPLE_BRANCH, "path": "notes.txt", "content": "Bring milk.\n", "expected_sha256": ABSENT}
        ],
        **_FILE_CHANGES,
    )
    @name_plainly
    def write(
        branch: BranchName, path: FilePath, content: Content, expected_sha256: DigestOrAbsent, context: ToolContext,
        encoding: Encoding = "utf-8",
    ) -> ChangedFile:  # fmt: skip
        """Write a whole file of an agent's branch, if it still is as you read it."""
        change, data = identify_change(context), decode_content(content, encoding)
        with files.open(branch, _begin(context)) as opened:
            return describe_change(change, files.open_changes(opened).put(change, path, data, expected_sha256))

    @tool(
        effects="write",
        preview=files.preview_delete,
        examples=[{"branch": _EXAMPLE_BRANCH, "path": "a.txt", "expected_sha256": EXAMPLE_DIGEST}],
        **_FILE_CHANGES,
    )
    @name_plainly
    def delete(branch: BranchName, path: FilePath, expected_sha256: Digest, context: ToolContext) -> ChangedFile:
        """Delete a file of an agent's branch, if it still is as you read it."""
        change = identify_change(context)
        with files.open(branch, _begin(context)) as opened:
            return describe_change(change, files.open_changes(opened).remove(change, path, expected_sha256))

    @tool(
        effects="write",
        preview=files.preview_restore,
        examples=[{"branch": _EXAMPLE_BRANCH, "path": "a.txt", "change": EXAMPLE_CHANGE}],
        **_FILE_CHANGES,
    )
    @name_plainly
    def restore(branch: BranchName, path: FilePath, change: ChangeId, context: ToolContext) -> ChangedFile:
        """Take back a change of a file, if nobody changed the file since."""
        own_change = identify_change(context)
        with files.open(branch, _begin(context)) as opened:
            return describe_change(own_change, files.open_changes(opened).restore(own_change, path, path, change))

    return write, delete, restore


def _declare_moves(branches: Branches, previews: "_BranchPreviews") -> tuple[Callable[..., Any], ...]:
    @tool(
        effects="write",
        preview=previews.start,
        examples=[{"branch": _EXAMPLE_BRANCH, "ref": "main"}],
        **_build_branch_options("create", "drop", expected_head="/result/head"),
    )
    @name_plainly
    def start(branch: BranchName, ref: RefName, context: ToolContext) -> BranchMove:
        """Begin a branch of the agent's own at a commit, with a folder of its own. Work on it with git.write."""
        deadline = _begin(context)
        return branches.start(identify_change(context), branch, branches.find_commit(ref, deadline), deadline)

    @tool(
        effects="write",
        preview=previews.drop,
        examples=[{"branch": _EXAMPLE_BRANCH, "expected_head": _EXAMPLE_HEAD}],
        **_build_branch_options("delete", "start", ref="/result/before"),
    )
    @name_plainly
    def drop(branch: BranchName, expected_head: ExpectedHead, context: ToolContext) -> BranchMove:
        """End a branch of an agent, if all its files are committed. Its commits stay."""
        return branches.drop(identify_change(context), branch, expected_head, _begin(context))

    @tool(
        effects="write",
        preview=previews.commit,
        examples=[{"branch": _EXAMPLE_BRANCH, "message": "Fix the login", "expected_head": _EXAMPLE_HEAD}],
        **_build_branch_options("update", "reset", expected_head="/result/head", to="/result/before"),
    )
    @name_plainly
    def commit(branch: BranchName, message: Message, expected_head: ExpectedHead, context: ToolContext) -> BranchMove:
        """Commit the files of an agent's branch as they are. The agent is the author, on behalf of its person."""
        author = Author(agent=context.agent or context.user, person=context.user)
        return branches.commit(
            identify_change(context), branch, message, expected_head, author, _begin(context),
            expected_tree=context.guards.get("tree"),
        )  # fmt: skip

    @tool(
        effects="write",
        preview=previews.reset,
        examples=[{"branch": _EXAMPLE_BRANCH, "to": _EXAMPLE_HEAD, "expected_head": _EXAMPLE_HEAD}],
        **_build_branch_options("update", "reset", expected_head="/result/head", to="/result/before"),
    )
    @name_plainly
    def reset(branch: BranchName, to: CommitId, expected_head: ExpectedHead, context: ToolContext) -> BranchMove:
        """Set an agent's branch back to an earlier commit, or forth again; its files stay as they are."""
        return branches.reset(branch, to, expected_head, _begin(context))

    return start, drop, commit, reset


def _declare_publication(
    branches: Branches, previews: "_BranchPreviews", requirements: PushRequirements
) -> tuple[Callable[..., Any], ...]:
    options: ToolOptions = {
        **_SLOW_READS, "scopes": ["git:push"], "resources": ("update git.remote/{branch}",),
        "idempotency": "deduplicates", "compensation": {"compensation_class": "irreversible"},
        # Whatever policies say: others work with what is there.
        "requires_user_interaction": True,
    }  # fmt: skip

    @tool(
        effects="destructive",
        preview=previews.push,
        examples=[{"branch": _EXAMPLE_BRANCH, "expected_head": _EXAMPLE_HEAD}],
        **options,
    )
    @name_plainly
    def push(branch: BranchName, expected_head: ExpectedHead, context: ToolContext) -> BranchMove:
        """Hand an agent's branch over to the operator, under its own name. Each push needs approval."""
        deadline = _begin(context)
        require = partial(requirements.require_passes, context.tenant, branch, expected_head, deadline)
        return branches.push(branch, expected_head, deadline, require=require)

    return (push,)


class _BranchPreviews:
    """What changes of branches would do, as approvers see it."""

    def __init__(self, branches: Branches, requirements: PushRequirements) -> None:
        self._branches = branches
        self._requirements = requirements

    def start(self, branch: str, ref: str) -> Preview:
        deadline = Deadline.after(_PREVIEW_SECONDS)
        commit, head = self._branches.find_commit(ref, deadline), self._find_head(branch, deadline)
        return Preview(
            changes=[_describe_move("git.branches", branch, NO_COMMIT, commit)],
            preconditions=[_expect_head(branch, head, NO_COMMIT)],
            guards={"head": head},
        )

    def drop(self, branch: str, expected_head: str) -> Preview:
        with self._branches.open_branch(branch, deadline := Deadline.after(_PREVIEW_SECONDS)) as opened:
            unsaved = self._branches.describe_unsaved(opened, deadline)
            return Preview(
                changes=[_describe_move("git.branches", branch, opened.head, NO_COMMIT)],
                preconditions=[
                    _expect_head(branch, opened.head, expected_head),
                    {"name": "all its files are committed", "holds": unsaved is None, "detail": unsaved or ""},
                ],
            )

    def commit(self, branch: str, message: str, expected_head: str) -> Preview:
        with self._branches.open_branch(branch, deadline := Deadline.after(_PREVIEW_SECONDS)) as opened:
            tree = self._branches.write_tree(opened, deadline)
            self._branches.require_committable(opened, tree, deadline)
            return Preview(
                changes=[_describe_move("git.branches", branch, opened.head, None)],
                preconditions=[_expect_head(branch, opened.head, expected_head)],
                impact={"message": message, **self._compare(opened.head, tree, deadline)},
                # What is committed is what was seen.
                guards={"tree": tree},
            )

    def reset(self, branch: str, to: str, expected_head: str) -> Preview:
        deadline = Deadline.after(_PREVIEW_SECONDS)
        head, commit = self._find_head(branch, deadline), self._branches.find_commit(to, deadline)
        return Preview(
            changes=[_describe_move("git.branches", branch, head, commit)],
            preconditions=[_expect_head(branch, head, expected_head)],
            impact=self._compare(expected_head, commit, deadline) if head == expected_head else {},
        )

    def push(self, branch: str, expected_head: str, context: ToolContext) -> Preview:
        deadline = Deadline.after(_PREVIEW_SECONDS)
        head = self._find_head(branch, deadline)
        before = self._branches.read_remote_head(branch, deadline)
        preconditions = [_expect_head(branch, head, expected_head)]
        if head == expected_head != before:
            preconditions += self._requirements.describe(context.tenant, branch, head, deadline)
        base = self._branches.find_base(head if head == expected_head else NO_COMMIT, before, deadline)
        return Preview(
            changes=[_describe_move("git.remote", branch, before, expected_head)],
            preconditions=preconditions,
            impact={} if base is None else self._compare(base, expected_head, deadline),
            guards={"remote": before},
        )

    def _find_head(self, branch: str, deadline: Deadline) -> str:
        return self._branches.read_heads(deadline).get(branch, NO_COMMIT)

    def _compare(self, before: str, after: str, deadline: Deadline) -> dict[str, Any]:
        page = history.read_diff(self._branches, before, after, ROOT, 0, reading.MAX_DIFF_BYTES // 2, deadline)
        lines = page.diff.split("\n")
        return {
            "files": [f"{each.change} {each.path}" for each in page.changes],
            # As lines, which people read below each other.
            "diff": [*lines, "… more lines differ"] if page.next_offset is not None else lines,
        }


def _begin(context: ToolContext) -> Deadline:
    return Deadline.after(context.seconds_left)


def _describe_move(resource: str, branch: str, before: str, after: str | None) -> dict[str, Any]:
    op = "create" if before == NO_COMMIT else "delete" if after == NO_COMMIT else "update"
    return {
        "resource": resource, "op": op, "scope": branch, "before": None if before == NO_COMMIT else before,
        "after": None if after == NO_COMMIT else after,
    }  # fmt: skip


def _expect_head(branch: str, head: str, expected: str) -> dict[str, Any]:
    if expected == NO_COMMIT:
        name, now = f"there is no {branch} yet", f"it is at {head}"
    else:
        name, now = f"{branch} is at {expected}", f"it is at {head}" if head != NO_COMMIT else "there is none"
    return {"name": name[:120], "holds": head == expected, "detail": "" if head == expected else now}
