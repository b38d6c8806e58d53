"""Keep the confirmed copy of a project in which a gateway runs that is another user than the project's owner.

    files/            the copy, with what tools write beside it
    confirmed.json    the digests of the files that a person confirmed
    candidate/        files that wait for confirmation
    takeover/         files that were confirmed and are being copied into `files/`

Renaming `candidate` to `takeover` is the confirmation. A process that is killed after it leaves a takeover that the
next start completes; one that is killed before it leaves the confirmed files as they were.
"""

import json
import shutil
from contextlib import suppress
from pathlib import Path

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.separate_user.project_snapshot import Digests, ProjectFile, Snapshot
from deputize.interfaces.cli.local.separate_user.protected_folder import FILES_FOLDER
from deputize.store.private_file import replace_file

_DIGESTS_FILE = "confirmed.json"


class WorkingCopy:
    """The confirmed files of one project, and those that wait to take their place."""

    def __init__(self, folder: Path) -> None:
        self.files = folder / FILES_FOLDER
        self.candidate = folder / "candidate"
        self._takeover = folder / "takeover"
        self._digests_file = folder / _DIGESTS_FILE

    def recover(self) -> None:
        """Complete a takeover that was interrupted, and drop files that were never confirmed."""
        shutil.rmtree(self.candidate, ignore_errors=True)
        if self._takeover.exists():
            self._complete_takeover()

    def load_digests(self) -> Digests | None:
        """Load the digests of the confirmed files; None before the first confirmation."""
        return _load_digests(self._digests_file)

    def read_file(self, path: str) -> bytes | None:
        """Read a file of the copy, or None if a tool deleted it."""
        try:
            return (self.files / path).read_bytes()
        except OSError:
            return None

    def read_confirmed(self, path: str, digest: str) -> ProjectFile | None:
        """Read a file of the copy if it is as it was confirmed, or None if a tool changed or deleted it."""
        content = self.read_file(path)
        file = None if content is None else ProjectFile(content=content, is_executable=digest.endswith("+x"))
        return file if file is not None and file.digest == digest else None

    def stage(self, snapshot: Snapshot) -> None:
        """Write files beside the confirmed ones, so that a person can compare the two."""
        shutil.rmtree(self.candidate, ignore_errors=True)
        for path, file in snapshot.items():
            _write_file(self.candidate / FILES_FOLDER / path, file)
        digests = {path: file.digest for path, file in snapshot.items()}
        replace_file(self.candidate / _DIGESTS_FILE, json.dumps(digests).encode())

    def discard(self) -> None:
        """Drop the staged files; the confirmed ones stay."""
        shutil.rmtree(self.candidate, ignore_errors=True)

    def confirm(self) -> None:
        """Put the staged files in the place of the confirmed ones. Files that tools wrote stay."""
        self.candidate.rename(self._takeover)
        self._complete_takeover()

    def _complete_takeover(self) -> None:
        old, new = self.load_digests(), _load_digests(self._takeover / _DIGESTS_FILE)
        # Without digests it was complete, and was being deleted.
        if new is not None and new != old:
            # Each step can be repeated, also when later ones were done before the process was killed.
            for path in (old or {}).keys() - new.keys():
                _remove_file(self.files / path)
            for path, digest in new.items():
                if old is None or old.get(path) != digest:
                    self._copy_file(path, digest)
            replace_file(self._digests_file, json.dumps(new).encode())
        shutil.rmtree(self._takeover)

    def _copy_file(self, path: str, digest: str) -> None:
        is_executable = digest.endswith("+x")
        file = ProjectFile(
            content=(self._takeover / FILES_FOLDER / path).read_bytes(),
            is_executable=is_executable,
        )
        _make_way(self.files, path)
        _write_file(self.files / path, file)


def _remove_file(path: Path) -> None:
    """Remove a file, unless a folder is already in its place, or a file in that of its folder."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        path.unlink()


def _make_way(root: Path, path: str) -> None:
    """Remove a folder where a file must go, and files where its folders must be."""
    place = root / path
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    for parent in place.relative_to(root).parents:
        above = root / parent
        if above.is_symlink() or above.is_file():
            above.unlink()


def _write_file(path: Path, file: ProjectFile) -> None:
    replace_file(path, file.content, mode=0o700 if file.is_executable else 0o600)


def _load_digests(path: Path) -> dict[str, str] | None:
    try:
        return {str(key): str(value) for key, value in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError) as error:
        raise ConfigError(
            f"{path} is damaged ({error}): delete it to take the project's files as they are, after you checked them."
        ) from error
