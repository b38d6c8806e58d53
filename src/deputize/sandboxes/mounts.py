"""Show a sandbox the folders that its gateway opened, wherever they are, and as if they were of its user.

A folder comes as a descriptor: that a gateway has it proves that the gateway can reach it, and nothing that is renamed
or linked meanwhile changes it. In a mount namespace of its own, before it is a user who may enter less, the process
that makes the sandbox attaches each folder where that user finds it. Where the kernel can, a folder is mounted so that
files of one user appear as those of the sandbox's.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deputize.sandboxes.users import make_namespace

# The same numbers on every machine.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE: Final = 1
_MOVE_MOUNT_F_EMPTY_PATH: Final = 4
_MOUNT_ATTR_IDMAP: Final = 0x0010_0000
_MS_REC, _MS_PRIVATE = 0x4000, 0x0004_0000
_CLONE_NEWNS: Final = 0x0002_0000
_libc = ctypes.CDLL(None, use_errno=True)


def clone_mount(descriptor: int) -> int:
    """Open a detached mount of a folder or file; raise OSError if this process may make none, or not of this one."""
    return _call(_OPEN_TREE, descriptor, b"", _AT_EMPTY_PATH | _AT_RECURSIVE | _OPEN_TREE_CLONE | os.O_CLOEXEC)


def map_owner(mount: int, owner: tuple[int, int], user: int) -> None:
    """Let files of a user and group be those of another user in a detached mount; raise OSError if that cannot be."""
    namespace = make_namespace(lambda pid: _write_maps(pid, owner, user))
    try:
        attributes = struct.pack("=QQQQ", _MOUNT_ATTR_IDMAP, 0, 0, namespace)
        _call(_MOUNT_SETATTR, mount, b"", _AT_EMPTY_PATH, attributes, len(attributes))
    finally:
        os.close(namespace)


def attach_mounts(place: str, mounts: Sequence[int], *, are_cloned: bool) -> None:
    """Attach mounts at PLACE/0, PLACE/1 and so on, in a new mount namespace; raise OSError if one cannot be.

    Without `are_cloned`, they are what was opened, and are looked up again in the new namespace: all that a process can
    clone that has its rights in a user namespace alone.
    """
    _check(_libc.unshare(_CLONE_NEWNS))
    _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))
    clones = mounts if are_cloned else [_clone_again(each) for each in mounts]
    _check(_libc.mount(b"deputize", os.fsencode(place), b"tmpfs", 0, b"mode=0755,size=1m"))
    for number, mount in enumerate(clones):
        target = f"{place}/{number}"
        if stat.S_ISDIR(os.fstat(mount).st_mode):
            os.mkdir(target, 0o755)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        _call(_MOVE_MOUNT, mount, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)


def can_attach() -> bool:
    """Tell whether this process may make mount namespaces, by trying it in another one."""
    tried = os.fork()
    if tried == 0:
        os._exit(0 if _libc.unshare(_CLONE_NEWNS) == 0 else 1)
    return os.waitpid(tried, 0)[1] == 0


def is_open_to_all(descriptor: int) -> bool:
    """Tell whether every user can read a folder or file, and enter it."""
    mode = os.fstat(descriptor).st_mode
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return mode & needed == needed


def _clone_again(descriptor: int) -> int:
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    flags = _AT_RECURSIVE | _OPEN_TREE_CLONE | os.O_CLOEXEC
    mount = _call(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)
    if not os.path.samestat(os.fstat(mount), os.fstat(descriptor)):
        raise OSError(f"the folder {path} was moved meanwhile")
    return mount


def _write_maps(pid: int, owner: tuple[int, int], user: int) -> None:
    """Exchange two users and two groups; all others stay: in a folder whose owner is nobody's, nothing is written."""
    for name, each in zip(("uid_map", "gid_map"), owner, strict=True):
        exchanged = {each: user, user: each}
        lines = []
        for line in Path(f"/proc/self/{name}").read_text().splitlines():
            first, _, count = map(int, line.split())
            for end in (*sorted(one for one in exchanged if first <= one < first + count), first + count):
                own = end + (end in exchanged and end < first + count)
                if end > first:
                    lines.append(f"{first} {first} {end - first}")
                if own > end:
                    lines.append(f"{end} {exchanged[end]} 1")
                count, first = first + count - own, own
        Path(f"/proc/{pid}/{name}").write_text("\n".join(lines) + "\n")


def _call(number: int, *arguments: int | bytes) -> int:
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *words))


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
