"""Branches of agents are moved once, whatever dies meanwhile, and pushed only forward."""

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from deputize import SemanticViolation, ToolConflict, ToolPrecondition
from deputize.tools.files.changes import Changes
from deputize.tools.git.branches import NO_COMMIT, Author, Branches
from deputize.tools.git.history import blame_lines, read_diff, read_log
from deputize.tools.git.process import Deadline, GitFailed, run_git
from tests.support.git_traps import Ground, make_ground

pytestmark = pytest.mark.requirement("EXE-4")

BRANCH, AUTHOR = "agent/x", Author(agent="bot <b@x>\n", person="ann")


def soon() -> Deadline:
    return Deadline.after(120.0)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return make_ground(tmp_path / "ground")


@pytest.fixture
def branches(ground: Ground) -> Branches:
    return Branches(ground.repository, ground.folder / "data")


def put(branches: Branches, path: str, content: str) -> None:
    with branches.open_branch(BRANCH, soon()) as opened:
        Changes(branches.open_folder(opened)).put(
            f"{hash(content) & (2**128 - 1):032x}", path, content.encode(), "absent"
        )


def start(branches: Branches) -> str:
    return branches.start("1" * 32, BRANCH, branches.find_commit("main", soon()), soon()).head


def test_a_call_that_is_repeated_finds_what_it_did(branches: Branches) -> None:
    head = start(branches)
    assert start(branches) == head
    put(branches, "n.txt", "n\n")
    moves = [branches.commit("2" * 32, BRANCH, "n", head, AUTHOR, soon()) for _ in range(2)]
    assert moves[0] == moves[1]
    assert len(read_log(branches, moves[0].head, "n.txt", 0, 10, soon()).commits) == 1
    moves = [branches.reset(BRANCH, head, moves[0].head, soon()) for _ in range(2)]
    assert moves[0] == moves[1]
    branches.commit("3" * 32, BRANCH, "n", head, AUTHOR, soon())
    head = branches.read_heads(soon())[BRANCH]
    assert branches.drop("4" * 32, BRANCH, head, soon()) == branches.drop("4" * 32, BRANCH, head, soon())


def test_another_call_does_not_take_over_a_branch_or_a_head(branches: Branches) -> None:
    head = start(branches)
    with pytest.raises(ToolConflict, match="there is a branch agent/x already"):
        branches.start("9" * 32, BRANCH, head, soon())
    put(branches, "n.txt", "n\n")
    with pytest.raises(ToolPrecondition, match="not committed"):
        branches.drop("9" * 32, BRANCH, head, soon())
    made = branches.commit("2" * 32, BRANCH, "n", head, AUTHOR, soon())
    for change in ("8" * 32, "7" * 32):
        with pytest.raises(ToolConflict, match=f"but at {made.head}"):
            branches.commit(change, BRANCH, "n", head, AUTHOR, soon())
    with pytest.raises(ToolConflict):
        branches.drop("9" * 32, BRANCH, head, soon())
    with pytest.raises(ToolPrecondition, match="there is nothing to commit"):
        branches.commit("6" * 32, BRANCH, "n", made.head, AUTHOR, soon())


def test_a_commit_names_the_agent_and_its_person(branches: Branches) -> None:
    put_head = start(branches)
    put(branches, "n.txt", "n\n")
    made = branches.commit("2" * 32, BRANCH, "Add n", put_head, Author(agent="bot <a@b>\n", person="ann"), soon())
    (commit,) = read_log(branches, made.head, "n.txt", 0, 10, soon()).commits
    assert commit.author == "bot a@b"
    assert commit.message == f"Add n\n\nOn-behalf-of: ann\nDeputize-Change: {'2' * 32}"


def test_files_that_changed_since_the_preview_are_not_committed(branches: Branches) -> None:
    head = start(branches)
    put(branches, "n.txt", "n\n")
    with branches.open_branch(BRANCH, soon()) as opened:
        seen = branches.write_tree(opened, soon())
    put(branches, "m.txt", "m\n")
    with pytest.raises(ToolConflict, match="not those that were approved"):
        branches.commit("2" * 32, BRANCH, "n", head, AUTHOR, soon(), expected_tree=seen)
    assert branches.read_heads(soon())[BRANCH] == head


def test_a_push_goes_forward_alone_and_not_under_a_checkout(ground: Ground, branches: Branches) -> None:
    head = start(branches)
    put(branches, "n.txt", "n\n")
    made = branches.commit("2" * 32, BRANCH, "n", head, AUTHOR, soon())
    assert branches.push(BRANCH, made.head, soon()).before == NO_COMMIT
    assert ground.git("rev-parse", BRANCH).strip() == made.head
    branches.reset(BRANCH, head, made.head, soon())
    put(branches, "m.txt", "m\n")
    other = branches.commit("3" * 32, BRANCH, "m", head, AUTHOR, soon())
    with pytest.raises(ToolConflict, match="never overwritten"):
        branches.push(BRANCH, other.head, soon())
    assert ground.git("rev-parse", BRANCH).strip() == made.head
    ground.git("checkout", "--quiet", "-b", "agent/y", "main~1")
    branches.start("4" * 32, "agent/y", head, soon())
    with pytest.raises(ToolPrecondition, match="checked out there"):
        branches.push("agent/y", head, soon())
    assert ground.git("fsck", "--strict") == ""


def test_a_push_goes_to_the_folder_that_is_named(ground: Ground) -> None:
    ground.git("clone", "--quiet", "--bare", str(ground.repository), str(ground.outside / "hub.git"))
    hub = ground.outside / "hub.git"
    ground.add_hook("post-receive", hub / "hooks")
    branches = Branches(ground.repository, ground.folder / "data", hub)
    head = start(branches)
    assert branches.push(BRANCH, head, soon()).head == head
    assert ground.git("rev-parse", BRANCH, folder=hub).strip() == head
    assert ground.git("branch", "--list", BRANCH) == ""
    assert not ground.mark.exists()


def test_links_and_repositories_in_a_tree_lead_nowhere(ground: Ground, branches: Branches) -> None:
    (ground.repository / "out").symlink_to(ground.outside)
    ground.git("add", "out")
    ground.git("commit", "--quiet", "-m", "out")
    head = start(branches)
    with branches.open_branch(BRANCH, soon()) as opened:
        folder = branches.open_folder(opened)
        with pytest.raises(ToolPrecondition, match="not below plain folders"):
            Changes(folder).put("5" * 32, "out/x", b"x", "absent")
        inner = opened.tree / "inner"
    inner.mkdir()
    for command in (("init", "--quiet"), ("commit", "--quiet", "--allow-empty", "-m", "x")):
        ground.git(*command, folder=inner)
    ground.git("config", "core.fsmonitor", str(ground.program), folder=inner)
    with pytest.raises(ToolPrecondition, match="inner is a repository of its own"):
        branches.commit("2" * 32, BRANCH, "n", head, AUTHOR, soon())
    assert not ground.mark.exists()
    assert [each.name for each in ground.outside.iterdir()] == ["secret.txt"]


def test_what_a_commit_has_in_the_place_of_kept_changes_is_neither_used_nor_lost(
    ground: Ground, branches: Branches
) -> None:
    ground.commit(".deputize/files/kept/0.json", "{}")
    head = start(branches)
    with branches.open_branch(BRANCH, soon()) as opened:
        assert not (opened.tree / ".deputize").exists()
    put(branches, "n.txt", "n\n")
    made = branches.commit("2" * 32, BRANCH, "n", head, AUTHOR, soon())
    assert [each.path for each in branches.list_changes(head, made.head, soon())] == ["n.txt"]


def test_a_start_that_is_repeated_finds_its_commit_also_when_the_name_has_moved(
    ground: Ground, branches: Branches
) -> None:
    head = start(branches)
    ground.commit("later.txt", "x")
    assert start(branches) == head


def test_asking_for_a_branch_that_there_is_not_leaves_nothing(ground: Ground, branches: Branches) -> None:
    with pytest.raises(ToolPrecondition, match="there is no branch agent/x"):
        branches.drop("1" * 32, BRANCH, "0" * 40, soon())
    with pytest.raises(SemanticViolation, match="no branch of an agent"):
        branches.drop("1" * 32, "agent/../x", "0" * 40, soon())
    assert not (ground.folder / "data" / "branches").exists()


def test_long_answers_come_in_pages(branches: Branches) -> None:
    head = start(branches)
    put(branches, "long.txt", "".join(f"line {number}\n" for number in range(2_000)))
    made = branches.commit("2" * 32, BRANCH, "n", head, AUTHOR, soon())
    text = ""
    offset: int | None = 0
    while offset is not None:
        page = read_diff(branches, head, made.head, ".", offset, 4_096, soon())
        assert len(page.diff) <= 4_096
        text, offset = text + page.diff, page.next_offset
    assert text.count("\n+line ") == 2_000
    first = read_log(branches, made.head, ".", 0, 2, soon())
    second = read_log(branches, made.head, ".", first.next_offset or 0, 2, soon())
    assert [each.message.split("\n")[0] for each in (*first.commits, *second.commits)][:1] == ["n"]
    assert second.next_offset is None


def test_git_is_ended_with_what_it_started_when_its_time_is_over(tmp_path: Path) -> None:
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\nsleep 600 &\necho $! > pid\nsleep 600\n")
    program.chmod(0o755)
    with pytest.raises(GitFailed, match="took too long") as caught:
        run_git(str(program), tmp_path, "status", deadline=Deadline.after(1.0))
    assert (caught.value.status, caught.value.nothing_happened) == (None, True)
    child = int((tmp_path / "pid").read_text())
    assert wait_until_gone(child)


def wait_until_gone(process: int) -> bool:
    for _ in range(200):
        if is_gone(process):
            return True
        time.sleep(0.05)
    return False


def is_gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize("line", range(12))
def test_calls_that_are_killed_anywhere_are_done_again(ground: Ground, line: int) -> None:
    """Kill the process after so many commands of git, then repeat the call."""
    script = f"""
        import os, signal
        from pathlib import Path
        from deputize.tools.git import branches as module
        from deputize.tools.git.branches import Author, Branches
        from deputize.tools.git.process import Deadline
        from deputize.tools.files.changes import Changes

        left, run = {line}, module.run_git
        def run_git(*arguments, **options):
            global left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return run(*arguments, **options)
        module.run_git = run_git
        branches = Branches(Path({str(ground.repository)!r}), Path({str(ground.folder / "data")!r}))
        head = {ground.git("rev-parse", "main").strip()!r}
        branches.start("1" * 32, "agent/x", head, Deadline.after(20))
        with branches.open_branch("agent/x", Deadline.after(20)) as opened:
            Changes(branches.open_folder(opened)).put("2" * 32, "n.txt", b"n", "absent")
        branches.commit("3" * 32, "agent/x", "n", head, Author(agent="b", person="a"), Deadline.after(20))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False, capture_output=True, text=True)
    assert done.returncode in (0, -9), done.stderr
    branches = Branches(ground.repository, ground.folder / "data")
    head = start_again(branches, ground)
    with branches.open_branch(BRANCH, soon()) as opened:
        Changes(branches.open_folder(opened)).put("2" * 32, "n.txt", b"n", "absent")
    made = branches.commit("3" * 32, BRANCH, "n", head, AUTHOR, soon())
    commits = read_log(branches, made.head, ".", 0, 10, soon()).commits
    assert [each.message.split("\n")[0] for each in commits] == ["n", "Add src/b.txt", "Add a.txt"]


def start_again(branches: Branches, ground: Ground) -> str:
    head = ground.git("rev-parse", "main").strip()
    if branches.read_heads(soon()).get(BRANCH, head) == head:
        assert start(branches) == head
    return head


def write_object(ground: Ground, *arguments: str, content: bytes) -> str:
    command = ["git", "-C", str(ground.repository), *arguments]
    return subprocess.run(command, input=content, capture_output=True, check=True).stdout.decode().strip()


def commit_tree(ground: Ground, tree: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    return write_object(ground, *identity, "commit-tree", "-m", "x", tree, content=b"")


def repeat_entry(ground: Ground, entry: str, count: int) -> str:
    lines = "".join(f"{entry}\tn{number}\n" for number in range(count))
    return write_object(ground, "mktree", "--missing", content=lines.encode())


def test_a_commit_that_unpacks_to_more_than_a_branch_may_have_is_refused(ground: Ground, branches: Branches) -> None:
    blob = write_object(ground, "hash-object", "-w", "--stdin", content=bytes(65_536))
    bombs = []
    for file, counts in (
        (blob, (100, 400)),
        (write_object(ground, "hash-object", "-w", "--stdin", content=b""), (400,) * 8),
    ):
        tree = repeat_entry(ground, f"100644 blob {file}", counts[0])
        for count in counts[1:]:
            tree = repeat_entry(ground, f"040000 tree {tree}", count)
        bombs.append(commit_tree(ground, tree))
    for number, commit in enumerate(bombs):
        with pytest.raises(ToolPrecondition, match="more files than a branch may begin with"):
            branches.start(f"{number}" * 32, f"{BRANCH}{number}", commit, soon())
        assert {each.name for each in (branches.data / "branches" / f"x{number}").iterdir()} == {"lock"}


def test_a_checkout_that_fails_leaves_no_files(ground: Ground, branches: Branches) -> None:
    blob = write_object(ground, "hash-object", "-w", "--stdin", content=b"a")
    lines = f"100644 blob {blob}\ta\n100644 blob {'1' * 40}\tb\n"
    commit = commit_tree(ground, write_object(ground, "mktree", "--missing", content=lines.encode()))
    with pytest.raises(GitFailed):
        branches.start("1" * 32, BRANCH, commit, soon())
    assert not list((branches.data / "branches" / "x").glob("new*"))


def test_git_has_limits(branches: Branches) -> None:
    shown = branches.git("-c", "alias.limits=!ulimit -d; ulimit -f; ulimit -t", "limits", deadline=soon()).text
    assert [int(each) for each in shown.split()] == [1_048_576, 8_388_608, 300]


@pytest.mark.nightly
def test_a_file_larger_than_the_memory_of_git_is_refused(ground: Ground, branches: Branches) -> None:
    blob = write_object(ground, "hash-object", "-w", "--stdin", content=bytes(1_300_000_000))
    commit = commit_tree(ground, repeat_entry(ground, f"100644 blob {blob}", 1))
    with pytest.raises(GitFailed, match="needs more memory than it may use"):
        blame_lines(branches, commit, "n0", 0, 10, soon())
