"""Show a person how documents differ: every line, on lines that can hide nothing, in time their authors cannot choose.

What was confirmed must be what was shown, so nothing is left out or clipped. What is long is shown page by page.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from deputize.core.display_text import to_display_text

PAGE_LINES = 80
_MAX_PATH_LENGTH = 200
_MAX_LINE_LENGTH = 160
# Comparing takes the product of both lengths, and more if lines repeat. What is longer is shown as removed and added.
_MAX_COMPARED_PAIRS = 2_500
_CONTEXT_LINES = 2
# The line numbers of a hunk.
_HUNK = re.compile(r"([-+])(\d+)")


class PagedLines:
    """Lines that are shown page by page; all of them were, once there is no more."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._next_page = list(islice(self._lines, PAGE_LINES))

    @property
    def has_more(self) -> bool:
        return bool(self._next_page)

    def take_page(self) -> list[str]:
        """Take the lines of the next page."""
        page, self._next_page = self._next_page, list(islice(self._lines, PAGE_LINES))
        return page


def describe_differences(documents: Iterable[tuple[str, bytes | None, bytes | None]]) -> Iterator[str]:
    """Describe documents, each by its name, its content before and after, one line after the other."""
    for name, old, new in documents:
        title, lines = describe_difference(name, old, new)
        yield title
        yield from (f"  {line}" for line in lines)


def describe_difference(path: str, old: bytes | None, new: bytes | None) -> tuple[str, Iterator[str]]:
    """Describe one file: a line with its name and the size of the difference, and the lines that differ."""
    name = to_display_text(path, _MAX_PATH_LENGTH)
    word = "added" if old is None else "removed" if new is None else "changed"
    lines = list(_compare_lines(_split_lines(old), _split_lines(new)))
    plus = sum(1 for line in lines if line.startswith("+"))
    minus = sum(1 for line in lines if line.startswith("-"))
    return f"{word} {name} (+{plus} −{minus} lines)", (part for line in lines for part in _show_line(line))


def wrap_text(text: str) -> Iterator[str]:
    """Show all of a text on lines of bounded length. Our mark, which no text can imitate, begins those that go on."""
    for start in range(0, max(len(text), 1), _MAX_LINE_LENGTH):
        shown = to_display_text(text[start : start + _MAX_LINE_LENGTH])
        yield f"⟨…⟩{shown}" if start else shown


def _show_line(line: str) -> Iterator[str]:
    if line[0] == "@" or line.endswith("\n"):
        yield from wrap_text(line.removesuffix("\n"))
    else:
        yield from wrap_text(line)
        yield "⟨no newline at the end⟩"


def _split_lines(content: bytes | None) -> list[str]:
    """Split text into lines with their ends. Bytes that are not UTF-8 become surrogates, which are shown as escapes."""
    # Only line feeds end a line: other separators are shown for what they are.
    *lines, rest = (content or b"").decode(errors="surrogateescape").split("\n")
    return [*(f"{line}\n" for line in lines), *([rest] if rest else [])]


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
