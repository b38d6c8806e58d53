"""Decide which folders of the host a program is shown in its sandbox: one rule for MCP servers and commands.

The driver of commands and the start of a server ask before each sandbox, because programs may have changed since what
is there. `project_exposure.py` says what of the project a program must not change.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, SecretStr

from deputize.core.settings import SETTINGS_FILE, Settings
from deputize.execute.project_exposure import find_exposure
from deputize.execute.upstreams.program_files import list_folders
from deputize.sandboxes.client import find_default_folder
from deputize.sandboxes.namespaces import FolderRefused, require_shareable

# Of links that lead to each other, too.
_MOST_PATH_PARTS: Final = 1_000


class FolderRefusal(Exception):
    """Reason why a folder is not shown; `todo` says what the operator must do about it."""

    def __init__(self, reason: str, todo: str, *, is_missing: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.todo = todo
        self.is_missing = is_missing


class SharedFolders:
    """The rule for one gateway. `written_paths` are folders that commands change; settings name those of servers."""

    def __init__(self, settings: Settings, written_paths: Iterable[str] = ()) -> None:
        self._settings = settings
        self._base = Path().resolve()
        self._own_paths = [os.path.realpath(each) for each in _list_own_paths(settings)]
        self._written_paths = [
            *(path for server in settings.servers for folder, path in list_folders(server) if folder.write),
            *written_paths,
        ]

    def require_shareable(self, path: str, *, is_written: bool) -> None:
        """Raise FolderRefusal unless a program may see this folder or file, and change it if `is_written`."""
        if not os.path.isabs(path):
            raise FolderRefusal("it is not an absolute path", "write it in full")
        link = _find_link(path, [os.path.realpath(each) for each in self._written_paths])
        if link is not None:
            raise FolderRefusal(
                f"{link} leads to another folder, and a program may have put it there",
                f"look at {link}, and list folders that are in none that programs change",
            )
        real = os.path.realpath(path)
        own = next((each for each in self._own_paths if os.path.commonpath((real, each)) in (real, each)), None)
        if own is not None:
            raise FolderRefusal(
                f"{own}, which belongs to the gateway, would be seen there",
                "list narrower folders, which hold none of its keys, state and sockets",
            )
        try:
            require_shareable(path, real)
        except FolderRefused as error:
            raise FolderRefusal(str(error), "list another folder") from error
        exposure = find_exposure(Path(real), self._base, self._settings) if is_written else None
        if exposure is not None:
            raise FolderRefusal(f"it must not be changed by a program: {exposure}", "list a folder of its own")
        if not os.path.exists(real):
            raise FolderRefusal("it does not exist", "create it, or correct its path", is_missing=True)
        if stat.S_ISSOCK(os.stat(real).st_mode):
            raise FolderRefusal("it is a socket, behind which a program of the host answers", "remove it")


def list_secret_files(settings: Settings) -> Iterator[Path]:
    """List the files with keys and secrets, those that do not exist included."""
    yield settings.keys.master_file
    yield from settings.keys.accepted_master_files
    credentials = [each.credentials_file for each in settings.events.sinks]
    files = (settings.vault.token_file, settings.console.client_secret_file, settings.grpc.key, *credentials)
    yield from (each for each in files if each is not None)
    if settings.folder.is_dir():
        yield from sorted(each for each in settings.folder.iterdir() if each.is_file() and each.name[0] != ".")
    if SETTINGS_FILE.is_file():
        text = SETTINGS_FILE.read_text(encoding="utf-8")
        if any(secret in text for secret in _list_secrets(settings)):
            yield SETTINGS_FILE


def _list_own_paths(settings: Settings) -> Iterator[Path]:
    yield settings.folder
    if settings.database.lineage_folder is not None:
        yield settings.database.lineage_folder
    yield settings.sandboxes.folder or find_default_folder()
    yield from list_secret_files(settings)


def _list_secrets(section: BaseModel) -> Iterator[str]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, SecretStr):
                yield each.get_secret_value()
            elif isinstance(each, BaseModel):
                yield from _list_secrets(each)


def _find_link(path: str, folders: Sequence[str]) -> str | None:
    """Find a link on the way to a path that is in one of these folders."""
    names, real = path.split("/")[::-1], ""
    for _ in range(_MOST_PATH_PARTS):
        if not names:
            return None
        name = names.pop()
        place = os.path.dirname(real) if name == ".." else f"{real}/{name}" if name not in ("", ".") else real
        if not os.path.islink(place):
            real = place
            continue
        if any(real == each or real.startswith(f"{each}/") for each in folders):
            return place
        target = os.readlink(place)
        names += target.split("/")[::-1]
        real = "" if target.startswith("/") else real
    return path
