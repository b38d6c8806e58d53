"""Add the tools that come with the gateway to those of the project, as far as the settings name what they may reach."""

from pathlib import Path

from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.settings import SETTINGS_FILE, Settings
from deputize.interfaces.cli.local.tool_loader import ProjectTools, Refusal, add_tool
from deputize.tools.files.declarations import declare_tools


def add_builtin_tools(project_tools: ProjectTools, settings: Settings, base: Path) -> None:
    """Add the tools, or a refusal that says why their folder cannot be used."""
    files = settings.builtin.files
    if files is None:
        return
    folder = (base / files.folder).resolve()
    try:
        _require_outside(folder, base, settings)
        for function in declare_tools(folder):
            add_tool(project_tools, getattr(function, ATTRIBUTE), str(SETTINGS_FILE))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reasons = (f"folder {files.folder} cannot be used: {reason}; name another folder, or create it",)
        project_tools.refusals.append(Refusal(what="[builtin.files]", file=str(SETTINGS_FILE), reasons=reasons))


def _require_outside(folder: Path, base: Path, settings: Settings) -> None:
    """Refuse a folder in which an agent could change its own tools, policies or settings, or read the keys."""
    for path in (base.resolve(), (base / settings.folder).resolve()):
        if path.is_relative_to(folder):
            raise ValueError("it contains the project's own files, such as its policies and keys")
