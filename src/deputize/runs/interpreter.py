"""Start the interpreter's process: in a sandbox that shows it nothing but itself, or bare where settings accept that.

`InterpreterSandboxes` decides in the gateway which of both this host can; `open_interpreter` starts it in the process
of a job (`program_job.py`).
"""

import contextlib
import functools
import importlib.util
import struct
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from deputize.sandboxes.client import SandboxClient, SandboxUnavailable
from deputize.sandboxes.port import Backend, Ending, SandboxEnd, SandboxFolder, SandboxLimits, SandboxSpec
from deputize.sandboxes.stand_in import StandIn
from deputize.sandboxes.supervisor import SOCKET_NAME

log = structlog.get_logger(__name__)
# How the interpreter's library starts it.
_ARGUMENTS: Final = ("subprocess",)
# Beside its values: the interpreter itself, and a second copy of a value that is passed on.
_OWN_MEMORY: Final = 64 * 1_048_576
_PROCESSES: Final = 16
_OPEN_FILES: Final = 64
_STORAGE: Final = 1_048_576
_PROGRAM_HEADER_INTERPRETER: Final = 3
_LIST_SECONDS: Final = 10.0


class InterpreterSandboxes:
    """The sandboxes of interpreters on this host. With `may_be_bare`, it may have none."""

    def __init__(self, client: SandboxClient, *, may_be_bare: bool = False) -> None:
        self._client = client
        self._may_be_bare = may_be_bare
        self._was_reported = False

    async def describe(self) -> dict[str, str] | None:
        """Describe to a job what starts its sandbox, None for no sandbox; raise SandboxUnavailable if it needs one.

        A supervisor that does not run is started.
        """
        try:
            await self._client.connect()
        except SandboxUnavailable as error:
            if not self._may_be_bare:
                raise
            if not self._was_reported:
                self._was_reported = True
                log.warning("programs_run_unsandboxed", reason=str(error))
            return None
        return {"socket": str(self._client.folder / SOCKET_NAME), "backend": self._client.backend}

    async def aclose(self) -> None:
        """Let the supervisor end, if no other gateway uses it."""
        await self._client.aclose()


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """What starts the interpreter: its program, or what stands for it in a sandbox."""

    path: str
    stand_in: StandIn | None

    @property
    def has_ended(self) -> bool:
        """True if its sandbox has ended; without one, that is not known."""
        return self.stand_in is not None and self.stand_in.has_ended

    @contextlib.contextmanager
    def limit_time(self, seconds: float) -> Iterator[None]:
        """End its sandbox if it takes longer, whatever it makes of its own limits."""
        if self.stand_in is None:
            yield
            return
        timer = threading.Timer(seconds, self.stand_in.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def explain_end(self) -> SandboxEnd:
        """Say who ended it; without a sandbox, only that it crashed."""
        return SandboxEnd(ending=Ending.CRASH) if self.stand_in is None else self.stand_in.wait()


@contextlib.contextmanager
def open_interpreter(binary: str, sandbox: dict[str, str] | None, *, memory_bytes: int) -> Iterator[Interpreter]:
    """Open what starts an interpreter, and end its sandbox; raise SandboxUnavailable if there is none."""
    if sandbox is None:
        yield Interpreter(path=binary, stand_in=None)
        return
    spec = build_spec(binary, memory_bytes=memory_bytes)
    with StandIn(sandbox["socket"], replace(spec, backend=Backend(sandbox["backend"]))) as stand_in:
        yield Interpreter(path=stand_in.path, stand_in=stand_in)


def build_spec(binary: str, *, memory_bytes: int) -> SandboxSpec:
    """Build the sandbox of an interpreter: it sees its own file, and the libraries it is linked to.

    Its time begins with its program, which it may have to wait for, and ends with `Interpreter.limit_time`.
    """
    libraries = (SandboxFolder(path=each) for each in list_libraries(binary))
    return SandboxSpec(
        command=(binary, *_ARGUMENTS),
        seconds=None,
        folders=(SandboxFolder(path=binary), *libraries),
        limits=SandboxLimits(
            memory_bytes=2 * memory_bytes + _OWN_MEMORY,
            processes=_PROCESSES,
            storage_bytes=_STORAGE,
            open_files=_OPEN_FILES,
        ),
        has_base=False,
    )


def find_interpreter() -> str:
    """Find the interpreter's program, without loading its library."""
    package = importlib.util.find_spec("pydantic_monty")
    if package is None or package.origin is None:
        raise SandboxUnavailable("the interpreter is not installed: pip install 'deputize[code]'")
    module = importlib.util.spec_from_file_location("_monty_binary", Path(package.origin).with_name("_binary.py"))
    assert module is not None
    assert module.loader is not None
    binary = importlib.util.module_from_spec(module)
    module.loader.exec_module(binary)
    return str(binary.find_monty_binary())


@functools.cache
def list_libraries(binary: str) -> tuple[str, ...]:
    """List the files that the loader of a program maps for it, and the loader itself."""
    loader = _find_loader(Path(binary))
    if loader is None:
        return ()
    listed = subprocess.run(
        [loader, "--list", binary], capture_output=True, text=True, check=True, env={}, timeout=_LIST_SECONDS
    ).stdout
    words = [line.partition("=>")[2] or line for line in listed.splitlines()]
    paths = [each.split()[0] for each in words if each.strip().startswith("/")]
    return tuple(dict.fromkeys((*paths, loader)))


def _find_loader(binary: Path) -> str | None:
    """Find the loader that a program of 64 bits names; None if it needs none."""
    with binary.open("rb") as file:
        header = file.read(64)
        (offset,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        for index in range(count):
            file.seek(offset + index * size)
            fields = struct.unpack("<IIQQQQQQ", file.read(56))
            if fields[0] == _PROGRAM_HEADER_INTERPRETER:
                file.seek(fields[2])
                return file.read(fields[5]).rstrip(b"\0").decode()
    return None
