"""Keep one token per gateway for the person at this machine: in the keyring of the system, else in a private file.

A file in the folder of the user names each gateway. It holds the token itself only where no keyring can be used.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from deputize.core.config_error import ConfigError
from deputize.store.private_file import read_private_file, replace_file

_SERVICE = "deputize"
_IN_KEYRING = "keyring"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredToken:
    """A token for one gateway, and what renews and revokes it."""

    gateway: str
    issuer: str
    client_id: str
    audience: str
    access_token: str = field(repr=False)
    refresh_token: str = field(default="", repr=False)
    expires_at: int
    scopes: str = ""
    token_url: str = ""
    revocation_url: str = ""


def get_token_folder() -> Path:
    """Return the folder with the tokens of this user."""
    root = os.environ.get("XDG_CONFIG_HOME")
    return (Path(root) if root else Path.home() / ".config") / "deputize" / "tokens"


def load_token(gateway: str) -> StoredToken | None:
    """Load the token for a gateway; None if no one signed in there."""
    file = _locate_file(gateway)
    if not file.exists():
        return None
    raw = read_private_file(file, description="The stored token", remedy="run deputize login")
    try:
        document: dict[str, Any] = json.loads(raw)
        if document.get("where") == _IN_KEYRING:
            key_store = _find_keyring()
            text = key_store.get_password(_SERVICE, gateway) if key_store is not None else None
            document = json.loads(text) if text else {}
        token = StoredToken(**document)
    except (ValueError, TypeError):
        raise ConfigError(f"The stored token for {gateway} cannot be read: run deputize login again.") from None
    # Never send a token elsewhere, even if files were moved.
    return token if token.gateway == gateway else None


def save_token(token: StoredToken) -> str:
    """Store a token, and return where: `keyring` or the path of the file."""
    file, key_store = _locate_file(token.gateway), _find_keyring()
    text = json.dumps(asdict(token))
    if key_store is not None:
        try:
            key_store.set_password(_SERVICE, token.gateway, text)
        except Exception:  # noqa: BLE001 -- a locked or broken keyring raises whatever its system does
            key_store = None
    replace_file(file, (text if key_store is None else json.dumps({"where": _IN_KEYRING})).encode())
    return _IN_KEYRING if key_store is not None else str(file)


def delete_token(gateway: str) -> None:
    """Delete the token for a gateway, wherever it is."""
    file, key_store = _locate_file(gateway), _find_keyring()
    if key_store is not None:
        # A keyring without the entry raises an error of its own.
        with suppress(Exception):
            key_store.delete_password(_SERVICE, gateway)
    file.unlink(missing_ok=True)


@contextmanager
def lock_token(gateway: str) -> Iterator[None]:
    """Let one process at a time renew a token: a refresh token may be valid only once."""
    file = _locate_file(gateway).with_suffix(".lock")
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _locate_file(gateway: str) -> Path:
    return get_token_folder() / f"{hashlib.sha256(gateway.encode()).hexdigest()[:32]}.json"


def _find_keyring() -> Any | None:
    """Find the keyring of this system; None if the extra is not installed or there is none to unlock."""
    try:
        key_store = import_module("keyring")
    except ImportError:
        return None
    return key_store if getattr(key_store.get_keyring(), "priority", 0) >= 1 else None
