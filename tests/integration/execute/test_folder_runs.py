"""Programs run on a copy of a folder: whatever they do, the folder, the host and the network are as they were."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import pytest_asyncio

from deputize.core.contract.tools import FolderRun
from deputize.core.errors import ToolPrecondition, ToolRequiresSetup
from deputize.execute import folder_runs
from deputize.execute.folder_runs import FolderRuns, copy_folder
from deputize.sandboxes.client import SandboxClient
from deputize.sandboxes.port import SandboxLimits
from tests.support.sandbox_host import PYTHON, needs_sandboxes

pytestmark = [pytest.mark.requirement("EXE-4"), needs_sandboxes]

FAR = folder_runs.Deadline(2.0**40)
HOSTILE = """
import os, socket
def tried(act):
    try: act()
    except OSError as error: return type(error).__name__
    return "done"
print("link", tried(lambda: open("link").read()))
print("host", tried(lambda: open({secret!r}).read()))
print("source", tried(lambda: open("/source/new", "w")), tried(lambda: os.unlink("/source/a.py")))
print("tool", tried(lambda: open("{tool}/new", "w")), open("{tool}/lib").read())
print("net", tried(lambda: socket.create_connection(("127.0.0.1", 1), 1)))
open("a.py", "w").write("changed"); open("made", "w").write("made")
print("here", sorted(os.listdir(".")), os.access("run.sh", os.X_OK), os.environ["MODE"], sorted(os.environ))
"""


class Lab:
    def __init__(self, folder: Path, client: SandboxClient, tool: Path) -> None:
        self.folder, self._client, self._tool = folder, client, tool

    async def run(self, *command: str, seconds: float = 120, **limits: int) -> FolderRun:
        runs = FolderRuns(
            self._client, limits=SandboxLimits(**limits), folders=[self._tool], environment={"MODE": "quick"}
        )
        return await runs.run(command, lambda: nullcontext(self.folder), seconds)


@pytest_asyncio.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    monkeypatch.setenv("OUR_SECRET", "canary")
    # A copy is for the user of sandboxes, who may not read the folder itself.
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    folder, tool = tmp_path / "work", Path("/tmp") / f"deputize-tool-{os.getpid()}"
    (folder / "src").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    tool.mkdir(mode=0o755)
    (tool / "lib").write_text("toolchain")
    client = SandboxClient(tmp_path / "sandboxes", accept_weak_limits=True, accept_shared_user=True)
    yield Lab(folder, client, tool)
    await client.aclose()
    (tool / "lib").unlink()
    tool.rmdir()


async def test_a_program_changes_its_copy_and_nothing_else(lab: Lab, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("canary")
    (lab.folder / "a.py").write_text("as it was")
    (lab.folder / "run.sh").touch(mode=0o700)
    (lab.folder / "link").symlink_to(secret)
    os.mkfifo(lab.folder / "pipe")
    for name in (".git", ".deputize"):
        (lab.folder / name).mkdir()
    tool = f"/tmp/deputize-tool-{os.getpid()}"
    left = set(os.listdir("/tmp"))
    ended = await lab.run(PYTHON, "-S", "-c", HOSTILE.format(secret=str(secret), tool=tool))
    assert ended.stdout.splitlines() == [
        "link FileNotFoundError", "host FileNotFoundError", "source OSError OSError", "tool OSError toolchain",
        "net PermissionError",
        "here ['a.py', 'link', 'made', 'run.sh', 'src'] True quick ['HOME', 'LANG', 'MODE', 'NO_COLOR', 'OLDPWD', "
        "'PATH', 'PWD', 'TERM']",
    ], ended  # fmt: skip
    assert (ended.ended_by, ended.exit_code) == ("exit", 0)
    assert (lab.folder / "a.py").read_text() == "as it was"
    assert not (lab.folder / "made").exists()
    assert not [each for each in set(os.listdir("/tmp")) - left if each.startswith("deputize-scratch-")]


async def test_every_end_is_an_answer(lab: Lab) -> None:
    ends = {
        "exit": ("raise SystemExit(3)", {}),
        "deadline": ("import time; time.sleep(600)", {"seconds": 3}),
        "memory": ("b'x' * 900_000_000", {}),
        "crash": ("import ctypes; ctypes.string_at(0)", {}),
        "output": ("while True: print('x' * 9999)", {}),
    }
    for expected, (code, options) in ends.items():
        ended = await lab.run(PYTHON, "-c", code, **options)
        assert ended.ended_by == expected, ended
    assert (await lab.run("/usr/bin/no-such")).exit_code == 127
    full = await lab.run(PYTHON, "-c", "open('big', 'wb').write(b'x' * 9_000_000)", storage_bytes=4_000_000)
    assert "No space left" in full.stderr


async def test_a_host_without_sandboxes_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deputize.sandboxes.client._START_SECONDS", 0.0)
    (tmp_path / "file").touch()
    runs = FolderRuns(SandboxClient(tmp_path / "file"), limits=SandboxLimits())
    with pytest.raises(ToolRequiresSetup, match="needs a sandbox"):
        await runs.run(["/usr/bin/true"], lambda: nullcontext(tmp_path), 10)


def test_what_is_too_much_to_copy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, number = tmp_path / "source", iter(range(100))
    source.mkdir()

    def refuse(end: folder_runs.Deadline = FAR) -> str:
        target = tmp_path / f"copy{next(number)}"
        target.mkdir()
        with pytest.raises(ToolPrecondition) as refusal:
            folder_runs._copy_opened(lambda: nullcontext(source), target, end)
        return refusal.value.message

    with (source / "sparse").open("wb") as file:
        file.truncate(folder_runs.MAX_BYTES + 1)
    monkeypatch.setattr(folder_runs, "MAX_BYTES", 1_000_000)
    assert "too much to copy" in refuse()
    (source / "sparse").unlink()
    for name in range(11):
        (source / str(name)).touch()
    assert "all of the time" in refuse(end=folder_runs.Deadline(0.0))
    monkeypatch.setattr(folder_runs, "MAX_FILES", 10)
    assert "too much to copy" in refuse()
    (source / "0").chmod(0)
    if os.geteuid() != 0:
        assert "cannot be copied" in refuse()


def test_folders_that_are_too_deep_are_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    source.joinpath(*["d"] * 101).mkdir(parents=True)
    with pytest.raises(ToolPrecondition, match="more than 100 deep"):
        folder_runs._copy_opened(lambda: nullcontext(source), target, FAR)


async def test_a_call_that_is_canceled_while_it_copies_leaves_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, scratches = threading.Event(), []

    def copy_on(source: Path, target: Path, end: folder_runs.Deadline) -> None:
        scratches.append(target)
        began.set()
        while not end.is_over:
            (target / "part").write_text("part")

    monkeypatch.setattr(folder_runs, "copy_folder", copy_on)
    running = asyncio.create_task(lab.run("/usr/bin/true"))
    await asyncio.to_thread(began.wait, 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not scratches[0].parent.exists()


def test_a_copy_follows_no_link(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("canary")
    (source / "folder").symlink_to("../outside")
    (source / "file").symlink_to("../outside/secret")
    copy_folder(source, target, FAR)
    assert {each.name for each in target.rglob("*")} == {"folder", "file"}
    assert all(each.is_symlink() for each in target.iterdir())
