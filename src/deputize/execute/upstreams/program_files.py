"""Find the files that a server's command runs, and compute their digests: what settings pin, and what a start verifies.

A command runs its program, the interpreters that `#!` lines name, and whatever its arguments name: each file and folder
must be pinned. What a launcher starts, or code that is written into the command, cannot be. Every other file is listed
in `files` by the operator, a folder as a whole.
"""

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import BinaryIO, Final

from deputize.core.settings import McpServerSettings
from deputize.core.settings.servers import SharedFolderSettings
from deputize.core.value_types import frozen

MOST_FILES: Final = 20_000
_MAX_CHAIN_LENGTH: Final = 4
_MAX_FIRST_LINE_LENGTH: Final = 512
_CHUNK_BYTES: Final = 1_048_576
_PYTHON_MODULE = re.compile(r"-[bBdEhiIOPqRsStuvVx]*m(.*)", re.ASCII)
# Interpreters, each with the options after which code comes that no file has, or a module.
_INTERPRETERS: Final = (
    (re.compile(r"(?:python|pypy)[\d.]*"), re.compile(r"-[bBdEhiIOPqRsStuvVx]*[cm].*|-", re.DOTALL)),
    (re.compile(r"(?:node|nodejs|deno|bun)[\d.]*"), re.compile(r"-e|-p|-pe|--(?:eval|print)(?:=.*)?|-", re.DOTALL)),
    (re.compile(r"(?:sh|ash|bash|dash|zsh|ksh|fish)[\d.]*"), re.compile(r"[-+][A-Za-z]*c|-s?")),
    (re.compile(r"(?:ruby|perl|php|lua|luajit|Rscript|julia)[\d.]*"), re.compile(r"-[A-Za-z]*[eEr]|-")),
    (re.compile(r"(?:java|mono|dotnet|tclsh)[\d.]*"), re.compile(r"-")),
)
_PATHS_WITHIN = re.compile(r"[=:;,@\s]+")

# Launchers that fetch a package at each start, each with the registry that `deputize servers install` takes it from.
FETCHERS: Final = {"npx": "npm", "bunx": "npm", "uvx": "pypi"}
# How long one of these may download before its server is started for the first time.
DOWNLOAD_SECONDS: Final = 300.0
# Programs that download, or find by themselves, what they run, or start a command that their arguments have.
_LAUNCHERS: Final = frozenset(
    {
        "npx", "npm", "pnpm", "yarn", "bunx", "uvx", "uv", "pipx", "poetry", "pdm", "hatch", "rye", "conda", "mise",
        "make", "cargo", "go", "docker", "podman", "nerdctl", "env", "timeout", "nice", "ionice", "nohup", "setsid",
        "stdbuf", "chrt", "taskset", "time", "xargs", "flock", "script", "watch", "strace", "ltrace", "gdb",
        "busybox", "sudo", "doas", "su", "runuser", "setpriv", "chroot", "unshare", "nsenter", "capsh", "bwrap",
        "firejail", "systemd-run", "tini", "dumb-init", "catatonit",
    }
)  # fmt: skip
# Variables by which interpreters and the loader find code.
_CODE_VARIABLES: Final = frozenset(
    {
        "PYTHONPATH", "NODE_PATH", "NODE_OPTIONS", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PERL5LIB",
        "PERL5OPT", "RUBYLIB", "RUBYOPT", "CLASSPATH", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "BASH_ENV", "ENV",
    }
)  # fmt: skip


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
    # The file of the settings' first word, and every file that is run, in the order of their use.
    program: str
    required_files: tuple[str, ...]
    # Files and folders that other arguments name: code, or data, which the operator has to tell.
    named_files: tuple[str, ...] = ()
    # The file or package of the module after -m: it is found in the folder in which Python starts.
    module: str | None = None
    # What else it runs, which no digest can cover.
    unpinnable: tuple[str, ...] = ()


def downloads_program(server: McpServerSettings) -> bool:
    """Tell whether the command of a server may have to download the program first."""
    return bool(server.command) and os.path.basename(server.command[0]) in FETCHERS


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
    unpinnable = [f"what {os.path.basename(each)} starts" for each in chain if os.path.basename(each) in _LAUNCHERS]
    unpinnable += [f"the code that {name} names" for name in server.env if name in _CODE_VARIABLES]
    unpinnable += _list_paths_within(server, arguments)
    module = _find_module(server, binary, arguments)
    if module is None:
        unpinnable += _list_inline_code(server, binary, arguments)
    is_interpreter = any(names.fullmatch(os.path.basename(binary)) for names, _ in _INTERPRETERS)
    script = next((each for each in arguments if is_interpreter and _is_script(server, each)), None)
    chain += [module] if module else [resolve_path(server, script)] if script else []
    paths = (resolve_path(server, _get_value(each)) for each in arguments if _get_value(each))
    return ProgramCommand(
        binary=binary,
        arguments=tuple(arguments),
        program=program,
        required_files=tuple(dict.fromkeys(chain)),
        named_files=tuple(each for each in dict.fromkeys(paths) if os.path.isfile(each) or os.path.isdir(each)),
        module=module,
        unpinnable=tuple(unpinnable),
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


def list_folders(server: McpServerSettings) -> list[tuple[SharedFolderSettings, str]]:
    """List the folders that a server's sandbox shows, each with its absolute path."""
    return [(each, resolve_path(server, str(each.path.expanduser()))) for each in server.folders]


def list_data_folders(server: McpServerSettings) -> list[str]:
    """List the folders that the settings give to a server to work on: `folders`, and those its command names."""
    command = server.command
    named = [each for before, each in pairwise(command) if not before.startswith("-") or before == "--"]
    paths = [path for _, path in list_folders(server)]
    paths += [path for each in named if os.path.isdir(path := resolve_path(server, os.path.expanduser(each)))]
    return [each for path in paths for each in {path, os.path.realpath(path)} if each != "/"]


def list_pins(server: McpServerSettings, program: str) -> dict[str, str]:
    """List the pinned digests by absolute path."""
    pins = {resolve_path(server, path): digest for path, digest in server.files.items()}
    return pins if server.sha256 is None else {program: server.sha256, **pins}


def list_unpinned_files(server: McpServerSettings, command: ProgramCommand, pins: Mapping[str, str]) -> list[str]:
    """List what the command runs, or names, and no digest covers.

    What a program in a sandbox names of its listed folders is what it works on: the settings say so.
    """
    data = {path: "" for _, path in list_folders(server)}
    named_files = (each for each in command.named_files if not (server.sandbox and find_pin(each, data) is not None))
    paths = dict.fromkeys([*command.required_files, *named_files])
    return [*(each for each in paths if find_pin(each, pins) is None), *command.unpinnable]


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


def _get_value(argument: str) -> str:
    """Return what an argument may name: itself, or what follows the `=` of an option."""
    return argument.partition("=")[2] if argument.startswith("-") else argument


def _list_paths_within(server: McpServerSettings, arguments: list[str]) -> list[str]:
    """List the files that parts of arguments name: the program would open them, not their verified copies."""
    return [
        f"{part} in the argument {argument}"
        for argument in arguments
        for part in dict.fromkeys([*_PATHS_WITHIN.split(argument), *([argument[2:]] if argument[:1] == "-" else [])])
        if part not in ("", _get_value(argument)) and os.path.isfile(resolve_path(server, part))
    ]


def _find_module(server: McpServerSettings, binary: str, arguments: list[str]) -> str | None:
    """Find the file or package of the module after Python's -m in the server's folder; None if it is elsewhere."""
    if server.folder is None or not _INTERPRETERS[0][0].fullmatch(os.path.basename(binary)):
        return None
    for each, next_word in pairwise([*arguments, ""]):
        if option := _PYTHON_MODULE.fullmatch(each):
            base = resolve_path(server, (option[1] or next_word).partition(".")[0])
            return next((path for path in (base, f"{base}.py") if os.path.exists(path)), None)
        if _is_script(server, each):
            return None
    return None


def _list_inline_code(server: McpServerSettings, binary: str, arguments: list[str]) -> list[str]:
    """List what an interpreter runs besides a script: code or a module in its options, or what it finds by itself."""
    name = os.path.basename(binary)
    for interpreter, code_option in _INTERPRETERS:
        if not interpreter.fullmatch(name):
            continue
        for each in arguments:
            if code_option.fullmatch(each):
                return [f"the code or module after {each[:20]}"]
            if _is_script(server, each):
                return []
        return [f"what {name} runs without a script"]
    return []


def _is_script(server: McpServerSettings, argument: str) -> bool:
    return not argument.startswith("-") and os.path.exists(resolve_path(server, argument))
