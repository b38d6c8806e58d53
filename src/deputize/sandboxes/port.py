"""Say what runs in a sandbox and how it ended. Gateways, the supervisor and every backend speak in these values."""

import json
import os
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal

# The longest request that a supervisor reads, and the most folders and files in it: each comes as a descriptor.
MAX_REQUEST_BYTES: Final = 262_144
MAX_FOLDERS: Final = 240


class Ending(StrEnum):
    """Who or what ended a sandbox. The program's exit status never decides this, except between the first two.

    A program that exits with 0 ended by itself, also if the kernel refused or killed something of it before.
    """

    EXIT = "exit"
    CRASH = "crash"
    DEADLINE = "deadline"
    MEMORY = "memory"
    PROCESSES = "processes"
    OUTPUT = "output"
    CANCEL = "cancel"
    FAILURE = "failure"


class Backend(StrEnum):
    """The wall around a program, weakest first."""

    NAMESPACES = "namespaces"
    GVISOR = "gvisor"


# Where calls of a tool run; `uncertain` if their sandbox is left out on a host that can start none.
Placement = Backend | Literal["none", "uncertain"]


def parse_placement(text: str) -> Placement:
    """Parse what was written of a placement; what is unknown counts as no sandbox."""
    if text in list(Backend):
        return Backend(text)
    return "uncertain" if text == "uncertain" else "none"


def choose_stronger(*backends: Backend) -> Backend:
    """Choose the strongest of backends that several demand: nobody weakens what another one wants."""
    return max(backends, key=list(Backend).index)


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxLimits:
    """What a sandbox may use. `storage_bytes` is the size of `/tmp`, which it writes to; `open_files` of a process."""

    memory_bytes: int = 512 * 1_048_576
    cpus: float = 1.0
    processes: int = 64
    storage_bytes: int = 100 * 1_048_576
    open_files: int = 1_024


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxFolder:
    """A folder or file of the host that a sandbox sees at `path`: what is there, or else what is at `source`.

    A `source` is the gateway's own copy: what is written there belongs to the gateway.
    """

    path: str
    source: str | None = None
    is_writable: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultFolder:
    """A folder in memory, with a size, that a program leaves files in; its gateway reads it after the end."""

    path: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxSpec:
    """One sandbox: a command, the folders that it sees, all of its environment, its time and its limits.

    Without `seconds` it runs until its gateway ends it. With `program_sha256`, the file of the command must have this
    digest, and exactly what was read is executed. It starts in `working_folder`, which is empty if no folder shows it.
    With `proxy_port`, it may connect to this port of its own 127.0.0.1, where its gateway accepts, and nowhere else.
    Without `has_base`, it sees no programs, libraries, processes or devices, but `folders` alone.
    Without `may_share_user`, it is not started where it would have the user of its gateway, or of other sandboxes.
    """

    command: tuple[str, ...]
    seconds: float | None
    program_sha256: str | None = None
    folders: tuple[SandboxFolder, ...] = ()
    working_folder: str = "/tmp"  # its own
    proxy_port: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    limits: SandboxLimits = SandboxLimits()
    has_base: bool = True
    backend: Backend = Backend.NAMESPACES
    result_folder: ResultFolder | None = None
    may_share_user: bool = True

    def to_json(self) -> bytes:
        fields = asdict(self)
        for name in ("has_base", "backend", "result_folder", "may_share_user"):
            # A supervisor of an earlier release knows no other values, and refuses what it does not know.
            if fields[name] == SandboxSpec.__dataclass_fields__[name].default:
                del fields[name]
        return json.dumps(fields).encode()

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "SandboxSpec":
        """Read a request; raise TypeError or ValueError if it is none."""
        spec = cls(
            **{
                **value,
                "command": tuple(value["command"]),
                "folders": tuple(SandboxFolder(**each) for each in value["folders"]),
                "limits": SandboxLimits(**value["limits"]),
                "backend": Backend(value.get("backend", Backend.NAMESPACES)),
                "result_folder": ResultFolder(**value["result_folder"]) if "result_folder" in value else None,
            }
        )
        spec._require_valid()
        return spec

    def _require_valid(self) -> None:
        """Raise ValueError unless every path is one that leads nowhere else, and every word one of a command."""
        if not self.command or any("\0" in each for each in (*self.command, *self.environment.values())):
            raise ValueError("a command has at least one word, and no word has a NUL character")
        if any(not each or "\0" in each or "=" in each for each in self.environment):
            raise ValueError("the name of a variable has no NUL character and no =")
        if len(self.folders) > MAX_FOLDERS:
            raise ValueError(f"a sandbox is shown at most {MAX_FOLDERS} folders and files, and not {len(self.folders)}")
        paths = [each.path for each in self.folders] + [each.source for each in self.folders if each.source is not None]
        if self.result_folder is not None:
            paths.append(self.result_folder.path)
        if self.program_sha256 is not None:
            paths.append(self.command[0])
        for each in (*paths, self.working_folder):
            if "\0" in each or not os.path.isabs(each) or os.path.normpath(each) != each or each.startswith("//"):
                raise ValueError(f"the path {each!r} is not absolute, or has parts such as .. that lead elsewhere")


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxEnd:
    """How a sandbox ended. `exit_code` is the program's own, if it has one; a crash has 128 plus its signal.

    A program that exits with such a number is called a crash, too: both are its own doing. `note` says why a sandbox
    failed, or what a program survived. Without `has_started`, nothing of the program has run.
    """

    ending: Ending
    exit_code: int | None = None
    note: str = ""
    has_started: bool = True
