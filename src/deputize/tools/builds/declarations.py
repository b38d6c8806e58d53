"""Declare the tools `build.*`. What they run is the operator's choice: an agent says of which branch, and no more."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field

from deputize import Fact, SemanticViolation, ToolContext, tool
from deputize.catalog.importers.python import ToolOptions
from deputize.core.contract.tools import OpenFolder, RunInFolder
from deputize.tools.builds.report import Report, build_report
from deputize.tools.git.push_requirements import BranchRun
from deputize.tools.git.repository import BRANCH_PATTERN, MAX_BRANCH

Function = TypeVar("Function", bound=Callable[..., Any])
# Begins a run on an agent's branch: the branch, the name of the command and the tenant.
BeginBranchRun = Callable[[str, str, str], BranchRun]

Branch = Annotated[
    str | None,
    Field(
        description="A branch of an agent, as in agent/fix-login, with its files as they are; by default, the folder "
        "of files.*.",
        pattern=BRANCH_PATTERN,
        max_length=MAX_BRANCH,
    ),
    Fact("branch"),
]

# For the report, after a program was ended.
_RESERVE_SECONDS: Final = 2.0
_OPTIONS: Final[ToolOptions] = {
    "namespace": "build", "version": "1.0.0", "kind": "code_execution", "provider": "deputize", "open_world": False,
    "scopes": ["build:run"], "timeout": 300, "search_hint": "run tests, compile or check code",
}  # fmt: skip


def _name_plainly(function: Function) -> Function:
    """Name a function as if it were one of the module, so that its address in contracts stays when it is moved."""
    function.__qualname__ = function.__name__
    return function


def declare_tools(
    commands: Mapping[str, Sequence[str]],
    run: RunInFolder,
    seconds: float,
    *,
    folder: Path | None,
    begin_branch_run: BeginBranchRun | None,
) -> tuple[Callable[..., Any], ...]:
    """Declare the tools that have a command, for a folder, branches, or both."""

    def choose_folder(branch: str | None, branch_run: BranchRun | None) -> OpenFolder:
        if branch is None and folder is not None:
            return lambda: nullcontext(folder)
        if branch_run is not None:
            return branch_run.open_files
        what = "name a branch: there is no folder of files" if branch is None else "leave it out: there are no branches"
        raise SemanticViolation(f"{what} here", details={"argument": "branch"})

    async def report(name: str, branch: str | None, context: ToolContext) -> Report:
        branch_run = None
        if branch is not None and begin_branch_run is not None:
            branch_run = begin_branch_run(branch, name, context.tenant)
        open_folder = choose_folder(branch, branch_run)
        ended = await run(commands[name], open_folder, min(seconds, context.seconds_left - _RESERVE_SECONDS))
        built = await asyncio.to_thread(build_report, ended)
        if built.passed and branch_run is not None:
            await asyncio.to_thread(branch_run.record_pass)
        return built

    @tool(effects="read", examples=[{"branch": "agent/fix-login"}], **_OPTIONS)
    @_name_plainly
    async def build(context: ToolContext, branch: Branch = None) -> Report:
        """Build the project in a sandbox, and report errors first. What was built is not kept."""
        return await report("build", branch, context)

    @tool(effects="read", examples=[{"branch": "agent/fix-login"}], **_OPTIONS)
    @_name_plainly
    async def test(context: ToolContext, branch: Branch = None) -> Report:
        """Run the tests of the project in a sandbox, and report failures first."""
        return await report("test", branch, context)

    @tool(effects="read", examples=[{"branch": "agent/fix-login"}], **_OPTIONS)
    @_name_plainly
    async def lint(context: ToolContext, branch: Branch = None) -> Report:
        """Run the linter of the project in a sandbox, and report what it found."""
        return await report("lint", branch, context)

    @tool(effects="read", examples=[{"branch": "agent/fix-login"}], **_OPTIONS)
    @_name_plainly
    async def typecheck(context: ToolContext, branch: Branch = None) -> Report:
        """Run the type checker of the project in a sandbox, and report what it found."""
        return await report("typecheck", branch, context)

    return tuple(each for each in (build, test, lint, typecheck) if each.__name__ in commands)
