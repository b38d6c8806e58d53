"""Add the tools that come with the gateway to those of the project, as far as the settings name what they may reach."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.tools import ToolContext
from deputize.core.errors import ToolPrecondition, UpstreamUnavailable
from deputize.core.settings import (
    SETTINGS_FILE,
    BrowserSettings,
    BuildSettings,
    FilesSettings,
    GitSettings,
    SandboxSettings,
    Settings,
    SqlSettings,
    WebSettings,
)
from deputize.execute.browser.page_proxy import PageProxy
from deputize.execute.browser.process import find_chromium
from deputize.execute.browser.sessions import BrowserSessions
from deputize.execute.bulkheads import Bulkheads, SharedPool, SlotRequest
from deputize.execute.folder_runs import FolderRuns
from deputize.execute.job_processes import JobProcesses
from deputize.execute.page_client import ListedHosts, PageClient
from deputize.execute.project_exposure import find_exposure
from deputize.interfaces.cli.local.tool_loader import ProjectTools, Refusal, add_tool
from deputize.sandboxes.client import SandboxClient
from deputize.sandboxes.port import SandboxLimits
from deputize.tools.browser.declarations import declare_tools as declare_browser_tools
from deputize.tools.builds.declarations import BeginBranchRun
from deputize.tools.builds.declarations import declare_tools as declare_build_tools
from deputize.tools.code import declare_tool as declare_code_tool
from deputize.tools.files.declarations import declare_tools
from deputize.tools.git.declarations import declare_tools as declare_git_tools
from deputize.tools.git.declarations import open_branches
from deputize.tools.git.push_requirements import BranchRun, PushRequirements
from deputize.tools.git.sandboxes import GitSandboxes
from deputize.tools.web.declarations import declare_fetch, declare_search

_BUILD_PROCESSES: Final = 512
_BUILD_STORAGE_BYTES: Final = 1_073_741_824
_DATABASE_CONNECTIONS: Final = 8
_DATABASE_WAITING: Final = 16
_DATABASE_WAIT_SECONDS: Final = 10.0
# A statement ends before its call does, and says so.
_REPLY_SECONDS: Final = 0.5
_SQLITE_PROCESSES: Final = 2
# They yield to calls.
_SQLITE_NICE: Final = 10


def add_builtin_tools(project_tools: ProjectTools, settings: Settings, base: Path) -> None:
    """Add the tools, or a refusal that says why their folder, repository or database cannot be used."""
    if settings.builtin.files is not None:
        _add_files(project_tools, settings.builtin.files, settings, base)
    if settings.builtin.git is not None:
        _add_git(project_tools, settings.builtin.git, settings, base)
    if settings.builtin.build is not None:
        _add_build(project_tools, settings.builtin.build, settings, base)
    if settings.builtin.sql is not None:
        _add_sql(project_tools, settings.builtin.sql, settings.tools.tenant, base)
    if settings.builtin.web is not None:
        _add_web(project_tools, settings.builtin.web)
    if settings.builtin.browser is not None:
        _add_browser(project_tools, settings.builtin.browser, settings)
    if settings.builtin.code is not None:
        _add_code(project_tools)


def _add_files(project_tools: ProjectTools, files: FilesSettings, settings: Settings, base: Path) -> None:
    folder = (base / files.folder).resolve()
    reason = find_exposure(folder, base.resolve(), settings)
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


def _add_git(project_tools: ProjectTools, git: GitSettings, settings: Settings, base: Path) -> None:
    sandboxes = _build_git_sandboxes(settings)
    try:
        for function in declare_git_tools(
            *_locate_git(git, settings, base), settings.builtin.required_commands, sandboxes.open
        ):
            add_tool(project_tools, getattr(function, ATTRIBUTE), str(SETTINGS_FILE))
        project_tools.closers.append(sandboxes.aclose)
        return
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    names = f"repository {git.repository}" + ("" if git.remote is None else f" or remote {git.remote}")
    refusal = f"{names} cannot be used: {reason}"
    project_tools.refusals.append(Refusal(what="[builtin.git]", file=str(SETTINGS_FILE), reasons=(refusal,)))


def _add_build(project_tools: ProjectTools, build: BuildSettings, settings: Settings, base: Path) -> None:
    """Add the tools for what agents change: the folder of `files.*`, the branches of `git.*`, or both."""
    refused = {each.what for each in project_tools.refusals}
    files = None if "[builtin.files]" in refused else settings.builtin.files
    git = None if "[builtin.git]" in refused else settings.builtin.git
    reason = None
    folders = [(base / each).resolve() for each in build.folders]
    others = settings.model_copy(update={"builtin": settings.builtin.model_copy(update={"build": None})})
    for each in folders:
        exposure = find_exposure(each, base.resolve(), others) if each.exists() else "it does not exist"
        reason = reason or (exposure and f"folder {each} cannot be shown: {exposure}; name a narrower one")
    if files is None and git is None:
        reason = reason or "there is no folder to work on: name one in [builtin.files] or [builtin.git]"
    if reason is not None:
        project_tools.refusals.append(Refusal(what="[builtin.build]", file=str(SETTINGS_FILE), reasons=(reason,)))
        return
    runs = FolderRuns(
        SandboxClient.from_settings(settings),
        limits=SandboxLimits(
            memory_bytes=build.memory_mb * 1_048_576, processes=_BUILD_PROCESSES, storage_bytes=_BUILD_STORAGE_BYTES
        ),
        folders=folders,
        environment=build.environment,
    )
    functions = declare_build_tools(
        build.commands,
        runs.run,
        build.seconds,
        folder=None if files is None else (base / files.folder).resolve(),
        begin_branch_run=None if git is None else _begin_branch_runs(git, settings, base),
    )
    for function in functions:
        tool = replace(getattr(function, ATTRIBUTE), backend=settings.sandboxes.backend)
        add_tool(project_tools, tool, str(SETTINGS_FILE))


def _build_git_sandboxes(settings: Settings) -> GitSandboxes:
    accepts_none, accepts_weak = settings.accepts_weakness("unsandboxed_code"), settings.accepts_weakness("weak_limits")
    # Who accepts no sandbox accepts a weak one.
    return _share_git_sandboxes(
        settings.sandboxes, accepts_none or accepts_weak, settings.environment != "production", accepts_none
    )


@lru_cache(maxsize=16)
def _share_git_sandboxes(
    sandboxes: SandboxSettings, accepts_weak_limits: bool, accepts_shared_user: bool, may_be_bare: bool
) -> GitSandboxes:
    """Build them once for these settings: branches of a repository are opened once, too."""
    client = SandboxClient(
        sandboxes.folder,
        accept_weak_limits=accepts_weak_limits,
        accept_shared_user=accepts_shared_user,
        backend=sandboxes.backend,
    )
    return GitSandboxes(client, may_be_bare=may_be_bare)


def _locate_git(git: GitSettings, settings: Settings, base: Path) -> tuple[Path, Path, Path | None]:
    """Locate the repository, the folder of agents' branches, and where they are pushed to."""
    remote = None if git.remote is None else (base / git.remote).resolve()
    return (base / git.repository).resolve(), (base / settings.folder / "git").resolve(), remote


def _begin_branch_runs(git: GitSettings, settings: Settings, base: Path) -> BeginBranchRun:
    branches = open_branches(*_locate_git(git, settings, base), _build_git_sandboxes(settings).open)
    requirements = PushRequirements(branches=branches, commands=settings.builtin.required_commands)
    return lambda branch, name, tenant: BranchRun(requirements=requirements, branch=branch, name=name, tenant=tenant)


def _add_sql(project_tools: ProjectTools, sql: SqlSettings, tenant: str, base: Path) -> None:
    try:
        jobs, functions = _declare_sql_tools(sql, tenant, base)
        project_tools.closers.append(jobs.aclose)
        for function in functions:
            add_tool(project_tools, getattr(function, ATTRIBUTE), str(SETTINGS_FILE))
        return
    except ModuleNotFoundError as error:
        if error.name != "pgparse":
            raise
        reason = "the parser of statements is not installed: run pip install 'deputize[sql]'"
    except ToolPrecondition as error:
        reason = error.message
    project_tools.refusals.append(Refusal(what="[builtin.sql]", file=str(SETTINGS_FILE), reasons=(reason,)))


def _add_web(project_tools: ProjectTools, web: WebSettings) -> None:
    if web.hosts or web.private_hosts:
        pages = PageClient(web.hosts, web.private_hosts, max_bytes=web.max_bytes)
        add_tool(project_tools, getattr(declare_fetch(pages.get, web.seconds), ATTRIBUTE), str(SETTINGS_FILE))
    if web.search_url is not None:
        # A client of its own: pages of this host are for agents only if the operator lists it.
        engine = PageClient((), (urlsplit(web.search_url).netloc,), max_bytes=web.max_bytes)
        function = declare_search(engine.get, web.search_url, web.seconds, web.search_header)
        add_tool(project_tools, getattr(function, ATTRIBUTE), str(SETTINGS_FILE))


def _add_browser(project_tools: ProjectTools, browser: BrowserSettings, settings: Settings) -> None:
    program, reason = find_chromium(), None
    if program is None:
        reason = "Chromium is not installed: run apt install chromium, or what your system has for it"
    elif settings.sandboxes.backend != "namespaces":
        reason = 'programs on gVisor reach no hosts: set backend = "namespaces" under [sandboxes], or remove it'
    if program is None or reason is not None:
        project_tools.refusals.append(
            Refusal(what="[builtin.browser]", file=str(SETTINGS_FILE), reasons=(str(reason),))
        )
        return
    accepts_weak_limits, is_production = settings.accepts_weakness("weak_limits"), settings.environment == "production"
    sessions, functions = _declare_browser_tools(
        browser, program, settings.sandboxes, accepts_weak_limits, not is_production
    )
    project_tools.closers.append(sessions.aclose)
    for function in functions:
        tool = replace(getattr(function, ATTRIBUTE), backend=settings.sandboxes.backend)
        add_tool(project_tools, tool, str(SETTINGS_FILE))


@lru_cache(maxsize=16)
def _declare_browser_tools(
    browser: BrowserSettings,
    program: str,
    sandboxes: SandboxSettings,
    accepts_weak_limits: bool,
    accepts_shared_user: bool,
) -> tuple[BrowserSessions, tuple[Callable[..., Any], ...]]:
    """Declare the tools, once: sessions go on when the files of a project are read again."""
    listed = ListedHosts("[builtin.browser]", browser.hosts, browser.private_hosts)
    sessions = BrowserSessions(
        SandboxClient(
            sandboxes.folder,
            accept_weak_limits=accepts_weak_limits,
            accept_shared_user=accepts_shared_user,
            backend=sandboxes.backend,
        ),
        program,
        listed,
        partial(PageProxy, listed, seconds=browser.seconds),
        per_caller=browser.sessions,
        minutes=browser.session_minutes,
        memory_bytes=browser.memory_mb * 1_048_576,
        seconds=browser.seconds,
    )
    return sessions, declare_browser_tools(sessions.use)


def _add_code(project_tools: ProjectTools) -> None:
    if find_spec("pydantic_monty") is not None:
        add_tool(project_tools, declare_code_tool(), str(SETTINGS_FILE))
        return
    reason = "the interpreter of programs is not installed: run pip install 'deputize[code]'"
    project_tools.refusals.append(Refusal(what="[builtin.code]", file=str(SETTINGS_FILE), reasons=(reason,)))


@lru_cache(maxsize=16)
def _declare_sql_tools(
    sql: SqlSettings, tenant: str, base: Path
) -> tuple[JobProcesses, tuple[Callable[..., Any], ...]]:
    """Declare the tools of a database, once. Raise `ToolPrecondition` if a login could do more than it should."""
    from deputize.tools.sql.database import Database, Limits
    from deputize.tools.sql.declarations import PostgresReader, declare_changing_tool, declare_planning_tool
    from deputize.tools.sql.declarations import declare_tools as declare_sql_tools
    from deputize.tools.sql.sqlite import SqliteDatabase
    from deputize.tools.sql.sqlite_job import SCHEMA, SQLITE_FUNCTIONS
    from deputize.tools.sql.statements import Access

    url, limits = sql.url.get_secret_value(), Limits(seconds=sql.seconds, cost=sql.max_cost)
    jobs = JobProcesses(_SQLITE_PROCESSES, nice=_SQLITE_NICE, per_tenant=_SQLITE_PROCESSES)
    if sql.sqlite_path is not None:
        tables = sql.tables if "tables" in sql.model_fields_set else (f"{SCHEMA}.*",)
        access = Access(tables=tables, builtin_functions=SQLITE_FUNCTIONS)

        async def run_job(job: Callable[[bytes], bytes], payload: bytes, seconds: int) -> bytes | None:
            return await jobs.run_job(tenant, job, payload, seconds=seconds)

        file = SqliteDatabase(base / sql.sqlite_path, access, limits, run_job)
        file.require_file()
        return jobs, declare_sql_tools(file, share_database(_SQLITE_PROCESSES), shows_samples=sql.samples)
    access = Access(tables=sql.tables, functions=frozenset(sql.functions))
    database = Database(url, access, limits)
    use_database = share_database(_DATABASE_CONNECTIONS)
    databases = [database]
    tools = [*declare_sql_tools(PostgresReader(database), use_database, shows_samples=sql.samples)]
    if sql.change_url is not None:
        writer = Database(sql.change_url.get_secret_value(), access, limits, sql.change_tables)
        databases.append(writer)
        tools.append(declare_changing_tool(writer, use_database))
    if sql.scratch_url is not None:
        scratch = Database(sql.scratch_url.get_secret_value(), access, limits, is_scratch=True)
        databases.append(scratch)
        tools.append(declare_planning_tool(database, scratch, use_database))
    # In a thread of its own: an event loop may run in this one.
    with ThreadPoolExecutor(max_workers=1) as threads, suppress(UpstreamUnavailable):
        # A database that does not answer now is tried again by each call, which also looks at the login.
        for each in databases:
            threads.submit(asyncio.run, each.require_login()).result()
    return jobs, tuple(tools)


def share_database(capacity: int) -> Callable[[ToolContext], AbstractAsyncContextManager[float]]:
    """Let so many calls use a database at once: each user as many as are free for all others, at most."""
    pool = SharedPool("turns at the database", capacity, is_per_tenant=False)
    bulkheads = Bulkheads(max_concurrent=capacity, threads=0, runs=0)

    @asynccontextmanager
    async def use_database(context: ToolContext) -> AsyncIterator[float]:
        end = time.monotonic() + context.seconds_left
        request = SlotRequest(
            key=(context.tenant, f"the database by {context.user}"), max_concurrent=capacity, pools=(pool,),
            max_waiting=_DATABASE_WAITING, max_wait_seconds=_DATABASE_WAIT_SECONDS,
        )  # fmt: skip
        slot = bulkheads.take_now(request) or await bulkheads.wait_for_slot(request, context.seconds_left / 2)
        try:
            yield end - time.monotonic() - _REPLY_SECONDS
        finally:
            slot.release()

    return use_database
