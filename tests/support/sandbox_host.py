"""Tell whether this host can run sandboxes, for tests that need a real one, and be a gateway of either user."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
_GATEWAY_UID = 64_321
_AS_ANOTHER = pytest.param(
    "another user", marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can be a gateway of another user")
)


@dataclass(frozen=True)
class GatewayHost:
    """A folder of the gateway, and the folder of the supervisor that it uses."""

    folder: Path
    supervisor: Path


@contextlib.contextmanager
def _act_as(uid: int) -> Iterator[None]:
    """Let all threads of this process act as another user: files and connections are those of its gateway."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@pytest.fixture(params=["same user", _AS_ANOTHER])
def gateway_host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayHost]:
    """A gateway of the supervisor's user, and one of another: what is shown, copied and left passes between both.

    Its folders are ones that only it may enter.
    """
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        root.chmod(0o755)
        host = GatewayHost(folder=root / "gateway", supervisor=root / "sandboxes")
        host.folder.mkdir(mode=0o700)
        host.supervisor.mkdir(mode=0o755)
        monkeypatch.setattr(tempfile, "tempdir", str(host.folder))
        if request.param == "another user":
            os.chown(host.folder, _GATEWAY_UID, _GATEWAY_UID)
            words = ["-m", "deputize.sandboxes.supervisor", str(host.supervisor), "--stay"]
            words += ["--allow", str(_GATEWAY_UID)]
            supervisor = stack.enter_context(
                subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True)
            )
            stack.callback(supervisor.kill)
            assert supervisor.stderr is not None
            assert supervisor.stderr.readline().startswith("Serving at ")
            stack.enter_context(_act_as(_GATEWAY_UID))
        yield host
