"""Tell whether this host can run sandboxes, for tests that need a real one."""

import subprocess

import pytest

from deputize.sandboxes.gvisor import find_obstacle as find_gvisor_obstacle
from deputize.sandboxes.gvisor import find_runsc
from deputize.sandboxes.namespaces import find_bubblewrap

# A program of the base of sandboxes: the interpreter of the tests is not in it.
PYTHON = "/usr/bin/python3"


def _find_obstacle() -> str | None:
    program = find_bubblewrap()
    if program is None:
        return "bubblewrap is not installed"
    words = [program, "--unshare-all", "--disable-userns", "--unshare-user", "--ro-bind", "/", "/"]
    tried = subprocess.run([*words, PYTHON, "-c", ""], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"this host starts no sandbox: {tried.stderr.strip()[-200:]}"


obstacle = _find_obstacle()
needs_sandboxes = pytest.mark.skipif(obstacle is not None, reason=obstacle or "")
_gvisor_obstacle = find_gvisor_obstacle(find_runsc())
needs_gvisor = pytest.mark.skipif(_gvisor_obstacle is not None, reason=_gvisor_obstacle or "")
