"""What git reads, it reads in a sandbox, which sees the repository alone; how it ends is told in words."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deputize import ToolFailed
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.tools import PythonTool
from deputize.core.errors import SandboxFailed, ToolRequiresSetup
from deputize.core.settings import Settings
from deputize.core.settings.builtin import BuiltinSettings, GitSettings
from deputize.core.settings.sandboxes import SandboxSettings
from deputize.interfaces.cli.local.project_gateway import load_project
from deputize.sandboxes.client import RunningSandbox, SandboxClient
from deputize.tools.git import sandboxes as git_sandboxes
from deputize.tools.git.branches import Branches
from deputize.tools.git.declarations import declare_tools
from deputize.tools.git.history import blame_lines, list_branches, read_log, show_commit
from deputize.tools.git.process import Deadline, GitFailed
from deputize.tools.git.sandboxes import GitSandboxes
from tests.support.git_traps import TRAPS, Ground, Trap, copy_ground, make_ground
from tests.support.sandbox_host import GatewayHost, needs_sandboxes
from tests.unit.tools.test_git_traps import Tools, describe

pytestmark = [pytest.mark.requirement("EXE-4"), needs_sandboxes]


def soon(seconds: float = 60.0) -> Deadline:
    return Deadline.after(seconds)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return make_ground(tmp_path_factory.mktemp("ground") / "clean")


@pytest.fixture
def ground(clean: Ground, tmp_path: Path) -> Ground:
    return copy_ground(clean, tmp_path / "ground")


@pytest.fixture
def sandboxes(tmp_path: Path) -> Iterator[GitSandboxes]:
    built = GitSandboxes(SandboxClient(tmp_path / "sandboxes", accept_weak_limits=True, accept_shared_user=True))
    yield built
    asyncio.run(built.aclose())


@pytest.fixture
def branches(ground: Ground, sandboxes: GitSandboxes) -> Branches:
    return Branches(ground.repository, ground.folder / "data", open_sandbox=sandboxes.open)


def run(branches: Branches, script: str, **options: Any) -> str:
    """Run a program in the place of git, as one would that was taken over."""
    return branches.git("-c", f"alias.own=!{script}", "own", deadline=options.pop("deadline", soon()), **options).text


def test_git_answers_as_it_does_outside(gateway_host: GatewayHost) -> None:
    ground = make_ground(gateway_host.folder)
    client = SandboxClient(gateway_host.supervisor, accept_weak_limits=True, accept_shared_user=True)
    sandboxes = GitSandboxes(client)
    outside, branches = [
        Branches(ground.repository, ground.folder / "data", open_sandbox=each) for each in (None, sandboxes.open)
    ]
    (ground.repository / 'it\'s "é"').write_text("one\n")
    ground.git("add", ".")
    ground.git("commit", "--quiet", "--message", "It's ü")
    answers, refusals = [], []
    for each in (outside, branches):
        with each.share_sandbox():
            commit = each.find_commit("main", soon())
            answers.append(
                (
                    list_branches(each, "", soon()),
                    read_log(each, commit, 'it\'s "é"', 0, 10, soon()),
                    show_commit(each, commit, ".", 0, 10_000, soon()),
                    blame_lines(each, commit, 'it\'s "é"', 0, 10, soon()),
                )
            )
            with pytest.raises(GitFailed, match="git rev-parse failed: fatal") as failed:
                each.git("rev-parse", "--verify", "1" * 39, deadline=soon())
            refusals.append((failed.value.message, failed.value.status))
    assert answers[0] == answers[1]
    assert refusals[0] == refusals[1]
    assert len(answers[1][1].commits) == 1
    asyncio.run(sandboxes.aclose())


def test_a_git_that_was_taken_over_reaches_the_repository_alone(ground: Ground, branches: Branches) -> None:
    ground.outside.mkdir(exist_ok=True)
    (ground.outside / "secret").write_text("canary")
    config, store = ground.repository / ".git" / "config", branches.store
    assert run(branches, "id -u; env").split("\n")[0] == "65534"
    for path in (ground.outside / "secret", config, ground.repository / "a.txt"):
        assert run(branches, f"test -e {path} && echo seen; true") == ""
    before = describe(ground.repository), describe(branches.data)
    for path in (store / "config", store / "refs/heads/x", ground.repository / ".git/objects/x"):
        assert run(branches, f"touch {path} 2>/dev/null && echo written; true") == ""
    assert run(branches, "grep -c : /proc/net/dev").strip() == "1"
    assert run(branches, "ulimit -d; ulimit -t").split() == ["1048576", "300"]
    assert (describe(ground.repository), describe(branches.data)) == before


def test_the_ends_of_git_are_told_in_words_and_the_next_command_runs(
    branches: Branches, monkeypatch: pytest.MonkeyPatch, sandboxes: GitSandboxes
) -> None:
    limits = replace(git_sandboxes._LIMITS, memory_bytes=67_108_864)
    monkeypatch.setattr(git_sandboxes, "_LIMITS", limits)
    with branches.share_sandbox():
        with pytest.raises(GitFailed, match=r"crashed \(signal 11\): the repository is damaged") as crashed:
            run(branches, "kill -SEGV $$")
        assert crashed.value.status is None
        if sandboxes._client.weak_limits is None:
            with pytest.raises(GitFailed, match="needs more memory than it may use"):
                run(branches, "exec tail /dev/zero")
        with pytest.raises(GitFailed, match="took too long"):
            run(branches, "sleep 60", deadline=soon(1.5))
        cut = branches.git("-c", "alias.own=!yes", "own", deadline=soon(), max_bytes=1_000)
        assert (cut.is_cut, cut.data) == (True, b"y\n" * 500)
        assert run(branches, "echo on") == "on\n"
        # Git ends first, and the program that runs it in the sandbox right after: either is what is heard of.
        with pytest.raises((ToolFailed, SandboxFailed)):
            run(branches, "kill -KILL $PPID; kill -KILL $(cut -d' ' -f4 /proc/$PPID/stat)")
        assert run(branches, "echo on") == "on\n"


def test_a_call_has_one_sandbox_and_a_call_that_reads_no_commit_has_none(
    ground: Ground, sandboxes: GitSandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    start = GitSandboxes.start

    async def start_counted(self: GitSandboxes, folders: Sequence[Path]) -> RunningSandbox:
        started.append(folders)
        return await start(self, folders)

    monkeypatch.setattr(GitSandboxes, "start", start_counted)
    tools = Tools(ground, sandboxes.open)
    functions = declare_tools(ground.repository, ground.folder / "data", open_sandbox=sandboxes.open)
    declared = {getattr(each, ATTRIBUTE).contract.name: getattr(each, ATTRIBUTE) for each in functions}
    begun = tools.call("start", branch="agent/x", ref="main")
    started.clear()
    context = tools._build_context()
    for name, arguments, count in (
        ("show", {"ref": begun.head}, 1),
        ("read", {"branch": "agent/x", "path": "a.txt"}, 0),
    ):
        tool = declared[name]
        values = {"path": ".", "offset": 0, "limit": 1_000, **arguments}
        tool.run(**values, context=context)
        assert len(started) == count
        started.clear()


def test_a_host_without_sandboxes_reads_only_where_that_is_accepted(ground: Ground) -> None:
    client = SandboxClient(Path("/proc/none"))
    for accepts, data in ((True, "one"), (False, "two")):
        sandboxes = GitSandboxes(client, may_be_bare=accepts)
        branches = Branches(ground.repository, ground.folder / data, open_sandbox=sandboxes.open)
        if accepts:
            assert len(branches.find_commit("main", soon())) == 40
        else:
            with pytest.raises(ToolRequiresSetup, match="git reads a repository in a sandbox, and this host has none"):
                branches.find_commit("main", soon())
        asyncio.run(sandboxes.aclose())


def test_production_reads_no_commit_without_a_sandbox_unless_the_settings_accept_it(
    ground: Ground, tmp_path: Path
) -> None:
    context = Tools(ground)._build_context()
    for environment, accept, is_read in (
        ("development", (), True),
        ("production", ("unsandboxed_code",), True),
        ("production", ("weak_limits",), False),
    ):
        section = SandboxSettings.model_validate({"folder": "/proc/none", "accept": accept})
        builtin = BuiltinSettings(git=GitSettings(repository=ground.repository))
        # Not validated: what else production requires is none of this.
        changed = {"environment": environment, "sandboxes": section, "builtin": builtin}
        settings = Settings().model_copy(update=changed)
        loaded = load_project(settings, tmp_path / environment).tools
        tools = {each.contract.name: each for each in loaded if isinstance(each, PythonTool)}
        log = partial(tools["log"].run, ref="main", path=".", offset=0, limit=1, context=context)
        if is_read:
            assert len(log()["commits"]) == 1
        else:
            with pytest.raises(ToolRequiresSetup):
                log()


def test_every_tool_works_with_sandboxes(ground: Ground, sandboxes: GitSandboxes) -> None:
    Tools(ground, sandboxes.open).work()


@pytest.mark.nightly
@pytest.mark.parametrize("trap", [each for each in TRAPS if each.refusal is None], ids=lambda each: each.name)
def test_a_trap_runs_nothing_with_sandboxes(trap: Trap, ground: Ground, sandboxes: GitSandboxes) -> None:
    trap.plant(ground)
    ground.mark.unlink(missing_ok=True)
    before = describe(ground.repository), describe(ground.outside)
    Tools(ground, sandboxes.open).work()
    assert not ground.mark.exists()
    assert (describe(ground.repository), describe(ground.outside)) == before
