"""`deputize dev --user`: an agent that owns the project cannot read the gateway's state, nor change what it runs."""

import os
import pty
import pwd
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from deputize.interfaces.cli.local.separate_user.protected_folder import locate_protected_folder
from tests.acceptance.cli.cli_process import (
    PROGRAM,
    TIMEOUT_SECONDS,
    BackgroundCommand,
    CompletedCommand,
    find_obstacle_to_other_users,
    make_decoder,
    make_project,
    run_deputize,
)

GATEWAY, OWNER = "daemon", "games"
_obstacle = find_obstacle_to_other_users()


pytestmark = [
    pytest.mark.nightly,
    pytest.mark.requirement("GOV-3"),
    pytest.mark.skipif(bool(_obstacle), reason=_obstacle),
]


@pytest.fixture(scope="module")
def project(workspace: Path) -> Iterator[Path]:
    folder = make_project(workspace / "shop")
    owner = pwd.getpwnam(OWNER)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner.pw_uid, owner.pw_gid)
    yield folder
    shutil.rmtree(locate_protected_folder(folder.resolve()), ignore_errors=True)


def _run_as_owner(
    *words: str, folder: Path, program: str = PROGRAM, env: Mapping[str, str] | None = None
) -> CompletedCommand:
    owner = pwd.getpwnam(OWNER)
    done = subprocess.run(
        [program, *words], cwd=folder, env={"PATH": os.defpath, **(env or {})},
        user=owner.pw_uid, group=owner.pw_gid, extra_groups=(),
        capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False,
    )  # fmt: skip
    return CompletedCommand(code=done.returncode, out=done.stdout, err=done.stderr)


@pytest.mark.parametrize(
    ("user", "sentence"),
    [
        ("no-such-user", "There is no user no-such-user"),
        (OWNER, "belongs to games, so agents would have the gateway's account"),
    ],
)
def test_a_mistake_is_one_sentence(project: Path, user: str, sentence: str) -> None:
    done = run_deputize("dev", "--user", user, folder=project)
    assert (done.code, sentence in done.err) == (2, True), done.output


def test_a_user_who_can_write_to_the_project_is_refused(project: Path) -> None:
    project.chmod(0o777)
    done = run_deputize("dev", "--user", GATEWAY, folder=project)
    project.chmod(0o755)
    assert (done.code, "can write to" in done.err) == (2, True), done.output
    assert not locate_protected_folder(project.resolve()).exists()


def test_only_root_may_start_it_and_not_from_a_module_in_the_project(project: Path) -> None:
    done = _run_as_owner("dev", "--user", GATEWAY, folder=project)
    assert (done.code, "must be started by root" in done.err) == (2, True), done.output
    module = run_deputize("-m", "deputize", "dev", "--user", GATEWAY, folder=project, program=sys.executable)
    assert (module.code, "from which Python loads this program" in module.err) == (2, True), module.output


def test_the_owner_uses_the_gateway_but_changes_nothing_until_a_person_confirms(project: Path) -> None:
    protected = locate_protected_folder(project.resolve())
    with BackgroundCommand("dev", "--user", GATEWAY, folder=project) as dev:
        dev.wait_for_line("✓ first start")
        dev.wait_for_line("▶ MCP")
        gateway = pwd.getpwnam(GATEWAY)
        assert Path(f"/proc/{dev.pid}/status").read_text().split("Uid:\t")[1].split()[:4] == [str(gateway.pw_uid)] * 4

        # Clients of the project's owner find the gateway, with the token for agents.
        assert _run_as_owner("call", "hello.greet", "name=Ana", folder=project).out == '"Hello, Ana!"\n'
        assert _run_as_owner("call", "hello.remember", "text=milk", folder=project).code == 0
        assert not (project / "notes.txt").exists()
        refused = _run_as_owner("token", folder=project)
        assert (refused.code, "runs as another user" in refused.err) == (2, True), refused.output
        assert _run_as_owner("revoke", "user", "boss", folder=project).code == 1

        # What carries more authority is out of reach.
        state = protected / "gateway" / "files" / ".deputize"
        assert (state / "token").read_text() != (protected / "client" / "agent-token").read_text()
        assert sorted(path.name for path in (protected / "client").iterdir()) == ["agent-token", "dev.json"]
        for path in (state / "token", state / "pg.json", state / "master.key", f"/proc/{dev.pid}/environ"):
            assert Path(path).exists()
            assert "Permission denied" in _run_as_owner(str(path), folder=project, program="/bin/cat").err
        second = _run_as_owner("dev", folder=project, env={"DEPUTIZE_FOLDER": str(state)})
        assert (second.code, "cannot be created (Permission denied)" in second.err) == (2, True), second.output
        # Root, who started it, has the developer's token.
        assert run_deputize("approvals", "list", folder=project).code == 0

        hello = project / "tools" / "hello.py"
        hello.write_text(hello.read_text().replace("Hello, {name}", "Changed, {name}"))
        assert _run_as_owner("call", "hello.greet", "name=Ana", folder=project).out == '"Hello, Ana!"\n'
        assert dev.interrupt() == 0

    with _TerminalCommand("dev", "--user", GATEWAY, folder=project) as terminal:
        shown = terminal.read_until("Code, or Enter")
        assert "changed tools/hello.py (+1 −1 lines)" in shown
        code = re.search(r"type the code (\S+)", shown)
        assert code is not None
        terminal.type_line(code[1])
        terminal.read_until("Press Ctrl-C")
        assert _run_as_owner("call", "hello.greet", "name=Ana", folder=project).out == '"Changed, Ana!"\n'
        # What tools wrote is still there.
        assert (protected / "gateway" / "files" / "notes.txt").read_text() == "milk\n"


class _TerminalCommand:
    """A command with a terminal of its own, as a person has it."""

    def __init__(self, *words: str, folder: Path) -> None:
        self._terminal, process_side = pty.openpty()
        self._process = subprocess.Popen(
            [PROGRAM, *words], cwd=folder, env={"NO_COLOR": "1", "TERM": "dumb"}, start_new_session=True,
            stdin=process_side, stdout=process_side, stderr=process_side,
        )  # fmt: skip
        os.close(process_side)
        self._shown, self._decode = "", make_decoder()

    def read_until(self, text: str) -> str:
        ends_at = time.monotonic() + TIMEOUT_SECONDS
        while text not in self._shown:
            ready, _, _ = select.select([self._terminal], [], [], ends_at - time.monotonic())
            assert ready, self._shown
            self._shown += self._decode(os.read(self._terminal, 65_536))
        return self._shown

    def type_line(self, text: str) -> None:
        os.write(self._terminal, f"{text}\n".encode())

    def __enter__(self) -> "_TerminalCommand":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT_SECONDS)
        os.close(self._terminal)
