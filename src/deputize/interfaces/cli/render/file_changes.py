"""Show a person how a file differs from the one that was confirmed, on lines that can hide nothing."""

import difflib
from collections.abc import Iterator, Sequence
from itertools import islice

from deputize.core.display_text import to_display_text

_MAX_PATH_LENGTH = 200
_MAX_LINE_LENGTH = 160
# Comparing takes the product of both lengths; longer files are described by their sizes.
_MAX_COMPARED_LINES = 5_000


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
    # The first two lines name the files.
    yield from islice(difflib.unified_diff(old, new, lineterm="", n=2), 2, None)
