"""Open a gateway with the tools and hooks that the settings name; an invalid hook stops the start."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from deputize.catalog.importers.hooks import load_hooks
from deputize.catalog.schema_rules import Reason
from deputize.core.call_report import ReportCall, ReportToolError
from deputize.core.contract.tools import ProjectTool
from deputize.core.errors import Problem, VersionConflict
from deputize.core.settings import Settings
from deputize.govern.approvals.approval_codes import ApprovalCode
from deputize.govern.approvals.confirmation_codes import ConfirmationCode
from deputize.interfaces.cli.local.builtin_tools import add_builtin_tools
from deputize.interfaces.cli.local.tool_loader import ProjectTools, Refusal, explain_tool_reasons, load_tool_files
from deputize.operations.gateway import Gateway
from deputize.store.instance_lock import InstanceLock

OpenGateway = Callable[..., AbstractAsyncContextManager[Gateway]]
"""Opens a gateway, as `app.py` does: settings, then `tools`, `hooks`, `development` and so on by name."""


def load_project(settings: Settings, base: Path, *, admits_drafts: bool = False) -> ProjectTools:
    """Load the tools of the files that `[tools]` names and those of `[builtin]`, and the hooks of `[[hooks]]`.

    `admits_drafts` is for development: there, what authors have not written yet is a gap and no refusal.
    """
    project_tools = load_tool_files(settings.tools.python, settings.tools.manifests, base, admits_drafts=admits_drafts)
    add_builtin_tools(project_tools, settings, base)
    project_tools.hooks = load_hooks(settings.hooks, base)
    return project_tools


def use_lineage_folder(settings: Settings) -> Settings:
    """Record in the project's folder what was committed, unless the settings name another one."""
    if settings.database.lineage_folder is not None:
        return settings
    database = settings.database.model_copy(update={"lineage_folder": settings.folder / "lineage"})
    return settings.model_copy(update={"database": database})


@contextlib.asynccontextmanager
async def open_project_gateway(
    open_gateway: OpenGateway,
    settings: Settings,
    project_tools: ProjectTools,
    *,
    development: bool,
    worker: bool = False,
    applies_files: bool = True,
    show_code: Callable[[ApprovalCode], None] | None = None,
    instance_lock: InstanceLock | None = None,
    show_confirmation: Callable[[ConfirmationCode], None] | None = None,
    report_call: ReportCall | None = None,
    report_tool_error: ReportToolError | None = None,
    replaces_versions: bool = False,
    holds_changes: bool = False,
) -> AsyncIterator[Gateway]:
    """Open a gateway with the project's tools; add those that the registry refuses to the refusals."""
    async with (
        contextlib.AsyncExitStack() as stack,
        open_gateway(
            use_lineage_folder(settings),
            tools=tuple(project_tools.tools),
            hooks=project_tools.hooks,
            development=development,
            worker=worker,
            applies_files=applies_files,
            show_code=show_code,
            instance_lock=instance_lock,
            show_confirmation=show_confirmation,
            report_call=report_call,
            report_tool_error=report_tool_error,
            replaces_versions=replaces_versions,
            holds_changes=holds_changes,
        ) as gateway,
    ):
        for each in project_tools.closers:
            stack.push_async_callback(each)
        for problem in gateway.startup_problems:
            tool = find_refused_tool(problem, project_tools.tools)
            if tool is None:
                project_tools.refusals.append(Refusal(what="a tool", file="", reasons=(problem.message,)))
            else:
                file = project_tools.find_file(tool.contract)
                project_tools.add_refusal(tool.contract, explain_refusal(problem, tool, file))
        yield gateway


def find_refused_tool(problem: Problem, tools: Iterable[ProjectTool]) -> ProjectTool | None:
    """Find the tool that a problem is about: its message starts with the name and version."""
    for tool in tools:
        if problem.message.startswith(f"{tool.contract.full_name} {tool.contract.version} "):
            return tool
    return None


def explain_refusal(problem: Problem, tool: ProjectTool, file: str) -> list[str]:
    """Explain why the registry refused a tool, in terms of the file that declares it."""
    if isinstance(problem, VersionConflict):
        number = problem.details.get("suggested_version")
        return [
            f"the declaration changed, but version {tool.contract.version} is already registered and stays as it was; "
            + ("write a higher version" if number is None else f'write version="{number}"')
        ]
    reasons = [Reason(**each) for each in problem.details.get("reasons", ())]
    return explain_tool_reasons(tool, file, reasons) or [problem.message]
