"""Give each sandbox a user of its own.

The kernel counts descriptors in flight, watches, pipes, timers and much else by user: what runs as one user takes from
all that does. A supervisor of root has a range of users. One of a plain user has subordinate ones (`/etc/subuid`), in a
user namespace that it enters, where it may start programs as them; what the kernel counts for the owner of a namespace
as well is bounded there, so that programs never have more than half of it.
"""

import contextlib
import ctypes
import fcntl
import os
import pwd
import resource
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_NOBODY: Final = 65_534
_CLONE_NEWUSER: Final = 0x1000_0000
_BLOCK: Final = 1_024
_MOST_BLOCKS: Final = 64
# Above what systemd and container engines give out, and, in a container with few ids, what systemd leaves free.
_RANGES: Final = ((1_900_000_000, _BLOCK), (60_578, 100))
_FIRST: Final = _RANGES[0][0]
_INOTIFY_LIMIT: Final = Path("/proc/sys/user/max_inotify_instances")
# Of one sandbox, where they count for the owner of its namespace as well.
_INOTIFY_INSTANCES: Final = 16
_MAP_SECONDS: Final = 10.0
_LOCKS: Final = Path("/run/deputize/users")
_CLAIM_SECONDS: Final = 5.0


class NoUsers(Exception):
    """Reason why sandboxes have no users of their own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UserRange:
    """Users `first` to `first + count - 1`, and the groups of the same numbers."""

    first: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse FIRST:COUNT; raise ValueError if it is none."""
        first, _, count = text.partition(":")
        parsed = cls(first=int(first), count=int(count))
        if parsed.first < 1 or parsed.count < 2 or parsed.first + parsed.count > 2**31:
            raise ValueError("a range of users is FIRST:COUNT, such as 200000:4096, without root and with two or more")
        return parsed

    def __contains__(self, uid: int) -> bool:
        return self.first <= uid < self.first + self.count


class SandboxUsers:
    """The users of one supervisor: each is one sandbox's, until nothing of that lives.

    The first one runs none: it owns what programs write into folders that a gateway of root lists.
    """

    def __init__(self, users: UserRange) -> None:
        self.owner = users.first
        self._range = users
        self._free = deque(each for each in range(users.first + 1, users.first + users.count) if each != _NOBODY)
        self._uncertain: set[int] = set()

    def take(self) -> int:
        """Take a free user; raise NoUsers if each has a sandbox."""
        if not self._free:
            gone = self._uncertain - set(_list_users_of_processes())
            self._uncertain -= gone
            self._free.extend(gone)
        if not self._free:
            raise NoUsers(f"all of its {self._range.count} users have a sandbox")
        return self._free.popleft()

    def give_back(self, uid: int, *, is_gone: bool) -> None:
        """Let a user be taken again; one of whom something may live only when that is not so."""
        if is_gone:
            self._free.append(uid)
        else:
            self._uncertain.add(uid)


def claim_users(chosen: UserRange | None, reserved: Iterable[int]) -> UserRange:
    """Claim users of this host for a supervisor of root, for as long as this process lives; raise NoUsers if none."""
    accounts = {each.pw_uid: each.pw_name for each in pwd.getpwall()} | {each: str(each) for each in reserved}
    if chosen is not None:
        taken = next((name for uid, name in accounts.items() if uid in chosen), None)
        if taken is not None:
            raise NoUsers(f"the user {taken} is in the range {chosen.first}:{chosen.count}: choose another --uid-range")
        return _lock_one(_LOCKS, [chosen])
    return _lock_one(_LOCKS, [each for each in _list_default_ranges() if not any(uid in each for uid in accounts)])


def enter_subordinate_users() -> UserRange:
    """Enter a user namespace with subordinate users of this one, in which it can become them.

    Raise NoUsers, and have changed nothing, where this host gives it none.
    """
    uid, gid = os.geteuid(), os.getegid()
    uids, gids = _read_subordinate("/etc/subuid", uid), _read_subordinate("/etc/subgid", uid)
    tools = [shutil.which(each) for each in ("newuidmap", "newgidmap")]
    if None in tools:
        raise NoUsers("newuidmap is not installed")
    size = min(_BLOCK, uids.count, gids.count)
    # Container engines begin at the other end.
    last = uids.first + uids.count
    blocks = [UserRange(first=last - size * each, count=size) for each in range(1, uids.count // size + 1)]
    runtime = Path(f"/run/user/{uid}")
    block = _lock_one((runtime if runtime.is_dir() else Path("/tmp")) / f"deputize-users-{uid}", blocks[:_MOST_BLOCKS])
    first_gid = gids.first + gids.count - (last - block.first) if gids.count >= uids.count else gids.first

    def map_subordinate(pid: int) -> None:
        for tool, own, first in zip(tools, (uid, gid), (block.first, first_gid), strict=True):
            words = [str(each) for each in (pid, own, own, 1, _FIRST, first, size)]
            subprocess.run([str(tool), *words], check=True, capture_output=True, env={}, timeout=_MAP_SECONDS)

    def map_same(pid: int) -> None:
        for name, own in (("uid_map", uid), ("gid_map", gid)):
            Path(f"/proc/{pid}/{name}").write_text(f"{own} {own} 1\n{_FIRST} {_FIRST} {size}\n")

    try:
        _enter_namespace(map_subordinate)
        _halve(_INOTIFY_LIMIT)
        # The limit of the outer one bounds the sum of all users of the inner one.
        _enter_namespace(map_same)
        _INOTIFY_LIMIT.write_text(str(_INOTIFY_INSTANCES))
        os.setgroups([])
    except (OSError, subprocess.SubprocessError) as error:
        raise NoUsers(f"this host lets it become none of its subordinate users: {error}") from error
    return UserRange(first=_FIRST, count=size)


def make_namespace(write_maps: Callable[[int], None]) -> int:
    """Make a user namespace and return its descriptor; `write_maps` is told a process in it."""
    libc = ctypes.CDLL(None, use_errno=True)
    ready, begin = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    holder = os.fork()
    if holder == 0:
        os.close(begin[1])
        soft, hard = resource.getrlimit(resource.RLIMIT_SIGPENDING)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_SIGPENDING, (soft // 2, hard))
        if libc.unshare(_CLONE_NEWUSER) == 0:
            os.write(ready[1], b"x")
            os.read(begin[0], 1)
        os._exit(0)
    try:
        os.close(ready[1])
        if not os.read(ready[0], 1):
            raise OSError("this host makes no user namespace")
        write_maps(holder)
        return os.open(f"/proc/{holder}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for each in (ready[0], *begin):
            os.close(each)
        os.waitpid(holder, 0)


def _enter_namespace(write_maps: Callable[[int], None]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    namespace = make_namespace(write_maps)
    try:
        if libc.setns(namespace, _CLONE_NEWUSER) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(namespace)


def _halve(limit: Path) -> None:
    """Let the namespace have half of what is counted for its owner as well."""
    with contextlib.suppress(OSError):
        own = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
        limit.write_text(str(max(own // 2, 1)))


def _list_default_ranges() -> list[UserRange]:
    """List ranges that this process can use; a container may have few users."""
    mapped = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return [
        UserRange(first=first + number * size, count=size)
        for first, size in _RANGES
        for number in range(_MOST_BLOCKS if size == _BLOCK else 6)
        if any(inner <= first + number * size and first + (number + 1) * size <= inner + n for inner, _, n in mapped)
    ]


def _lock_one(folder: Path, ranges: Sequence[UserRange]) -> UserRange:
    """Lock the first range that nobody uses, for as long as this process lives.

    What a supervisor that was killed has started may still be ending.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise NoUsers(f"the folder {folder} cannot be made: {error.strerror}") from error
    if folder.lstat().st_uid != os.geteuid():
        raise NoUsers(f"the folder {folder} belongs to another user: have it removed")
    end = time.monotonic() + _CLAIM_SECONDS
    while True:
        for each in ranges:
            lock = os.open(folder / str(each.first), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not any(uid in each for uid in _list_users_of_processes()):
                    return each
            os.close(lock)
        if time.monotonic() > end:
            names = ", ".join(f"{each.first}:{each.count}" for each in ranges[:1])
            raise NoUsers(f"other supervisors or processes of this host have all users of {names or 'every range'}")
        time.sleep(0.1)


def _read_subordinate(path: str, uid: int) -> UserRange:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    with contextlib.suppress(OSError, ValueError):
        for line in Path(path).read_text().splitlines():
            owner, first, count = line.split(":")
            if owner in (name, str(uid)) and int(count) >= 2:
                return UserRange(first=int(first), count=int(count))
    raise NoUsers(f"{path} has no line for the user {name}")


def _list_users_of_processes() -> Iterator[int]:
    for each in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            lines = Path("/proc", each, "status").read_text().splitlines()
            yield from {int(uid) for line in lines if line.startswith("Uid:") for uid in line.split()[1:]}
