"""Render the exception of a tool for its author: the frames of the project first, those of libraries folded."""

import linecache
import traceback
from collections.abc import Iterator
from pathlib import Path

from deputize.core.contract.contract import Contract
from deputize.core.display_text import to_display_text
from deputize.core.errors import ToolTimeout
from deputize.core.sensitive.text import redact_text
from deputize.interfaces.cli.render.output import format_count, printer

_MAX_FRAMES = 12
_MAX_CAUSES = 4
_MAX_TEXT_LENGTH = 400
_MAX_LINE_LENGTH = 160
_INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages"})


class ToolErrorPrinter:
    """Print what the code of a tool raised, in the terminal of `deputize dev` only: callers get none of it."""

    def __init__(self, base: Path) -> None:
        self._base = base.resolve()

    def __call__(self, contract: Contract, error: BaseException) -> None:
        try:
            if isinstance(error, ToolTimeout):
                _print_timeout(contract, error)
                return
            if printer.as_json:
                lines = list(format_error(error, self._base))
                printer.json({"event": "tool_error", "tool": contract.full_name, "lines": lines})
                return
            printer.error(f"{contract.full_name} {contract.version} raised an exception:")
            for line in format_error(error, self._base):
                printer.note(f"    {line}")
        except (OSError, ValueError):
            # The terminal is gone; the call ends as it would have ended with one.
            return


def _print_timeout(contract: Contract, error: ToolTimeout) -> None:
    """Name the declaration that gives a tool more time: only its author can use it."""
    seconds = contract.timeout.effective_seconds
    if printer.as_json:
        printer.json({"event": "tool_timeout", "tool": contract.full_name, "seconds": seconds})
        return
    printer.error(
        f"{error.message}: it may take {seconds:.3g} s. If it needs longer, write @tool(timeout=…) with its seconds."
    )


def format_error(error: BaseException, base: Path) -> Iterator[str]:
    """Format an exception and its causes: first what was raised, then the author's frames, the innermost first."""
    shown_error: BaseException | None = error
    for depth in range(_MAX_CAUSES):
        if shown_error is None:
            return
        prefix = "caused by " if depth else ""
        yield prefix + _format_exception(shown_error)
        # The file may have been saved since it was last shown.
        linecache.checkcache()
        yield from _format_frames(traceback.extract_tb(shown_error.__traceback__), base)
        is_hidden = shown_error.__suppress_context__ or shown_error.__cause__ is not None
        shown_error = shown_error.__cause__ if is_hidden else shown_error.__context__


def _format_exception(error: BaseException) -> str:
    text = to_display_text(redact_text(str(error)), _MAX_TEXT_LENGTH)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _format_frames(frames: traceback.StackSummary, base: Path) -> Iterator[str]:
    authors_frames = [frame for frame in frames if _is_authors(frame.filename, base)]
    for frame in authors_frames[::-1][:_MAX_FRAMES]:
        yield f"{Path(frame.filename).relative_to(base)}:{frame.lineno} in {frame.name}"
        if frame.line:
            yield f"    {to_display_text(redact_text(frame.line), _MAX_LINE_LENGTH)}"
    hidden_count = len(frames) - min(len(authors_frames), _MAX_FRAMES)
    if not hidden_count:
        return
    last = frames[-1]
    where = "" if _is_authors(last.filename, base) else f", ending in {Path(last.filename).name}:{last.lineno}"
    yield f"({format_count(hidden_count, 'frame')} of libraries and the gateway not shown{where})"


def _is_authors(file: str, base: Path) -> bool:
    path = Path(file)
    return path.is_relative_to(base) and _INSTALLED_FOLDERS.isdisjoint(path.relative_to(base).parts)
