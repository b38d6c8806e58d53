"""Protect a gateway's process from the programs it starts, before real sandboxes exist."""

import ctypes
import os
from typing import Final

from deputize.core.config_error import ConfigError
from deputize.core.settings import Settings

_PR_GET_DUMPABLE: Final = 3
_PR_SET_DUMPABLE: Final = 4


def protect_process(settings: Settings) -> None:
    """Hide this process's memory, environment and descriptors from its user's other processes.

    Root reads them all the same, so a gateway that runs as root refuses programs without a user of their own.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise ConfigError(
            "This system cannot hide the gateway's memory from its user's other processes (prctl failed)."
        )
    for server in settings.servers:
        if not server.command:
            continue
        if os.geteuid() == 0 and server.uid is None and server.accept_risk != "same-user":
            raise ConfigError(
                f"The gateway runs as root, so the program of the server {server.name} could read its keys and memory: "
                f"run the gateway as another user, set uid for {server.name} under [[servers]], or accept the risk "
                'there with accept_risk = "same-user".'
            )
        if os.geteuid() != 0 and server.uid is not None:
            raise ConfigError(
                f"uid of the server {server.name} needs a gateway that runs as root: remove uid, or run it as root."
            )
