"""Change files so that nobody's later version is lost, a change is whole or did not happen, and it can be taken back.

Each change keeps, in a folder that no tool lists, a record of what it does and the file that it replaces: `ID.json` and
`ID.old`. New content is `ID.new` until it is exchanged with the file in one step of the kernel. What came out by the
exchange is compared with what was expected, and goes back if it is something else. The id follows from the call's
idempotency key, so a call that is repeated after a crash finds what it did. A change that was interrupted is settled
before the next one begins; the oldest are removed once there are too many.
"""

import errno
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Final, Literal

import orjson

from deputize import ToolConflict, ToolFailed, ToolPrecondition
from deputize.tools.files.folder import (
    ABSENT,
    MAX_FILE_BYTES,
    RESERVED_NAME,
    FileState,
    Folder,
    Place,
    exchange_names,
    explain_errors,
    iter_chunks,
    open_private,
    read_open_state,
    rename_if_absent,
)

MAX_KEPT_CHANGES: Final = 1_000
MAX_KEPT_BYTES: Final = 512 * 1024 * 1024
_FOLDER: Final = ("files", "kept")
CHANGE_PATTERN: Final = r"^[0-9a-f]{32}$"
_CHANGE_ID: Final = re.compile(CHANGE_PATTERN)
_RECORD, _NEW, _OLD = ".json", ".new", ".old"
_WAIT_SECONDS: Final = 2.0
_NEW_FILE_MODE: Final = 0o644
_UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOSYS})


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeRecord:
    """A change of one file: its digest before and after, or `absent`. `made` are folders that it created."""

    kind: Literal["put", "remove", "move"]
    path: str
    before: str
    after: str
    to: str = ""
    inode: int = 0
    made: tuple[str, ...] = ()


class Changes:
    """The changes of one folder, one at a time in all processes.

    `seconds_left` is the time of a call, of which waiting for other changes takes no more than a half: so waiting in
    vain is a conflict, and no unknown outcome.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def put(self, change: str, path: str, content: bytes, expected: str, *, seconds_left: float = 60.0) -> ChangeRecord:
        """Write a file whose digest is as expected now, or that is absent."""
        with self._hold(change, seconds_left) as kept:
            return self._find_done(kept, change) or self._put(kept, change, path, content, expected)

    def remove(self, change: str, path: str, expected: str, *, seconds_left: float = 60.0) -> ChangeRecord:
        """Remove a file whose digest is as expected now."""
        with self._hold(change, seconds_left) as kept:
            return self._find_done(kept, change) or self._remove(kept, change, path, expected)

    def move(self, change: str, path: str, to: str, expected: str, *, seconds_left: float = 60.0) -> ChangeRecord:
        """Give a file whose digest is as expected now another path, at which there is nothing."""
        with self._hold(change, seconds_left) as kept:
            return self._find_done(kept, change) or self._move(kept, change, path, to, expected)

    def restore(self, change: str, path: str, to: str, earlier: str, *, seconds_left: float = 60.0) -> ChangeRecord:
        """Take back an earlier change of these paths, if the file still is as that change left it."""
        with self._hold(change, seconds_left) as kept:
            done = self._find_done(kept, change)
            if done is not None:
                return done
            record = require_record(kept, earlier, path, to)
            if record.kind == "move":
                return self._move(kept, change, record.to, record.path, record.after, record.made)
            if record.before == record.after:
                _write_record(kept, change, record)
                return record
            if record.before == ABSENT:
                return self._remove(kept, change, path, record.after, record.made)
            content, mode = read_kept_file(kept, earlier, record)
            return self._put(kept, change, path, content, record.after, mode)

    @contextmanager
    def open_kept(self) -> Iterator[int]:
        """Open the folder of what is kept; raise `ToolPrecondition` if nothing was changed yet."""
        with ExitStack() as stack:
            with _explain_reserved():
                try:
                    kept = stack.enter_context(self._folder.open_reserved(*_FOLDER))
                except FileNotFoundError:
                    raise ToolPrecondition("no change of this folder is kept, so none can be taken back") from None
            yield kept

    @contextmanager
    def _hold(self, change: str, seconds_left: float) -> Iterator[int]:
        """Wait until no other change is in progress, settle what was interrupted, and remove what is too much."""
        with _explain_reserved():
            self._folder.make_reserved(*_FOLDER)
        with self.open_kept() as kept:
            _lock(kept, min(_WAIT_SECONDS, seconds_left / 2))
            self._settle(kept)
            yield kept
            _prune(kept, change)

    def _find_done(self, kept: int, change: str) -> ChangeRecord | None:
        """Find what a call with the same key did, and forget what it only began."""
        record = read_record(kept, change)
        if record is None:
            return None
        is_done = True
        if record.kind == "remove":
            is_done = _exists(kept, change + _OLD)
        elif record.kind == "move":
            is_done = self._has_inode(record.to, record.inode)
        if is_done:
            return record
        _unlink(kept, change + _RECORD)
        return None

    def _has_inode(self, path: str, inode: int) -> bool:
        with suppress(ToolPrecondition, FileNotFoundError), self._folder.open_parent(path) as place:
            return os.stat(place.name, dir_fd=place.folder, follow_symlinks=False).st_ino == inode
        return False

    def _put(
        self, kept: int, change: str, path: str, content: bytes, expected: str, mode: int | None = None
    ) -> ChangeRecord:
        made = self._folder.make_parents(path) if expected == ABSENT else ()
        try:
            with self._folder.open_parent(path) as place:
                current = self._require_expected(place, expected)
                after = hashlib.sha256(content).hexdigest()
                record = ChangeRecord(kind="put", path=path, before=expected, after=after, made=made)
                if expected != after:
                    old_mode = current.mode if current is not None else _NEW_FILE_MODE
                    with explain_errors(path):
                        _write_file(kept, change + _NEW, content, old_mode if mode is None else mode)
                _write_record(kept, change, record)
                if expected != after:
                    self._swap_in(kept, change, place, current, record)
                return record
        except (ToolConflict, ToolPrecondition):
            self._remove_folders(made)
            raise

    def _swap_in(self, kept: int, change: str, place: Place, current: FileState | None, record: ChangeRecord) -> None:
        new = change + _NEW
        try:
            if current is None:
                rename_if_absent(kept, new, place.folder, place.name)
            else:
                exchange_names(kept, new, place.folder, place.name)
        except OSError as error:
            _forget(kept, change)
            raise self._explain_rename(place, error, record.before) from error
        if current is not None:
            if not _is_same(kept, new, current):
                exchange_names(kept, new, place.folder, place.name)
                _forget(kept, change)
                raise self._describe_conflict(place, record.before)
            os.rename(new, change + _OLD, src_dir_fd=kept, dst_dir_fd=kept)
        _sync(place.folder, kept)

    def _remove(self, kept: int, change: str, path: str, expected: str, made: tuple[str, ...] = ()) -> ChangeRecord:
        with self._folder.open_parent(path) as place:
            current = self._require_expected(place, expected)
            if current is None:
                raise ToolPrecondition(f"there is no {path}, so there is nothing to delete")
            record = ChangeRecord(kind="remove", path=path, before=expected, after=ABSENT)
            _write_record(kept, change, record)
            try:
                rename_if_absent(place.folder, place.name, kept, change + _OLD)
            except OSError as error:
                _forget(kept, change)
                raise self._explain_rename(place, error, expected) from error
            if not _is_same(kept, change + _OLD, current):
                rename_if_absent(kept, change + _OLD, place.folder, place.name)
                _forget(kept, change)
                raise self._describe_conflict(place, expected)
            _sync(place.folder, kept)
        self._remove_folders(made)
        return record

    def _move(
        self, kept: int, change: str, path: str, to: str, expected: str, emptied: tuple[str, ...] = ()
    ) -> ChangeRecord:
        # The file is opened first: a wrong path must not leave folders behind.
        with self._folder.open_parent(path) as place:
            current = self._require_expected(place, expected)
            if current is None:
                raise ToolPrecondition(f"there is no {path}, so there is nothing to move")
            made = self._folder.make_parents(to)
            with self._folder.open_parent(to) as new_place:
                record = ChangeRecord(
                    kind="move", path=path, to=to, before=expected, after=expected, inode=current.inode, made=made
                )
                _write_record(kept, change, record)
                try:
                    rename_if_absent(place.folder, place.name, new_place.folder, new_place.name)
                except OSError as error:
                    _forget(kept, change)
                    self._remove_folders(made)
                    raise self._explain_rename(new_place, error, ABSENT) from error
                if not _is_same(new_place.folder, new_place.name, current):
                    rename_if_absent(new_place.folder, new_place.name, place.folder, place.name)
                    _forget(kept, change)
                    self._remove_folders(made)
                    raise self._describe_conflict(place, expected)
                _sync(place.folder, new_place.folder)
        self._remove_folders(emptied)
        return record

    def _settle(self, kept: int) -> None:
        """End the changes that a crash interrupted: each happened, or it did not."""
        for name in [each for each in os.listdir(kept) if each.endswith(_NEW)]:
            change = name.removesuffix(_NEW)
            record, digest = read_record(kept, change), _digest(kept, name)
            if record is not None and digest == record.before:
                os.rename(name, change + _OLD, src_dir_fd=kept, dst_dir_fd=kept)
                continue
            if record is not None and digest != record.after:
                # It was interrupted after the exchange brought out a version that nobody expected.
                with suppress(ToolPrecondition, OSError), self._folder.open_parent(record.path) as place:
                    if _digest(place.folder, place.name) == record.after:
                        exchange_names(kept, name, place.folder, place.name)
            if record is None or _digest(kept, name) == record.after:
                _forget(kept, change)

    def _require_expected(self, place: Place, expected: str) -> FileState | None:
        current = self._folder.read_state(place)
        if current is not None and current.sha256 is None:
            raise ToolPrecondition(f"{place.path} has more than {MAX_FILE_BYTES} bytes, too many to change it here")
        if (ABSENT if current is None else current.sha256) != expected:
            raise self._describe_conflict(place, expected)
        return current

    def _explain_rename(self, place: Place, error: OSError, expected: str) -> Exception:
        if isinstance(error, FileExistsError | FileNotFoundError):
            return self._describe_conflict(place, expected)
        reason = error.strerror or "the rename failed"
        if error.errno in _UNSUPPORTED:
            reason = "its file system cannot exchange files in one step; use ext4, xfs, btrfs or tmpfs"
        return ToolFailed(f"{place.path} was not changed: {reason}", nothing_happened=True)

    def _describe_conflict(self, place: Place, expected: str) -> ToolConflict:
        try:
            current = self._folder.read_state(place)
            digest = ABSENT if current is None else current.sha256 or "unknown"
        except ToolPrecondition as error:
            return ToolConflict(f"{place.path} was not changed: {error}", details={"expected_sha256": expected})
        return ToolConflict(
            f"{place.path} was not changed: it is not what you expected, its digest is {digest} now; read it again",
            details={"expected_sha256": expected, "current_sha256": digest},
        )

    def _remove_folders(self, made: tuple[str, ...]) -> None:
        """Remove the folders that a change made, as far as they are empty."""
        for path in reversed(made):
            with suppress(ToolPrecondition, OSError), self._folder.open_parent(path) as place:
                os.rmdir(place.name, dir_fd=place.folder)


def derive_change_id(tenant: str, key: str) -> str:
    """Derive the id of a change from the key of its call."""
    return hashlib.sha256(f"{tenant}\0{key}".encode()).hexdigest()[:32]


def require_record(kept: int, change: str, path: str, to: str) -> ChangeRecord:
    """Read the record of a change of exactly these paths; raise `ToolPrecondition` if there is none.

    Rules and locks saw the paths of the call, so the record must not lead to others.
    """
    # An id is a part of file names.
    record = read_record(kept, change) if _CHANGE_ID.fullmatch(change) else None
    if record is None or (path, to) != (record.path, record.to or record.path):
        what = path if path == to else f"{path} to {to}"
        raise ToolPrecondition(
            f"no change {change[:40]} of {what} is kept: it may have been one of another file, or older than the last "
            f"{MAX_KEPT_CHANGES} changes; send path and to as the change had them, and path as to if it was no move"
        )
    return record


def read_record(kept: int, change: str) -> ChangeRecord | None:
    """Read the record of a change; None if there is none, or if it was not written to its end."""
    try:
        fields = orjson.loads(_read_file(kept, change + _RECORD)[0])
        return ChangeRecord(**{**fields, "made": tuple(fields["made"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def read_kept_file(kept: int, change: str, record: ChangeRecord) -> tuple[bytes, int]:
    """Read the file that a change replaced or removed, and its mode; raise `ToolPrecondition` if it was changed."""
    try:
        content, mode = _read_file(kept, change + _OLD)
    except OSError as error:
        raise ToolPrecondition(f"the file that {change} replaced is no longer kept") from error
    if hashlib.sha256(content).hexdigest() != record.before:
        raise ToolPrecondition(f"the file that {change} replaced was changed while it was kept")
    return content, mode


def _explain_reserved() -> AbstractContextManager[None]:
    return explain_errors(f"{RESERVED_NAME}, where changes are kept,")


def _lock(kept: int, wait_seconds: float) -> None:
    end = time.monotonic() + wait_seconds
    while True:
        try:
            return fcntl.flock(kept, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise ToolConflict("other changes of this folder are in progress: call again") from None
            time.sleep(0.005)


def _is_same(folder: int, name: str, expected: FileState) -> bool:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return status.st_ino == expected.inode and _digest(folder, name) == expected.sha256
    except OSError:
        return False


def _digest(folder: int, name: str) -> str | None:
    descriptor = _open(folder, name)
    try:
        return read_open_state(descriptor).sha256
    finally:
        os.close(descriptor)


def _read_file(folder: int, name: str) -> tuple[bytes, int]:
    descriptor = _open(folder, name)
    try:
        return b"".join(iter_chunks(descriptor, MAX_FILE_BYTES)), os.fstat(descriptor).st_mode & 0o777
    finally:
        os.close(descriptor)


def _open(folder: int, name: str) -> int:
    return os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)


def _write_file(folder: int, name: str, content: bytes, mode: int) -> None:
    descriptor = open_private(folder, name, 0o600)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_record(kept: int, change: str, record: ChangeRecord) -> None:
    with explain_errors(record.path):
        _write_file(kept, change + _RECORD, orjson.dumps(asdict(record)), 0o600)
        _sync(kept)


def _sync(*folders: int) -> None:
    for each in folders:
        os.fsync(each)


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _unlink(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _forget(kept: int, change: str) -> None:
    """Forget a change that did not happen; its record first, which without new content says that it did."""
    _unlink(kept, change + _RECORD)
    _unlink(kept, change + _NEW)


def _prune(kept: int, current: str) -> None:
    """Remove the oldest changes beyond what is kept, never the current one."""
    sizes: dict[str, int] = {}
    ages: dict[str, int] = {}
    for entry in os.scandir(kept):
        change, status = entry.name.partition(".")[0], entry.stat(follow_symlinks=False)
        sizes[change] = sizes.get(change, 0) + status.st_size
        # A replaced file has the age of its last edit; the record has that of the change.
        if entry.name.endswith(_RECORD):
            ages[change] = status.st_mtime_ns
    left_count, left_bytes = len(sizes), sum(sizes.values())
    for change in sorted(sizes.keys() - {current}, key=lambda each: ages.get(each, 0)):
        if left_count <= MAX_KEPT_CHANGES and left_bytes <= MAX_KEPT_BYTES:
            return
        for suffix in (_NEW, _OLD, _RECORD):
            _unlink(kept, change + suffix)
        left_count -= 1
        left_bytes -= sizes[change]
