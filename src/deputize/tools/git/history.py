"""Read what is in commits and what differs between them, each answer a bounded page. git gets ids and paths alone."""

from dataclasses import dataclass
from typing import Final

from deputize import ToolPrecondition
from deputize.tools.files.folder import ROOT, split_path
from deputize.tools.git.branches import Branches, ChangedPath, OpenBranch
from deputize.tools.git.process import Deadline, GitFailed

MAX_PAGE_BYTES: Final = 65_536
MAX_LISTED: Final = 500
_MAX_LINE: Final = 400
_MAX_MESSAGE: Final = 4_000
# git knows it, also where it was never written.
_EMPTY_TREE: Final = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_LOG_FIELDS: Final = ("%H", "%P", "%an", "%ae", "%aI", "%B")
_DIFF: Final = (
    "-p", "-r", "--no-ext-diff", "--no-textconv", "--no-renames", "--no-color", "--full-index",
    "--ignore-submodules=none", "--submodule=short", "--src-prefix=a/", "--dst-prefix=b/",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentBranch:
    """A branch of an agent: `head` is its newest commit."""

    branch: str
    head: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedCommit:
    """A branch or tag of the repository."""

    name: str
    commit: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BranchList:
    """The branches of agents, and a page of the names of the repository. `checked_out` is the operator's branch."""

    agent_branches: list[AgentBranch]
    checked_out: str
    branches: list[NamedCommit]
    tags: list[NamedCommit]
    remote_branches: list[NamedCommit]
    is_cut: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """What the files of a branch differ in from its head."""

    branch: str
    head: str
    changes: list[ChangedPath]
    is_cut: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """A commit. `message` is cut if it is very long."""

    commit: str
    parents: list[str]
    author: str
    email: str
    date: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitPage:
    """A part of the commits that lead to one, newest first."""

    commits: list[Commit]
    next_offset: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffPage:
    """A part of a unified diff; `changes` are the paths in the whole of it."""

    before: str
    after: str
    changes: list[ChangedPath]
    is_cut: bool
    diff: str
    offset: int
    next_offset: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownCommit:
    """A commit, and a part of what it changed from its first parent."""

    commit: Commit
    diff: DiffPage


@dataclass(frozen=True, kw_only=True, slots=True)
class BlamedLine:
    """A line, and the commit that wrote it."""

    line: int
    commit: str
    author: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BlamedLines:
    """A part of the lines of a file."""

    path: str
    lines: list[BlamedLine]
    next_offset: int | None


def list_branches(branches: Branches, search: str, deadline: Deadline) -> BranchList:
    """List branches and tags whose name contains a text."""
    refs = branches.read_refs(deadline)
    kinds = (refs.heads, refs.tags, refs.remotes)
    found = [sorted((name, commit) for name, commit in kind.items() if search in name) for kind in kinds]
    listed = [[NamedCommit(name=name, commit=commit) for name, commit in each[:MAX_LISTED]] for each in found]
    heads = sorted(branches.read_heads(deadline).items())
    return BranchList(
        agent_branches=[AgentBranch(branch=name, head=head) for name, head in heads if search in name],
        checked_out=refs.head,
        branches=listed[0],
        tags=listed[1],
        remote_branches=listed[2],
        is_cut=any(len(each) > MAX_LISTED for each in found),
    )


def read_status(branches: Branches, branch: OpenBranch, deadline: Deadline) -> Status:
    """List the files of a branch that differ from its head."""
    changes = branches.list_changes(branch.head, branches.write_tree(branch, deadline), deadline)
    return Status(branch=branch.name, head=branch.head, changes=changes[:MAX_LISTED], is_cut=len(changes) > MAX_LISTED)


def read_log(branches: Branches, commit: str, path: str, offset: int, limit: int, deadline: Deadline) -> CommitPage:
    """List the commits that lead to one, or those of them that changed a path."""
    output = branches.git(
        "--literal-pathspecs", "log", "-z", "--no-show-signature", "--no-mailmap", "--no-color",
        f"--format={'%x00'.join(_LOG_FIELDS)}", f"--skip={offset}", f"--max-count={limit + 1}", commit, "--",
        *_select_paths(path), deadline=deadline,
    )  # fmt: skip
    fields = output.text.split("\0")
    width = len(_LOG_FIELDS)
    rows = [fields[start : start + width] for start in range(0, len(fields) - width + 1, width)]
    commits = [
        Commit(
            commit=row[0], parents=row[1].split(), author=row[2][:_MAX_LINE], email=row[3][:_MAX_LINE], date=row[4],
            message=row[5].strip()[:_MAX_MESSAGE],
        )
        for row in rows[:limit]
    ]  # fmt: skip
    has_more = len(rows) > limit or output.is_cut
    return CommitPage(commits=commits, next_offset=offset + len(commits) if has_more and commits else None)


def read_diff(
    branches: Branches, before: str, after: str, path: str, offset: int, limit: int, deadline: Deadline
) -> DiffPage:
    """Compare two commits or trees."""
    changes = [each for each in branches.list_changes(before, after, deadline) if _is_below(each.path, path)]
    output = branches.git(
        "--literal-pathspecs", "diff-tree", *_DIFF, before, after, "--", *_select_paths(path),
        deadline=deadline, max_bytes=offset + limit,
    )  # fmt: skip
    page = output.data[offset:]
    if output.is_cut and b"\n" in page:
        page = page[: page.rindex(b"\n") + 1]
    return DiffPage(
        before=before,
        after=after,
        changes=changes[:MAX_LISTED],
        is_cut=len(changes) > MAX_LISTED,
        diff=page.decode(errors="replace"),
        offset=offset,
        next_offset=offset + len(page) if output.is_cut else None,
    )


def show_commit(branches: Branches, commit: str, path: str, offset: int, limit: int, deadline: Deadline) -> ShownCommit:
    """Read a commit with what it changed."""
    (shown,) = read_log(branches, commit, ROOT, 0, 1, deadline).commits
    before = shown.parents[0] if shown.parents else _EMPTY_TREE
    return ShownCommit(commit=shown, diff=read_diff(branches, before, commit, path, offset, limit, deadline))


def blame_lines(branches: Branches, commit: str, path: str, offset: int, limit: int, deadline: Deadline) -> BlamedLines:
    """Tell which commit wrote each line of a file."""
    try:
        output = branches.git(
            "blame",
            "--line-porcelain",
            f"-L{offset + 1},+{limit + 1}",
            commit,
            "--",
            *_select_paths(path),
            deadline=deadline,
        )
    except GitFailed as error:
        if error.status is None:
            raise
        raise ToolPrecondition(f"there is no file {path} with a line {offset + 1} at {commit}") from error
    lines, facts = list[BlamedLine](), dict[str, str]()
    for line in output.text.split("\n"):
        if line.startswith("\t"):
            author = facts.get("author", "")[:_MAX_LINE]
            number = offset + len(lines) + 1
            lines.append(BlamedLine(line=number, commit=facts["commit"], author=author, text=line[1 : _MAX_LINE + 1]))
            facts = {}
        elif not facts:
            facts["commit"] = line.partition(" ")[0]
        else:
            name, _, value = line.partition(" ")
            facts.setdefault(name, value)
    return BlamedLines(path=path, lines=lines[:limit], next_offset=offset + limit if len(lines) > limit else None)


def _select_paths(path: str) -> tuple[str, ...]:
    return ("/".join(split_path(path)),) if path != ROOT else ()


def _is_below(path: str, folder: str) -> bool:
    return folder == ROOT or path == folder or path.startswith(f"{folder}/")
