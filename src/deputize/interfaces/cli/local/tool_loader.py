"""Load tools from Python files and manifests, and collect every reason why one cannot be registered.

An invalid file or tool does not affect the others. `project_gateway.py` opens a gateway with what was loaded; nothing
here needs one.
"""

import contextlib
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deputize.catalog.importers.code_digest import begin_loading, compute_code_digest
from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.importers.function_adapter import adapt_plain_previewer
from deputize.catalog.importers.manifest import parse_manifest
from deputize.catalog.importers.python import ATTRIBUTE, collect_tools
from deputize.catalog.importers.tool_files import MODULE_PREFIX, find_files, forget_modules, import_file_once
from deputize.catalog.registration_rules import collect_faults, collect_gaps, collect_reasons, find_no_owner
from deputize.catalog.schema_rules import Reason
from deputize.core.contract.contract import Contract
from deputize.core.contract.handler import NO_DRIVER
from deputize.core.contract.safety_floor import list_weakenings
from deputize.core.contract.tools import PythonTool
from deputize.core.hooks import LoadedHook
from deputize.interfaces.cli.local.tool_source.registration_advice import (
    SourceGaps,
    explain_reasons,
    find_source_gaps,
)
from deputize.interfaces.cli.render.output import printer


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """File or tool that cannot be registered, with each reason and its fix."""

    what: str
    file: str
    reasons: tuple[str, ...]


@dataclass(kw_only=True, slots=True)
class ProjectTools:
    """Tools and hooks of a project; refusals are added while the tools are registered."""

    tools: list[PythonTool] = field(default_factory=list)
    files: dict[tuple[str, str], str] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    # What authors have yet to write about tools that this gateway registers all the same.
    gaps: list[Refusal] = field(default_factory=list)
    source_gaps: list[SourceGaps] = field(default_factory=list)
    admits_drafts: bool = False
    hooks: tuple[LoadedHook, ...] = ()
    # Of the manifests as they were read.
    manifest_digests: dict[Path, str] = field(default_factory=dict)

    def find_file(self, contract: Contract) -> str:
        """Return the path of the file that declares a tool."""
        return self.files.get((contract.full_name, contract.version), "")

    def add_refusal(self, contract: Contract, reasons: Iterable[str]) -> None:
        """Move a tool from the tools to the refusals."""
        what = f"{contract.full_name} {contract.version}"
        self.refusals.append(Refusal(what=what, file=self.find_file(contract), reasons=tuple(reasons)))
        self.tools = [tool for tool in self.tools if tool.contract is not contract]


def print_refusals(refusals: Iterable[Refusal], verb: str) -> None:
    """Print each refusal with its reasons: as JSON events for programs, as notes for people."""
    for each in refusals:
        if printer.as_json:
            printer.json({"event": "refused", "what": each.what, "file": each.file, "reasons": each.reasons})
        where = f" ({each.file})" if each.file and each.file != each.what else ""
        printer.error(f"{each.what}{where} {verb}:")
        for reason in each.reasons:
            printer.note(f"    {reason}")


def print_gaps(gaps: Iterable[Refusal]) -> None:
    """Print what is missing before `deputize serve` registers a tool, too."""
    for each in gaps:
        if printer.as_json:
            printer.json({"event": "incomplete", "what": each.what, "file": each.file, "reasons": each.reasons})
        printer.warn(f"{each.what} is registered here, but deputize serve would refuse it:")
        for reason in each.reasons:
            printer.note(f"    {reason}")
        if each.file.endswith(".py"):
            printer.note(f"    To write what can be inferred: deputize tool check --fix {each.file}")


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
                _add_tool(project_tools, tool, str(path.relative_to(base)))
    by_target = {tool.target: tool for tool in project_tools.tools}
    for path in _find_files(manifests, base, project_tools):
        file = str(path.relative_to(base))
        with _record_refusals(project_tools, file):
            content = path.read_bytes()
            project_tools.manifest_digests[path] = hashlib.sha256(content).hexdigest()
            for contract in parse_manifest(content.decode(), source=file):
                with _record_refusals(project_tools, file, f"{contract.full_name} {contract.version}"):
                    _add_tool(project_tools, _bind_contract(contract, by_target), file)
    # After everything was imported: what is loaded now is what runs.
    project_tools.tools = [
        replace(tool, code_digest=compute_code_digest(_list_modules(tool.contract), base))
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


def _add_tool(project_tools: ProjectTools, tool: PythonTool, file: str) -> None:
    contract = tool.contract
    key = (contract.full_name, contract.version)
    if key in project_tools.files:
        other_file = project_tools.files[key]
        reason = f"this name and version are already declared in {other_file}; rename one, or change its version"
        project_tools.refusals.append(Refusal(what=" ".join(key), file=file, reasons=(reason,)))
        return
    project_tools.files[key] = file
    faults, gaps = list(collect_faults(contract, find_owner=find_no_owner)), list(collect_gaps(contract))
    if gaps and file.endswith(".py"):
        project_tools.source_gaps.append(find_source_gaps(tool, gaps))
    if faults or (gaps and not project_tools.admits_drafts):
        project_tools.add_refusal(contract, explain_tool_reasons(tool, file, [*faults, *gaps]))
        return
    project_tools.tools.append(tool)
    if gaps:
        what = f"{contract.full_name} {contract.version}"
        project_tools.gaps.append(Refusal(what=what, file=file, reasons=tuple(explain_tool_reasons(tool, file, gaps))))


def explain_tool_reasons(tool: PythonTool, file: str, reasons: Sequence[Reason]) -> list[str]:
    """Explain reasons by the function if its decorator declares the tool, and by the contract's fields otherwise."""
    if file.endswith(".py"):
        return explain_reasons(tool, file, reasons)
    return [_format_reason(each) for each in reasons]


def _format_reason(reason: Reason) -> str:
    return f"{reason.path.lstrip('/').replace('/', '.')} {reason.reason}; {reason.fix}".strip()


def _bind_contract(contract: Contract, by_target: Mapping[str, PythonTool]) -> PythonTool:
    """Bind a manifest's contract to the function it names: one with @tool, or a plain function of a [tools] file."""
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
    """Tools of one file that can be registered, and those that cannot."""

    contracts: tuple[Contract, ...]
    refusals: tuple[Refusal, ...]
    # What `--fix` can write.
    source_gaps: tuple[SourceGaps, ...] = ()


def check_tool_file(file: Path) -> ToolFileCheck:
    """Check the tools of one file without a gateway. The functions that a manifest names are not checked."""
    base = _find_base_folder(file)
    if file.suffix == ".py":
        project_tools = load_tool_files([str(file.relative_to(base))], [], base)
        return ToolFileCheck(
            contracts=tuple(tool.contract for tool in project_tools.tools),
            refusals=tuple(project_tools.refusals),
            source_gaps=tuple(project_tools.source_gaps),
        )
    project_tools, relative_path = ProjectTools(), str(file.relative_to(base))
    contracts: list[Contract] = []
    with _record_refusals(project_tools, relative_path):
        for contract in parse_manifest(file.read_text(encoding="utf-8"), source=relative_path):
            project_tools.files[contract.full_name, contract.version] = relative_path
            reasons = [_format_reason(each) for each in collect_reasons(contract, find_owner=find_no_owner)]
            if reasons:
                project_tools.add_refusal(contract, reasons)
            else:
                contracts.append(contract)
    return ToolFileCheck(contracts=tuple(contracts), refusals=tuple(project_tools.refusals))


def _find_base_folder(file: Path) -> Path:
    """Find the project folder of a file, so that targets are spelt as in `deputize dev`."""
    return next((folder for folder in file.parents if (folder / "deputize.toml").is_file()), file.parent)
