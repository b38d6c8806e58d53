"""Locate the folder of a project whose development gateway runs as another user (`deputize dev --user`).

It is outside the project, and root owns it. The project's owner can read only what clients need:

    gateway/         private to the gateway's user
        files/       the confirmed copy of the project, in which the gateway runs; its state folder is inside
    client/          the gateway's address and the token for agents, readable by the group of the project's owner
"""

import hashlib
import os
from pathlib import Path

PROTECTED_ROOT = Path("/var/lib/deputize/dev")
GATEWAY_FOLDER = "gateway"
FILES_FOLDER = "files"
CLIENT_FOLDER = "client"
_DIGEST_LENGTH = 24


def locate_protected_folder(project: Path) -> Path:
    """Return where the protected folder of a project is, whether or not it exists."""
    return PROTECTED_ROOT / hashlib.sha256(os.fsencode(project)).hexdigest()[:_DIGEST_LENGTH]
