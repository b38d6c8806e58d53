"""Read text that is piped into a command."""

import sys

from deputize.interfaces.cli.render.output import exit_with_error


def read_standard_input(name: str) -> str:
    """Read everything piped in, as UTF-8; `name` is what the text is, for the error message."""
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        exit_with_error(f"{name} is not UTF-8 text: convert it to UTF-8 and pipe it again.")
