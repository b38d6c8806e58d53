"""Show a person how documents differ, on lines that can hide nothing and in time that their authors cannot choose."""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from deputize.core.display_text import to_display_text

_MAX_PATH_LENGTH = 200
_MAX_LINE_LENGTH = 160
# Longer files are described by their sizes.
_MAX_COMPARED_LINES = 5_000
# Comparing takes the product of both lengths, and more if lines repeat. What is longer is shown as removed and added.
_MAX_COMPARED_PAIRS = 2_500
_CONTEXT_LINES = 2
# The line numbers of a hunk.
_HUNK = re.compile(r"([-+])(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownDifference:
    """The lines to show, and whether they are all there are."""

    lines: list[str]
    is_complete: bool


def describe_differences(
    documents: Iterable[tuple[str, bytes | None, bytes | None]], *, max_documents: int = 40, max_lines: int = 80
) -> ShownDifference:
    """Describe documents, each by its name, its content before and after, as far as there is room for."""
    all_lines: list[str] = []
    room, is_complete = max_lines, True
    for number, (name, old, new) in enumerate(documents):
        if number == max_documents:
            return ShownDifference(lines=all_lines, is_complete=False)
        title, lines = describe_difference(name, old, new)
        all_lines += [title, *(f"  {line}" for line in lines[:room])]
        is_complete = is_complete and len(lines) <= room
        room -= min(room, len(lines))
    return ShownDifference(lines=all_lines, is_complete=is_complete)


def describe_difference(path: str, old: bytes | None, new: bytes | None) -> tuple[str, list[str]]:
    """Describe one file: a line with its name and the size of the difference, and the lines that differ."""
    name = to_display_text(path, _MAX_PATH_LENGTH)
    word = "added" if old is None else "removed" if new is None else "changed"
    old_lines, new_lines = _split_lines(old), _split_lines(new)
    if old_lines is None or new_lines is None:
        return f"{word} {name} ({len(old or b''):,} → {len(new or b''):,} bytes)", []
    lines = [to_display_text(line, _MAX_LINE_LENGTH) for line in _compare_lines(old_lines, new_lines)]
    plus = sum(1 for line in lines if line.startswith("+"))
    minus = sum(1 for line in lines if line.startswith("-"))
    return f"{word} {name} (+{plus} −{minus} lines)", lines


def _split_lines(content: bytes | None) -> list[str] | None:
    """Split text into lines; None for what is not text, or is too long to compare."""
    try:
        # Only line feeds end a line: other separators are shown for what they are.
        lines = (content or b"").decode().split("\n")
    except UnicodeDecodeError:
        return None
    if lines[-1] == "":
        del lines[-1]
    return lines if len(lines) <= _MAX_COMPARED_LINES else None


def _compare_lines(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    start = _count_equal(old, new)
    end = _count_equal(old[start:][::-1], new[start:][::-1])
    first, last = max(start - _CONTEXT_LINES, 0), max(end - _CONTEXT_LINES, 0)
    old_part, new_part = old[first : len(old) - last], new[first : len(new) - last]
    if (len(old) - start - end) * (len(new) - start - end) <= _MAX_COMPARED_PAIRS:
        diff = difflib.unified_diff(old_part, new_part, lineterm="", n=_CONTEXT_LINES)
        # The first two lines name the files.
        for line in islice(diff, 2, None):
            yield _HUNK.sub(lambda match: f"{match[1]}{int(match[2]) + first}", line) if line[0] == "@" else line
        return
    yield f"@@ -{first + 1},{len(old_part)} +{first + 1},{len(new_part)} @@"
    yield from (f"-{line}" for line in old[start : len(old) - end])
    yield from (f"+{line}" for line in new[start : len(new) - end])


def _count_equal(old: Sequence[str], new: Sequence[str]) -> int:
    """Count the lines in which both begin."""
    for count, (one, other) in enumerate(zip(old, new, strict=False)):
        if one != other:
            return count
    return min(len(old), len(new))
