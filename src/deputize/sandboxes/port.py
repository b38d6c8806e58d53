"""Say what runs in a sandbox and how it ended. Gateways, the supervisor and every backend speak in these values."""

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal

# The longest request that a supervisor reads.
MAX_REQUEST_BYTES: Final = 262_144


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
    """A folder or file of the host that a sandbox sees at `path`: what is there, or else what is at `source`."""

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

    def to_json(self) -> bytes:
        fields = asdict(self)
        for name in ("has_base", "backend", "result_folder"):
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
        paths = [path for each in spec.folders for path in (each.path, each.source or "")]
        if spec.result_folder is not None:
            paths.append(spec.result_folder.path)
        texts = (*spec.command, *paths, spec.working_folder, *spec.environment, *spec.environment.values())
        if not spec.command or any("\0" in each for each in texts):
            raise ValueError("a command has at least one word, and no word has a NUL character")
        return spec


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
