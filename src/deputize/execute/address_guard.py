"""Keep HTTP clients of other packages from addresses that are always refused, whatever their own resolver answers.

The check is in the operating system's call, so a name that changes its address between two lookups cannot bypass it.
It applies to the thread that asks for it: tools in the same process may connect where they like, and so may threads
that this one starts. Datagrams that are sent without a connection are not checked.
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

from deputize.execute.ip_filter import is_forbidden_address

_thread = threading.local()


@contextlib.contextmanager
def refuse_forbidden_addresses() -> Iterator[None]:
    """Refuse connections of this thread to forbidden addresses, with an `OSError`, until the block ends."""
    _install_check()
    was_guarded = getattr(_thread, "is_guarded", False)
    _thread.is_guarded = True
    try:
        yield
    finally:
        _thread.is_guarded = was_guarded


@functools.cache
def _install_check() -> None:
    """Install the check once: an audit hook stays until the process ends."""
    sys.addaudithook(_check_connection)


def _check_connection(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "socket.connect" or not getattr(_thread, "is_guarded", False):
        return
    address = arguments[1]
    try:
        is_forbidden = not isinstance(address, tuple) or is_forbidden_address(address[0])
    except ValueError:
        # A name, whose address the hook does not see.
        is_forbidden = True
    if is_forbidden:
        raise OSError("connections to local sockets, link-local addresses and cloud metadata services are not allowed")
