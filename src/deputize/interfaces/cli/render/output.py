"""Print results on stdout and notes on stderr: as lines for people, as JSON for programs.

Every command imports this module, so it imports nothing that would slow down `--help`.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn, TextIO

import typer

OK, NO, GO, NOTE, PAUSE = "✓", "✗", "▶", "!", "⏸"
_COLOURS = {OK: "green", NO: "red", GO: "cyan", NOTE: "yellow", PAUSE: "yellow"}

# Without a terminal there is no width to fit: use lines long enough for any id and sentence.
_PIPE_WIDTH = 200

# Control and invisible characters, from any source. Only the colour codes that this module writes pass.
_UNSAFE = re.compile(
    r"(\x1b\[(?:0|1|2|(?:1;)?3[1-6])m)|"
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)

EXIT_FAILED, EXIT_USAGE, EXIT_PENDING = 1, 2, 3
EXIT_CODES = {
    0: "success",
    EXIT_FAILED: "failed or refused",
    EXIT_USAGE: "invalid command or configuration",
    EXIT_PENDING: "a call waits for approval, or a test could not try every case",
}
"""What each exit code means; help and the reference list them."""


class Printer:
    """Output of this process, in the form that `--json` selects before the command runs."""

    def __init__(self) -> None:
        self.as_json = False

    def enable_json(self, value: bool) -> bool:
        """Switch to JSON if the option was given; never back."""
        self.as_json = self.as_json or value
        return value

    def json(self, value: Any) -> None:
        """Print one JSON value on one line of stdout."""
        _write_line(sys.stdout, _escape_json(json.dumps(value, ensure_ascii=False, default=str)))

    def line(self, text: str = "") -> None:
        """Print a line of the result for people."""
        if not self.as_json:
            _write_line(sys.stdout, text)

    def success(self, text: str) -> None:
        """Print that something was done."""
        self.line(f"{style_sign(OK, sys.stdout)} {text}")

    def note(self, text: str) -> None:
        """Print a note about the result on stderr, so that a pipe gets the result alone."""
        if not self.as_json:
            _write_line(sys.stderr, text)

    def error(self, text: str) -> None:
        """Print what failed."""
        self.note(f"{style_sign(NO, sys.stderr)} {text}")

    def warn(self, text: str) -> None:
        """Print what needs attention."""
        self.note(f"{style_sign(NOTE, sys.stderr)} {text}")

    def event(self, name: str, facts: Mapping[str, Any], message: str) -> None:
        """Print a step of a long-running command: a JSON event for programs, a message for people."""
        if self.as_json:
            self.json({"event": name, **facts})
        self.success(message)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table: aligned on a terminal, never cut in a pipe."""
        from rich import box
        from rich.console import Console
        from rich.table import Column, Table
        from rich.text import Text

        # Fold cells instead of cutting them: half an id or half a path is of no use.
        column_specs = (Column(name, overflow="fold") for name in columns)
        layout = Table(*column_specs, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
        for row in rows:
            layout.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
        width = None if sys.stdout.isatty() else _PIPE_WIDTH
        console = Console(highlight=False, width=width, no_color=not _has_colour(sys.stdout))
        with console.capture() as capture:
            console.print(layout)
        for line in capture.get().splitlines():
            _write_line(sys.stdout, line.rstrip())

    @contextmanager
    def spinner(self, text: str) -> Iterator[None]:
        """Show a spinner while the block runs, if stderr is a terminal."""
        if self.as_json or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(text):
            yield

    @contextmanager
    def progress_bar(self, text: str) -> Iterator[Callable[[float], None]]:
        """Show a progress bar while the block runs, if stderr is a terminal; yield a setter of the share done."""
        if self.as_json or not sys.stderr.isatty():
            yield lambda share: None
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(text, total=1.0)
            yield lambda share: progress.update(task, completed=share)


printer = Printer()

Json = Annotated[
    bool,
    typer.Option("--json", callback=printer.enable_json, is_eager=True, help="Print JSON."),
]


class CommandExit(Exception):
    """End of a command with an exit code, after everything was printed."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def exit_with_error(message: str, code: int = EXIT_USAGE, **facts: Any) -> NoReturn:
    """Print what is wrong and what to do, then end the command."""
    if printer.as_json:
        printer.json({"error": {"message": message, **facts}})
    for sentence in message.splitlines():
        printer.error(sentence)
    raise CommandExit(code)


def require_options_after_subcommand(context: typer.Context) -> None:
    """Refuse options before a subcommand, which would silently ignore them."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name != "json" and source is not None and source.name == "COMMANDLINE":
            exit_with_error(
                f"--{name} has no effect before the subcommand: write it after {context.invoked_subcommand}."
            )


def style_sign(sign: str, stream: TextIO) -> str:
    """Colour a sign where the stream shows colours."""
    return typer.style(sign, fg=_COLOURS[sign], bold=True) if _has_colour(stream) else sign


def colour_text(text: str, colour: str, stream: TextIO) -> str:
    """Colour a text where the stream shows colours."""
    return typer.style(text, fg=colour) if _has_colour(stream) else text


def dim_text(text: str, stream: TextIO) -> str:
    """Dim a text where the stream shows colours."""
    return typer.style(text, dim=True) if _has_colour(stream) else text


def format_duration(seconds: int) -> str:
    """Format a duration in its two largest units."""
    parts = []
    for word, length in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        if number := seconds // length:
            parts.append(format_count(number, word))
            seconds -= number * length
    return " ".join(parts[:2]) or "0 seconds"


def format_count(number: int, word: str) -> str:
    """Format a number with its noun, in the plural where needed."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def format_json(value: Any) -> str:
    """Format JSON for people: on one line if it fits, else indented."""
    short = _escape_json(json.dumps(value, ensure_ascii=False))
    return short if len(short) <= 100 else _escape_json(json.dumps(value, ensure_ascii=False, indent=2))


def format_arguments(facts: Mapping[str, Any]) -> str:
    """Format arguments as `key=value` words for a shell."""
    return " ".join(f"{name}={_quote_word(value)}" for name, value in facts.items())


def _quote_word(value: Any) -> str:
    """Quote a value as a person would type it in a shell."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    is_plain = text and all(each.isalnum() or each in "._-:/@,+" for each in text)
    return text if is_plain else "'" + text.replace("'", "'\\''") + "'"


def _has_colour(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ


def _write_line(stream: TextIO, text: str) -> None:
    stream.write(_UNSAFE.sub(_escape_match, text) + "\n")
    stream.flush()


def _escape_match(match: re.Match[str]) -> str:
    if match[1]:
        return match[1]
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escape_json(text: str) -> str:
    """Escape control and invisible characters as JSON does, without changing the value."""
    return _UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], text)
