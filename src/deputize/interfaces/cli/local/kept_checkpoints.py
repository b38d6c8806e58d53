"""Keep the newest checkpoint of each log that was verified on this machine, and the keys that signed it."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from deputize.core.config_error import ConfigError
from deputize.evidence.log.checkpoint import LogCheckpoint, open_checkpoint
from deputize.evidence.log.receipt_check import parse_log_keys
from deputize.evidence.log.signed_note import MAX_NOTE_SIZE, VerifierKey, parse_note
from deputize.interfaces.cli.local.project_file import find_dev_gateway, find_state_folder
from deputize.store.private_file import replace_file


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptCheckpoint:
    """What was known of a log when it was last verified."""

    note: str
    keys: list[VerifierKey]

    @property
    def checkpoint(self) -> LogCheckpoint:
        """The checkpoint; raise `InvalidNote` if the file was changed."""
        return open_checkpoint(parse_note(self.note.encode()), self.keys)


def locate_kept_checkpoint(url: str, tenant: str) -> Path:
    """Locate the file for a log: in the project of a development gateway, else in the folder of the user."""
    name = hashlib.sha256(f"{url}\n{tenant}".encode()).hexdigest()[:32]
    state_folder = find_state_folder()
    dev_gateway = find_dev_gateway(state_folder)
    if dev_gateway is not None and dev_gateway.url.rstrip("/") == url and os.access(state_folder, os.W_OK):
        # A database that is created anew takes this folder with it.
        return state_folder / "verified-logs" / f"{name}.json"
    root = os.environ.get("XDG_STATE_HOME")
    return (Path(root) if root else Path.home() / ".local" / "state") / "deputize" / "verified-logs" / f"{name}.json"


def load_kept_checkpoint(path: Path) -> KeptCheckpoint | None:
    """Load what was kept; None if the log was never verified here."""
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_bytes()[:MAX_NOTE_SIZE])
        kept_checkpoint = KeptCheckpoint(note=document["note"], keys=parse_log_keys("\n".join(document["keys"])))
        _ = kept_checkpoint.checkpoint
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}): it holds the checkpoint that was last verified. Restore it, or name a "
            "file of your own with --state."
        ) from error
    return kept_checkpoint


def save_kept_checkpoint(path: Path, kept_checkpoint: KeptCheckpoint) -> None:
    """Keep a checkpoint that was verified, instead of the one before."""
    document = {"note": kept_checkpoint.note, "keys": [str(key) for key in kept_checkpoint.keys]}
    try:
        replace_file(path, json.dumps(document, indent=1).encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}): choose another file with --state.") from error
