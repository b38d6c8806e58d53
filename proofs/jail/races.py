"""Open files while a thread swaps the folder that they are in, or the files themselves, for links that lead out."""

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deputize import ToolConflict, ToolFailed, ToolPrecondition
from deputize.tools.files import reading
from deputize.tools.files.changes import Changes
from deputize.tools.files.folder import Folder, exchange_names
from proofs.jail.arena import INSIDE, SECRET, Arena
from proofs.jail.judge import RaceResult
from proofs.variants.jail_resolved_first import read_resolved

_REFUSALS = (ToolPrecondition, ToolConflict, ToolFailed)
# Of so many opens, one is a write.
_WRITE_EVERY = 50


def race(arena: Arena, count: int) -> RaceResult:
    """Race so many opens: half by `openat2`, half name by name; half through a folder, half of a file itself."""
    _plant_swaps(arena)
    before = arena.snapshot_outside()
    inside = refused = secrets = 0
    for has_openat2 in (None, False):
        folder = Folder(arena.root, has_openat2=has_openat2)
        changes = Changes(folder)
        for swapped, path in (("swap", "swap/key"), ("raced", "raced")):
            with _swap_forever(arena.root, swapped):
                for number in range(-(-count // 4)):
                    try:
                        page = reading.read_page(folder, path, 0, 1_000)
                        if number % _WRITE_EVERY == 0 and page.sha256 is not None:
                            content = INSIDE + os.urandom(4).hex().encode()
                            change = hashlib.sha256(content).hexdigest()[:32]
                            changes.put(change, path, content, page.sha256)
                    except _REFUSALS:
                        refused += 1
                    else:
                        is_secret = SECRET.decode() in page.content
                        secrets += is_secret
                        inside += not is_secret
    return RaceResult(
        inside=inside, refused=refused, secrets=secrets, changed_outside=arena.snapshot_outside() != before
    )


def count_naive_escapes(arena: Arena, most: int) -> tuple[int, int]:
    """Race the naive variant until it read the secret, at most so often; return the escapes and the opens."""
    _plant_swaps(arena)
    with _swap_forever(arena.root, "swap"):
        for number in range(1, most + 1):
            try:
                if read_resolved(arena.root, "swap/key") == SECRET:
                    return 1, number
            except OSError:
                continue
    return 0, most


def _plant_swaps(arena: Arena) -> None:
    (arena.root / "swap").mkdir(exist_ok=True)
    (arena.root / "swap" / "key").write_bytes(INSIDE)
    (arena.root / "raced").write_bytes(INSIDE)
    for name, target in (("swap", arena.outside), ("raced", arena.secret_file)):
        if not (arena.root / f"{name}_link").is_symlink():
            (arena.root / f"{name}_link").symlink_to(target)


@contextmanager
def _swap_forever(root: Path, name: str) -> Iterator[None]:
    """Swap a name with a link beside it in a thread; the name is what it was at the end."""
    stopping = threading.Event()
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)

    def swap() -> None:
        while not stopping.is_set():
            exchange_names(descriptor, name, descriptor, f"{name}_link")
            exchange_names(descriptor, name, descriptor, f"{name}_link")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        os.close(descriptor)
