"""Find tool files by pattern and import them by path, under module names that are the same on every machine."""

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from deputize.catalog.importers.code_digest import ProjectLoader
from deputize.catalog.importers.declaration import DECLARATION_FAULTS, WrongDeclaration

# Tool files are imported under this name, so that none of them can shadow an installed package.
MODULE_PREFIX = "_deputize_tools"


def forget_modules() -> None:
    """Remove imported tool files from `sys.modules`, so that edited files are imported again."""
    for name in [name for name in sys.modules if name == MODULE_PREFIX or name.startswith(MODULE_PREFIX + ".")]:
        del sys.modules[name]


def find_files(globs: Iterable[str], base: Path) -> list[Path]:
    """Find the files under `base` that match any pattern, each once, in a fixed order."""
    paths: dict[Path, None] = {}
    for pattern in globs:
        relative_pattern = Path(pattern)
        if relative_pattern.is_absolute() and relative_pattern.is_relative_to(base):
            relative_pattern = relative_pattern.relative_to(base)
        if relative_pattern.is_absolute() or ".." in relative_pattern.parts:
            raise WrongDeclaration(f"{pattern} is outside {base}; move it into the folder of deputize.toml")
        hits = sorted(
            path for path in base.glob(str(relative_pattern)) if path.is_file() and path.name != "__init__.py"
        )
        if not hits and not any(sign in pattern for sign in "*?["):
            raise WrongDeclaration(f"there is no file {pattern} in {base}; correct the name in deputize.toml")
        paths.update(dict.fromkeys(hits))
    return list(paths)


def import_file_once(path: Path, base: Path) -> ModuleType:
    """Import a file, unless it is loaded already, so that what shares a file shares its module's state."""
    module = sys.modules.get(".".join((MODULE_PREFIX, *path.relative_to(base).with_suffix("").parts)))
    return module if module is not None and module.__file__ == str(path) else import_file(path, base)


def import_file(path: Path, base: Path) -> ModuleType:
    """Import one file; raise `WrongDeclaration` with its line if that fails."""
    parts = path.relative_to(base).with_suffix("").parts
    _create_packages(parts[:-1], base)
    name = ".".join((MODULE_PREFIX, *parts))
    spec = importlib.util.spec_from_file_location(name, path, loader=ProjectLoader(name, str(path)))
    if spec is None or spec.loader is None or path.suffix != ".py":
        raise WrongDeclaration(f"{path.relative_to(base)} is not a Python file; give it the suffix .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    faults: list[str] = []
    vars(module)[DECLARATION_FAULTS] = faults
    try:
        spec.loader.exec_module(module)
        del vars(module)[DECLARATION_FAULTS]
        if faults:
            raise WrongDeclaration(*faults)
    except WrongDeclaration:
        del sys.modules[name]
        raise
    except Exception as error:
        del sys.modules[name]
        line = _find_line(error, path)
        raise WrongDeclaration(
            f"{path.relative_to(base)}{line}: importing it failed with {type(error).__name__}: {error}"
        ) from error
    return module


def _create_packages(folders: tuple[str, ...], base: Path) -> None:
    """Create packages for the folders, so that a tool file can use `from .shared import …`."""
    for depth in range(len(folders) + 1):
        name = ".".join((MODULE_PREFIX, *folders[:depth]))
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = [str(base.joinpath(*folders[:depth]))]
            sys.modules[name] = package


def _find_line(error: Exception, path: Path) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        return f":{error.lineno}"
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f":{line}" if line else ""
