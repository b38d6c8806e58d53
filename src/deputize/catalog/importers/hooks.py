"""Hooks found in the files that `[[hooks]]` names. One that cannot be had stops the start: no guard is left out."""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.importers.files import PRIVATE, import_file, matching
from deputize.core.hooks import ATTRIBUTE, MOMENTS, LoadedHook
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Hook

_TAKES = {"before": ("call",), "after": ("call", "result"), "failure": ("call", "problem")}


def load_hooks(hooks: Iterable[Hook], base: Path) -> tuple[LoadedHook, ...]:
    """In the order of the settings, which is the order they run in."""
    base = base.resolve()
    return tuple(_loaded(each, base) for each in _each_once(hooks))


def _each_once(hooks: Iterable[Hook]) -> Iterator[Hook]:
    names: set[str] = set()
    for each in hooks:
        if each.name in names:
            raise Misconfigured(f"Two hooks are called {each.name}: give one of them another name in deputize.toml.")
        names.add(each.name)
        yield each


def _loaded(declared: Hook, base: Path) -> LoadedHook:
    file, separator, name = declared.function.rpartition(":")
    if not separator or not file.endswith(".py") or not name.isidentifier():
        raise _wrong(declared, f"{declared.function} names no function: write it like hooks/check.py:guard")
    try:
        paths = matching([file], base)
        if len(paths) != 1:
            raise WrongDeclaration(f"{file} names {len(paths)} files: name the one its function is in")
        module = _module(paths[0], base)
    except WrongDeclaration as error:
        raise _wrong(declared, error.sentences[0]) from error
    function = getattr(module, name, None)
    if function is None:
        raise _wrong(declared, f"there is no {name} in {file}: correct the name in deputize.toml")
    moment = getattr(function, ATTRIBUTE, None)
    if moment not in MOMENTS or not inspect.isfunction(function):
        raise _wrong(
            declared, f'{file}:{name} is not marked as a hook: write @hook("before"), "after" or "failure" above it'
        )
    _require_fitting(declared, function, f"{file}:{name}", _TAKES[moment])
    return LoadedHook(
        name=declared.name,
        moment=moment,
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        tools=declared.tools,
        seconds=declared.seconds,
        file=file,
    )


def _module(path: Path, base: Path) -> ModuleType:
    """A file that holds several hooks, or tools as well, is imported once, so that they share what it keeps."""
    known = sys.modules.get(".".join((PRIVATE, *path.relative_to(base).with_suffix("").parts)))
    return known if known is not None and known.__file__ == str(path) else import_file(path, base)


def _require_fitting(declared: Hook, function: Callable[..., Any], where: str, takes: tuple[str, ...]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise _wrong(declared, f"{where} yields: return one answer, or a list of them")
    try:
        inspect.signature(function).bind(*takes)
    except TypeError:
        raise _wrong(declared, f"{where} is called as {function.__name__}({', '.join(takes)}): take these") from None


def _wrong(declared: Hook, sentence: str) -> Misconfigured:
    return Misconfigured(f"The hook {declared.name} cannot be used: {sentence}.")
