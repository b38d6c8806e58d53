"""Protect a gateway's process from the programs it starts, in sandboxes and without."""

import ctypes
import os
import pwd
from hashlib import sha256
from pathlib import Path
from typing import Final

from deputize.core.config_error import ConfigError
from deputize.core.settings import McpServerSettings, Settings
from deputize.execute.shared_folders import FolderRefusal, SharedFolders, list_secret_files
from deputize.execute.upstreams.program_files import list_folders

_PR_GET_DUMPABLE: Final = 3
_PR_SET_DUMPABLE: Final = 4
# User ids for programs without one in the settings; systemd takes those of its dynamic users from the same range.
_FIRST_UID: Final = 61_184
_UID_COUNT: Final = 4_336


def hide_process() -> None:
    """Hide this process's memory, environment and descriptors from its user's other processes."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise ConfigError(
            "This system cannot hide the gateway's memory from its user's other processes (prctl failed)."
        )


def protect_process(settings: Settings) -> Settings:
    """Hide this process from the programs it starts, and return the settings with a user for each of them.

    A program is refused if it runs without a sandbox, if its user could then read the gateway's keys, or if its files
    are not pinned, unless the settings accept that risk. One in a sandbox sees only what is shown to it, which must not
    be the keys either.
    """
    hide_process()
    used_uids = {each.uid for each in settings.servers}
    folders = SharedFolders(settings)
    servers = []
    for server in settings.servers:
        if server.command:
            _require_pins(server)
            _require_sandbox(server)
            if server.sandbox:
                _require_shareable_folders(server, settings, folders)
            else:
                server = _assign_user(server, used_uids, settings.tools.tenant)
                used_uids.add(server.uid)
                _require_hidden_files(server, settings)
        servers.append(server)
    return settings.model_copy(update={"servers": tuple(servers)})


def _assign_user(server: McpServerSettings, used_uids: set[int | None], tenant: str) -> McpServerSettings:
    """Give a program of a gateway that runs as root a user of its own, unless the settings name one."""
    if os.geteuid() != 0:
        if server.uid is not None:
            raise ConfigError(
                f"uid of the server {server.name} needs a gateway that runs as root: remove uid, or run it as root."
            )
        return server
    if server.uid is not None or "same-user" in server.accept_risk:
        return server
    start = int.from_bytes(sha256(f"{server.tenant or tenant}\0{server.name}".encode()).digest()[:4])
    for offset in range(_UID_COUNT):
        uid = _FIRST_UID + (start + offset) % _UID_COUNT
        if uid not in used_uids and not _has_account(uid):
            return server.model_copy(update={"uid": uid})
    raise ConfigError(f"There is no unused user id for the server {server.name}: set uid for it under [[servers]].")


def _has_account(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _require_sandbox(server: McpServerSettings) -> None:
    if not server.sandbox and "unsandboxed" not in server.accept_risk:
        raise ConfigError(
            f"The program of the server {server.name} would run without a sandbox, with the files and the network of "
            "this host: remove sandbox = false, or accept the risk in deputize.toml with accept_risk = "
            '["unsandboxed"].'
        )


def _require_pins(server: McpServerSettings) -> None:
    if server.sha256 is None and not server.files and "unpinned" not in server.accept_risk:
        raise ConfigError(
            f"The program of the server {server.name} has no digest, so another one could be put in its place: run "
            f"deputize servers pin {server.name} and put what it prints into deputize.toml, or accept the risk there "
            'with accept_risk = ["unpinned"].'
        )


def _require_hidden_files(server: McpServerSettings, settings: Settings) -> None:
    if "same-user" in server.accept_risk:
        return
    paths = [*list_secret_files(settings)]
    number = _try_reading(paths, server.uid)
    if number is None:
        return
    if server.uid is None:
        advice = (
            "run the gateway as root, which gives every program a user of its own, keep the keys outside files, or "
            'accept the risk for this server with accept_risk = ["same-user"]'
        )
    else:
        advice = f"run chmod 600 {paths[number]}, and make sure that its owner is the gateway's user"
    raise ConfigError(
        f"The program of the server {server.name} runs as the user {server.uid or os.geteuid()}, who can read "
        f"{paths[number]}: {advice}."
    )


def _require_shareable_folders(server: McpServerSettings, settings: Settings, folders: SharedFolders) -> None:
    """Require that the sandbox of a server shows nothing of the gateway, as when its program is started.

    Nor may another program change where a folder of it leads.
    """
    changeable = [
        Path(path).resolve() for other in settings.servers for each, path in list_folders(other) if each.write
    ]
    for each, path in list_folders(server):
        what = f"The folder {each.path} of the server {server.name}"
        try:
            folders.require_shareable(path, is_written=each.write)
        except FolderRefusal as refusal:
            # One that is missing now is looked for again when the program is started.
            if not refusal.is_missing:
                raise ConfigError(
                    f"{what} is not shown in its sandbox: {refusal.reason}. Under [[servers]], {refusal.todo}."
                ) from refusal
        shown = Path(path).resolve()
        if any(shown != other and shown.is_relative_to(other) for other in changeable):
            raise ConfigError(
                f"{what} is in a folder that a program may change, which could put a link to another one in its place: "
                "list folders beside each other."
            )


def _try_reading(paths: list[Path], uid: int | None) -> int | None:
    """Try to open the files as a program's user, in a process of its own; return the number of the first that opens.

    An attempt counts access control lists and the folders above a file as well, which its mode does not show.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if uid is not None:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            for number, path in enumerate(paths):
                try:
                    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
                except OSError:
                    continue
                os.write(writer, str(number).encode())
                break
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader, "rb") as stream:
        answer = stream.read()
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        raise ConfigError("The gateway could not check which files its programs can read: it cannot change users.")
    return int(answer) if answer else None
