"""What commands print: lines for people, JSON for programs. Results go to stdout, everything about them to stderr.

Below every command; imports nothing heavy, since even `--help` passes here.
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

# Where nobody's terminal sets a width, lines are long enough for any id and sentence of ours.
_WIDE = 200

# What a terminal acts on or a reader does not see, wherever a text came from. Only the colours of ours pass.
_UNSAFE = re.compile(
    r"(\x1b\[(?:0|1|2|(?:1;)?3[1-6])m)|"
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)

REFUSED, MISUSED, PENDING = 1, 2, 3
"""Exit codes: a call or check that ended badly; a command or configuration that cannot be carried out; a call that
waits for people, with nothing wrong and nothing done."""


class Printer:
    """One per process: whether the person asked for JSON is known before any command runs."""

    def __init__(self) -> None:
        self.as_json = False

    def ask_for_json(self, value: bool) -> bool:
        self.as_json = self.as_json or value
        return value

    def json(self, value: Any) -> None:
        """One JSON value on one line of stdout."""
        _write(sys.stdout, _spelled(json.dumps(value, ensure_ascii=False, default=str)))

    def line(self, text: str = "") -> None:
        if not self.as_json:
            _write(sys.stdout, text)

    def good(self, text: str) -> None:
        self.line(f"{mark(OK, sys.stdout)} {text}")

    def aside(self, text: str) -> None:
        """About the answer, not the answer: stays on the screen when the answer goes into a pipe."""
        if not self.as_json:
            _write(sys.stderr, text)

    def bad(self, text: str) -> None:
        self.aside(f"{mark(NO, sys.stderr)} {text}")

    def warn(self, text: str) -> None:
        self.aside(f"{mark(NOTE, sys.stderr)} {text}")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns aligned on a terminal; in a pipe, plain lines that are never cut."""
        from rich import box
        from rich.console import Console
        from rich.table import Column, Table
        from rich.text import Text

        # Folded, not cut: an id or a file and line that ends in dots is of no use to anybody.
        headed = (Column(name, overflow="fold") for name in columns)
        drawn = Table(*headed, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
        for row in rows:
            drawn.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
        width = None if sys.stdout.isatty() else _WIDE
        console = Console(highlight=False, width=width, no_color=not _colourful(sys.stdout))
        with console.capture() as captured:
            console.print(drawn)
        for line in captured.get().splitlines():
            _write(sys.stdout, line.rstrip())

    @contextmanager
    def progress(self, text: str) -> Iterator[None]:
        """A spinner while something takes its time; nothing where nobody watches."""
        if self.as_json or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(text):
            yield

    @contextmanager
    def bar(self, text: str) -> Iterator[Callable[[float], None]]:
        """How far something is, as a share of the whole; nothing where nobody watches."""
        if self.as_json or not sys.stderr.isatty():
            yield lambda share: None
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as drawn:
            task = drawn.add_task(text, total=1.0)
            yield lambda share: drawn.update(task, completed=share)


printer = Printer()

Json = Annotated[
    bool,
    typer.Option("--json", callback=printer.ask_for_json, is_eager=True, help="Print JSON for programs."),
]


class Stopped(Exception):
    """The command ends here with an exit code; everything there was to say has been said."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def give_up(message: str, code: int = MISUSED, **facts: Any) -> NoReturn:
    """One sentence that says what is wrong and what to do, then the end of the command."""
    if printer.as_json:
        printer.json({"error": {"message": message, **facts}})
    for sentence in message.splitlines():
        printer.bad(sentence)
    raise Stopped(code)


def require_behind(context: typer.Context) -> None:
    """An option before a subcommand would be dropped without a word, and with it what it was to limit."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name != "json" and source is not None and source.name == "COMMANDLINE":
            give_up(f"Write --{name} behind {context.invoked_subcommand}: before it, it says nothing about it.")


def mark(sign: str, stream: TextIO) -> str:
    return typer.style(sign, fg=_COLOURS[sign], bold=True) if _colourful(stream) else sign


def tinted(text: str, colour: str, stream: TextIO) -> str:
    return typer.style(text, fg=colour) if _colourful(stream) else text


def dim(text: str, stream: TextIO) -> str:
    return typer.style(text, dim=True) if _colourful(stream) else text


def lasting(seconds: int) -> str:
    """A length of time in the two largest units that tell it."""
    parts = []
    for word, length in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        if number := seconds // length:
            parts.append(counted(number, word))
            seconds -= number * length
    return " ".join(parts[:2]) or "no time"


def counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def pretty(value: Any) -> str:
    """JSON for a person: on one line while it fits, indented when it does not."""
    short = _spelled(json.dumps(value, ensure_ascii=False))
    return short if len(short) <= 100 else _spelled(json.dumps(value, ensure_ascii=False, indent=2))


def flat(facts: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_word(value)}" for name, value in facts.items())


def _word(value: Any) -> str:
    """One argument as a person would type it in a shell."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    plain = text and all(letter.isalnum() or letter in "._-:/@,+" for letter in text)
    return text if plain else "'" + text.replace("'", "'\\''") + "'"


def _colourful(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ


def _write(stream: TextIO, text: str) -> None:
    stream.write(_UNSAFE.sub(_escaped, text) + "\n")
    stream.flush()


def _escaped(found: re.Match[str]) -> str:
    if found[1]:
        return found[1]
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _spelled(text: str) -> str:
    """JSON that means the same, with what a terminal would act on in JSON's own spelling."""
    return _UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1], text)
