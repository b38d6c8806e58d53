"""Run the command line, for `deputize` and `python -m deputize`, with a way to open a gateway.

The application is imported when a command first opens a gateway, so that help and calls to a running one start at once.
The list of all commands is printed from a file: to build it takes all of their modules.
"""

import gc
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from deputize.operations.gateway import Gateway

# `python -m docs.generate --write` writes it, for a terminal that is at least this wide.
HELP_FILE = Path(__file__).parent / "interfaces" / "cli" / "help.txt"
HELP_COLUMNS = 80


def open_gateway(*positional: Any, **options: Any) -> "AbstractAsyncContextManager[Gateway]":
    from deputize import app

    return app.open_gateway(*positional, **options)


def main() -> None:
    if sys.argv[1:] in (["--help"], ["-h"]) and shutil.get_terminal_size().columns >= HELP_COLUMNS:
        _print_help()
        return
    from deputize.interfaces.cli.main import run_cli

    # What is imported stays: collecting garbage among it takes a fifth of a gateway's start.
    gc.set_threshold(50_000, 50, 50)
    run_cli(open_gateway)


def _print_help() -> None:
    try:
        sys.stdout.write(HELP_FILE.read_text(encoding="utf-8"))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe; Python must not write to it while it shuts down either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
