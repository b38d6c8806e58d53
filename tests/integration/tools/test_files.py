"""The tools of a folder are governed like any other: called over HTTP, by rules on paths, with previews and undo."""

import fcntl
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deputize import ToolPrecondition
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.settings import HookSettings, KeySettings, PolicySettings, Settings, ToolSettings
from deputize.core.settings.builtin import BuiltinSettings, FilesSettings
from deputize.interfaces.cli.local.builtin_tools import add_builtin_tools
from deputize.interfaces.cli.local.project_gateway import load_project
from deputize.interfaces.cli.local.tool_loader import load_tool_files
from deputize.tools.files import reading
from deputize.tools.files.changes import Changes
from deputize.tools.files.declarations import MAX_CONTENT, declare_tools
from deputize.tools.files.folder import Folder, iter_chunks
from tests.integration.conftest import HttpGateway, serve_gateway
from tests.support.policies import OPEN_POLICY

pytestmark = [pytest.mark.requirement("EXE-4"), pytest.mark.requirement("GOV-4")]

ONLY_SOURCES = """
@id("only-src")
forbid (principal, action == Action::"call", resource in Namespace::"files")
when { resource.effects != "read" }
unless { context.facts has path && context.facts.path like "src/*" };

@id("to-src")
forbid (principal, action == Action::"call", resource in Namespace::"files")
when { resource.effects != "read" && context.facts has to_path && !(context.facts.to_path like "src/*") };
"""


def digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class FilesGateway:
    gateway: HttpGateway
    root: Path

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        token = self.gateway.token(scopes=("files:read", "files:write"))
        dry_run = arguments.pop("dry_run", False)
        answer = await self.gateway.call(
            f"files.{tool}", arguments, token=token, dry_run=dry_run, key=None if dry_run else uuid.uuid4().hex
        )
        envelope: dict[str, Any] = answer.json()
        return envelope

    async def plan_undo(self, call_id: str) -> dict[str, Any]:
        answer = await self.gateway.post("/v1/undo/plan", {"call_id": call_id}, token=self._make_undo_token())
        plan: dict[str, Any] = answer.json()
        return plan

    def _make_undo_token(self) -> str:
        return self.gateway.token(scopes=("files:read", "files:write", "deputize:undo"))

    async def undo(self, call_id: str) -> dict[str, Any]:
        """Take a call back, and return the step that did it."""
        token, plan = self._make_undo_token(), await self.plan_undo(call_id)
        body = {"call_id": call_id, "digest": plan["digest"]}
        done = (await self.gateway.post("/v1/undo", body, token=token)).json()
        (step,) = done["made"]
        made: dict[str, Any] = step
        return made

    async def get_result(self, tool: str, **arguments: Any) -> dict[str, Any]:
        envelope = await self.call(tool, **arguments)
        assert envelope["state"] == "succeeded", envelope
        result: dict[str, Any] = envelope["result"]
        return result


def load_settings(folder: Path) -> Settings:
    return Settings(builtin=BuiltinSettings(files=FilesSettings(folder=folder)))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def files(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FilesGateway]:
    folder = tmp_path_factory.mktemp("project")
    root = tmp_path_factory.mktemp("workspace")
    (root / "src").mkdir()
    (root / "src" / "main.py").write_text("one\n")
    policy_file = folder / "files.cedar"
    policy_file.write_text(OPEN_POLICY + ONLY_SOURCES)
    project_tools = load_project(load_settings(root), folder)
    assert not project_tools.refusals

    def use_policies(settings: Settings) -> Settings:
        return settings.model_copy(update={"policy": PolicySettings(files=(str(policy_file),))})

    options = {"tools": tuple(project_tools.tools)}
    async with serve_gateway(module_database, folder, change=use_policies, gateway_options=options) as gateway:
        yield FilesGateway(gateway=gateway, root=root)


async def test_each_tool_is_called_over_http(files: FilesGateway) -> None:
    page = await files.get_result("read", path="src/main.py")
    assert (page["content"], page["sha256"]) == ("one\n", digest("one\n"))
    written = await files.get_result("write", path="src/a/b.py", content="two\n", expected_sha256="absent")
    assert written["before_sha256"] == "absent"
    assert [each["name"] for each in (await files.get_result("list", path="src"))["entries"]] == ["a", "main.py"]
    assert (await files.get_result("search", glob="*.py"))["paths"] == ["src/a/b.py", "src/main.py"]
    found = await files.get_result("search_content", pattern="^t.o$")
    assert found["lines"] == [{"path": "src/a/b.py", "line": 1, "text": "two"}]
    difference = await files.get_result("diff", path="src/main.py", to="src/a/b.py")
    assert "-one\n+two" in difference["diff"]
    assert (await files.get_result("metadata", path="src/a"))["kind"] == "folder"
    moved = await files.get_result("move", path="src/a/b.py", to="src/c.py", expected_sha256=digest("two\n"))
    deleted = await files.get_result("delete", path="src/c.py", expected_sha256=digest("two\n"))
    assert not (files.root / "src" / "c.py").exists()
    for path, to, change in (
        ("src/c.py", "src/c.py", deleted), ("src/a/b.py", "src/c.py", moved), ("src/a/b.py", "src/a/b.py", written),
    ):  # fmt: skip
        await files.get_result("restore", path=path, to=to, change=change["change"])
    assert os.listdir(files.root / "src") == ["main.py"]


async def test_a_preview_shows_the_difference_and_what_does_not_hold(files: FilesGateway) -> None:
    arguments = {"path": "src/main.py", "content": "new\n", "expected_sha256": digest("one\n")}
    told = await files.call("write", **arguments, dry_run=True)
    assert told["preview"]["impact"]["diff"][-2:] == ["-one", "+new"]
    assert told["would"]["behavior"] == "run"
    told = await files.call("write", **{**arguments, "expected_sha256": "absent"}, dry_run=True)
    assert told["would"]["behavior"] == "refuse"
    told = await files.call("delete", path="src/main.py", expected_sha256=digest("one\n"), dry_run=True)
    assert "+++ /dev/null" in told["preview"]["impact"]["diff"]
    assert (files.root / "src" / "main.py").read_text() == "one\n"


async def test_the_longest_content_fits_into_a_request(files: FilesGateway) -> None:
    content = "é" * MAX_CONTENT
    written = await files.get_result("write", path="src/long", content=content, expected_sha256="absent")
    assert written["after_sha256"] == digest(content)
    (files.root / "src" / "long").unlink()


def test_a_preview_writes_nothing(tmp_path: Path) -> None:
    (restore,) = [each for each in declare_tools(tmp_path) if each.__name__ == "restore"]
    with pytest.raises(ToolPrecondition, match="no change of this folder is kept"):
        getattr(restore, ATTRIBUTE).preview(path="a", to="a", change="0" * 32)
    assert os.listdir(tmp_path) == []


async def test_a_mismatch_is_a_conflict_that_names_the_current_digest(files: FilesGateway) -> None:
    envelope = await files.call("write", path="src/main.py", content="x", expected_sha256=digest("other"))
    assert (envelope["error"]["slug"], envelope["error"]["details"]["current_sha256"]) == (
        "tool-conflict", digest("one\n"),
    )  # fmt: skip


async def test_a_change_that_waits_in_vain_for_another_is_a_conflict(files: FilesGateway) -> None:
    folder = Folder(files.root)
    folder.make_reserved("files", "kept")
    with folder.open_reserved("files", "kept") as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)
        envelope = await files.call("write", path="src/late.py", content="x", expected_sha256="absent")
    assert envelope["error"]["slug"] == "tool-conflict", envelope
    assert not (files.root / "src" / "late.py").exists()


async def test_a_search_that_takes_too_long_says_so(files: FilesGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_slowly(descriptor: int, limit: int, offset: int = 0) -> Iterator[bytes]:
        time.sleep(0.5)
        yield from iter_chunks(descriptor, limit, offset)

    for number in range(15):
        (files.root / f"long{number}").write_text("long\n")
    monkeypatch.setattr(reading, "iter_chunks", read_slowly)
    found = await files.get_result("search_content", pattern="long")
    assert found["is_cut"]
    assert found["lines"]
    for each in files.root.glob("long*"):
        each.unlink()


async def test_a_rule_limits_changes_to_a_folder(files: FilesGateway) -> None:
    for path in ("docs/a.md", "srcx/a.md"):
        envelope = await files.call("write", path=path, content="x", expected_sha256="absent")
        assert envelope["state"] == "denied", envelope
    moved = await files.call("move", path="src/main.py", to="docs/main.py", expected_sha256=digest("one\n"))
    assert moved["state"] == "denied", moved


async def test_taking_a_move_back_is_judged_by_both_paths(files: FilesGateway) -> None:
    (files.root / "docs").mkdir()
    (files.root / "docs" / "in").write_text("in\n")
    # Moved by someone whom no rule keeps out of docs.
    folder = Folder(files.root)
    Changes(folder).move("1" * 32, "docs/in", "src/in", digest("in\n"))
    envelope = await files.call("restore", path="src/in", to="src/in", change="1" * 32)
    assert envelope["state"] == "failed", envelope
    for path, to in (("docs/in", "src/in"), ("src/in", "docs/in")):
        envelope = await files.call("restore", path=path, to=to, change="1" * 32)
        assert envelope["state"] == "denied", envelope
    assert (files.root / "src" / "in").read_text() == "in\n"
    (files.root / "src" / "in").unlink()


async def test_a_new_file_is_previewed(files: FilesGateway) -> None:
    envelope = await files.call("write", path="src/new.py", content="n\n", expected_sha256="absent", dry_run=True)
    assert envelope["would"]["behavior"] == "run", envelope
    assert envelope["preview"]["impact"]["diff"][-1] == "+n"


async def test_a_change_whose_file_is_no_longer_kept_is_not_promised(files: FilesGateway) -> None:
    changed = await files.call("write", path="src/main.py", content="2\n", expected_sha256=digest("one\n"))
    assert (await files.plan_undo(changed["call_id"]))["ready"] == 1
    shutil.rmtree(files.root / ".deputize" / "files")
    (step,) = (await files.plan_undo(changed["call_id"]))["steps"]
    assert (step["verdict"], step["reason"]) == ("blocked", "would_fail")
    assert "is kept" in step["detail"]
    await files.get_result("write", path="src/main.py", content="one\n", expected_sha256=digest("2\n"))


async def test_undo_takes_a_move_back_and_brings_it_again(files: FilesGateway) -> None:
    moved = await files.call("move", path="src/main.py", to="src/x/main.py", expected_sha256=digest("one\n"))
    assert moved["state"] == "succeeded", moved
    undone = await files.undo(moved["call_id"])
    assert (undone["state"], (files.root / "src" / "main.py").exists()) == ("succeeded", True), undone
    await files.undo(undone["call_id"])
    assert (files.root / "src" / "x" / "main.py").read_text() == "one\n"
    await files.get_result("move", path="src/x/main.py", to="src/main.py", expected_sha256=digest("one\n"))


@pytest.mark.parametrize("path", ["src/../docs/a.md", "./src/a", "/etc/passwd", "src//a", "../x", "src/a\n"])
async def test_another_spelling_of_a_path_is_no_path(files: FilesGateway, path: str) -> None:
    for tool, arguments in {"read": {}, "write": {"content": "x", "expected_sha256": "absent"}}.items():
        envelope = await files.call(tool, path=path, **arguments)
        assert envelope["error"]["slug"] == "schema-violation", envelope


def test_they_are_off_without_a_folder_and_refused_with_a_wrong_one(tmp_path: Path) -> None:
    assert load_project(Settings(), tmp_path).tools == []
    (tmp_path / "file").touch()
    for folder in (Path("none"), Path("file"), Path(), Path("..")):
        project_tools = load_project(load_settings(folder), tmp_path)
        (refusal,) = project_tools.refusals
        assert (refusal.what, project_tools.tools) == ("[builtin.files]", [])
        assert f"folder {folder} cannot be used" in refusal.reasons[0]


@pytest.mark.parametrize(
    "folder",
    ["policies", "tools", "tools/more", "manifests", ".deputize/x", "hooks", "secrets", "anywhere/b", "link", "around"],
)
def test_a_folder_with_what_governs_the_agent_is_refused(tmp_path: Path, folder: str) -> None:
    for name in ("policies", "tools/more", "manifests", ".deputize/x", "hooks", "secrets", "anywhere/b", "around/box"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("tools")
    (tmp_path / "rules").symlink_to("around/box")
    (tmp_path / "policies" / "a.cedar").write_text(OPEN_POLICY)
    settings = Settings(
        builtin=BuiltinSettings(files=FilesSettings(folder=Path(folder))),
        tools=ToolSettings(python=("tools/*.py", "*.py"), manifests=("manifests/**/*.yaml", "anywhere/*/tool.yaml")),
        policy=PolicySettings(files=("policies/*.cedar", "rules/*.cedar")),
        keys=KeySettings(master_file=Path("secrets/master.key")),
    )
    if folder == "hooks":
        settings = settings.model_copy(update={"hooks": (HookSettings(name="x", function="hooks/x.py:x"),)})
    project_tools = load_tool_files((), (), tmp_path)
    add_builtin_tools(project_tools, settings, tmp_path)
    (refusal,) = project_tools.refusals
    assert f"folder {folder} cannot be used" in refusal.reasons[0]
    assert project_tools.tools == []


def test_a_folder_beside_the_files_of_the_project_is_used(tmp_path: Path) -> None:
    (tmp_path / "workspace" / "src").mkdir(parents=True)
    settings = load_settings(Path("workspace")).model_copy(
        update={"tools": ToolSettings(python=("*.py", "tools/*.py"), manifests=("apis/*/tool.yaml",))}
    )
    project_tools = load_project(settings, tmp_path)
    assert (len(project_tools.tools), project_tools.refusals) == (10, [])
    settings = settings.model_copy(update={"tools": ToolSettings(python=("**/*.py",))})
    (refusal,) = load_project(settings, tmp_path).refusals
    assert "[tools] python lists **/*.py" in refusal.reasons[0]
