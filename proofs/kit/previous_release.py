"""The release before this one, from the history of this repository: what an upgrade begins with, a rollback ends at."""

import os
import subprocess
from pathlib import Path
from typing import Final

MIGRATE_SCRIPT: Final = "import sys; from deputize.store.migrate import upgrade; upgrade(sys.argv[1])"
_ROOT = Path(__file__).resolve().parents[2]
PREVIOUS_VERSION: Final = "0.1.0"
# Of 0.1.0, the last commit whose names on the wire are those of today.
_PREVIOUS_COMMIT = "582cf813"
_METADATA = f"Metadata-Version: 2.1\nName: deputize\nVersion: {PREVIOUS_VERSION}\n"


class NoHistoryError(Exception):
    """This clone does not have the commit of the release before."""


def extract_previous_release(folder: Path) -> dict[str, str]:
    """Write the source of the release before into a folder; return the environment in which Python runs it."""
    archive = subprocess.run(["git", "archive", _PREVIOUS_COMMIT, "src"], cwd=_ROOT, capture_output=True, check=False)
    if archive.returncode:
        raise NoHistoryError(f"this clone has no commit {_PREVIOUS_COMMIT}: fetch the whole history")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    # A process tells others its release, which it reads where an installer writes it.
    information = folder / "src" / f"deputize-{PREVIOUS_VERSION}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(_METADATA)
    return {"PYTHONPATH": os.pathsep.join((str(folder / "src"), str(_ROOT)))}
