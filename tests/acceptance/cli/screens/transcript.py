"""Run commands inside this process and write down what a person at a terminal of 80 columns would read."""

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from deputize.__main__ import open_gateway
from deputize.interfaces.cli.main import run_cli
from deputize.interfaces.cli.render.output import printer

# What differs from run to run, and what stands for it; in this order.
_VOLATILE = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"\bsha256:[0-9a-f]{8,64}"), "<digest>"),
    (re.compile(r"…[0-9a-f]{6}\b"), "…<trace>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<trace>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?( UTC)?"), "<time>"),
    (re.compile(r"127\.0\.0\.1:\d{2,5}"), "127.0.0.1:<port>"),
    (re.compile(r"(<1|\b\d+(\.\d+)?) (ms|s)\b"), "<duration>"),
    (re.compile(r"\bin \d+ (day|hour|minute|second)s?( \d+ (hour|minute|second)s?)?"), "in <duration>"),
    (re.compile(r"\d+(\.\d+)? GiB free"), "<size> free"),
    (re.compile(r"binding [0-9A-Za-z_-]{8,}"), "binding <binding>"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"), "<time>"),
    (re.compile(r"digest [0-9a-f]{8,}…"), "digest <digest>"),
    # The widths of columns depend on what is in them.
    (re.compile(r"(?<=\S) {3,}"), "   "),
    (re.compile(r"─{3,}"), "───"),
)


def run_words(words: Sequence[str]) -> tuple[int, str]:
    """Run a command in the current folder; return its exit code, and stdout and stderr as they came."""
    stream = io.StringIO()
    folder = Path.cwd()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DEPUTIZE_")}
    code = 0
    printer.as_json = False
    with (
        mock.patch.dict(os.environ, {**environment, "COLUMNS": "80", "NO_COLOR": "1", "HOME": str(folder)}, clear=True),
        mock.patch.object(sys, "argv", ["deputize", *words]),
        mock.patch.object(sys, "stdin", io.StringIO()),
        contextlib.redirect_stdout(stream),
        contextlib.redirect_stderr(stream),
    ):
        try:
            run_cli(open_gateway)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        finally:
            printer.as_json = False
            os.chdir(folder)
    return code, stream.getvalue()


def render_transcript(commands: Sequence[str], folder: Path) -> str:
    """Run commands one after the other in a folder, and render them as a shell session."""
    return normalize_text("\n".join(_render_commands(commands, folder)), folder)


def _render_commands(commands: Sequence[str], folder: Path) -> Iterator[str]:
    last_id = ""
    with contextlib.chdir(folder):
        for command in commands:
            # ID stands for the last id that was printed.
            code, text = run_words([last_id if word == "ID" else word for word in shlex.split(command)])
            yield f"$ deputize {command}"
            yield text.rstrip("\n")
            if code:
                yield f"[exit code {code}]"
            yield ""
            last_id = next(iter(re.findall(r"\bcall ([0-9a-f-]{36})", text)), last_id)


def normalize_text(text: str, folder: Path) -> str:
    """Replace what differs from run to run, and trailing spaces."""
    for path in (str(folder.resolve()), str(folder), str(folder.parent)):
        text = text.replace(path, "<folder>")
    for pattern, replacement in _VOLATILE:
        text = pattern.sub(replacement, text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"
