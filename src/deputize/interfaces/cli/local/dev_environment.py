"""Prepare the state folder of `deputize dev`: its locks, the address it announces, and free ports."""

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.database import CONNECTION_ERRORS, describe_dsn, explain_error
from deputize.interfaces.cli.local.project_file import AGENT_TOKEN_FILE, DevGateway, find_dev_gateway
from deputize.store.instance_lock import InstanceLock
from deputize.store.private_file import replace_file

# What policies see as the environment of a development gateway and of the workers beside it.
DEV_ENVIRONMENT = "development"
# The lock that `claim_database` takes, for commands, which may not import the store.
DatabaseLock = InstanceLock
_PORT_ATTEMPTS = 50
# The folder has the group of the project's owner, and no other user can enter it.
_CLIENT_FILE_MODE = 0o640


def make_folder(folder: Path) -> None:
    """Create the state folder. Under root, the database's own account may pass through it, but not list it."""
    try:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"The state folder {folder} is a file: move it away, or set folder in deputize.toml.")
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o711 if os.geteuid() == 0 else 0o700)
            # Its keys and tokens stay out of a repository whose own .gitignore does not name it.
            (folder / ".gitignore").write_text("*\n", encoding="ascii")
    except OSError as error:
        raise ConfigError(
            f"The folder {folder} cannot be created ({error.strerror}): "
            "run this in a folder you can write to, or set folder in deputize.toml."
        ) from error


@contextlib.contextmanager
def hold_dev_lock(folder: Path) -> Iterator[None]:
    """Allow one development gateway per project. The lock ends with the process, even if it is killed."""
    handle = os.open(folder / "dev.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            dev_gateway = find_dev_gateway(folder)
            where = f" at {dev_gateway.url} (process {dev_gateway.pid})" if dev_gateway else ""
            raise ConfigError(
                f"deputize dev is already running for this project{where}: use that one, or stop it with Ctrl-C first."
            ) from None
        yield
    finally:
        os.close(handle)


async def claim_database(dsn: str) -> InstanceLock:
    """Take the database for this development gateway. The file lock can be deleted; this one cannot."""
    lock = InstanceLock(dsn)
    try:
        if await lock.acquire():
            return lock
    except CONNECTION_ERRORS as error:
        raise explain_error(error, dsn) from error
    process = f" (process {lock.holder})" if lock.holder.isdigit() else ""
    raise ConfigError(
        f"Another deputize dev{process} is running on the database at {describe_dsn(dsn)}, and only one may show "
        "approval codes for it: use that one, or stop it with Ctrl-C first."
    )


@contextlib.contextmanager
def announce_gateway(folder: Path, dev_gateway: DevGateway, client_folder: Path | None = None) -> Iterator[None]:
    """Let other commands find the gateway while the block runs, also those of the user that `client_folder` is for."""
    data = json.dumps({"url": dev_gateway.url, "pid": dev_gateway.pid}).encode()
    replace_file(folder / "dev.json", data)
    if client_folder is not None:
        replace_file(client_folder / "dev.json", data, mode=_CLIENT_FILE_MODE)
    try:
        yield
    finally:
        for place in filter(None, (folder, client_folder)):
            (place / "dev.json").unlink(missing_ok=True)


def publish_agent_token(client_folder: Path, token: str) -> Path:
    """Write the token for agents where the project's owner can read it, and return the path of its file."""
    file = client_folder / AGENT_TOKEN_FILE
    replace_file(file, token.encode() + b"\n", mode=_CLIENT_FILE_MODE)
    return file


def find_free_port(host: str, port: int, *, avoid: int = 0) -> int:
    """Find the first free port, starting at the given one."""
    for candidate in range(port, min(port + _PORT_ATTEMPTS, 65_536)):
        if candidate == 0 or (candidate != avoid and is_port_free(host, candidate)):
            return candidate
    raise ConfigError(
        f"No free port at {host} from {port} on: choose one with --port, --port 0 for any, or set host under [server] "
        "to an address of this machine."
    )


def pick_free_port(host: str) -> int:
    """Pick any free port before the gateway listens on it, because its own URL contains the port."""
    with contextlib.suppress(OSError):
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.create_server((str(address[0]), 0), family=family) as listener:
            return int(listener.getsockname()[1])
    raise ConfigError(
        f"No port can be opened at {host}: set host under [server] in deputize.toml to an address of this machine."
    )


def is_port_free(host: str, port: int) -> bool:
    """Tell whether a server could listen on a port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.create_server((str(address[0]), port), family=family):
            return True
    except OSError:
        return False
