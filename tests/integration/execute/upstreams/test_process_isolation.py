"""What the program of a server can reach of the gateway that started it."""

import ctypes
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from deputize.core.config_error import ConfigError
from deputize.core.errors import UpstreamUnavailable
from deputize.core.settings import KeySettings, McpServerSettings, Settings
from deputize.execute.upstreams.subprocess_server import start_process
from deputize.interfaces.cli.local.process_protection import protect_process

pytestmark = pytest.mark.requirement("REG-2")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs as another user")
UID = 64_123
PR_SET_DUMPABLE = 4
THIEF = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
gateway = int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1])

def can_read(path):
    try:
        open(path, "rb").read(1)
    except OSError:
        return False
    return True

facts = {
    "uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(),
    "no_new_privs": status["NoNewPrivs"].strip(),
    "descriptors": [name for name in os.listdir("/proc/self/fd") if int(name) > 2],
    "readable": [path for path in ("environ", "mem", "maps") if can_read(f"/proc/{gateway}/{path}")],
    "key": can_read(KEY), "folder": os.access(".", os.W_OK),
    "home": os.environ.get("HOME", ""), "has_own_home": os.access(os.environ.get("HOME", "/"), os.W_OK),
}
print(json.dumps(facts), flush=True)
"""


async def run_thief(folder: Path, uid: int | None) -> dict[str, object]:
    key = folder / "master.key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    script = folder / "thief.py"
    script.write_text(THIEF.replace("KEY", repr(str(key)), 1))
    script.chmod(0o644)
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or os.path.realpath(sys.executable)
    server = McpServerSettings(name="thief", command=(python, "-I", str(script)), sandbox=False, uid=uid)
    process = await start_process(server, None)
    try:
        facts: dict[str, object] = json.loads(await process.read_line())
        return facts
    finally:
        await process.stop()


async def test_a_gateway_without_a_folder_for_temporary_files_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(UpstreamUnavailable, match="mount one at /tmp, or set TMPDIR"):
        await start_process(McpServerSettings(name="shop", command=("/bin/true",), sandbox=False), None)


@needs_root
async def test_a_program_with_its_own_user_reads_nothing_of_the_gateway(reachable_folder: Path) -> None:
    facts = await run_thief(reachable_folder, UID)
    assert facts["uids"] == facts["gids"] == [UID] * 3
    assert (facts["groups"], facts["readable"], facts["key"]) == ([], [], False)
    assert (facts["no_new_privs"], facts["folder"]) == ("1", True)
    # npx and others do not start for a user without a home.
    assert facts["has_own_home"]
    assert not Path(str(facts["home"])).exists()
    # The one that lists the others.
    assert len(facts["descriptors"]) <= 1  # type: ignore[arg-type]  # a list


async def test_every_program_gains_no_privileges_and_inherits_no_descriptors(reachable_folder: Path) -> None:
    with open(reachable_folder / "open.txt", "w") as file:
        os.set_inheritable(file.fileno(), True)
        facts = await run_thief(reachable_folder, None)
    assert facts["no_new_privs"] == "1"
    assert len(facts["descriptors"]) <= 1  # type: ignore[arg-type]  # a list


def run_in_fork(function: Callable[[], int]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = function()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_the_memory_of_a_gateway_is_hidden_from_its_own_user() -> None:
    settings = Settings()

    def read_parent() -> int:
        try:
            Path(f"/proc/{os.getppid()}/environ").read_bytes()
        except PermissionError:
            return 1
        return 0

    def be_gateway() -> int:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(UID, UID, UID)
            os.setresuid(UID, UID, UID)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        was_hidden = run_in_fork(read_parent)
        protect_process(settings)
        return 10 * was_hidden + run_in_fork(read_parent)

    assert run_in_fork(be_gateway) == 1


SANDBOXED: dict[str, object] = {"name": "orders", "command": ["orders"], "sha256": "0" * 64}
PINNED = {**SANDBOXED, "sandbox": False, "accept_risk": ["unsandboxed"]}


def explain_refusal(servers: tuple[dict[str, object], ...], folder: Path, uid: int = 0) -> str:
    """Start the protection as a gateway would, in a process of its own; return the refusal or the programs' users."""
    reader, writer = os.pipe()

    def be_gateway() -> int:
        os.chdir(folder)
        if uid:
            os.setgroups([])
            os.setresuid(uid, uid, uid)
        keys = KeySettings(master_file=Path("master.key"))
        settings = Settings(servers=tuple(McpServerSettings.model_validate(each) for each in servers), keys=keys)
        try:
            text = " ".join(str(each.uid) for each in protect_process(settings).servers)
        except ConfigError as error:
            text = str(error)
        os.write(writer, text.encode())
        return 0

    code = run_in_fork(be_gateway)
    os.close(writer)
    with open(reader, "rb") as stream:
        answer = stream.read().decode()
    assert code == 0
    return answer


def test_a_sandbox_is_shown_no_folder_with_a_key(reachable_folder: Path) -> None:
    (reachable_folder / "data").mkdir()
    (reachable_folder / "master.key").touch()
    assert explain_refusal(({**SANDBOXED, "folders": [{"path": "data"}]},), reachable_folder) == "None"
    (reachable_folder / ".deputize").mkdir()
    for path in (".", str(reachable_folder.parent), "master.key", ".deputize"):
        answer = explain_refusal(({**SANDBOXED, "folders": [{"path": path}]},), reachable_folder)
        assert f"The folder {path} of the server orders is not shown in its sandbox" in answer
        assert "belongs to the gateway, would be seen there" in answer


def test_a_sandbox_changes_no_place_of_another_folder(reachable_folder: Path) -> None:
    for name in ("tools", "data/models", "results"):
        (reachable_folder / name).mkdir(parents=True)
    writing = {**SANDBOXED, "name": "shop", "folders": [{"path": "data", "write": True}]}
    for folders in (
        [{"path": "tools"}, {"path": "not-yet"}],
        [{"path": "results", "write": True}, {"path": "data/models"}],
    ):
        assert explain_refusal(({**SANDBOXED, "folders": folders},), reachable_folder) == "None"
    answer = explain_refusal((writing, {**SANDBOXED, "folders": [{"path": "data/models"}]}), reachable_folder)
    assert "The folder data/models of the server orders is in a folder that a program may change" in answer


@needs_root
def test_every_program_of_a_gateway_of_root_gets_an_unused_user_of_its_own(reachable_folder: Path) -> None:
    answer = explain_refusal(
        (PINNED, {**PINNED, "name": "shop"}, {**PINNED, "name": "own", "uid": UID}), reachable_folder
    )
    orders, shop, own = (int(each) for each in answer.split())
    assert own == UID
    assert len({orders, shop, own}) == 3
    assert all(61_184 <= each <= 65_519 for each in (orders, shop))
    # The same at every start, so that files can be given to it.
    assert explain_refusal((PINNED,), reachable_folder) == str(orders)
    assert explain_refusal(({**PINNED, "accept_risk": ["same-user", "unsandboxed"]},), reachable_folder) == "None"


@needs_root
@pytest.mark.parametrize("name", ["master.key", ".deputize/token", "deputize.toml"])
def test_a_program_whose_user_could_read_a_secret_is_refused_with_the_files_name(
    reachable_folder: Path, name: str
) -> None:
    file = reachable_folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text('[database]\nurl = "postgresql://gateway:hunter2@db/app"\n')
    file.chmod(0o600)
    assert explain_refusal((PINNED,), reachable_folder).isdigit()
    file.chmod(0o644)
    answer = explain_refusal((PINNED,), reachable_folder)
    assert f"can read {name}" in answer
    assert "chmod 600" in answer
    # A folder that the program's user cannot enter hides the file as well.
    reachable_folder.chmod(0o700)
    assert explain_refusal((PINNED,), reachable_folder).isdigit()


@needs_root
def test_a_gateway_of_another_user_refuses_programs_that_could_read_its_key(reachable_folder: Path) -> None:
    assert explain_refusal((PINNED,), reachable_folder, UID) == "None"
    key = reachable_folder / "master.key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o400)
    os.chown(key, UID, UID)
    assert "can read master.key" in explain_refusal((PINNED,), reachable_folder, UID)
    assert explain_refusal(({**PINNED, "accept_risk": ["same-user", "unsandboxed"]},), reachable_folder, UID) == "None"
    assert "needs a gateway that runs as root" in explain_refusal(({**PINNED, "uid": UID},), reachable_folder, UID)


def test_a_program_without_a_sandbox_is_refused_unless_the_risk_is_accepted(reachable_folder: Path) -> None:
    answer = explain_refusal(({**SANDBOXED, "sandbox": False},), reachable_folder)
    assert "the server orders would run without a sandbox" in answer
    assert 'accept_risk = ["unsandboxed"]' in answer
    assert "sandbox" not in explain_refusal((PINNED,), reachable_folder)
    assert explain_refusal((SANDBOXED,), reachable_folder) == "None"


def test_a_program_without_digests_is_refused_unless_the_risk_is_accepted(reachable_folder: Path) -> None:
    unpinned: dict[str, object] = {"name": "orders", "command": ["orders"]}
    answer = explain_refusal((unpinned,), reachable_folder)
    assert "deputize servers pin orders" in answer
    assert "unpinned" in answer
    assert "digest" not in explain_refusal(({**unpinned, "accept_risk": "unpinned"},), reachable_folder)
