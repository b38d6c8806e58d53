"""The tools that settings name, read from their files: what can be registered, and what cannot, with every reason.

One bad file or tool does not keep the others out; a bad hook keeps everything out. Above: `dev`, `serve` and `tool
check`. Below: `catalog/`.
"""

import contextlib
import importlib
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deputize.catalog.admission import nobody, reasons_against
from deputize.catalog.importers.calling import plain_previewer
from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.importers.files import PRIVATE, forget, import_file, matching
from deputize.catalog.importers.hooks import load_hooks
from deputize.catalog.importers.manifest import parse_manifest
from deputize.catalog.importers.python import collect
from deputize.core.contract import Contract
from deputize.core.definition import PythonTool
from deputize.core.errors import Problem, VersionConflict
from deputize.core.hooks import LoadedHook
from deputize.core.settings import Settings
from deputize.govern.approvals.codes import Told
from deputize.lifecycle.gateway import Gateway

OpenGateway = Callable[..., AbstractAsyncContextManager[Gateway]]
"""How `app.py` opens a gateway: settings, then `tools`, `hooks`, `development`, `worker` and `tell_code` by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """One file or tool that was left out: what it is, where it stands, and each reason with its fix."""

    what: str
    file: str
    reasons: tuple[str, ...]


@dataclass(kw_only=True, slots=True)
class Loaded:
    """What the files held; refusals are added to while tools are registered."""

    tools: list[PythonTool] = field(default_factory=list)
    files: dict[tuple[str, str], str] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    hooks: tuple[LoadedHook, ...] = ()

    def file_of(self, contract: Contract) -> str:
        return self.files.get((contract.full_name, contract.version), "")

    def refuse(self, contract: Contract, reasons: Iterable[str]) -> None:
        what = f"{contract.full_name} {contract.version}"
        self.refusals.append(Refusal(what=what, file=self.file_of(contract), reasons=tuple(reasons)))
        self.tools = [tool for tool in self.tools if tool.contract is not contract]


def load(settings: Settings, base: Path) -> Loaded:
    """Every tool of the files that `[tools]` names, and every hook of `[[hooks]]`."""
    loaded = load_files(settings.tools.python, settings.tools.manifests, base)
    loaded.hooks = load_hooks(settings.hooks, base)
    return loaded


def load_files(python: Sequence[str], manifests: Sequence[str], base: Path) -> Loaded:
    base = base.resolve()
    loaded = Loaded()
    forget()
    # A namespace package remembers its folder's content; an edited file must be read again.
    importlib.invalidate_caches()
    for path in _matching(python, base, loaded):
        with _told(loaded, str(path.relative_to(base))):
            for tool in collect(import_file(path, base)):
                _add(loaded, tool, str(path.relative_to(base)))
    by_target = {tool.target: tool for tool in loaded.tools}
    for path in _matching(manifests, base, loaded):
        here = str(path.relative_to(base))
        with _told(loaded, here):
            for contract in parse_manifest(path.read_text(encoding="utf-8"), source=here):
                with _told(loaded, here, f"{contract.full_name} {contract.version}"):
                    _add(loaded, _bound(contract, by_target), here)
    return loaded


def _matching(patterns: Sequence[str], base: Path, loaded: Loaded) -> list[Path]:
    found: dict[Path, None] = {}
    for pattern in patterns:
        with _told(loaded, "deputize.toml", pattern):
            found.update(dict.fromkeys(matching([pattern], base)))
    return list(found)


@contextlib.contextmanager
def _told(loaded: Loaded, file: str, what: str = "") -> Any:
    """A file that cannot be read is told of and left out."""
    try:
        yield
    except WrongDeclaration as error:
        reasons = tuple(sentence.removeprefix(f"{file}: ") for sentence in error.sentences)
        loaded.refusals.append(Refusal(what=what or file, file=file, reasons=reasons))
    except (OSError, UnicodeDecodeError) as error:
        reason = f"it cannot be read ({error}); make it a readable file in UTF-8"
        loaded.refusals.append(Refusal(what=what or file, file=file, reasons=(reason,)))


def _add(loaded: Loaded, tool: PythonTool, file: str) -> None:
    contract = tool.contract
    key = (contract.full_name, contract.version)
    if key in loaded.files:
        other = loaded.files[key]
        reason = f"it is already declared in {other}; rename one of them or raise its version"
        loaded.refusals.append(Refusal(what=" ".join(key), file=file, reasons=(reason,)))
        return
    loaded.files[key] = file
    reasons = [_sentence(each.path, each.reason, each.fix) for each in reasons_against(contract, known=nobody)]
    if reasons:
        loaded.refuse(contract, reasons)
    else:
        loaded.tools.append(tool)


def _sentence(path: str, reason: str, fix: str) -> str:
    return f"{path.lstrip('/').replace('/', '.')} {reason}; {fix}".strip()


def _bound(contract: Contract, by_target: Mapping[str, PythonTool]) -> PythonTool:
    """A manifest's contract with the function it names: one with @tool, or a plain one of a file under [tools]."""
    target = contract.handler.target
    known = by_target.get(target)
    if known is not None:
        return PythonTool(
            contract=contract, run=known.run, is_async=known.is_async, takes_context=known.takes_context,
            validate=known.validate, verify=known.verify, preview=known.preview,
            previews_with_context=known.previews_with_context,
        )  # fmt: skip
    function = _function(target, "target")
    preview, with_context = None, False
    if contract.handler.preview is not None:
        preview, with_context = plain_previewer(_function(contract.handler.preview, "preview"))
    elif contract.preview:
        raise WrongDeclaration(f"it says preview: true, and {target} brings none; name one in handler.preview")
    return PythonTool(
        contract=contract,
        run=function,
        is_async=inspect.iscoroutinefunction(function),
        takes_context="context" in inspect.signature(function).parameters,
        preview=preview,
        previews_with_context=with_context,
    )


def _function(address: str, field: str) -> Callable[..., Any]:
    module, _, name = address.partition(":")
    function: Callable[..., Any] | None = getattr(_loaded_module(module), name, None)
    if not inspect.isfunction(function):
        raise WrongDeclaration(
            f"handler.{field} {address} names no function of a file under [tools] python; "
            "write it like tools.hello:greet, and list that file"
        )
    return function


def _loaded_module(name: str) -> Any:
    return sys.modules.get(f"{PRIVATE}.{name}")


@contextlib.asynccontextmanager
async def opened(
    open_gateway: OpenGateway,
    settings: Settings,
    loaded: Loaded,
    *,
    development: bool,
    worker: bool = False,
    tell_code: Callable[[Told], None] | None = None,
) -> AsyncIterator[Gateway]:
    """A gateway with every tool that could be registered; what the registry refused joins the refusals."""
    async with open_gateway(
        settings,
        tools=tuple(loaded.tools),
        hooks=loaded.hooks,
        development=development,
        worker=worker,
        tell_code=tell_code,
    ) as gateway:
        for problem in gateway.refused:
            culprit = _culprit(problem, loaded)
            if culprit is None:
                loaded.refusals.append(Refusal(what="a tool", file="", reasons=(problem.message,)))
            else:
                loaded.refuse(culprit, _why(problem, culprit))
        yield gateway


def _culprit(problem: Problem, loaded: Loaded) -> Contract | None:
    """The tool a refusal speaks of: its name and version begin the message."""
    contracts = (tool.contract for tool in loaded.tools)
    return next((each for each in contracts if problem.message.startswith(f"{each.full_name} {each.version} ")), None)


def _why(problem: Problem, contract: Contract) -> list[str]:
    if isinstance(problem, VersionConflict):
        return [
            f"its declaration changed, but {contract.version} is registered and stays in force as it was; "
            f'raise the version, as in version="{_next(contract.version)}"'
        ]
    reasons = problem.details.get("reasons", ())
    return [_sentence(each["path"], each["reason"], each["fix"]) for each in reasons] or [problem.message]


def _next(version: str) -> str:
    major, minor, patch = version.partition("-")[0].partition("+")[0].split(".")
    return f"{major}.{minor}.{int(patch) + 1}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """What one file declares, judged without a registry."""

    contracts: tuple[Contract, ...]
    refusals: tuple[Refusal, ...]


def check_file(file: Path) -> Checked:
    """The tools of one file, offline. A manifest's function is looked for by the gateway, not here."""
    base = _base_of(file)
    if file.suffix == ".py":
        loaded = load_files([str(file.relative_to(base))], [], base)
        return Checked(contracts=tuple(tool.contract for tool in loaded.tools), refusals=tuple(loaded.refusals))
    loaded, here = Loaded(), str(file.relative_to(base))
    contracts: list[Contract] = []
    with _told(loaded, here):
        for contract in parse_manifest(file.read_text(encoding="utf-8"), source=here):
            loaded.files[contract.full_name, contract.version] = here
            reasons = [_sentence(each.path, each.reason, each.fix) for each in reasons_against(contract, known=nobody)]
            if reasons:
                loaded.refuse(contract, reasons)
            else:
                contracts.append(contract)
    return Checked(contracts=tuple(contracts), refusals=tuple(loaded.refusals))


def _base_of(file: Path) -> Path:
    """The folder of the file's project, so that targets are spelt as `deputize dev` spells them."""
    return next((folder for folder in file.parents if (folder / "deputize.toml").is_file()), file.parent)
