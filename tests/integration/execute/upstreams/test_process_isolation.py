"""What the program of a server can reach of the gateway that started it."""

import ctypes
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deputize.core.config_error import ConfigError
from deputize.core.settings import McpServerSettings, Settings
from deputize.execute.upstreams.subprocess_server import start_process
from deputize.interfaces.cli.project.process_protection import protect_process

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
    process = await start_process(McpServerSettings(name="thief", command=(python, "-I", str(script)), uid=uid), None)
    try:
        facts: dict[str, object] = json.loads(await process.read_line())
        return facts
    finally:
        await process.stop()


@needs_root
async def test_a_program_with_its_own_user_reads_nothing_of_the_gateway(reachable_folder: Path) -> None:
    facts = await run_thief(reachable_folder, UID)
    assert facts["uids"] == facts["gids"] == [UID] * 3
    assert (facts["groups"], facts["readable"], facts["key"]) == ([], [], False)
    assert (facts["no_new_privs"], facts["folder"]) == ("1", True)
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


@needs_root
def test_a_gateway_of_root_refuses_programs_without_a_user_unless_the_risk_is_accepted() -> None:
    def build_settings(**more: object) -> Settings:
        server = McpServerSettings.model_validate({"name": "orders", "command": ["orders"], **more})
        return Settings(servers=(server,))

    def try_start(settings: Settings) -> int:
        def be_gateway() -> int:
            try:
                protect_process(settings)
            except ConfigError as error:
                return 2 if "orders" in str(error) and "same-user" in str(error) else 3
            return 0

        return run_in_fork(be_gateway)

    assert try_start(build_settings()) == 2
    assert try_start(build_settings(uid=UID)) == 0
    assert try_start(build_settings(accept_risk="same-user")) == 0
