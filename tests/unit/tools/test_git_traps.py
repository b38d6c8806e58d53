"""Repositories, remotes and options that make git run programs or leave a repository do nothing of it here.

Each is tried with git as it is first: what catches nobody would prove nothing.
"""

import hashlib
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deputize import SemanticViolation, ToolContext, ToolPrecondition
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.settings import Settings
from deputize.core.settings.builtin import BuiltinSettings, GitSettings
from deputize.interfaces.cli.local.project_gateway import load_project
from deputize.tools.git.declarations import declare_tools
from deputize.tools.git.process import OpenGitSandbox
from tests.support.git_traps import TRAPS, Ground, Trap, copy_ground, make_ground

pytestmark = [pytest.mark.requirement("EXE-4"), pytest.mark.requirement("GOV-4")]

BRANCH = "agent/work"


class Tools:
    """The tools of a repository, called one after the other as an agent does."""

    def __init__(self, ground: Ground, open_sandbox: OpenGitSandbox | None = None) -> None:
        tools = declare_tools(ground.repository, ground.folder / "data", open_sandbox=open_sandbox)
        self._tools: dict[str, Callable[..., Any]] = {getattr(each, ATTRIBUTE).contract.name: each for each in tools}

    def call(self, tool: str, **arguments: Any) -> Any:
        return self._tools[tool](**arguments, context=self._build_context())

    def preview(self, tool: str, **arguments: Any) -> Any:
        return getattr(self._tools[tool], ATTRIBUTE).preview(**arguments, context=self._build_context())

    def _build_context(self) -> ToolContext:
        return ToolContext(
            call_id=uuid.uuid4().hex, tenant="acme", user="ann", agent="bot", session=None, key=uuid.uuid4().hex,
            attempt=1, seconds_left=10.0, traceparent=None,
        )  # fmt: skip

    def work(self) -> None:
        """Use every tool once, on a branch from its start to its end."""
        self.call("branches")
        begun = self.call("start", branch=BRANCH, ref="HEAD")
        page = self.call("read", branch=BRANCH, path="a.txt")
        written = self.call("write", branch=BRANCH, path="a.txt", content="new\n", expected_sha256=page.sha256)
        self.call("restore", branch=BRANCH, path="a.txt", change=written.change)
        page = self.call("read", branch=BRANCH, path="a.txt")
        self.call("write", branch=BRANCH, path="a.txt", content="newer\n", expected_sha256=page.sha256)
        page = self.call("read", branch=BRANCH, path="src/b.txt")
        self.call("delete", branch=BRANCH, path="src/b.txt", expected_sha256=page.sha256)
        self.call("list", branch=BRANCH)
        self.call("search", branch=BRANCH, pattern="new")
        assert {each.path for each in self.call("status", branch=BRANCH).changes} >= {"a.txt", "src/b.txt"}
        assert "+newer" in self.call("diff", ref=BRANCH).diff
        self.preview("commit", branch=BRANCH, message="Change", expected_head=begun.head)
        made = self.call("commit", branch=BRANCH, message="Change", expected_head=begun.head)
        assert len(self.call("log", ref=BRANCH).commits) > 2
        assert "+newer" in self.call("show", ref=BRANCH).diff.diff
        self.call("diff", ref="other", to=BRANCH)
        assert self.call("blame", ref=BRANCH, path="a.txt").lines[0].commit == made.head
        back = self.call("reset", branch=BRANCH, to=begun.head, expected_head=made.head)
        self.call("reset", branch=BRANCH, to=made.head, expected_head=back.head)
        self.preview("push", branch=BRANCH, expected_head=made.head)
        self.call("push", branch=BRANCH, expected_head=made.head)
        self.call("drop", branch=BRANCH, expected_head=made.head)


def describe(folder: Path) -> dict[str, str]:
    """Digest all files of a folder but the objects and agents' refs of a repository, which a push adds to."""
    described = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            described[name] = str(path.readlink())
        elif path.is_file() and not name.startswith((".git/objects/", ".git/refs/heads/agent/")):
            described[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return described


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return make_ground(tmp_path_factory.mktemp("ground") / "clean")


@pytest.mark.parametrize("trap", TRAPS, ids=[each.name for each in TRAPS])
def test_a_trap_that_catches_git_as_it_is_runs_nothing_here(trap: Trap, ground: Ground, tmp_path: Path) -> None:
    control = copy_ground(ground, tmp_path / "control")
    trap.plant(control)
    control.mark.unlink(missing_ok=True)
    trap.fall(control)
    assert control.mark.exists(), "git as it is was not caught, so this shows nothing"

    ground = copy_ground(ground, tmp_path / "ours")
    trap.plant(ground)
    ground.mark.unlink(missing_ok=True)
    before = describe(ground.repository), describe(ground.outside)
    if trap.refusal is None:
        Tools(ground).work()
        heads = list((ground.repository / ".git" / "refs" / "heads" / "agent").iterdir())
        assert [each.name for each in heads] == ["work"]
    else:
        with pytest.raises(ValueError, match=trap.refusal):
            Tools(ground).work()
    assert not ground.mark.exists()
    assert (describe(ground.repository), describe(ground.outside)) == before


def test_there_are_many_traps() -> None:
    assert len(TRAPS) >= 40


OPTIONS = (
    "log --output=MARK",
    "diff --output=MARK HEAD~1",
    "grep --open-files-in-pager=PROGRAM one",
    "fetch --upload-pack=PROGRAM .",
    "push --receive-pack=PROGRAM . main",
    "ls-remote --upload-pack=PROGRAM .",
    "archive --remote=. --exec=PROGRAM main",
    "difftool --no-prompt --extcmd=PROGRAM HEAD~1",
    "rebase --force-rebase --exec=PROGRAM HEAD~1",
)


@pytest.mark.parametrize("command", OPTIONS)
def test_an_option_that_git_as_it_is_obeys_is_no_ref_path_or_branch_here(
    command: str, ground: Ground, tmp_path: Path
) -> None:
    control = copy_ground(ground, tmp_path / "control")
    control.git(*write_places(command, control).split())
    assert control.mark.exists(), "git as it is did not obey, so this shows nothing"

    ground = copy_ground(ground, tmp_path / "ours")
    tools = Tools(ground)
    (option,) = [each for each in write_places(command, ground).split() if each.endswith((ground.mark.name, "program"))]
    before = describe(ground.repository)
    for tool in ("log", "show", "diff"):
        with pytest.raises(ToolPrecondition, match="there is no branch, tag or commit"):
            tools.call(tool, ref=option)
    with pytest.raises(ToolPrecondition):
        tools.call("blame", ref="main", path=option)
    assert tools.call("log", ref="main", path=option.replace("/", "_")).commits == []
    for tool, arguments in {"start": {"ref": "main"}, "push": {"expected_head": "0" * 40}}.items():
        with pytest.raises(SemanticViolation, match="no branch of an agent"):
            tools.call(tool, branch=option, **arguments)
    assert not ground.mark.exists()
    assert describe(ground.repository) == before


def write_places(command: str, ground: Ground) -> str:
    return command.replace("PROGRAM", str(ground.program)).replace("MARK", str(ground.mark))


@pytest.mark.parametrize(
    ("remote", "option"),
    [
        ("ext::PROGRAM", "protocol.ext.allow=always"),
        ("ssh://localhost/x", "core.sshCommand=PROGRAM"),
        ("localhost:x", "core.sshCommand=PROGRAM"),
        ("git://localhost/x", "core.gitProxy=PROGRAM"),
        ("file://REPOSITORY", "core.pager=cat"),
    ],
)
def test_a_remote_that_runs_a_program_by_git_as_it_is_is_refused_here(
    remote: str, option: str, ground: Ground, tmp_path: Path
) -> None:
    control = copy_ground(ground, tmp_path / "control")
    control.add_hook("post-receive")
    place = remote.replace("REPOSITORY", str(control.repository))
    refspec = "main:refs/heads/agent/control"
    control.git("-c", write_places(option, control), "push", write_places(place, control), refspec)
    assert control.mark.exists(), "git as it is was not caught, so this shows nothing"

    ground = copy_ground(ground, tmp_path / "ours")
    ground.add_hook("post-receive")
    place = write_places(remote.replace("REPOSITORY", str(ground.repository)), ground)
    settings = Settings(builtin=BuiltinSettings(git=GitSettings(repository=ground.repository, remote=Path(place))))
    (refusal,) = load_project(settings, tmp_path).refusals
    assert "there is no git repository" in refusal.reasons[0]
    assert not ground.mark.exists()
