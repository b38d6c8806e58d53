"""Keep programs in sandboxes from leaving what is run outside, such as the configuration of git, where they may write.

What stands in a writable folder under a guarded name is shown read-only, and so is an empty folder at its top where
there was none. Deeper down, a program can still make one: it is found when the program has ended, and reported.
"""

import os
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from deputize.core.guarded_names import GUARDED_FOLDERS, GUARDED_NAMES
from deputize.sandboxes.port import SandboxFolder

# What is looked at of one folder, shallow first, before and after a program.
_MOST_ENTRIES: Final = 20_000
_MOST_GUARDS: Final = 200
_MOST_REPORTED: Final = 10
# A folder with these is a repository, whatever its own name is.
_BARE_REPOSITORY: Final = frozenset({"HEAD", "objects", "refs"})

log = structlog.get_logger(__name__)


class UnguardedFolder(Exception):
    """A folder cannot be shown writable; the message says why and what to do."""


class GuardedPaths:
    """What is guarded in the writable folders of one sandbox, from before its start to after its end."""

    def __init__(self, folders: Iterable[SandboxFolder]) -> None:
        paths = [each.path for each in folders if each.is_writable and each.source is None]
        self._folders = [each for each in dict.fromkeys(paths) if os.path.isdir(each)]
        for each in self._folders:
            _make_top(each)
        self._found = {path: None for each in self._folders for path in list_guarded_paths(each)}

    @property
    def read_only(self) -> list[SandboxFolder]:
        """What the sandbox is shown read-only, on top of its folders."""
        # Deeper down only those of git, which runs them for whoever looks at the folder.
        shown = [
            path
            for path in self._found
            if os.path.dirname(path) in self._folders or os.path.basename(path) == GUARDED_FOLDERS[0]
        ]
        guarded = [path for path in shown if os.path.basename(path) in GUARDED_NAMES and not os.path.islink(path)]
        return [SandboxFolder(path=path) for path in guarded[:_MOST_GUARDS]]

    def report(self, owner: str) -> list[str]:
        """Log what the program left under a guarded name, and return it."""
        left = [path for each in self._folders for path in list_guarded_paths(each) if path not in self._found]
        if left:
            log.warning("sandbox_left_files_that_others_run", owner=owner, paths=left[:_MOST_REPORTED], count=len(left))
        return left


def _make_top(folder: str) -> None:
    """Make the empty folders that are shown read-only: where nothing is, nothing can be mounted."""
    for name in GUARDED_FOLDERS:
        path = os.path.join(folder, name)
        if os.path.islink(path):
            raise UnguardedFolder(
                f"{path} is a link, which a program could replace: remove it, or list the folder without write"
            )
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            continue
        except OSError as error:
            raise UnguardedFolder(
                f"{path} cannot be made, which is shown empty so that the program makes none ({error.strerror}): make "
                "an empty one, or list the folder without write"
            ) from error


def list_guarded_paths(folder: str) -> list[str]:
    """List what stands under guarded names in a folder and below it, shallow first, and repositories of any name."""
    found: list[str] = []
    pending, looked_at = deque([folder]), 0
    while pending and looked_at < _MOST_ENTRIES:
        inner = pending.popleft()
        try:
            with os.scandir(inner) as entries:
                names, folders = _split(entries)
        except OSError:
            continue
        looked_at += len(names)
        if names >= _BARE_REPOSITORY:
            found.append(inner)
        found += [os.path.join(inner, name) for name in sorted(names & GUARDED_NAMES)]
        pending += [os.path.join(inner, name) for name in folders if name not in GUARDED_NAMES]
    return found


def _split(entries: "Iterable[os.DirEntry[str]]") -> tuple[set[str], Sequence[str]]:
    """Split a folder into all its names, and those of folders."""
    names, folders = set(), []
    for entry in entries:
        names.add(entry.name)
        if entry.is_dir(follow_symlinks=False):
            folders.append(entry.name)
        if len(names) >= _MOST_ENTRIES:
            break
    return names, folders
