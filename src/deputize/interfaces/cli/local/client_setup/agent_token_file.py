"""Keep an agent's token in a private file of the user, for clients that cannot read it from their environment."""

import hashlib
from pathlib import Path

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.stored_tokens import get_token_folder
from deputize.store.private_file import read_private_file, replace_file


def locate_agent_token(gateway: str, client: str, name: str) -> Path:
    """Locate the file of a client's token for a gateway: outside every project."""
    digest = hashlib.sha256(f"{gateway}\n{client}\n{name}".encode()).hexdigest()[:32]
    return _get_folder() / f"{digest}.token"


def save_agent_token(path: Path, token: str) -> None:
    """Save a token so that only its owner can read it."""
    try:
        replace_file(path, token.encode("ascii") + b"\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}): check the permissions.") from None


def read_agent_token(path: Path) -> str:
    """Read a saved token; refuse a file that other users can reach."""
    content = read_private_file(path, description="The token of an agent", remedy="run deputize connect again")
    try:
        return content.decode("ascii").strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} contains no token: run deputize connect again.") from None


def delete_agent_token(path: Path) -> None:
    """Delete a saved token; leave every file alone that is not in the folder of such tokens."""
    if path.parent == _get_folder():
        path.unlink(missing_ok=True)


def _get_folder() -> Path:
    return get_token_folder().with_name("agent-tokens")
