"""Files that hold a secret: written once and whole, readable by their owner, refused when open to others.

Used for the master key (`store/keys.py`) and the development issuer's key (`govern/identity/development.py`).
"""

import os
import secrets
import stat
from pathlib import Path

from deputize.core.mistakes import Misconfigured

# Nothing for others and no writing for the group. Reading by the group stays possible: that is how secrets
# are mounted into containers that do not run as root.
_TOO_OPEN = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP


def write_once(path: Path, data: bytes) -> bool:
    """Writes the file unless it exists, and says whether it did.

    The name appears with the whole content behind it or not at all: who loses a race reads the winner's.
    """
    draft = _draft(path, data)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def write_over(path: Path, data: bytes) -> None:
    """Writes the file whatever was there; whoever reads meanwhile sees the old content or the new one."""
    _draft(path, data).replace(path)


def _draft(path: Path, data: bytes) -> Path:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return draft


def read_private(path: Path, *, what: str, remedy: str) -> bytes:
    """The content, or one sentence: what could not be read, why, and what to do."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise Misconfigured(f"{what} at {path} is not a file: {remedy}.")
        if mode & _TOO_OPEN:
            raise Misconfigured(f"{what} at {path} can be reached by other users: run chmod 600 {path}.")
        return path.read_bytes()
    except FileNotFoundError:
        raise Misconfigured(f"{what} is missing at {path}: {remedy}.") from None
    except OSError as error:
        raise Misconfigured(f"{what} at {path} cannot be read ({error.strerror}): {remedy}.") from error
