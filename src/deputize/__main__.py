"""Run the command line, for `deputize` and `python -m deputize`, with a way to open a gateway.

The application is imported when a command first opens a gateway, so that help and calls to a running one start at once.
"""

import gc
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from deputize.interfaces.cli.main import run_cli

if TYPE_CHECKING:
    from deputize.operations.gateway import Gateway


def open_gateway(*positional: Any, **options: Any) -> "AbstractAsyncContextManager[Gateway]":
    from deputize import app

    return app.open_gateway(*positional, **options)


def main() -> None:
    # What is imported stays: collecting garbage among it takes a fifth of a gateway's start.
    gc.set_threshold(50_000, 50, 50)
    run_cli(open_gateway)


if __name__ == "__main__":
    main()
