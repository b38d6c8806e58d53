"""What `deputize` and `python -m deputize` run: hands the way to open a gateway to the command line.

The application is imported when a command first opens a gateway, so that help and calls to a running one start at once.
"""

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from deputize.doors.cli.main import run

if TYPE_CHECKING:
    from deputize.lifecycle.gateway import Gateway


def open_gateway(*positional: Any, **named: Any) -> "AbstractAsyncContextManager[Gateway]":
    from deputize import app

    return app.open_gateway(*positional, **named)


def main() -> None:
    run(open_gateway)


if __name__ == "__main__":
    main()
