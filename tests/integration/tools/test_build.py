"""What agents changed is built and tested by the operator's commands: in the folder, and on branches."""

import hashlib
import tempfile
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pydantic import ValidationError

from deputize.core.settings import PolicySettings, Settings
from deputize.core.settings.builtin import BuildSettings, BuiltinSettings, FilesSettings, GitSettings
from deputize.core.settings.sandboxes import SandboxSettings
from deputize.interfaces.cli.local.project_gateway import load_project
from tests.integration.conftest import HttpGateway, serve_gateway
from tests.support.git_traps import make_ground
from tests.support.policies import open_policy
from tests.support.sandbox_host import PYTHON, needs_sandboxes

pytestmark = pytest.mark.requirement("EXE-4")

# Their commands have a sandbox, so that each call below meets the rule.
WALLED = '@id("walled") @backend("namespaces") forbid (principal, action, resource in Namespace::"build");'
TEST = """
import unittest
from prices import PRICE
class Prices(unittest.TestCase):
    def test_price(self):
        self.assertEqual(PRICE, 7)
"""


@dataclass(frozen=True, kw_only=True)
class BuildGateway:
    gateway: HttpGateway

    async def call(self, tool: str, *, dry_run: bool = False, **arguments: Any) -> dict[str, Any]:
        scopes = ("build:run", "files:read", "files:write", "git:read", "git:write", "git:push")
        token = self.gateway.token(scopes=scopes, agent="bot")
        key = None if dry_run else uuid.uuid4().hex
        answer = await self.gateway.call(tool, arguments, token=token, dry_run=dry_run, key=key)
        envelope: dict[str, Any] = answer.json()
        return envelope

    async def get_result(self, tool: str, **arguments: Any) -> dict[str, Any]:
        envelope = await self.call(tool, **arguments)
        assert envelope["state"] == "succeeded", envelope
        result: dict[str, Any] = envelope["result"]
        return result


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def build(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BuildGateway]:
    folder, workspace = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("workspace")
    (workspace / "prices.py").write_text("PRICE = 7\n")
    (workspace / "test_prices.py").write_text(TEST)
    ground = make_ground(tmp_path_factory.mktemp("ground") / "clean")
    settings = Settings(
        environment="development",
        builtin=BuiltinSettings(
            files=FilesSettings(folder=workspace),
            git=GitSettings(repository=ground.repository, require=("lint",)),
            build=BuildSettings(test=(PYTHON, "-m", "unittest"), lint=("/usr/bin/cat", "a.txt")),
        ),
        sandboxes=SandboxSettings(folder=folder / "sandboxes"),
    )
    project_tools = load_project(settings, folder)
    assert not project_tools.refusals
    options = {"tools": tuple(project_tools.tools)}

    def use_policies(settings: Settings) -> Settings:
        (folder / "walled.cedar").write_text(WALLED)
        files = (*open_policy(folder).files, str(folder / "walled.cedar"))
        return settings.model_copy(update={"policy": PolicySettings(files=files)})

    async with serve_gateway(module_database, folder, change=use_policies, gateway_options=options) as gateway:
        yield BuildGateway(gateway=gateway)


@pytest.fixture(autouse=True)
def _use_a_folder_that_every_user_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")


@needs_sandboxes
async def test_a_change_that_breaks_the_tests_is_reported_and_mended(build: BuildGateway) -> None:
    found = await build.get_result("build.test")
    assert (found["passed"], found["summary"], found["failures"]) == (True, "OK", [])
    digest = hashlib.sha256(b"PRICE = 7\n").hexdigest()
    change = {"path": "prices.py", "content": "PRICE = 8\n", "expected_sha256": digest}
    await build.get_result("files.write", **change)
    found = await build.get_result("build.test")
    assert (found["passed"], found["exit_code"], found["summary"]) == (False, 1, "FAILED (failures=1)")
    assert "AssertionError: 8 != 7" in found["failures"]
    assert "Ran 1 test" in found["output"]


@needs_sandboxes
async def test_a_branch_is_checked_with_its_files_as_they_are(build: BuildGateway) -> None:
    await build.get_result("git.start", branch="agent/one", ref="main")
    page = await build.get_result("git.read", branch="agent/one", path="a.txt")
    change = {"path": "a.txt", "content": "new\n", "expected_sha256": page["sha256"]}
    await build.get_result("git.write", branch="agent/one", **change)
    found = await build.get_result("build.lint", branch="agent/one")
    assert (found["passed"], found["output"]) == (True, "new")
    assert "no branch agent/two" in (await build.call("build.lint", branch="agent/two"))["error"]["message"]
    assert (await build.call("build.lint", branch="main"))["error"]["slug"] == "schema-violation"
    assert (await build.call("build.typecheck"))["error"]["slug"] == "tool-not-found"


@needs_sandboxes
async def test_a_push_is_asked_for_once_what_it_requires_has_passed_on_its_files(build: BuildGateway) -> None:
    head = (await build.get_result("git.start", branch="agent/three", ref="main"))["head"]
    refused = await build.call("git.push", branch="agent/three", expected_head=head)
    assert refused["error"]["slug"] == "precondition-failed", refused
    assert (
        f"git.push would fail; not met: required commands: lint has not passed on the files of {head}"
        in (refused["error"]["message"])
    )
    assert "call build.lint with branch=agent/three" in refused["error"]["message"]
    change = {"path": "n.txt", "content": "n\n", "expected_sha256": "absent"}
    await build.get_result("git.write", branch="agent/three", **change)
    assert (await build.get_result("build.lint", branch="agent/three"))["passed"]
    told = await build.call("git.push", dry_run=True, branch="agent/three", expected_head=head)
    assert told["would"]["behavior"] == "refuse", told
    made = await build.get_result("git.commit", branch="agent/three", message="Add n", expected_head=head)
    told = await build.call("git.push", dry_run=True, branch="agent/three", expected_head=made["head"])
    assert told["would"]["behavior"] == "ask", told
    waits = await build.call("git.push", branch="agent/three", expected_head=made["head"])
    assert waits["state"] == "awaiting_approval", waits


async def test_it_needs_files_to_work_on_and_folders_without_keys(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / ".deputize").mkdir()
    (tmp_path / "toolchain").mkdir()

    def list_reasons(files: str | None = "workspace", **options: Any) -> list[str]:
        builtin = BuiltinSettings(
            build=BuildSettings(test=("/usr/bin/true",), **options),
            files=None if files is None else FilesSettings(folder=Path(files)),
        )
        project_tools = load_project(Settings(builtin=builtin), tmp_path)
        assert [each.contract.full_name for each in project_tools.tools if "build." in each.contract.full_name] == (
            [] if any(each.what == "[builtin.build]" for each in project_tools.refusals) else ["build.test"]
        )
        return [each.reasons[0] for each in project_tools.refusals if each.what == "[builtin.build]"]

    assert list_reasons() == []
    assert list_reasons(folders=(Path("toolchain"),)) == []
    assert "no folder to work on" in list_reasons(files=None)[0]
    assert "no folder to work on" in list_reasons(files="none")[0]
    # An agent could change what checks it.
    assert "no folder to work on" in list_reasons(folders=(Path("workspace"),))[0]
    for folder in (Path(), Path(".deputize"), Path("/"), Path("none")):
        assert "cannot be shown" in list_reasons(folders=(folder,))[0]
    with pytest.raises(ValidationError, match="name a command"):
        BuildSettings()
