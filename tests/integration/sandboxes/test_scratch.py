"""Scratch folders of gateways that were killed are removed, and none of a living one."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from deputize.sandboxes.client import SandboxClient
from deputize.sandboxes.scratch import open_scratch
from tests.support.sandbox_host import needs_sandboxes

pytestmark = [pytest.mark.requirement("EXE-2"), needs_sandboxes]
KILLED = """
import os, sys
from deputize.sandboxes.scratch import make_scratch
folder, _ = make_scratch()
for _ in range(1_500):
    os.chdir(folder)
    os.mkdir("d")
    folder = "d"
os.kill(os.getpid(), 9)
"""


async def test_the_next_supervisor_removes_what_killed_processes_left_and_nothing_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(folder)}, check=False)
    (killed,) = folder.iterdir()
    (folder / f"{killed.name}-link").symlink_to(tmp_path)
    client = SandboxClient(tmp_path / "sandboxes", accept_weak_limits=True, accept_shared_user=True)
    async with open_scratch() as used:
        await client.connect()
        assert sorted(folder.iterdir()) == sorted([used.parent, folder / f"{killed.name}-link"])
        await client.aclose()
    assert not used.parent.exists()
