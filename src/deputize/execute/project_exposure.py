"""Find out whether a folder that agents or programs may change has files in it that the gateway itself runs on."""

from collections.abc import Iterator
from glob import glob, has_magic
from itertools import takewhile
from pathlib import Path

from pydantic import BaseModel

from deputize.core.settings import SETTINGS_FILE, FilesSettings, GitSettings, McpServerSettings, Settings


def find_exposure(folder: Path, base: Path, settings: Settings) -> str | None:
    """Find what an agent or program with this folder could read or change of the tools, policies, settings or keys."""
    if base.is_relative_to(folder):
        return "it contains the project's own files, such as its policies and keys"
    for path in (base / SETTINGS_FILE, base / ".deputize", *_list_paths(settings, base)):
        if any(each.is_relative_to(folder) for each in _locate(path)):
            return f"{path.name}, which belongs to the gateway, is in it"
        if folder.is_relative_to(path.resolve()):
            return f"it is in {path.name}, which belongs to the gateway"
    for setting, pattern in _list_patterns(settings):
        if _can_match(pattern, folder, base):
            return f"{setting} lists {pattern}, so tools or rules could be changed there"
    return None


def _list_paths(section: BaseModel, base: Path) -> Iterator[Path]:
    """List the paths in the settings, such as those of keys. A folder that programs work in may be the agent's too."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Path):
                yield base / each
            elif isinstance(each, BaseModel) and not isinstance(each, FilesSettings | GitSettings | McpServerSettings):
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
