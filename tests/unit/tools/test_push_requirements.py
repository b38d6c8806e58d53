"""What a push requires has passed on exactly the files that are pushed, for this tenant, by this command."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from deputize import ToolContext, ToolPrecondition
from deputize.core.settings.builtin import BuildSettings, BuiltinSettings, GitSettings
from deputize.tools.files.changes import Changes
from deputize.tools.git.branches import Author, Branches
from deputize.tools.git.declarations import declare_tools, open_branches
from deputize.tools.git.process import Deadline
from deputize.tools.git.push_requirements import BranchRun, PushRequirements, RequiredCommands
from tests.support.git_traps import Ground, make_ground

pytestmark = pytest.mark.requirement("EXE-4")

BRANCH, COMMANDS = "agent/x", (("test", ("/usr/bin/make", "test")), ("lint", ("/usr/bin/lint",)))


def soon() -> Deadline:
    return Deadline.after(20.0)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return make_ground(tmp_path / "ground")


class Project:
    """A branch of an agent; each use of `requirements` begins from what is on the disk, as after a restart."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.branches = open_branches(ground.repository, ground.folder / "data")
        self.head = self.branches.start("1" * 32, BRANCH, self.branches.find_commit("main", soon()), soon()).head
        self.count = 1

    def requirements(self, commands: RequiredCommands = COMMANDS) -> PushRequirements:
        branches = Branches(self.ground.repository, self.branches.data)
        return PushRequirements(branches=branches, commands=commands)

    def write(self, path: str, content: str) -> None:
        self.count += 1
        with self.branches.open_branch(BRANCH, soon()) as opened:
            Changes(self.branches.open_folder(opened)).put(f"{self.count:032x}", path, content.encode(), "absent")

    def remove(self, path: str) -> None:
        with self.branches.open_branch(BRANCH, soon()) as opened:
            (opened.tree / path).unlink()

    def commit(self) -> str:
        self.count += 1
        author = Author(agent="bot", person="ana")
        self.head = self.branches.commit(f"{self.count:032x}", BRANCH, "m", self.head, author, soon()).head
        return self.head

    def run(self, name: str, *, tenant: str = "acme") -> None:
        """Run a command that passes."""
        run = BranchRun(requirements=self.requirements(), branch=BRANCH, name=name, tenant=tenant)
        with run.open_files() as files:
            assert (files / "a.txt").exists()
        run.record_pass()

    def list_missing(self, *, tenant: str = "acme", commands: RequiredCommands = COMMANDS) -> list[str]:
        return self.requirements(commands).list_missing(tenant, self.head, soon())


@pytest.fixture
def project(ground: Ground) -> Project:
    return Project(ground)


def test_each_command_has_to_pass_on_the_files_of_the_head(project: Project) -> None:
    assert project.list_missing() == ["test", "lint"]
    project.run("test")
    assert project.list_missing() == ["lint"]
    project.run("build")
    project.run("lint")
    assert project.list_missing() == []
    project.write("n.txt", "n\n")
    project.commit()
    assert project.list_missing() == ["test", "lint"]


def test_a_run_counts_for_the_files_that_it_ran_on(project: Project) -> None:
    project.write("n.txt", "n\n")
    project.run("test")
    # Not for the head, which has no such file, and for the commit that adds it.
    assert project.list_missing() == ["test", "lint"]
    project.commit()
    assert project.list_missing() == ["lint"]


def test_a_run_that_saw_ignored_files_counts_for_no_commit(project: Project) -> None:
    project.write(".gitignore", "local.py\n")
    project.commit()
    project.write("local.py", "x = 1\n")
    project.run("test")
    assert project.list_missing() == ["test", "lint"]
    project.remove("local.py")
    project.run("test")
    assert project.list_missing() == ["lint"]


def test_a_command_sees_no_folder_that_no_commit_has(project: Project) -> None:
    project.write("plugin/inner/x.txt", "x")
    project.remove("plugin/inner/x.txt")
    run = BranchRun(requirements=project.requirements(), branch=BRANCH, name="test", tenant="acme")
    with run.open_files() as files:
        assert not (files / "plugin").exists()


def test_a_pass_is_of_one_tenant_and_one_command(project: Project) -> None:
    project.run("test")
    assert project.list_missing(tenant="other") == ["test", "lint"]
    assert project.list_missing(commands=(("test", ("/usr/bin/true",)),)) == ["test"]
    assert project.list_missing(commands=()) == []


def test_a_push_without_them_names_the_calls_and_hands_nothing_over(project: Project) -> None:
    tools = declare_tools(project.ground.repository, project.ground.folder / "data", None, COMMANDS)
    (push,) = (each for each in tools if each.__name__ == "push")
    context = ToolContext(
        call_id="1", tenant="acme", user="ana", agent="bot", session=None, key="k", attempt=1, seconds_left=30.0,
        traceparent=None,
    )  # fmt: skip
    project.run("lint")
    with pytest.raises(ToolPrecondition, match=r"test must pass .* then call build\.test with branch=agent/x"):
        push(BRANCH, project.head, context)
    assert project.ground.git("branch", "--list", BRANCH) == ""
    project.run("test")
    assert push(BRANCH, project.head, context).head == project.head
    assert project.ground.git("rev-parse", BRANCH).strip() == project.head


def test_a_preview_says_which_commands_passed_on_which_files(project: Project) -> None:
    def describe() -> tuple[str, bool, str]:
        [found] = project.requirements().describe("acme", BRANCH, project.head, soon())
        return found["name"], found["holds"], found["detail"]

    todo = "Commit or take back all changes, ignored files too, then call"
    name, holds, detail = describe()
    assert (name, holds) == ("required commands", False)
    assert detail == (
        f"test and lint have not passed on the files of {project.head}. {todo} build.test and build.lint with "
        "branch=agent/x"
    )
    project.run("test")
    assert describe()[2].startswith(f"lint has not passed on the files of {project.head}. {todo} build.lint with")
    project.run("lint")
    assert describe() == ("required commands", True, f"test and lint passed on the files of {project.head}")


def test_what_is_required_has_a_command(tmp_path: Path) -> None:
    git, build = GitSettings(repository=tmp_path, require=("test", "lint")), BuildSettings(test=("/usr/bin/true",))
    with pytest.raises(ValidationError, match="require names test, which has no command"):
        BuiltinSettings(git=git)
    with pytest.raises(ValidationError, match="require names lint, which has no command"):
        BuiltinSettings(git=git, build=build)
