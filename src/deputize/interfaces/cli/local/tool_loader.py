"""Load tools from Python files and manifests, and collect every reason why one cannot be registered.

An invalid file or tool does not affect the others. `project_gateway.py` opens a gateway with what was loaded; nothing
here needs one.
"""

import contextlib
import hashlib
import importlib
import inspect
import sys
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deputize.catalog.importers.code_digest import begin_loading, compute_code_digest
from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.importers.function_adapter import adapt_plain_previewer
from deputize.catalog.importers.manifest import parse_manifest
from deputize.catalog.importers.python import ATTRIBUTE, collect_tools
from deputize.catalog.importers.tool_files import MODULE_PREFIX, find_files, forget_modules, import_file_once
from deputize.catalog.policy_facts import FactType, iter_facts
from deputize.catalog.registration_rules import check_conflicts, collect_faults, collect_gaps, find_no_owner
from deputize.catalog.schema_rules import NOT_CALLABLE, Reason
from deputize.core.contract.contract import Contract, Effects
from deputize.core.contract.handler import FLOW_DRIVER, NO_DRIVER
from deputize.core.contract.safety_floor import list_weakenings
from deputize.core.contract.tools import FlowTool, ProjectTool, PythonTool
from deputize.core.errors import ToolNotAdmitted
from deputize.core.hooks import LoadedHook
from deputize.interfaces.cli.local.tool_source.registration_advice import (
    SourceGaps,
    explain_reasons,
    find_source_gaps,
)
from deputize.interfaces.cli.render.output import printer

_SETTINGS_FILE = "deputize.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """File or tool that cannot be registered, with each reason and its fix."""

    what: str
    file: str
    reasons: tuple[str, ...]


@dataclass(kw_only=True, slots=True)
class ProjectTools:
    """Tools and hooks of a project; refusals are added while the tools are registered."""

    tools: list[ProjectTool] = field(default_factory=list)
    files: dict[tuple[str, str], str] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    # What authors have yet to write about tools that this gateway registers all the same.
    gaps: list[Refusal] = field(default_factory=list)
    # By file.
    source_gaps: dict[str, list[SourceGaps]] = field(default_factory=dict)
    admits_drafts: bool = False
    hooks: tuple[LoadedHook, ...] = ()
    # What ends when the gateway does.
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    # Of the manifests as they were read.
    manifest_digests: dict[Path, str] = field(default_factory=dict)

    def find_file(self, contract: Contract) -> str:
        """Return the path of the file that declares a tool."""
        return self.files.get((contract.full_name, contract.version), "")

    def add_refusal(self, contract: Contract, reasons: Iterable[str]) -> None:
        """Move a tool from the tools to the refusals."""
        what = f"{contract.full_name} {contract.version}"
        self.gaps = [each for each in self.gaps if each.what != what]
        self.refusals.append(Refusal(what=what, file=self.find_file(contract), reasons=tuple(reasons)))
        self.tools = [tool for tool in self.tools if tool.contract is not contract]


def print_refusals(refusals: Iterable[Refusal], verb: str) -> None:
    """Print each refusal with its reasons: as JSON events for programs, as notes for people."""
    for each in refusals:
        if printer.as_json:
            printer.json({"event": "refused", "what": each.what, "file": each.file, "reasons": each.reasons})
        where = f" ({each.file})" if each.file and each.file != each.what else ""
        printer.error(f"{each.what}{where} {verb}:")
        print_reasons(each)


def print_gaps(gaps: Iterable[Refusal]) -> None:
    """Print what is missing before `deputize serve` registers a tool, too."""
    for each in gaps:
        if printer.as_json:
            printer.json({"event": "incomplete", "what": each.what, "file": each.file, "reasons": each.reasons})
        printer.warn(f"{each.what} is registered here, but deputize serve would refuse it:")
        print_reasons(each)
        if each.file.endswith(".py"):
            printer.note(f"    To write what can be inferred: deputize tool check --fix {each.file}")


def print_reasons(refusal: Refusal) -> None:
    for reason in refusal.reasons:
        printer.note(f"    {reason}")


def load_tool_files(
    python: Sequence[str], manifests: Sequence[str], base: Path, *, admits_drafts: bool = False
) -> ProjectTools:
    """Load the tools of Python files and manifests, given as patterns relative to a folder."""
    forget_modules()
    return reload_tool_files(python, manifests, base, admits_drafts=admits_drafts)


def reload_tool_files(
    python: Sequence[str], manifests: Sequence[str], base: Path, *, admits_drafts: bool = False
) -> ProjectTools:
    """Load tools as `load_tool_files` does, and import only the files whose modules are not loaded."""
    base = base.resolve()
    project_tools = ProjectTools(admits_drafts=admits_drafts)
    begin_loading(base)
    # A namespace package caches its folder's listing; an edited file must be read again.
    importlib.invalidate_caches()
    for path in _find_files(python, base, project_tools):
        with _record_refusals(project_tools, str(path.relative_to(base))):
            for tool in collect_tools(import_file_once(path, base)):
                add_tool(project_tools, tool, str(path.relative_to(base)))
    by_target = {tool.target: tool for tool in project_tools.tools if isinstance(tool, PythonTool)}
    for path in _find_files(manifests, base, project_tools):
        file = str(path.relative_to(base))
        with _record_refusals(project_tools, file):
            content = path.read_bytes()
            project_tools.manifest_digests[path] = hashlib.sha256(content).hexdigest()
            for contract in parse_manifest(content.decode(), source=file):
                with _record_refusals(project_tools, file, f"{contract.full_name} {contract.version}"):
                    add_tool(project_tools, _bind_contract(contract, by_target), file)
    # After everything was imported: what is loaded now is what runs.
    project_tools.tools = [
        replace(tool, code_digest=compute_code_digest(_list_modules(tool.contract), base))
        if isinstance(tool, PythonTool)
        else tool
        for tool in project_tools.tools
    ]
    return project_tools


def _list_modules(contract: Contract) -> list[str]:
    """List the modules of a tool's function and of the preview that a manifest names."""
    addresses = (contract.handler.target, contract.handler.preview)
    return [f"{MODULE_PREFIX}.{each.partition(':')[0]}" for each in addresses if each is not None]


def _find_files(patterns: Sequence[str], base: Path, project_tools: ProjectTools) -> list[Path]:
    paths: dict[Path, None] = {}
    for pattern in patterns:
        with _record_refusals(project_tools, "deputize.toml", pattern):
            paths.update(dict.fromkeys(find_files([pattern], base)))
    return list(paths)


@contextlib.contextmanager
def _record_refusals(project_tools: ProjectTools, file: str, what: str = "") -> Any:
    """Record why a file or tool is invalid, and go on with the next."""
    try:
        yield
    except WrongDeclaration as error:
        reasons = tuple(sentence.removeprefix(f"{file}: ") for sentence in error.sentences)
        project_tools.refusals.append(Refusal(what=what or file, file=file, reasons=reasons))
    except (OSError, UnicodeDecodeError) as error:
        reason = f"the file cannot be read ({error}); make it readable, and save it as UTF-8"
        project_tools.refusals.append(Refusal(what=what or file, file=file, reasons=(reason,)))


def add_tool(project_tools: ProjectTools, tool: ProjectTool, file: str) -> None:
    """Add a tool that a file declares, or a refusal with every reason."""
    contract = tool.contract
    key = (contract.full_name, contract.version)
    if key in project_tools.files:
        other_file = project_tools.files[key]
        reason = f"this name and version are already declared in {other_file}; rename one, or change its version"
        project_tools.refusals.append(Refusal(what=" ".join(key), file=file, reasons=(reason,)))
        return
    project_tools.files[key] = file
    faults, gaps = list(collect_faults(contract, find_owner=find_no_owner)), list(collect_gaps(contract))
    if gaps and isinstance(tool, PythonTool) and file.endswith(".py"):
        project_tools.source_gaps.setdefault(file, []).append(find_source_gaps(tool, gaps))
    if faults or (gaps and not project_tools.admits_drafts):
        project_tools.add_refusal(contract, explain_tool_reasons(tool, file, [*faults, *gaps]))
        return
    project_tools.tools.append(tool)
    if gaps:
        what = f"{contract.full_name} {contract.version}"
        project_tools.gaps.append(Refusal(what=what, file=file, reasons=tuple(explain_tool_reasons(tool, file, gaps))))


def explain_tool_reasons(tool: ProjectTool, file: str, reasons: Sequence[Reason]) -> list[str]:
    """Explain reasons by the function if its decorator declares the tool, and by the contract's fields otherwise."""
    if isinstance(tool, PythonTool) and file.endswith(".py"):
        return explain_reasons(tool, file, reasons)
    return [_format_reason(each) for each in reasons]


def _format_reason(reason: Reason) -> str:
    return f"{reason.path.lstrip('/').replace('/', '.')} {reason.reason}; {reason.fix}".strip()


def _bind_contract(contract: Contract, by_target: Mapping[str, PythonTool]) -> ProjectTool:
    """Bind a manifest's contract to the function it names: one with @tool, or a plain function of a [tools] file."""
    if contract.handler.driver == FLOW_DRIVER:
        return FlowTool(contract=contract)
    target = contract.handler.target
    if contract.handler.driver == NO_DRIVER:
        raise WrongDeclaration(
            f'{contract.full_name} names no function; add handler: {{target: "tools.file:function"}} (in a manifest '
            "with a tool_id: under x-deputize), or declare it with deputize tool register"
        )
    tool = by_target.get(target)
    if tool is not None:
        _require_floor(contract, tool.contract)
        return PythonTool(
            contract=contract, declaration=tool.contract, run=tool.run, is_async=tool.is_async,
            takes_context=tool.takes_context, validate=tool.validate, verify=tool.verify, preview=tool.preview,
            previews_with_context=tool.previews_with_context, read_state=tool.read_state,
            rollback=tool.rollback,
        )  # fmt: skip
    function = _find_function(target, "target")
    # Reached under another name, or refused itself: what it declares still counts.
    declared_tool = getattr(function, ATTRIBUTE, None)
    declaration = declared_tool.contract if isinstance(declared_tool, PythonTool) else None
    if declaration is not None:
        _require_floor(contract, declaration)
    preview, with_context = None, False
    if contract.handler.preview is not None:
        preview, with_context = adapt_plain_previewer(_find_function(contract.handler.preview, "preview"))
    elif contract.preview:
        raise WrongDeclaration(f"preview is true, but {target} has no preview function; name one in handler.preview")
    return PythonTool(
        contract=contract,
        declaration=declaration,
        run=function,
        is_async=inspect.iscoroutinefunction(function),
        takes_context="context" in inspect.signature(function).parameters,
        preview=preview,
        previews_with_context=with_context,
    )


def _require_floor(contract: Contract, declaration: Contract) -> None:
    """Refuse a manifest that is weaker than its function declares."""
    target = contract.handler.target
    sentences = [
        f"{each.path} is {each.contract_value}, but {target} declares {each.function_value}; "
        "declare the same, or something stricter"
        for each in list_weakenings(contract, declaration)
    ]
    if sentences:
        raise WrongDeclaration(*sentences)


def _find_function(address: str, field: str) -> Callable[..., Any]:
    module, _, name = address.partition(":")
    function: Callable[..., Any] | None = getattr(_get_module(module), name, None)
    if not inspect.isfunction(function):
        raise WrongDeclaration(
            f"handler.{field} {address} is not a function of a file listed under [tools] python; "
            "write it like tools.hello:greet, and list that file there"
        )
    return function


def _get_module(name: str) -> Any:
    return sys.modules.get(f"{MODULE_PREFIX}.{name}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolFileCheck:
    """Tools of one file that `deputize dev` registers, and those that it refuses."""

    contracts: tuple[Contract, ...]
    refusals: tuple[Refusal, ...]
    # What `deputize dev` warns about, and `deputize serve` refuses.
    gaps: tuple[Refusal, ...] = ()
    # What `--fix` can write.
    source_gaps: tuple[SourceGaps, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _ProjectFiles:
    """What deputize.toml says about tools, as far as it can be read; nothing outside a project."""

    python: tuple[str, ...] = ()
    manifests: tuple[str, ...] = ()
    # Names of servers and services: which tools they have is not known here.
    external_namespaces: frozenset[str] = frozenset()

    def lists(self, file: Path, base: Path) -> bool:
        """Tell whether a pattern matches the file."""
        with contextlib.suppress(WrongDeclaration):
            return file in find_files(self.python if file.suffix == ".py" else self.manifests, base)
        return False


def check_tool_file(file: Path) -> ToolFileCheck:
    """Check the tools of one file among all files of its project, as `deputize dev` does. Needs no gateway.

    The functions of a manifest are checked if deputize.toml lists it.
    """
    base = next((folder for folder in file.parents if (folder / _SETTINGS_FILE).is_file()), None)
    files = _ProjectFiles() if base is None else _read_project_files(base / _SETTINGS_FILE)
    base = base or file.parent
    relative_path, is_listed = str(file.relative_to(base)), files.lists(file, base)
    # First, so that another file with the same tool is the one that is refused.
    unlisted_files = () if is_listed or file.suffix != ".py" else (relative_path,)
    project_tools = load_tool_files((*unlisted_files, *files.python), files.manifests, base, admits_drafts=True)
    contracts: list[Contract] = []
    if file.suffix != ".py" and not is_listed:
        contracts = _check_unlisted_manifest(file, relative_path, project_tools)
        if files.python or files.manifests:
            contracts = _refuse_unlisted_conflicts(contracts, relative_path, project_tools, files.external_namespaces)
    if files.python or files.manifests:
        _refuse_conflicts(project_tools, files.external_namespaces)
    contracts += [
        each.contract for each in project_tools.tools if project_tools.find_file(each.contract) == relative_path
    ]
    return ToolFileCheck(
        contracts=tuple(contracts),
        refusals=tuple(each for each in project_tools.refusals if each.file == relative_path),
        gaps=tuple(each for each in project_tools.gaps if each.file == relative_path),
        source_gaps=tuple(project_tools.source_gaps.get(relative_path, ())),
    )


def _read_project_files(settings_file: Path) -> _ProjectFiles:
    # The settings as such need packages of the gateway.
    try:
        settings = tomllib.loads(settings_file.read_text(encoding="utf-8"))
        tools = settings.get("tools", {})
        names = [each["name"] for key in ("servers", "services") for each in settings.get(key, ())]
        return _ProjectFiles(
            python=tuple(tools.get("python", ())),
            manifests=tuple(tools.get("manifests", ())),
            external_namespaces=frozenset(names),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # What is wrong with them, deputize doctor and deputize dev say.
        return _ProjectFiles()


def _check_unlisted_manifest(file: Path, relative_path: str, project_tools: ProjectTools) -> list[Contract]:
    contracts: list[Contract] = []
    with _record_refusals(project_tools, relative_path):
        for contract in parse_manifest(file.read_text(encoding="utf-8"), source=relative_path):
            what = f"{contract.full_name} {contract.version}"
            faults = [_format_reason(each) for each in collect_faults(contract, find_owner=find_no_owner)]
            gaps = tuple(_format_reason(each) for each in collect_gaps(contract))
            if faults:
                reasons = (*faults, *gaps)
                project_tools.refusals.append(Refusal(what=what, file=relative_path, reasons=reasons))
                continue
            contracts.append(contract)
            if gaps:
                project_tools.gaps.append(Refusal(what=what, file=relative_path, reasons=gaps))
    return contracts


def _refuse_unlisted_conflicts(
    contracts: Sequence[Contract], relative_path: str, project_tools: ProjectTools, external_namespaces: frozenset[str]
) -> list[Contract]:
    """Refuse what does not fit the tools of the project, such as a flow whose step is none of them."""
    known = {each.full_name: each for each in (*(each.contract for each in project_tools.tools), *contracts)}
    fitting = []
    for contract in contracts:
        reasons = _find_conflicts(contract, {}, {}, known, external_namespaces)
        if reasons:
            what = f"{contract.full_name} {contract.version}"
            lines = tuple(map(_format_reason, reasons))
            project_tools.refusals.append(Refusal(what=what, file=relative_path, reasons=lines))
        else:
            fitting.append(contract)
    return fitting


def _find_conflicts(
    contract: Contract,
    owners: Mapping[str, str],
    facts: Mapping[str, tuple[FactType, str]],
    contracts: Mapping[str, Contract],
    external_namespaces: frozenset[str],
) -> list[Reason]:
    try:
        check_conflicts(contract, find_owner=owners.get, find_fact=facts.get, find_contract=contracts.get)
    except ToolNotAdmitted as problem:
        reasons = [Reason(**each) for each in problem.details["reasons"]]
        return [each for each in reasons if not _names_external_tool(each, external_namespaces)]
    return []


def _refuse_conflicts(project_tools: ProjectTools, external_namespaces: frozenset[str]) -> None:
    """Refuse what conflicts with other tools of the project, in the order in which a gateway registers them."""
    tools = sorted(project_tools.tools, key=lambda each: each.contract.effects is not Effects.READ)
    contracts = {each.contract.full_name: each.contract for each in tools}
    owners: dict[str, str] = {}
    facts: dict[str, tuple[FactType, str]] = {}
    for tool in tools:
        contract = tool.contract
        reasons = _find_conflicts(contract, owners, facts, contracts, external_namespaces)
        if reasons:
            file = project_tools.find_file(contract)
            project_tools.add_refusal(contract, explain_tool_reasons(tool, file, reasons))
            continue
        for name in (contract.full_name, *contract.aliases):
            owners.setdefault(name, contract.full_name)
        for fact in iter_facts(contract.input_schema):
            facts.setdefault(fact.name, (fact.type, contract.full_name))


def _names_external_tool(reason: Reason, namespaces: frozenset[str]) -> bool:
    return reason.reason.endswith(NOT_CALLABLE) and reason.reason.partition(".")[0] in namespaces
