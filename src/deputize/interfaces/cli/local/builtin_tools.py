"""Add the tools that come with the gateway to those of the project, as far as the settings name what they may reach."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from glob import glob, has_magic
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.errors import ToolPrecondition, UpstreamUnavailable
from deputize.core.settings import SETTINGS_FILE, FilesSettings, McpServerSettings, Settings, SqlSettings
from deputize.interfaces.cli.local.tool_loader import ProjectTools, Refusal, add_tool
from deputize.tools.files.declarations import declare_tools


def add_builtin_tools(project_tools: ProjectTools, settings: Settings, base: Path) -> None:
    """Add the tools, or a refusal that says why their folder or database cannot be used."""
    if settings.builtin.files is not None:
        _add_files(project_tools, settings.builtin.files, settings, base)
    if settings.builtin.sql is not None:
        _add_sql(project_tools, settings.builtin.sql)


def _add_files(project_tools: ProjectTools, files: FilesSettings, settings: Settings, base: Path) -> None:
    folder = (base / files.folder).resolve()
    reason = _find_exposure(folder, base.resolve(), settings)
    try:
        if reason is None:
            for function in declare_tools(folder):
                add_tool(project_tools, getattr(function, ATTRIBUTE), str(SETTINGS_FILE))
            return
        advice = "name a folder of its own"
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        advice = "name another folder, or create it"
    refusal = f"folder {files.folder} cannot be used: {reason}; {advice}"
    project_tools.refusals.append(Refusal(what="[builtin.files]", file=str(SETTINGS_FILE), reasons=(refusal,)))


def _add_sql(project_tools: ProjectTools, sql: SqlSettings) -> None:
    try:
        for function in _declare_sql_tools(sql):
            add_tool(project_tools, getattr(function, ATTRIBUTE), str(SETTINGS_FILE))
        return
    except ModuleNotFoundError as error:
        if error.name != "pgparse":
            raise
        reason = "the parser of statements is not installed: run pip install 'deputize[sql]'"
    except ToolPrecondition as error:
        reason = error.message
    project_tools.refusals.append(Refusal(what="[builtin.sql]", file=str(SETTINGS_FILE), reasons=(reason,)))


@lru_cache(maxsize=16)
def _declare_sql_tools(sql: SqlSettings) -> tuple[Callable[..., Any], ...]:
    """Declare the tools of a database, once. Raise `ToolPrecondition` if its login could write."""
    from deputize.tools.sql.database import Database, Limits
    from deputize.tools.sql.declarations import declare_tools as declare_sql_tools
    from deputize.tools.sql.statements import Access

    access = Access(tables=sql.tables, functions=frozenset(sql.functions))
    limits = Limits(seconds=sql.seconds, cost=sql.max_cost)
    database = Database(sql.url.get_secret_value(), access, limits)
    # In a thread of its own: an event loop may run in this one.
    with ThreadPoolExecutor(max_workers=1) as threads, suppress(UpstreamUnavailable):
        # A database that does not answer now is tried again by each call, which also looks at the login.
        threads.submit(asyncio.run, database.require_reader()).result()
    return declare_sql_tools(database, shows_samples=sql.samples)


def _find_exposure(folder: Path, base: Path, settings: Settings) -> str | None:
    """Find what an agent with this folder could read or change of its own tools, policies, settings or keys."""
    if base.is_relative_to(folder):
        return "it contains the project's own files, such as its policies and keys"
    for path in (base / SETTINGS_FILE, base / ".deputize", *_list_paths(settings, base)):
        if any(each.is_relative_to(folder) for each in _locate(path)):
            return f"{path.name}, which belongs to the gateway, is in it"
        if folder.is_relative_to(path.resolve()):
            return f"it is in {path.name}, which belongs to the gateway"
    for setting, pattern in _list_patterns(settings):
        if _can_match(pattern, folder, base):
            return f"{setting} lists {pattern}, so an agent could change its own tools or rules there"
    return None


def _list_paths(section: BaseModel, base: Path) -> Iterator[Path]:
    """List the paths in the settings, such as those of keys. A folder that programs work in may be the agent's too."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Path):
                yield base / each
            elif isinstance(each, BaseModel) and not isinstance(each, FilesSettings | McpServerSettings):
                yield from _list_paths(each, base)


def _list_patterns(settings: Settings) -> Iterator[tuple[str, str]]:
    for pattern in settings.tools.python:
        yield "[tools] python", pattern
    for pattern in settings.tools.manifests:
        yield "[tools] manifests", pattern
    for pattern in settings.policy.files:
        yield "[policy] files", pattern
    for hook in settings.hooks:
        yield "[[hooks]] function", hook.function.partition(":")[0]


def _can_match(pattern: str, folder: Path, base: Path) -> bool:
    """Tell whether files of a pattern, or the folder that they are in, are in the folder or around it."""
    *names, last = Path(pattern).parts or ("*",)
    fixed = list(takewhile(lambda name: not has_magic(name), names))
    start = base.joinpath(*fixed).resolve()
    # Each match as well: a name in the pattern may be a symbolic link.
    matches = glob(pattern, root_dir=base, recursive=True, include_hidden=True)
    if any(place.is_relative_to(folder) for path in (start, *map(Path, matches)) for place in _locate(base / path)):
        return True
    if not folder.is_relative_to(start):
        return False
    if not base.is_relative_to(start):
        return True
    # The project may have other folders beside those that the pattern has a place for.
    signs = [*names[len(fixed) :], *([last] if last == "**" else [])]
    pairs = zip(folder.relative_to(start).parts, takewhile(lambda sign: sign != "**", signs), strict=False)
    return bool(signs) and all(has_magic(sign) or name == sign for name, sign in pairs)


def _locate(path: Path) -> tuple[Path, Path]:
    """Return the place of a name and the place that it leads to, if it is a symbolic link."""
    return path.parent.resolve() / path.name, path.resolve()
