"""Load a project's own modules from their source, and compute a digest of the code that a tool consists of.

An approval is bound to this digest, so that code which was edited between the approval and the call does not run. The
digest covers the module of the tool and every module of the project that it imports, directly or not, also inside
functions; installed packages are not part of it. It is computed over the bytes that were really compiled: cached
bytecode, which could have been written by anybody, is never loaded for these modules.
"""

import ast
import codecs
import hashlib
import io
import sys
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_FORMAT = b"deputize code 1\n"
_INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages"})
_OWN_PACKAGE = "deputize"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Source:
    """The source of a module: its digest, and the modules that it names in import statements."""

    digest: str
    imports: tuple[str, ...]


class ProjectLoader(SourceFileLoader):
    """Compile a module from its source, and remember which source that was."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        data = self.get_data(path)
        _require_utf8(path, data)
        _remember_source(fullname, Path(path), data)
        code: CodeType = self.source_to_code(data, path)
        return code


class _ProjectFinder(MetaPathFinder):
    """Find the modules of projects, and leave all others to the other finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or not _is_project_file(fullname, Path(spec.origin)):
            return None
        if isinstance(spec.loader, SourcelessFileLoader):
            raise ImportError(f"{spec.origin} has no source, so it cannot be compared with what was approved")
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = ProjectLoader(fullname, spec.origin)
            return spec
        return None


_finder = _ProjectFinder()
_base_folders: set[Path] = set()
_sources: dict[Path, _Source] = {}
# Modules that are imported only later, inside a function: they must then be what the digest says.
_expected_digests: dict[Path, str] = {}


def begin_loading(base: Path) -> None:
    """Load the modules below a folder from their source from now on, and expect nothing of earlier loads."""
    _base_folders.add(base.resolve())
    _expected_digests.clear()
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def compute_code_digest(names: Iterable[str], base: Path) -> str:
    """Compute the digest of these modules and of every module of the project that they import."""
    base = base.resolve()
    digests: dict[str, str] = {}
    pending_names, seen_names = list(names), set[str]()
    while pending_names:
        name = pending_names.pop()
        if name in seen_names:
            continue
        seen_names.add(name)
        path = _find_file(name)
        if path is None or not _is_project_file(name, path):
            continue
        source = _sources.get(path)
        # What is not loaded may have been edited since an earlier load.
        if source is None or (name not in sys.modules and path not in _expected_digests):
            source = _remember_source(name, path, path.read_bytes())
        if name not in sys.modules:
            _expected_digests[path] = source.digest
        location = path.relative_to(base) if path.is_relative_to(base) else path
        digests[location.as_posix()] = source.digest
        pending_names += source.imports
    lines = "".join(f"{digest} {location}\n" for location, digest in sorted(digests.items()))
    return "sha256:" + hashlib.sha256(_FORMAT + lines.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class SetAsideModules:
    """Loaded modules of a project with their sources, taken out so that edited files are imported anew."""

    modules: Mapping[str, ModuleType]
    sources: Mapping[Path, _Source]

    def restore(self, names: Iterable[str]) -> None:
        """Put these modules back, with the digests of what they were compiled from."""
        for name in names:
            module = self.modules.get(name)
            if module is None:
                continue
            sys.modules[name] = module
            _set_package_attribute(name, module)
            path = _get_module_path(module)
            if path is not None and path in self.sources:
                _sources[path] = self.sources[path]

    def restore_missing(self) -> None:
        """Put the modules back that nothing imported anew, because importing them failed or nothing needs them."""
        self.restore([name for name in self.modules if name not in sys.modules])


def list_loaded_sources() -> dict[Path, str]:
    """List the project's files that modules were compiled from, or are expected to be, with their digests."""
    return {path: source.digest for path, source in _sources.items()}


def set_aside_modules(paths: Iterable[Path]) -> SetAsideModules:
    """Take the modules of these files, and all that import them, directly or not, out of `sys.modules`."""
    changed_paths = {path.resolve() for path in paths}
    names = _list_dependents(changed_paths)
    modules = {name: sys.modules[name] for name in names if name in sys.modules}
    sources = dict(_sources)
    for name, module in modules.items():
        del sys.modules[name]
        _set_package_attribute(name, None)
        path = _get_module_path(module)
        if path is not None:
            _sources.pop(path, None)
    for path in changed_paths:
        _sources.pop(path, None)
    return SetAsideModules(modules=modules, sources=sources)


def _list_dependents(changed_paths: set[Path]) -> set[str]:
    """List the loaded modules of the changed files and those whose imports lead to one of them."""
    project_modules = {
        name: path
        for name, module in list(sys.modules.items())
        if (path := _get_module_path(module)) is not None and path in _sources
    }
    found_names = {name for name, path in project_modules.items() if path in changed_paths}
    # A module that is imported inside a function may never have been loaded; it is known by its name alone.
    reached_names = found_names | {
        each
        for source in list(_sources.values())
        for each in source.imports
        if each not in sys.modules and _find_file(each) in changed_paths
    }
    while True:
        more_names = {
            name
            for name, path in project_modules.items()
            if name not in found_names and not reached_names.isdisjoint(_sources[path].imports)
        }
        if not more_names:
            return found_names
        found_names |= more_names
        reached_names |= more_names


def _get_module_path(module: object) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None


def _set_package_attribute(name: str, module: ModuleType | None) -> None:
    """Set or remove the attribute by which `from . import name` finds a module before it imports anything."""
    package_name, _, attribute = name.rpartition(".")
    package = sys.modules.get(package_name)
    if package is None:
        return
    if module is not None:
        setattr(package, attribute, module)
    elif isinstance(getattr(package, attribute, None), ModuleType):
        delattr(package, attribute)


def _remember_source(name: str, path: Path, data: bytes) -> _Source:
    path = path.resolve()
    digest = hashlib.sha256(data).hexdigest()
    if _expected_digests.get(path, digest) != digest:
        raise ImportError(f"{path} changed after the tools were loaded: restart to load it")
    source = _Source(digest=digest, imports=_list_imports(name, path, data))
    _sources[path] = source
    return source


def _require_utf8(path: str, data: bytes) -> None:
    """Refuse source that Python would read as other characters than those that editors and reviews show."""
    try:
        data.decode()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data.removeprefix(codecs.BOM_UTF8)).readline)
    except UnicodeDecodeError as error:
        raise ImportError(f"{path} is not UTF-8 text at byte {error.start}: save it as UTF-8") from None
    except SyntaxError as error:
        raise ImportError(f"{path} declares its encoding wrongly ({error}): save it as UTF-8") from None
    if codecs.lookup(encoding).name != "utf-8":
        raise ImportError(f"{path} declares the encoding {encoding}: save it as UTF-8 and remove the declaration")


def _is_project_file(name: str, path: Path) -> bool:
    if name.partition(".")[0] == _OWN_PACKAGE:
        return False
    path = path.resolve()
    return any(
        path.is_relative_to(base) and _INSTALLED_FOLDERS.isdisjoint(path.relative_to(base).parts)
        for base in _base_folders
    )


def _find_file(name: str) -> Path | None:
    """Find the file of a module, loaded or not; None if there is none, as for names that are no modules."""
    module = sys.modules.get(name)
    spec = None if module is not None else _find_unloaded(name)
    file = getattr(spec, "origin", None) if module is None else getattr(module, "__file__", None)
    if not isinstance(file, str):
        return None
    path = Path(file).resolve()
    return path if path.is_file() else None


def _find_unloaded(name: str) -> ModuleSpec | None:
    """Find a module of the project without importing it or its packages, which would execute them."""
    parent_name = name.rpartition(".")[0]
    search_path: Sequence[str] | None = None
    if parent_name:
        parent = sys.modules.get(parent_name)
        holder: Any = _find_unloaded(parent_name) if parent is None else parent
        locations = getattr(holder, "submodule_search_locations" if parent is None else "__path__", None)
        search_path = list(locations or ())
        if not search_path:
            return None
    try:
        return _finder.find_spec(name, search_path)
    except (ImportError, ValueError, AttributeError):
        return None


def _list_imports(name: str, path: Path, data: bytes) -> tuple[str, ...]:
    """List the modules that a source may import, with their packages. Names that are no modules do no harm."""
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return ()  # importing it fails as well
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names.update(dict.fromkeys(_list_packages(alias.name)))
        elif isinstance(node, ast.ImportFrom):
            module = _resolve_module(node, package)
            if module is not None:
                names.update(dict.fromkeys(_list_packages(module)))
                names.update(dict.fromkeys(f"{module}.{alias.name}" for alias in node.names))
    return tuple(names)


def _resolve_module(node: ast.ImportFrom, package: str) -> str | None:
    if node.level == 0:
        return node.module
    parts = package.split(".")
    if node.level > len(parts):
        return None
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def _list_packages(name: str) -> list[str]:
    """List a module and the packages above it: importing it executes them all."""
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
