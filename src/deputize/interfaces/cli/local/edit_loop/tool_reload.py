"""Load edited tool files beside those in use, and decide file by file which of both to use."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from deputize.catalog.importers.code_digest import SetAsideModules, set_aside_modules
from deputize.catalog.importers.tool_files import MODULE_PREFIX
from deputize.core.contract.tools import ProjectTool
from deputize.core.settings import Settings
from deputize.interfaces.cli.local.builtin_tools import add_builtin_tools
from deputize.interfaces.cli.local.tool_loader import ProjectTools, reload_tool_files

ToolIdentity = tuple[str, str, str, str]
"""Name, version, and the digests of contract and code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedTools:
    """Tools that were loaded from edited files and are not in use yet, with the modules they would replace."""

    project_tools: ProjectTools
    set_aside: SetAsideModules

    def keep_old_modules(self, files: Iterable[str]) -> None:
        """Put back the modules of these files, and those that the edited files no longer import."""
        names = {f"{MODULE_PREFIX}.{file.removesuffix('.py').replace('/', '.')}" for file in files}
        self.set_aside.restore(names)
        self.set_aside.restore_missing()


def stage_tools(settings: Settings, base: Path, paths: Iterable[Path]) -> StagedTools:
    """Import the files at these paths anew, and every module of the project that imports them."""
    set_aside = set_aside_modules(paths)
    project_tools = reload_tool_files(settings.tools.python, settings.tools.manifests, base, admits_drafts=True)
    add_builtin_tools(project_tools, settings, base)
    return StagedTools(project_tools=project_tools, set_aside=set_aside)


def identify_tool(tool: ProjectTool) -> ToolIdentity:
    contract = tool.contract
    return contract.full_name, contract.version, contract.digest, tool.code_digest


def group_by_file(project_tools: ProjectTools) -> dict[str, list[ProjectTool]]:
    """Group tools by the file that declares them."""
    groups: dict[str, list[ProjectTool]] = {}
    for tool in project_tools.tools:
        groups.setdefault(project_tools.find_file(tool.contract), []).append(tool)
    return groups


def list_changed_files(old: Mapping[str, list[ProjectTool]], new: Mapping[str, list[ProjectTool]]) -> list[str]:
    """List the files whose tools differ from those in use."""
    return [
        file
        for file, tools in new.items()
        if [identify_tool(each) for each in tools] != [identify_tool(each) for each in old.get(file, ())]
    ]


def combine_tools(
    old: Mapping[str, list[ProjectTool]], new: Mapping[str, list[ProjectTool]], kept_files: Iterable[str]
) -> dict[str, list[ProjectTool]]:
    """Take the new tools of every file but the kept ones. A tool that moved to another file is there once."""
    kept_groups = {file: old[file] for file in kept_files if file in old}
    new_groups = {file: tools for file, tools in new.items() if file not in set(kept_files)}
    new_keys = {(each.contract.full_name, each.contract.version) for tools in new_groups.values() for each in tools}
    for file, tools in kept_groups.items():
        new_groups[file] = [each for each in tools if (each.contract.full_name, each.contract.version) not in new_keys]
    return new_groups
