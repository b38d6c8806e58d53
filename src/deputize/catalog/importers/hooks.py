"""Load the hooks that `[[hooks]]` in `deputize.toml` names.

A hook that cannot be loaded stops the start, because calls must not run without it.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.importers.tool_files import find_files, import_file_once
from deputize.core.config_error import ConfigError
from deputize.core.hooks import HOOK_ATTRIBUTE, HOOK_MOMENTS, LoadedHook
from deputize.core.settings import HookSettings

_PARAMETERS = {"before": ("call",), "after": ("call", "result"), "failure": ("call", "problem")}


def load_hooks(hooks: Iterable[HookSettings], base: Path) -> tuple[LoadedHook, ...]:
    """Load all hooks, in the order of the settings, which is the order they run in."""
    base = base.resolve()
    return tuple(_load_hook(each, base) for each in _iter_unique_hooks(hooks))


def _iter_unique_hooks(hooks: Iterable[HookSettings]) -> Iterator[HookSettings]:
    names: set[str] = set()
    for each in hooks:
        if each.name in names:
            raise ConfigError(f"Two hooks are named {each.name}. Rename one of them in deputize.toml.")
        names.add(each.name)
        yield each


def _load_hook(hook: HookSettings, base: Path) -> LoadedHook:
    file, separator, name = hook.function.rpartition(":")
    if not separator or not file.endswith(".py") or not name.isidentifier():
        raise _build_error(hook, f"{hook.function} is not FILE:FUNCTION; write it like hooks/check.py:guard")
    try:
        paths = find_files([file], base)
        if len(paths) != 1:
            raise WrongDeclaration(f"{file} matches {len(paths)} files; name the file that contains the function")
        module = import_file_once(paths[0], base)
    except WrongDeclaration as error:
        raise _build_error(hook, error.sentences[0]) from error
    function = getattr(module, name, None)
    if function is None:
        raise _build_error(hook, f"{file} has no function {name}; correct the name in deputize.toml")
    moment = getattr(function, HOOK_ATTRIBUTE, None)
    if moment not in HOOK_MOMENTS or not inspect.isfunction(function):
        raise _build_error(
            hook, f'{file}:{name} is not marked as a hook; write @hook("before"), "after" or "failure" above it'
        )
    _require_signature(hook, function, f"{file}:{name}", _PARAMETERS[moment])
    return LoadedHook(
        name=hook.name,
        moment=moment,
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        tools=hook.tools,
        seconds=hook.seconds,
        file=file,
    )


def _require_signature(
    hook: HookSettings, function: Callable[..., Any], where: str, parameters: tuple[str, ...]
) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise _build_error(hook, f"{where} is a generator; return one answer or a list of answers")
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError:
        raise _build_error(
            hook,
            f"{where} does not accept the call {function.__name__}({', '.join(parameters)}); give it these parameters",
        ) from None


def _build_error(hook: HookSettings, sentence: str) -> ConfigError:
    return ConfigError(f"The hook {hook.name} cannot be loaded: {sentence}.")
