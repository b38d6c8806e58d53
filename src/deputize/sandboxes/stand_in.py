"""Let a library that starts a program by its path start it in a sandbox instead.

The library is given the path of a stand-in: a script that passes its three pipes to the supervisor, and stays until the
program has ended or the library closes its input. The process that uses the library holds the connection, which is one
sandbox: it is killed when this process closes it or ends, and says at the end who ended it.
"""

import contextlib
import json
import os
import select
import socket
import sys
import time
from typing import Any, Final, Self

from deputize.sandboxes.client import SandboxUnavailable, find_problem, open_shown
from deputize.sandboxes.port import Ending, SandboxEnd, SandboxSpec
from deputize.sandboxes.supervisor import StartRefused, read_peer

_MFD_EXEC: Final = 0x10
_CONNECT_SECONDS: Final = 10.0
_END_SECONDS: Final = 5.0
# Of modules that start in a millisecond: it is read anew for each sandbox.
_SCRIPT: Final = """#!{python} -IS
import _socket, os, select, sys
with open({request}, "rb") as file:
    line = file.read()
peer = _socket.socket(fileno={connection})
passed = b"".join(each.to_bytes(4, sys.byteorder) for each in (0, 1, 2, *{shown}))
peer.sendmsg([line], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, passed)])
os.close(1), os.close(2)
ended = select.poll()
ended.register(0, 0)
ended.register(peer.fileno(), select.POLLIN)
ended.poll()
"""


class StandIn:
    """One sandbox that a library starts: give it `path` as the program."""

    def __init__(self, socket_path: str, spec: SandboxSpec) -> None:
        self._socket_path = socket_path
        self._spec = spec
        self._stack = contextlib.ExitStack()
        self.path = ""

    def __enter__(self) -> Self:
        """Connect to the supervisor; raise SandboxUnavailable if it starts no sandboxes."""
        with contextlib.ExitStack() as stack:
            self._connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            try:
                self._connection.connect(self._socket_path)
                if read_peer(self._connection)[0] not in (0, os.geteuid()):
                    raise SandboxUnavailable(f"another user serves {self._socket_path}")
                greeting = self._receive_line(_CONNECT_SECONDS)
            except OSError as error:
                raise SandboxUnavailable(f"no supervisor of sandboxes answers at {self._socket_path}") from error
            if not greeting:
                raise SandboxUnavailable("the supervisor of this host's sandboxes ended")
            problem = find_problem(greeting, self._spec.backend)
            if problem is not None:
                raise SandboxUnavailable(problem)
            try:
                spec, shown = open_shown(self._spec, stack)
                request = _write_memory(spec.to_json() + b"\n", stack)
                script = _SCRIPT.format(
                    python=os.path.realpath(sys.executable), request=repr(request), shown=shown,
                    connection=self._connection.fileno(),
                )  # fmt: skip
                for each in shown:
                    os.set_inheritable(each, True)
                self.path = _write_memory(script.encode(), stack)
            except StartRefused as error:
                raise SandboxUnavailable(str(error)) from error
            except OSError as error:
                raise SandboxUnavailable(f"this host executes no files in memory: {error.strerror}") from error
            self._connection.set_inheritable(True)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End the sandbox, if it runs."""
        self._stack.close()

    @property
    def has_ended(self) -> bool:
        """True if it has ended, or its supervisor has."""
        return bool(select.select([self._connection], [], [], 0)[0])

    def kill(self) -> None:
        """Have the sandbox ended, from any thread; wait() says so."""
        with contextlib.suppress(OSError):
            self._connection.send(f"{Ending.CANCEL}\n".encode())

    def wait(self) -> SandboxEnd:
        """Wait until it has ended and nothing of it is left; say who ended it."""
        try:
            answer = self._receive_line(_END_SECONDS)
        except OSError:
            answer = {}
        return SandboxEnd(
            ending=Ending(answer.get("ending", Ending.FAILURE)),
            exit_code=answer.get("exit_code"),
            note=answer.get("note", "the supervisor of this host's sandboxes did not say how it ended"),
            has_started=answer.get("has_started", True),
        )

    def _receive_line(self, seconds: float) -> dict[str, Any]:
        """Receive a line of JSON; empty if there is none in time. The connection itself must stay without a limit."""
        text, end = b"", time.monotonic() + seconds
        while not text.endswith(b"\n"):
            if not select.select([self._connection], [], [], max(0.0, end - time.monotonic()))[0]:
                return {}
            chunk = self._connection.recv(4_096)
            if not chunk:
                return {}
            text += chunk
        value: dict[str, Any] = json.loads(text)
        return value


def _write_memory(content: bytes, stack: contextlib.ExitStack) -> str:
    """Keep a file in memory, so that nothing of it is left whatever happens to this process; return its path."""
    try:
        descriptor = os.memfd_create("deputize", os.MFD_CLOEXEC | _MFD_EXEC)
    except OSError:
        # Kernels before 6.3 do not know the flag, and need none.
        descriptor = os.memfd_create("deputize", os.MFD_CLOEXEC)
    stack.callback(os.close, descriptor)
    os.write(descriptor, content)
    os.fchmod(descriptor, 0o500)
    return f"/proc/{os.getpid()}/fd/{descriptor}"
