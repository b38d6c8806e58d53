"""Tool files found by pattern and imported by path, under names that are the same on every machine."""

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from deputize.catalog.importers.declaration import WrongDeclaration

# Tool files are imported under this name, so that none of them can shadow an installed package.
PRIVATE = "_deputize_tools"


def forget() -> None:
    """Drop what was imported before, so that an edited file and its neighbours are read again."""
    for name in [name for name in sys.modules if name == PRIVATE or name.startswith(PRIVATE + ".")]:
        del sys.modules[name]


def matching(globs: Iterable[str], base: Path) -> list[Path]:
    """The files under `base` that any pattern names, each once, in a fixed order."""
    paths: dict[Path, None] = {}
    for pattern in globs:
        inside = Path(pattern)
        if inside.is_absolute() and inside.is_relative_to(base):
            inside = inside.relative_to(base)
        if inside.is_absolute() or ".." in inside.parts:
            raise WrongDeclaration(f"{pattern} is outside {base}; keep such files in the folder of deputize.toml")
        hits = sorted(path for path in base.glob(str(inside)) if path.is_file() and path.name != "__init__.py")
        if not hits and not any(sign in pattern for sign in "*?["):
            raise WrongDeclaration(f"there is no file {pattern} in {base}; correct the name in deputize.toml")
        paths.update(dict.fromkeys(hits))
    return list(paths)


def import_file(path: Path, base: Path) -> ModuleType:
    parts = path.relative_to(base).with_suffix("").parts
    _packages(parts[:-1], base)
    name = ".".join((PRIVATE, *parts))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise WrongDeclaration(f"{path.relative_to(base)} is not a Python file; give it the suffix .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except WrongDeclaration:
        raise
    except Exception as error:
        line = _line_in(error, path)
        raise WrongDeclaration(
            f"{path.relative_to(base)}{line}: importing it failed with {type(error).__name__}: {error}"
        ) from error
    return module


def _packages(folders: tuple[str, ...], base: Path) -> None:
    """Folders as packages, so that a tool file may say `from .shared import …`."""
    for depth in range(len(folders) + 1):
        name = ".".join((PRIVATE, *folders[:depth]))
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = [str(base.joinpath(*folders[:depth]))]
            sys.modules[name] = package


def _line_in(error: Exception, path: Path) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        return f":{error.lineno}"
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f":{line}" if line else ""
