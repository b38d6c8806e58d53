"""Build a folder full of things that lead out of it, a secret beside it, and paths that try to reach the secret."""

import hashlib
import json
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

SECRET = b"the-secret-outside-of-the-folder"
INSIDE = b"inside\n"
HARMLESS = "harmless"


@dataclass(frozen=True, kw_only=True, slots=True)
class HostilePath:
    """A path and the kind of trick that it is."""

    kind: str
    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Arena:
    """The folder, and what is beside it."""

    root: Path
    outside: Path

    @property
    def secret_file(self) -> Path:
        return self.outside / "key"

    def snapshot_outside(self) -> dict[str, tuple[int, int, bytes]]:
        """Read everything beside the folder: names, modes, link counts and content."""
        found = {}
        for path in sorted(self.outside.rglob("*")):
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            found[str(path)] = (status.st_mode, status.st_ino, hashlib.sha256(content).digest())
        return found


def build_arena(folder: Path) -> Arena:
    """Build the arena in an empty folder."""
    arena = Arena(root=folder / "root", outside=folder / "outside")
    (arena.outside / "deep").mkdir(parents=True)
    arena.secret_file.write_bytes(SECRET)
    (arena.outside / "deep" / "key").write_bytes(SECRET)
    _plant_record(arena)
    (arena.root / "src").mkdir(parents=True)
    (arena.root / "src" / "main.py").write_bytes(INSIDE)
    _plant_links(arena)
    os.link(arena.secret_file, arena.root / "hard")
    os.mkfifo(arena.root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        descriptor = os.open(arena.root, os.O_RDONLY | os.O_DIRECTORY)
        # A socket's address must be short.
        listener.bind(f"/proc/self/fd/{descriptor}/socket")
        os.close(descriptor)
    if os.geteuid() == 0:
        os.mknod(arena.root / "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    for name in (b"line\nbreak", b"\xff\xfe", b"tab\there", b"back\\slash"):
        Path(os.fsdecode(os.fsencode(arena.root) + b"/" + name)).write_bytes(INSIDE)
    return arena


def _plant_record(arena: Arena) -> None:
    """Put what a change keeps beside the folder: a record that would bring the secret inside."""
    digest = hashlib.sha256(SECRET).hexdigest()
    record = {"kind": "remove", "path": "key", "before": digest, "after": "absent", "to": "", "inode": 0, "made": []}
    (arena.outside / "key.json").write_text(json.dumps(record))
    (arena.outside / "key.old").write_bytes(SECRET)


def _plant_links(arena: Arena) -> None:
    links = {
        "absolute": arena.outside, "relative": Path("../outside"), "file": arena.secret_file, "slash": Path("/"),
        "cwd": Path("/proc/self/cwd"), "process_root": Path("/proc/self/root"), "parent": Path(".."),
        "first": Path("second"), "second": Path("third"), "third": arena.outside, "loop": Path("loop"),
        "inside": Path("src"), "dangling": arena.outside / "new", "stdin": Path("/dev/stdin"),
    }  # fmt: skip
    for name, target in links.items():
        (arena.root / name).symlink_to(target)
    (arena.root / "src" / "up").symlink_to("../../outside")


def list_hostile_paths(arena: Arena) -> list[HostilePath]:
    """List paths that would reach the secret or a device, if one of many mistakes had been made."""
    return [HostilePath(kind=kind, path=path) for kind, path in dict.fromkeys(_iter_paths(arena))]


def _iter_paths(arena: Arena) -> Iterator[tuple[str, str]]:
    yield from _iter_dots()
    root, secret = str(arena.root), str(arena.secret_file)
    for start in ("", "/", "//", "///", "./", "file://", "src/../", f"{root}/../"):
        yield "absolute", start + secret
    for prefix in ("/proc/self/root", "/proc/self/cwd/..", "/proc/thread-self/root", f"/proc/{os.getpid()}/root"):
        yield "process", prefix + secret
        yield "process", prefix.lstrip("/") + secret
    for number in range(10):
        yield "descriptor", f"/proc/self/fd/{number}"
        yield "descriptor", f"/dev/fd/{number}/../../outside/key"
    for name in ("/etc/passwd", "/dev/stdin", "/dev/mem", "/dev/zero", "~/key", "~root/key", "$HOME/key", "C:\\key"):
        yield "absolute", name
    for link in ("absolute", "relative", "first", "second", "third", "src/up", "parent/outside"):
        for rest in ("", "/", "/.", "/key", "/deep/key", "/deep/../key", "/new", "/new/file"):
            yield "link", link + rest
    for link in ("file", "file/", "loop", "loop/key", "dangling", "dangling/x", "stdin", "inside/main.py", "cwd/key"):
        yield "link", link
    for link in ("slash", "process_root"):
        yield "link", link + secret
        yield "link", link + "/etc/passwd"
    for name in ("hard", "pipe", "socket", "device", "src", "src/main.py/key", "src/main.py/../../../outside/key"):
        yield "no file", name
    for name in (".deputize", ".deputize/files/kept", ".DEPUTIZE/files", "src/.deputize/x", ".Deputize/key"):
        yield "reserved", name
    for name in (
        "line\nbreak",
        "\udcff\udcfe",
        "tab\there",
        "back\\slash",
        "a\0b",
        "src/main.py\0.txt",
        "\0",
        "\ud800",
    ):
        yield "odd name", name
    for name in ("", " ", ".", "./", "src/", "src//main.py", "./src/main.py", "src/./main.py", "/", "//"):
        yield "spelling", name
    for name in ("x" * 256, "x" * 5_000, "/".join("d" * 100), "../" * 400 + "etc/passwd", "é" * 200):
        yield "length", name


def _iter_dots() -> Iterator[tuple[str, str]]:
    for target in ("outside/key", "outside/deep/key", "outside"):
        for depth in range(1, 5):
            for start in ("", "src/", "src/main.py/", "none/"):
                yield "dots", start + "../" * depth + target
        for dots in ("..\\", "..//", "..;/", "...//", ".. /", "%2e%2e/", "..%2f", "%252e%252e/", "\u2024\u2024/"):
            yield "dots", dots + target
        for dots in ("\uff0e\uff0e/", "..\u2215", "..\uff0f", "..\u29f8", "..\x00/", "..\n/", "..\u200b/", "..\xad/"):
            yield "dots", dots + target
        yield "dots", quote("../" + target, safe="")
