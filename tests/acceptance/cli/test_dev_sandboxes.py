"""`deputize dev` of a plain user, who has no control groups: what needs a sandbox works, with the limits there are."""

import asyncio
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli.cli_process import (
    BackgroundCommand,
    find_obstacle_to_other_users,
    make_project,
    run_deputize,
)
from tests.support.egress_server import make_ok_response, run_server
from tests.support.sandbox_host import PYTHON, needs_sandboxes

# An account that no program of this host runs as; PostgreSQL wants one that exists.
_ACCOUNT = "games"
_SETTINGS = """
[builtin.files]
folder = "workspace"
[builtin.build]
test = ["{python}", "-c", "print('built')"]
"""
_BROWSER_SETTINGS = """
[builtin.browser]
private_hosts = ["localhost:{port}"]
"""
_obstacle = find_obstacle_to_other_users()
pytestmark = [
    needs_sandboxes,
    pytest.mark.requirement("EXE-4"),
    pytest.mark.skipif(bool(_obstacle), reason=_obstacle),
]


@pytest.fixture
def project() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="deputize-plain-", dir="/tmp"))
    folder.chmod(0o755)
    project = make_project(folder / "project")
    (project / "workspace").mkdir()
    yield project
    shutil.rmtree(folder, ignore_errors=True)


async def test_builds_and_browsers_have_their_sandbox_in_development(project: Path) -> None:
    async with run_server(lambda path, host: make_ok_response(b"<p>hello</p>", b"Content-Type: text/html")) as server:
        await asyncio.to_thread(_require_sandboxed_tools, project, server.port)


def _require_sandboxed_tools(project: Path, port: int) -> None:
    uid = pwd.getpwnam(_ACCOUNT).pw_uid
    has_browser = shutil.which("chromium") is not None
    settings = _SETTINGS + (_BROWSER_SETTINGS if has_browser else "")
    with (project / "deputize.toml").open("a") as file:
        file.write(settings.format(python=PYTHON, port=port))
    for path in (project, *project.rglob("*")):
        os.chown(path, uid, uid)
    with BackgroundCommand("dev", folder=project, uid=uid) as dev:
        dev.wait_for_line("▶ MCP")
        built = run_deputize("call", "build.test", folder=project)
        assert (built.code, "built" in built.out) == (0, True), built.output
        if has_browser:
            url = f"url=http://localhost:{port}/"
            shown = run_deputize("call", "browser.navigate", url, "session=new", folder=project)
            assert (shown.code, "hello" in shown.out) == (0, True), shown.output
        assert dev.interrupt() == 0
