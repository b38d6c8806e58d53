"""Open what is below one folder, and nothing else, whatever its names lead to and whoever changes them meanwhile.

The folder itself is opened once. Every folder below it is opened from there in one step of the kernel
(`openat2(RESOLVE_BENEATH)`), or name by name without following links where the kernel has no such call. Files are
opened, renamed and removed by one name in an open folder, so that no path is ever resolved twice. Symbolic links,
mounts, devices and files with a second name are refused: each of them can lead out.
"""

import ctypes
import errno
import hashlib
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deputize import SemanticViolation, ToolFailed, ToolPrecondition
from deputize.core.guarded_names import GUARDED_NAMES

ROOT: Final = "."
# The digest of a file that does not exist.
ABSENT: Final = "absent"
# Changes that can be taken back are kept below it, and a project's keys may be in another.
RESERVED_NAME: Final = ".deputize"
# In no path at all. What is written there, such as the hooks of git, is run by everyone who works with the folder.
RESERVED_NAMES: Final = GUARDED_NAMES | {RESERVED_NAME}
_FORBIDDEN: Final = r"/\\\x00-\x1f\x7f"
_SEGMENT: Final = rf"(?:[^.{_FORBIDDEN}][^{_FORBIDDEN}]*|\.[^.{_FORBIDDEN}][^{_FORBIDDEN}]*|\.\.[^{_FORBIDDEN}]+)"
# The one normal form of each path, so that a rule on paths cannot be passed by another spelling.
FILE_PATTERN: Final = rf"^{_SEGMENT}(?:/{_SEGMENT})*$"
FOLDER_PATTERN: Final = rf"^(?:\.|{_SEGMENT}(?:/{_SEGMENT})*)$"
_NAME: Final = re.compile(_SEGMENT)
MAX_PATH: Final = 1_000
MAX_DEPTH: Final = 64
_MAX_NAME_BYTES: Final = 255
# Larger files are read in pages and never changed.
MAX_FILE_BYTES: Final = 32 * 1024 * 1024
_CHUNK_BYTES: Final = 1024 * 1024

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a pipe or a device must not wait, and a terminal must not become ours.
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_OPENAT2: Final = 437
# RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH
_RESOLVE: Final = 0x01 | 0x02 | 0x04 | 0x08
_RENAME_NOREPLACE: Final = 1
_RENAME_EXCHANGE: Final = 2
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LEADS_OUT: Final = frozenset({errno.ELOOP, errno.EXDEV, errno.ENOTDIR, errno.EAGAIN})


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@dataclass(frozen=True, kw_only=True, slots=True)
class FileState:
    """What a file is at one time. `sha256` is None if it is too large to be digested."""

    sha256: str | None
    size: int
    mode: int
    inode: int
    modified_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A name in an open folder."""

    path: str
    folder: int
    name: str


class Folder:
    """One folder of the operator, and what is below it. `has_openat2` is False to open name by name."""

    def __init__(self, path: Path, *, has_openat2: bool | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._device = os.fstat(self._root).st_dev
        if _ignores_case(self._root):
            raise ValueError("its file system does not distinguish case, so rules on paths would not hold")
        self._has_openat2 = _probe_openat2(self._root) if has_openat2 is None else has_openat2

    def __del__(self) -> None:
        if hasattr(self, "_root"):
            os.close(self._root)

    @contextmanager
    def open_folder(self, path: str) -> Iterator[int]:
        """Open the folder at a path; the descriptor is closed at the end of the block."""
        with explain_errors(path):
            descriptor = self._open_below(split_path(path))
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def open_parent(self, path: str) -> Iterator[Place]:
        """Open the folder that a file is in, or would be."""
        names = split_path(path)
        if not names:
            raise SemanticViolation("the folder itself is not a file: name a file in it")
        with self.open_folder("/".join(names[:-1]) or ROOT) as descriptor:
            yield Place(path=path, folder=descriptor, name=names[-1])

    @contextmanager
    def open_reserved(self, *names: str) -> Iterator[int]:
        """Open a folder of our own below the reserved name; raise FileNotFoundError if there is none."""
        descriptor = self._open_root()
        try:
            for name in (RESERVED_NAME, *names):
                inner = self.open_inner(descriptor, name)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def make_reserved(self, *names: str) -> None:
        """Create a folder of our own below the reserved name."""
        self._make_folders((RESERVED_NAME, *names), 0o700)

    def make_parents(self, path: str) -> tuple[str, ...]:
        """Create the folders that a file needs, and list those that there were not, outermost first."""
        names = split_path(path)[:-1]
        with explain_errors(path):
            depths = self._make_folders(names, 0o777)
        return tuple("/".join(names[:depth]) for depth in depths)

    def _make_folders(self, names: tuple[str, ...], mode: int) -> list[int]:
        """Create folders in each other, and list the depths of those that there were not."""
        made: list[int] = []
        descriptor = self._open_root()
        try:
            for depth, name in enumerate(names, start=1):
                if _make_folder(descriptor, name, mode):
                    made.append(depth)
                inner = self.open_inner(descriptor, name)
                os.close(descriptor)
                descriptor = inner
        finally:
            os.close(descriptor)
        return made

    def open_inner(self, folder: int, name: str) -> int:
        """Open a folder in an open folder; raise OSError if it is a link, a mount or something else."""
        return self._require_device(os.open(name, _FOLDER_FLAGS, dir_fd=folder))

    @contextmanager
    def open_file(self, place: Place) -> Iterator[int]:
        """Open a regular file with one name; raise `ToolPrecondition` for anything else."""
        with explain_errors(place.path):
            # Before it is opened: that alone can have effects on a device.
            expected = _require_regular(place.path, os.stat(place.name, dir_fd=place.folder, follow_symlinks=False))
            descriptor = self._require_device(os.open(place.name, _FILE_FLAGS, dir_fd=place.folder))
        try:
            found = _require_regular(place.path, os.fstat(descriptor))
            if (found.st_dev, found.st_ino) != (expected.st_dev, expected.st_ino):
                raise ToolPrecondition(f"{place.path} was replaced while it was opened: call again")
            yield descriptor
        finally:
            os.close(descriptor)

    def read_state(self, place: Place) -> FileState | None:
        """Read what a file is now; None if nothing has its name."""
        try:
            os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        with self.open_file(place) as descriptor:
            return read_open_state(descriptor)

    def _open_below(self, names: tuple[str, ...]) -> int:
        descriptor = self._open_root()
        if not names:
            return descriptor
        if self._has_openat2:
            try:
                return _call_openat2(descriptor, "/".join(names), _FOLDER_FLAGS)
            finally:
                os.close(descriptor)
        for name in names:
            try:
                inner = self.open_inner(descriptor, name)
            finally:
                os.close(descriptor)
            descriptor = inner
        return descriptor

    def _open_root(self) -> int:
        """Open the folder itself, by its path if it was deleted and created anew."""
        with self._lock:
            if os.fstat(self._root).st_nlink == 0:
                try:
                    root = os.open(self._path, _FOLDER_FLAGS)
                except OSError as error:
                    raise ToolFailed(
                        "the folder of these tools was deleted: ask the operator to create it again",
                        nothing_happened=True,
                    ) from error
                os.close(self._root)
                self._root, self._device = root, os.fstat(root).st_dev
            # A description of its own: a listing moves the position of the one that it reads.
            return os.open(ROOT, _FOLDER_FLAGS, dir_fd=self._root)

    def _require_device(self, descriptor: int) -> int:
        if os.fstat(descriptor).st_dev != self._device:
            os.close(descriptor)
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return descriptor


def split_path(path: str) -> tuple[str, ...]:
    """Split a path into its names; raise `SemanticViolation` unless it is in its normal form."""
    if path == ROOT:
        return ()
    names = tuple(path.split("/"))
    reserved = next((name for name in map(_fold_name, names) if name in RESERVED_NAMES), None)
    if reserved is not None:
        raise SemanticViolation(
            f"{reserved} is out of reach: these tools neither read nor change it, because other programs do what is "
            "written there; name a file outside of it"
        )
    if len(path) > MAX_PATH or len(names) > MAX_DEPTH or not all(map(is_plain_name, names)):
        raise SemanticViolation(
            "this is not a path below the folder: write names with / between them, as in src/main.py, without . or .., "
            "a / at the start or the end, backslashes or control characters"
        )
    return names


def is_plain_name(name: str) -> bool:
    """Tell whether a path may contain this name."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:  # bytes that are not UTF-8
        return False
    is_reserved = _fold_name(name) in RESERVED_NAMES
    return size <= _MAX_NAME_BYTES and _NAME.fullmatch(name) is not None and not is_reserved


def _fold_name(name: str) -> str:
    """Fold spellings that another file system could take for the same name."""
    return name.casefold().rstrip(". ")


@contextmanager
def explain_errors(path: str) -> Iterator[None]:
    """Say what was wrong with a path, while nothing was done yet."""
    try:
        yield
    except FileNotFoundError:
        # An answer, not a fault: from None, so that `deputize dev` prints no traceback of it.
        raise ToolPrecondition(f"there is no {path}: list its folder to see what there is") from None
    except OSError as error:
        if error.errno in _LEADS_OUT:
            raise ToolPrecondition(
                f"{path} is not below plain folders: symbolic links, mounts and files in the place of a folder are not "
                "followed"
            ) from None
        raise ToolFailed(f"{path} cannot be used: {error.strerror}", nothing_happened=True) from error


def read_open_state(descriptor: int) -> FileState:
    """Read what an open file is; its digest comes from the same descriptor."""
    status = os.fstat(descriptor)
    digest = hashlib.sha256() if status.st_size <= MAX_FILE_BYTES else None
    size = 0
    if digest is not None:
        for chunk in iter_chunks(descriptor, MAX_FILE_BYTES + 1):
            digest.update(chunk)
            size += len(chunk)
    is_whole = digest is not None and size <= MAX_FILE_BYTES
    return FileState(
        sha256=digest.hexdigest() if digest is not None and is_whole else None,
        size=size if is_whole else status.st_size,
        mode=stat.S_IMODE(status.st_mode),
        inode=status.st_ino,
        modified_ns=status.st_mtime_ns,
    )


def iter_chunks(descriptor: int, limit: int, offset: int = 0) -> Iterator[bytes]:
    """Read an open file from an offset on, at most so many bytes of it."""
    while limit > 0 and (chunk := os.pread(descriptor, min(limit, _CHUNK_BYTES), offset)):
        yield chunk
        offset += len(chunk)
        limit -= len(chunk)


def rename_if_absent(folder: int, name: str, to_folder: int, to_name: str) -> None:
    """Rename a file; raise FileExistsError if the new name is taken, in the same step."""
    _call_renameat2(folder, name, to_folder, to_name, _RENAME_NOREPLACE)


def exchange_names(folder: int, name: str, to_folder: int, to_name: str) -> None:
    """Give each of two files the name of the other, in one step."""
    _call_renameat2(folder, name, to_folder, to_name, _RENAME_EXCHANGE)


def _require_regular(path: str, status: os.stat_result) -> os.stat_result:
    if stat.S_ISLNK(status.st_mode):
        raise ToolPrecondition(f"{path} is a symbolic link, which is not followed: name the file that it leads to")
    if not stat.S_ISREG(status.st_mode):
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, socket or device"
        raise ToolPrecondition(f"{path} is {what}, not a file")
    if status.st_nlink != 1:
        raise ToolPrecondition(
            f"{path} has {status.st_nlink} names (hard links), which may be outside: make a copy of it"
        )
    return status


def _make_folder(folder: int, name: str, mode: int) -> bool:
    try:
        os.mkdir(name, mode, dir_fd=folder)
    except FileExistsError:
        return False
    return True


def _ignores_case(root: int) -> bool:
    """Tell whether another spelling of a name that there is leads to the same thing."""
    for name in os.listdir(root):
        if name.swapcase() != name:
            try:
                other = os.stat(name.swapcase(), dir_fd=root, follow_symlinks=False)
                return os.path.samestat(other, os.stat(name, dir_fd=root, follow_symlinks=False))
            except OSError:
                return False
    return False


def _probe_openat2(root: int) -> bool:
    try:
        descriptor = _call_openat2(root, ROOT, _FOLDER_FLAGS)
    except OSError:
        return False
    os.close(descriptor)
    return True


def _call_openat2(folder: int, path: str, flags: int) -> int:
    how = _OpenHow(flags=flags, mode=0, resolve=_RESOLVE)
    name = ctypes.c_char_p(os.fsencode(path))
    descriptor: int = _LIBC.syscall(
        ctypes.c_long(_OPENAT2), ctypes.c_int(folder), name, ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))
    )
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return descriptor


def _call_renameat2(folder: int, name: str, to_folder: int, to_name: str, flags: int) -> None:
    rename = getattr(_LIBC, "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if rename(folder, os.fsencode(name), to_folder, os.fsencode(to_name), ctypes.c_uint(flags)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def open_private(folder: int, name: str, mode: int) -> int:
    """Create a file of our own that must not exist yet, and open it to write."""
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
