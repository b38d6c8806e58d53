"""Read and write files with secrets: written atomically, readable by their owner, refused if open to others.

Used for the master key (`store/keys.py`) and the development issuer's key (`govern/identity/dev_issuer.py`).
"""

import os
import secrets
import stat
from pathlib import Path

from deputize.core.config_error import ConfigError

# No access for others, and no writing by the group. Reading by the group is allowed: that is how secrets are mounted
# into containers that do not run as root.
_TOO_OPEN = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP


def write_once(path: Path, data: bytes) -> bool:
    """Write the file unless it exists; return True if this call wrote it.

    The file appears with its whole content or not at all; the loser of a race reads the winner's file.
    """
    draft = _write_draft(path, data)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def replace_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write the file atomically: readers see the old content or the new one."""
    _write_draft(path, data, mode).replace(path)


def _write_draft(path: Path, data: bytes, mode: int = 0o600) -> Path:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return draft


def read_private_file(path: Path, *, description: str, remedy: str) -> bytes:
    """Read the file, or raise a `ConfigError` that says what cannot be read, why, and what to do."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise ConfigError(f"{description} at {path} is not a file: {remedy}.")
        if mode & _TOO_OPEN:
            raise ConfigError(f"{description} at {path} can be reached by other users: run chmod 600 {path}.")
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{description} is missing at {path}: {remedy}.") from None
    except OSError as error:
        raise ConfigError(f"{description} at {path} cannot be read ({error.strerror}): {remedy}.") from error
