"""Read, list, search and compare files below a folder, each within bounds of size, count, depth and time."""

import base64
import difflib
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from deputize import SemanticViolation, ToolFailed, ToolPrecondition
from deputize.core.patterns import InvalidPattern, LinearPattern, compile_glob, compile_pattern
from deputize.tools.files.folder import (
    ABSENT,
    MAX_DEPTH,
    MAX_FILE_BYTES,
    RESERVED_NAME,
    ROOT,
    Folder,
    Place,
    explain_errors,
    is_plain_name,
    iter_chunks,
)

MAX_PAGE_BYTES: Final = 262_144
MAX_ENTRIES: Final = 20_000
MAX_VISITED: Final = 100_000
MAX_SEARCHED_BYTES: Final = 256 * 1024 * 1024
# Within the timeout of a tool, so that a search that it ends can say so.
MAX_SECONDS: Final = 2.5
MAX_LINE: Final = 400
MAX_DIFF_LINES: Final = 2_000
MAX_DIFF_BYTES: Final = 40_000
_BINARY_PROBE: Final = 8_192

Kind = Literal["file", "folder", "symlink", "other"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FilePage:
    """A part of a file. `sha256` is the digest of the whole file, null if it is too large for one."""

    path: str
    sha256: str | None
    size: int
    encoding: Literal["utf-8", "base64"]
    content: str
    offset: int
    next_offset: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One name in a folder. A name that no path can contain is shown escaped, and is not addressable."""

    name: str
    kind: Kind
    size: int
    modified: str
    is_addressable: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """A part of a folder, in the order of the names."""

    path: str
    entries: list[Entry]
    total: int
    next_offset: int | None
    is_cut: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Metadata:
    """What a path is, without its content. `sha256` is null if it is no file with one name, or too large."""

    path: str
    kind: Kind
    size: int
    modified: str
    mode: str
    links: int
    sha256: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPaths:
    """Paths that match. `is_cut` says that a limit ended the search before its end."""

    paths: list[str]
    is_cut: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundLine:
    """A line that matches, by its number from 1."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundLines:
    """Lines that match. `skipped` counts binary, too large and unreadable files."""

    lines: list[FoundLine]
    files: int
    skipped: int
    is_cut: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How two files differ, as a unified diff."""

    path: str
    to: str
    is_equal: bool
    diff: str


def read_page(folder: Folder, path: str, offset: int, limit: int) -> FilePage:
    """Read a part of a file: text if this part is text, otherwise base64."""
    with folder.open_parent(path) as place, folder.open_file(place) as descriptor:
        size = os.fstat(descriptor).st_size
        digest = None
        if size <= MAX_FILE_BYTES:
            content = b"".join(iter_chunks(descriptor, MAX_FILE_BYTES))
            digest, size = hashlib.sha256(content).hexdigest(), len(content)
            page = content[offset : offset + limit]
        else:
            page = b"".join(iter_chunks(descriptor, limit, offset))
    text = _decode_page(page, is_last=offset + len(page) >= size)
    if text is not None:
        page = text.encode()
    end = offset + len(page)
    return FilePage(
        path=path,
        sha256=digest,
        size=size,
        encoding="base64" if text is None else "utf-8",
        content=base64.b64encode(page).decode() if text is None else text,
        offset=offset,
        next_offset=end if page and end < size else None,
    )


def read_if_present(folder: Folder, path: str) -> tuple[str, bytes | None]:
    """Read a whole file and its digest; `absent` and None if it or its folder does not exist."""
    try:
        page = _read_content(folder, path)
    except ToolPrecondition as error:
        # Not its cause: as an answer to a call, it has none.
        if isinstance(error.__context__, FileNotFoundError):
            return ABSENT, None
        raise
    return hashlib.sha256(page).hexdigest(), page


def _read_content(folder: Folder, path: str) -> bytes:
    with folder.open_parent(path) as place, folder.open_file(place) as descriptor:
        if os.fstat(descriptor).st_size > MAX_FILE_BYTES:
            raise ToolPrecondition(
                f"{path} has more than {MAX_FILE_BYTES} bytes, too many to compare or change it here"
            )
        return b"".join(iter_chunks(descriptor, MAX_FILE_BYTES))


def list_entries(folder: Folder, path: str, offset: int, limit: int) -> Listing:
    """List a folder, without what is below its folders."""
    with folder.open_folder(path) as descriptor:
        names, is_cut = _list_names(descriptor, MAX_ENTRIES)
        entries = [_describe_entry(descriptor, name) for name in names[offset : offset + limit]]
    end = offset + limit
    return Listing(
        path=path,
        entries=[each for each in entries if each is not None],
        total=len(names),
        next_offset=end if end < len(names) else None,
        is_cut=is_cut,
    )


def read_metadata(folder: Folder, path: str) -> Metadata:
    """Read what a path is; a link is described and not followed."""
    if path == ROOT:
        with folder.open_folder(path) as descriptor:
            return _describe_status(path, os.fstat(descriptor), None)
    with folder.open_parent(path) as place:
        with explain_errors(path):
            status = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
        state = folder.read_state(place) if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else None
    return _describe_status(path, status, state.sha256 if state is not None else None)


def search_names(folder: Folder, path: str, glob: str, limit: int) -> FoundPaths:
    """Find files and folders whose path matches a glob; one without / is compared with names alone."""
    pattern, walk = _compile_names(glob), _Walk(folder)
    paths: list[str] = []
    for place, _ in walk.visit(path):
        if pattern.matches_whole(place.path if "/" in glob else place.name):
            if len(paths) == limit:
                return FoundPaths(paths=paths, is_cut=True)
            paths.append(place.path)
    return FoundPaths(paths=paths, is_cut=walk.is_cut)


def search_lines(
    folder: Folder, path: str, expression: str, glob: str, limit: int, *, ignores_case: bool
) -> FoundLines:
    """Find lines that match a pattern, in time that is linear in the text."""
    flags = "i" if ignores_case else ""
    try:
        compile_pattern(expression)
        # Whole files are tried first, which is much faster than line by line.
        in_files, in_lines = compile_pattern(f"(?m{flags}:{expression})"), compile_pattern(f"(?{flags}:{expression})")
    except InvalidPattern as error:
        raise SemanticViolation(f"the pattern {error}") from error
    glob_pattern, walk = _compile_names(glob), _Walk(folder)
    lines: list[FoundLine] = []
    file_count = skipped = 0
    for place, kind in walk.visit(path):
        if kind != "file" or not glob_pattern.matches_whole(place.path if "/" in glob else place.name):
            continue
        content = _read_text(folder, place)
        if content is None or not walk.take_bytes(len(content)):
            skipped += 1
            continue
        file_count += 1
        if not in_files.matches_in_bytes(content):
            continue
        for number, line in enumerate(content.decode(errors="replace").split("\n"), start=1):
            if walk.is_late():
                return FoundLines(lines=lines, files=file_count, skipped=skipped, is_cut=True)
            if in_lines.matches_in(line):
                if len(lines) == limit:
                    return FoundLines(lines=lines, files=file_count, skipped=skipped, is_cut=True)
                lines.append(FoundLine(path=place.path, line=number, text=line[:MAX_LINE]))
    return FoundLines(lines=lines, files=file_count, skipped=skipped, is_cut=walk.is_cut)


def compare_files(folder: Folder, path: str, to: str) -> Difference:
    """Compare two files."""
    before, after = _read_content(folder, path), _read_content(folder, to)
    return Difference(path=path, to=to, is_equal=before == after, diff=build_diff(path, to, before, after))


def build_diff(path: str, to: str, before: bytes | None, after: bytes | None) -> str:
    """Build a unified diff that is not too long; None stands for a file that does not exist."""
    names = ("/dev/null" if before is None else f"a/{path}", "/dev/null" if after is None else f"b/{to}")
    old, new = before or b"", after or b""
    if old == new:
        return ""
    if not (_is_text(old) and _is_text(new)):
        return f"Binary files {names[0]} and {names[1]} differ: {len(old)} and {len(new)} bytes"
    old_lines, new_lines = _split_lines(old.decode()), _split_lines(new.decode())
    # Comparing takes time in the square of what is left between a common beginning and a common end.
    if max(len(old_lines), len(new_lines)) - _count_common(old_lines, new_lines) > MAX_DIFF_LINES:
        return f"Files {names[0]} and {names[1]} differ in more than {MAX_DIFF_LINES} lines"
    return _cut_lines(difflib.unified_diff(old_lines, new_lines, *names, lineterm=""))


def _split_lines(text: str) -> list[str]:
    """Split a text at its line feeds alone, and mark an end without one."""
    *lines, rest = text.split("\n")
    return [*lines, f"{rest}\n\\ No newline at end of file"] if rest else lines


def _compile_names(glob: str) -> LinearPattern:
    try:
        return compile_glob(glob)
    except UnicodeEncodeError as error:
        raise SemanticViolation("the glob contains half a surrogate pair") from error


def _count_common(old: Sequence[str], new: Sequence[str]) -> int:
    least = min(len(old), len(new))
    start = next((n for n in range(least) if old[n] != new[n]), least)
    return start + next((n for n in range(least - start) if old[-1 - n] != new[-1 - n]), least - start)


def _cut_lines(lines: Iterator[str]) -> str:
    kept: list[str] = []
    left = MAX_DIFF_BYTES
    for line in lines:
        left -= len(json.dumps(line))
        if left < 0:
            return "\n".join([*kept, "… more lines differ"])
        kept.append(line)
    return "\n".join(kept)


def _decode_page(page: bytes, *, is_last: bool) -> str | None:
    """Decode a page as text, without a character that its end cuts; None if it is not text."""
    if b"\0" in page:
        return None
    try:
        return page.decode()
    except UnicodeDecodeError as error:
        if is_last or error.start < len(page) - 3 or error.start == 0:
            return None
        return page[: error.start].decode()


def _is_text(content: bytes) -> bool:
    return _decode_page(content, is_last=True) is not None


def _read_text(folder: Folder, place: Place) -> bytes | None:
    """Read a file to search it; None if it is binary, too large or cannot be read."""
    try:
        with folder.open_file(place) as descriptor:
            if os.fstat(descriptor).st_size > MAX_FILE_BYTES or b"\0" in os.pread(descriptor, _BINARY_PROBE, 0):
                return None
            return b"".join(iter_chunks(descriptor, MAX_FILE_BYTES))
    except (ToolPrecondition, ToolFailed):
        return None


def _list_names(descriptor: int, limit: int) -> tuple[list[str], bool]:
    names: list[str] = []
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if len(names) == limit:
                return sorted(names), True
            if entry.name.casefold() != RESERVED_NAME:
                names.append(entry.name)
    return sorted(names), False


def _describe_entry(descriptor: int, name: str) -> Entry | None:
    try:
        status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return None
    is_addressable = is_plain_name(name)
    return Entry(
        name=name if is_addressable else ascii(os.fsencode(name).decode(errors="backslashreplace"))[1:-1],
        kind=_name_kind(status.st_mode),
        size=status.st_size,
        modified=_format_time(status),
        is_addressable=is_addressable,
    )


def _describe_status(path: str, status: os.stat_result, digest: str | None) -> Metadata:
    return Metadata(
        path=path,
        kind=_name_kind(status.st_mode),
        size=status.st_size,
        modified=_format_time(status),
        mode=stat.filemode(status.st_mode),
        links=status.st_nlink,
        sha256=digest,
    )


def _name_kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def _format_time(status: os.stat_result) -> str:
    seconds = min(max(status.st_mtime, 0), 253_402_300_799)
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Walk:
    """Visits everything below a folder by open folders, and stops at the limits."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._left_count, self._left_bytes = MAX_VISITED, MAX_SEARCHED_BYTES
        self._end = time.monotonic() + MAX_SECONDS
        self.is_cut = False

    def take_bytes(self, count: int) -> bool:
        self._left_bytes -= count
        return self._left_bytes >= 0

    def is_late(self) -> bool:
        return time.monotonic() > self._end

    def visit(self, path: str) -> Iterator[tuple[Place, Kind]]:
        """Yield what is below a folder; a place is open until the next one is asked for."""
        with self._folder.open_folder(path) as descriptor:
            yield from self._visit_open(descriptor, "" if path == ROOT else f"{path}/", 0)

    def _visit_open(self, descriptor: int, prefix: str, depth: int) -> Iterator[tuple[Place, Kind]]:
        names, is_cut = _list_names(descriptor, self._left_count)
        self.is_cut |= is_cut
        for name in names:
            self._left_count -= 1
            if self._left_count < 0 or self._left_bytes < 0 or self.is_late():
                self.is_cut = True
                return
            if not is_plain_name(name):
                continue
            try:
                kind = _name_kind(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)
                yield Place(path=prefix + name, folder=descriptor, name=name), kind
                inner = self._folder.open_inner(descriptor, name) if kind == "folder" else None
            except OSError:
                continue
            if inner is None:
                continue
            try:
                if depth + 1 < MAX_DEPTH:
                    yield from self._visit_open(inner, f"{prefix}{name}/", depth + 1)
                else:
                    self.is_cut = True
            finally:
                os.close(inner)
