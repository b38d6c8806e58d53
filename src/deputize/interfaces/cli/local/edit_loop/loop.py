"""Run the edit loop of `deputize dev`: compare the project's files with what is in use, and take over what changed.

Tools are used at once, as their files have them, and a line names those with more authority than before: whoever edits
them has the account of the gateway. Policies and settings are shown and wait for a key in the terminal; what was
confirmed is exactly what was shown, whatever is in the files by then. One lock orders checks and answers.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from deputize.catalog.importers.code_digest import list_loaded_sources
from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.importers.tool_files import find_files
from deputize.core.config_error import ConfigError
from deputize.core.contract.tools import ProjectTool
from deputize.core.display_text import to_display_text
from deputize.core.errors import PolicyInvalid, Problem
from deputize.core.sensitive.text import redact_secrets
from deputize.core.settings import Settings
from deputize.govern.policy.files import read_files
from deputize.govern.policy.policy_parser import PolicyDiagnostic, PolicyFile, compute_set_digest
from deputize.interfaces.cli.local.dev_tokens import ensure_tokens, print_tokens
from deputize.interfaces.cli.local.edit_loop import edit_messages
from deputize.interfaces.cli.local.edit_loop.authority_changes import (
    SettingChange,
    compare_settings,
    list_policy_documents,
)
from deputize.interfaces.cli.local.edit_loop.confirmed_settings import read_settings_file, record_settings
from deputize.interfaces.cli.local.edit_loop.file_watch import FileDigests, watch_project
from deputize.interfaces.cli.local.edit_loop.terminal_keys import TerminalKeys
from deputize.interfaces.cli.local.edit_loop.tool_reload import (
    StagedTools,
    combine_tools,
    group_by_file,
    list_changed_files,
    stage_tools,
)
from deputize.interfaces.cli.local.project_file import AGENT_TOKEN_FILE, SETTINGS_FILE, TOKEN_FILE, load_settings
from deputize.interfaces.cli.local.project_gateway import explain_refusal, find_refused_tool
from deputize.interfaces.cli.local.tool_loader import ProjectTools, Refusal, print_gaps
from deputize.operations.admin.project_edits import ProjectEdits

log = structlog.get_logger(__name__)

_MAX_REASON_LENGTH = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What a person is asked to take over: settings, policies, or both."""

    # What `deputize.toml` has, if it differs from what the gateway was started with.
    settings: bytes | None = None
    policies: tuple[PolicyFile, ...] | None = None

    @property
    def key(self) -> str:
        """A digest of everything that would be taken over; empty if there is nothing to ask."""
        parts = [] if self.settings is None else [f"settings {hashlib.sha256(self.settings).hexdigest()}"]
        parts += [] if self.policies is None else [compute_set_digest(self.policies)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest() if parts else ""


class EditLoop:
    """Follow the edits of one project. `settings` are those that it was started with, as the files said them.

    Other settings are recorded as confirmed, and `restart` is called: it lets calls end and starts the gateway anew.
    """

    def __init__(
        self,
        settings: Settings,
        project_tools: ProjectTools,
        edits: ProjectEdits,
        base: Path,
        restart: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._restart = restart
        self._base = base.resolve()
        self._project_tools = project_tools
        self._edits = edits
        self._lock = asyncio.Lock()
        self._keys = TerminalKeys()
        self._digests, self._settings_digest = FileDigests(), FileDigests()
        # What the tools in use were loaded from; from then on, what was last tried.
        self._tried_digests = {**list_loaded_sources(), **project_tools.manifest_digests}
        self._refusals: dict[str, tuple[str, ...]] = _group_refusals(project_tools.refusals)
        edits.set_unloaded_tools(_explain_unloaded(project_tools.refusals))
        # Where tools went that the files no longer have, by name.
        self._removals: dict[str, str] = {}
        self._policies: tuple[PolicyFile, ...] = ()
        # About the policies that a person is asked about.
        self._policy_warnings: list[str] = []
        self._shown_settings = ""
        # Of a file that can be used and differs: its content, and in what.
        self._new_settings: bytes | None = None
        self._setting_changes: list[SettingChange] = []
        self._shown_policy_error = ""
        self._question_key = ""
        self._ask_task: asyncio.Task[None] | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Follow edits until `stop` is set. An error in one check is reported, and the next one is made."""
        try:
            await self._load_policies()
            async for _ in watch_project(self._base, self._settings.folder, stop):
                await self._check_safely()
        except ImportError:
            edit_messages.print_not_watching("watchfiles is not installed: pip install 'deputize[local]'")
            await self._check_once(stop)
        except OSError as error:
            edit_messages.print_not_watching(f"the project cannot be watched ({error})")
            await self._check_once(stop)
        finally:
            await self._withdraw_question()
            self._keys.close()

    async def _load_policies(self) -> None:
        """Load the policies that are compared with the files."""
        files: tuple[PolicyFile, ...] = ()
        # A file that cannot be read is reported by the first check.
        with suppress(ConfigError):
            files = await asyncio.to_thread(read_files, self._settings.policy.files)
        self._policies = await self._edits.load_active_policies(files)

    async def _check_once(self, stop: asyncio.Event) -> None:
        """Ask about what the start held back, and wait for the answer."""
        await self._check_safely()
        await stop.wait()

    async def _check_safely(self) -> None:
        try:
            await self.check()
        except Exception as error:  # noqa: BLE001 -- an edit of any kind must not end the loop
            log.error("edit_not_checked", reason=repr(error))

    async def check(self) -> None:
        """Compare every file with what is in use, and take over, refuse or ask."""
        async with self._lock:
            await self._check_settings()
            policies = await self._check_policies()
            await self._check_tools()
            await self._update_question(policies)

    async def _check_settings(self) -> None:
        """Find settings that differ. They are read at the start only, so taking them over is a restart."""
        path = self._base / SETTINGS_FILE
        digest = self._settings_digest.read_all([path]).get(path, "")
        if digest == self._shown_settings:
            return
        is_first = not self._shown_settings
        self._shown_settings, self._new_settings = digest, None
        try:
            content = await asyncio.to_thread(read_settings_file)
            changes = list(compare_settings(self._settings, await asyncio.to_thread(load_settings, content)))
        except ConfigError as error:
            edit_messages.print_refused(SETTINGS_FILE, str(error).splitlines())
            return
        if is_first:
            # The start asked about them, or could not ask.
            if changes:
                edit_messages.print_restart(
                    f"{SETTINGS_FILE} differs from what this gateway was started with", edit_messages.HOW_TO_APPLY
                )
            return
        if changes:
            self._new_settings, self._setting_changes = content, changes
        edit_messages.print_settings(changes)

    async def _check_policies(self) -> tuple[PolicyFile, ...] | None:
        """Return the policies in the files if they differ from those taken over last and can be activated."""
        if not self._settings.policy.files:
            return None
        try:
            files = await asyncio.to_thread(read_files, self._settings.policy.files)
        except ConfigError as error:
            self._show_policy_error(str(error), [str(error)])
            return None
        if compute_set_digest(files) == compute_set_digest(self._policies):
            self._shown_policy_error = ""
            return None
        if compute_set_digest(files) == self._shown_policy_error:
            return None
        if compute_set_digest(files) == compute_set_digest(await self._edits.load_active_policies(files)):
            # An operator has put exactly these policies.
            self._policies = files
            return None
        findings = await self._edits.check_policies(files)
        if findings.errors:
            self._show_policy_error(compute_set_digest(files), _format_diagnostics(findings.errors))
            return None
        self._policy_warnings = _format_diagnostics(findings.warnings)
        self._shown_policy_error = ""
        return files

    def _show_policy_error(self, key: str, reasons: Sequence[str]) -> None:
        if key != self._shown_policy_error:
            self._shown_policy_error = key
            edit_messages.print_refused("The policy set", reasons)

    async def _check_tools(self) -> None:
        digests = self._digests.read_all(self._list_tool_paths())
        changed_paths = {
            path
            for path in digests.keys() | self._tried_digests.keys()
            if digests.get(path) != self._tried_digests.get(path)
        }
        if not changed_paths:
            return
        self._tried_digests = digests
        await self._reload(changed_paths)

    def _list_tool_paths(self) -> set[Path]:
        """List the files that tools consist of, and those beside refused ones, which may be what they miss."""
        paths = {path for path in self._tried_digests if path.exists()} | set(list_loaded_sources())
        for pattern in (*self._settings.tools.python, *self._settings.tools.manifests):
            with suppress(WrongDeclaration):
                paths.update(path.resolve() for path in find_files([pattern], self._base))
        for folder in {(self._base / file).parent for file in self._refusals}:
            paths.update(path.resolve() for path in folder.glob("*.py"))
        return paths

    async def _reload(self, changed_paths: set[Path]) -> None:
        """Load what changed, and what was refused or held back before, and use what may be used."""
        old_groups = group_by_file(self._project_tools)
        paths = changed_paths | {(self._base / file).resolve() for file in self._refusals}
        staged_tools = await asyncio.to_thread(stage_tools, self._settings, self._base, paths)
        self._report_hooks(staged_tools)
        new_groups = group_by_file(staged_tools.project_tools)
        refused_files = {each.file for each in staged_tools.project_tools.refusals}
        changed_files = list_changed_files(old_groups, new_groups)
        staged_tools.keep_old_modules(refused_files)
        groups = combine_tools(old_groups, new_groups, refused_files)
        refusals = staged_tools.project_tools.refusals
        self._report_refusals(refusals, refused_files & old_groups.keys())
        loaded_files = [file for file in changed_files if file not in refused_files]
        authority_changes = {
            tool.contract.full_name: reasons
            for file in loaded_files
            for tool in new_groups[file]
            if (reasons := await self._edits.list_authority_reasons(tool.contract))
        }
        problem_refusals = await self._use_tools(groups, staged_tools)
        self._edits.set_unloaded_tools(_explain_unloaded([*refusals, *problem_refusals]))
        if problem_refusals:
            return
        for file in loaded_files:
            edit_messages.print_loaded(file, [tool.contract for tool in new_groups[file]])
        edit_messages.print_authority_changes(authority_changes)
        print_gaps(each for each in staged_tools.project_tools.gaps if each.file in loaded_files)
        await self._report_removals(old_groups, groups)
        await self._renew_tokens()

    async def _report_removals(
        self, old: Mapping[str, Sequence[ProjectTool]], new: Mapping[str, Sequence[ProjectTool]]
    ) -> None:
        """Take tools that the files no longer have out of every list, and say which are in their place."""
        old_names, new_names = (
            {file: {each.contract.full_name for each in tools} for file, tools in groups.items()}
            for groups in (old, new)
        )
        all_old, all_new = (set().union(*names.values()) for names in (old_names, new_names))
        for file, names in old_names.items():
            removed_names = sorted(names - all_new)
            added_names = sorted(new_names.get(file, set()) - all_old)
            if removed_names:
                edit_messages.print_removed(file, removed_names, added_names)
            place = f", which has {', '.join(added_names)} now" if added_names else ""
            self._removals.update(dict.fromkeys(removed_names, f"it was in {file}{place}"))
        await self._edits.hide_removed_tools(self._project_tools.tools, self._removals)

    async def _use_tools(self, groups: dict[str, list[ProjectTool]], staged_tools: StagedTools) -> list[Refusal]:
        """Use the tools, all or none; return the refusals, if there are any."""
        tools = [tool for group in groups.values() for tool in group]
        problems = await self._edits.replace_tools(self._project_tools.tools, tools)
        if problems:
            refusals = [_build_refusal(each, groups) for each in problems]
            for each in refusals:
                edit_messages.print_refused(each.what, each.reasons)
            staged_tools.set_aside.restore(staged_tools.set_aside.modules)
            return refusals
        self._project_tools.tools = tools
        self._project_tools.files = {
            (tool.contract.full_name, tool.contract.version): file for file, group in groups.items() for tool in group
        }
        return []

    async def _renew_tokens(self) -> None:
        """Write tokens with the scopes that the tools in use need, so that a new tool can be called at once."""
        tokens = await asyncio.to_thread(ensure_tokens, self._settings, tuple(self._project_tools.tools))
        folder = self._settings.folder
        print_tokens(tokens, folder / TOKEN_FILE, folder / AGENT_TOKEN_FILE)

    def _report_hooks(self, staged_tools: StagedTools) -> None:
        hook_modules = {each.function.__module__: each.name for each in self._project_tools.hooks}
        for name in sorted(hook_modules.keys() & staged_tools.set_aside.modules.keys()):
            edit_messages.print_restart(f"The code of the hook {hook_modules[name]} changed")

    def _report_refusals(self, refusals: Sequence[Refusal], files_in_use: set[str]) -> None:
        new_refusals = _group_refusals(refusals)
        for file, reasons in new_refusals.items():
            if self._refusals.get(file) != reasons:
                edit_messages.print_refused(file, reasons, is_old_in_use=file in files_in_use)
        self._refusals = new_refusals

    async def _update_question(self, policies: tuple[PolicyFile, ...] | None) -> None:
        documents = [] if policies is None else list_policy_documents(self._policies, policies)
        question = Question(settings=self._new_settings, policies=policies)
        if question.key == self._question_key:
            return
        if await self._withdraw_question():
            edit_messages.print_withdrawn()
        self._question_key = question.key
        if not question.key:
            return
        reasons = [] if question.settings is None else [str(each) for each in self._setting_changes]
        reasons += [] if policies is None else [f"warning: {each}" for each in self._policy_warnings]
        is_asked = self._keys.begin()
        shown_question = edit_messages.build_question(documents, reasons, restarts=question.settings is not None)
        has_more = shown_question.show_page(is_asked=is_asked)
        if not is_asked:
            edit_messages.print_not_asked()
            return
        ask = self._ask(question, shown_question if has_more else None)
        self._ask_task = asyncio.create_task(ask, name="edit question")

    async def _withdraw_question(self) -> bool:
        """Withdraw the question that is open, and tell whether there was one."""
        ask_task, self._ask_task = self._ask_task, None
        if ask_task is None or ask_task.done():
            return False
        ask_task.cancel()
        with suppress(asyncio.CancelledError):
            await ask_task
        return True

    async def _ask(self, question: Question, rest: edit_messages.EditQuestion | None) -> None:
        answer = await self._keys.ask(None if rest is None else rest.show_page)
        async with self._lock:
            # A check that began before the key was pressed may have found other files.
            if question.key != self._question_key:
                return
            self._ask_task = None
            if answer != "yes":
                edit_messages.print_left(is_answered=answer == "no")
                return
            await self._take(question)

    async def _take(self, question: Question) -> None:
        """Take over exactly what was shown."""
        if question.policies is not None:
            try:
                await self._edits.activate_policies(question.policies)
            except PolicyInvalid as invalid:
                reasons = [f"{each['file']}:{each['line']}: {each['message']}" for each in invalid.details["errors"]]
                edit_messages.print_refused("The policy set", reasons)
                return
            self._policies = question.policies
            edit_messages.print_policies_taken(question.policies)
        self._question_key = ""
        if question.settings is not None:
            await asyncio.to_thread(record_settings, self._settings.folder, question.settings)
            self._restart()


def _format_diagnostics(diagnostics: Iterable[PolicyDiagnostic]) -> list[str]:
    return [f"{each.file}:{each.line}: {each.message}" for each in diagnostics]


def _group_refusals(refusals: Sequence[Refusal]) -> dict[str, tuple[str, ...]]:
    """Group the reasons by file; those of a tool begin with its name."""
    groups: dict[str, tuple[str, ...]] = {}
    for each in refusals:
        if each.file and each.file != SETTINGS_FILE:
            prefix = "" if each.what == each.file else f"{each.what}: "
            groups[each.file] = (*groups.get(each.file, ()), *(prefix + reason for reason in each.reasons))
    return groups


def _build_refusal(problem: Problem, groups: Mapping[str, list[ProjectTool]]) -> Refusal:
    for file, tools in groups.items():
        if (tool := find_refused_tool(problem, tools)) is not None:
            reasons = tuple(explain_refusal(problem, tool, file))
            return Refusal(what=tool.contract.full_name, file=file, reasons=reasons)
    return Refusal(what=problem.message.partition(" ")[0], file="", reasons=(problem.message,))


def _explain_unloaded(refusals: Iterable[Refusal]) -> dict[str, str]:
    """Explain why tools are not in use, by name; those of a file that could not be imported by `namespace.`."""
    reasons: dict[str, str] = {}
    for each in refusals:
        name = f"{Path(each.file).stem}." if each.what == each.file else each.what.partition(" ")[0]
        text = redact_secrets(to_display_text(each.reasons[0] if each.reasons else "it is invalid", _MAX_REASON_LENGTH))
        reasons[name] = text if each.file in text else f"{each.file}: {text}"
    return reasons
