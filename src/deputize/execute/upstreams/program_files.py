"""Find the files that a server's command runs, and compute their digests: what settings pin, and what a start verifies.

A command runs its program, the interpreters that `#!` lines name, and a script, if the program is an interpreter. Every
other file is listed in `files` by the operator, a folder as a whole.
"""

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, Final

from deputize.core.settings import McpServerSettings
from deputize.core.value_types import frozen

MOST_FILES: Final = 20_000
_MAX_CHAIN_LENGTH: Final = 4
_MAX_FIRST_LINE_LENGTH: Final = 512
_CHUNK_BYTES: Final = 1_048_576
_INTERPRETER = re.compile(
    r"(?:python|pypy|node|nodejs|deno|bun|ruby|perl|php|lua|Rscript|sh|bash|dash|zsh|ksh)[\d.]*", re.ASCII
)

# Programs that download, or find by themselves, what they run.
_LAUNCHERS: Final = frozenset(
    {"npx", "npm", "pnpm", "yarn", "bunx", "uvx", "uv", "pipx", "docker", "podman", "nerdctl"}
)


class ProgramFileError(Exception):
    """Reason why a file of a program cannot be used; `path` names it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path
        self.reason = reason


@frozen
class ProgramCommand:
    """A server's command with every `#!` line resolved: the binary to execute, its arguments, and all it runs."""

    binary: str
    arguments: tuple[str, ...]
    # The file of the settings' first word, and every file that must be pinned, in the order of their use.
    program: str
    required_files: tuple[str, ...]
    # Whether the code is a module that only the interpreter finds, or a package that a launcher chooses.
    runs_module: bool = False
    runs_package: bool = False


def resolve_command(server: McpServerSettings, search_path: str) -> ProgramCommand:
    """Find the files of a server's command; raise `ProgramFileError` if one is missing."""
    program = find_program(server.command[0], search_path)
    binary, arguments = program, list(server.command[1:])
    chain = [program]
    while words := _read_interpreter(binary, search_path):
        if len(chain) > _MAX_CHAIN_LENGTH:
            raise ProgramFileError(program, "has too many interpreters after #!")
        # The kernel does the same, but would open the script and the interpreter again, by their names.
        arguments = [*words[1:], binary, *arguments]
        binary = words[0]
        chain.append(binary)
    runs_module = False
    if len(chain) == 1 and _INTERPRETER.fullmatch(os.path.basename(program)):
        script = _find_script(server, arguments)
        runs_module = script is None and "-m" in arguments
        chain += [] if script is None else [script]
    return ProgramCommand(
        binary=binary,
        arguments=tuple(arguments),
        program=program,
        required_files=tuple(dict.fromkeys(chain)),
        runs_module=runs_module,
        runs_package=os.path.basename(program) in _LAUNCHERS,
    )


def find_program(word: str, search_path: str) -> str:
    """Find an executable. A relative path is relative to the gateway's folder, not to the one the process runs in."""
    location = shutil.which(word, path=search_path)
    if location is None:
        raise ProgramFileError(word, "was not found")
    return os.path.abspath(location)


def resolve_path(server: McpServerSettings, path: str) -> str:
    """Resolve a path of a server's settings, relative to its folder."""
    return os.path.abspath(os.path.join(server.folder or ".", path))


def list_pins(server: McpServerSettings, program: str) -> dict[str, str]:
    """List the pinned digests by absolute path."""
    pins = {resolve_path(server, path): digest for path, digest in server.files.items()}
    return pins if server.sha256 is None else {program: server.sha256, **pins}


def list_unpinned_files(command: ProgramCommand, pins: Mapping[str, str]) -> list[str]:
    """List the files that the command runs and no digest covers."""
    unpinned_files = [each for each in command.required_files if find_pin(each, pins) is None]
    if command.runs_module and not pins.keys() - set(command.required_files):
        unpinned_files.append("the module after -m")
    if command.runs_package:
        unpinned_files.append(f"the package that {os.path.basename(command.program)} runs")
    return unpinned_files


def find_pin(path: str, pins: Mapping[str, str]) -> str | None:
    """Find the pinned file or folder that covers a path."""
    return next((each for each in pins if path == each or path.startswith(f"{each.rstrip('/')}/")), None)


def compute_digest(path: str) -> str:
    """Compute the SHA-256 of a file, or of the list of a folder's files and their digests."""
    return digest_path(path, lambda *_: None)


def digest_path(path: str, keep: Callable[[str, bytes | None, bool], None]) -> str:
    """Compute a file's or folder's digest, and pass on everything that is read: each path, content and kind.

    What is kept is what was digested, whatever happens to the files meanwhile. `keep` gets None before a file's content
    and then its chunks; for a link, its target and True.
    """
    try:
        if not os.path.isdir(path):
            return _digest_file(path, keep)
        lines = []
        for count, entry in enumerate(_walk_folder(path)):
            if count >= MOST_FILES:
                raise ProgramFileError(path, f"has more than {MOST_FILES} files")
            name = os.path.relpath(entry, path)
            if os.path.islink(entry):
                target = _read_inner_link(path, entry)
                keep(entry, target.encode(), True)
                lines.append(f"link {target!r} {name!r}\n")
            else:
                lines.append(f"{_digest_file(entry, keep)} {name!r}\n")
        return hashlib.sha256("".join(lines).encode()).hexdigest()
    except OSError as error:
        raise ProgramFileError(path, f"cannot be read ({error.strerror})") from error


def digest_stream(stream: BinaryIO, keep: Callable[[bytes], object] = lambda _: None) -> str:
    """Compute the SHA-256 of an open file from its beginning."""
    digest = hashlib.sha256()
    while chunk := stream.read(_CHUNK_BYTES):
        digest.update(chunk)
        keep(chunk)
    return digest.hexdigest()


def _digest_file(path: str, keep: Callable[[str, bytes | None, bool], None]) -> str:
    # A named pipe must not block the start, and a device is no program.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        if not os.path.isfile(f"/proc/self/fd/{stream.fileno()}"):
            raise ProgramFileError(path, "is not a regular file")
        keep(path, None, False)
        return digest_stream(stream, lambda chunk: keep(path, chunk, False))


def _walk_folder(folder: str) -> Iterator[str]:
    """List all files and links below a folder in a fixed order; compiled Python modules do not count."""
    with os.scandir(folder) as entries:
        ordered_entries = sorted(entries, key=lambda each: each.name)
    for entry in ordered_entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.name != "__pycache__":
                yield from _walk_folder(entry.path)
        else:
            yield entry.path


def _read_inner_link(folder: str, link: str) -> str:
    target = os.readlink(link)
    full_target = os.path.normpath(os.path.join(os.path.dirname(link), target))
    if os.path.isabs(target) or not full_target.startswith(f"{folder.rstrip('/')}/"):
        raise ProgramFileError(link, "is a link that leaves its pinned folder")
    return target


def _read_interpreter(path: str, search_path: str) -> list[str]:
    """Read the interpreter and its argument from a `#!` line; empty for a binary."""
    try:
        with open(path, "rb") as stream:
            first_line, _, _ = stream.read(_MAX_FIRST_LINE_LENGTH).partition(b"\n")
    except OSError as error:
        raise ProgramFileError(path, f"cannot be read ({error.strerror})") from error
    if not first_line.startswith(b"#!"):
        return []
    interpreter, *rest = first_line[2:].decode(errors="replace").strip().split(maxsplit=1) or [""]
    if os.path.basename(interpreter) != "env":
        return [find_program(interpreter, search_path), *rest]
    words = shlex.split(rest[0]) if rest else []
    words = words[1:] if words[:1] == ["-S"] else words[:1]
    if not words or words[0].startswith("-") or "=" in words[0]:
        raise ProgramFileError(path, "has a first line whose interpreter cannot be determined; name it in command")
    return [find_program(words[0], search_path), *words[1:]]


def _find_script(server: McpServerSettings, arguments: list[str]) -> str | None:
    """Find the script among an interpreter's arguments: the first one that names a file."""
    for each in arguments:
        if each in ("-m", "-c", "-e", "--eval", "-"):
            return None
        if not each.startswith("-") and os.path.isfile(path := resolve_path(server, each)):
            return path
    return None
