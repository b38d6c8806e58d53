"""The tools of a repository are governed like any other: over HTTP, with rules on branches, previews and undo."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deputize.core.settings import PolicySettings, Settings
from deputize.core.settings.builtin import BuiltinSettings, GitSettings
from deputize.interfaces.cli.local.project_gateway import load_project
from tests.integration.conftest import HttpGateway, serve_gateway
from tests.support.git_traps import Ground, make_ground
from tests.support.policies import OPEN_POLICY

pytestmark = [pytest.mark.requirement("EXE-4"), pytest.mark.requirement("GOV-4")]

NO_RELEASES = """
@id("no-releases")
forbid (principal, action == Action::"call", resource in Namespace::"git")
when { resource.effects != "read" && context.facts has branch && context.facts.branch like "agent/release*" };

@id("no-pipelines")
forbid (principal, action == Action::"call", resource in Namespace::"git")
when { resource.effects != "read" && context.facts has path && context.facts.path like ".github/*" };
"""
SCOPES = ("git:read", "git:write", "git:push")


@dataclass(frozen=True, kw_only=True)
class GitGateway:
    gateway: HttpGateway
    ground: Ground
    folder: Path

    async def call(
        self, tool: str, *, dry_run: bool = False, session: str | None = None, **arguments: Any
    ) -> dict[str, Any]:
        key = None if dry_run else uuid.uuid4().hex
        token = self.gateway.token(scopes=SCOPES, agent="bot")
        answer = await self.gateway.call(
            f"git.{tool}", arguments, token=token, dry_run=dry_run, session=session, key=key
        )
        envelope: dict[str, Any] = answer.json()
        return envelope

    async def get_result(self, tool: str, **arguments: Any) -> dict[str, Any]:
        envelope = await self.call(tool, **arguments)
        assert envelope["state"] == "succeeded", envelope
        result: dict[str, Any] = envelope["result"]
        return result

    async def plan_undo(self, **selection: str) -> dict[str, Any]:
        token = self.gateway.token(scopes=(*SCOPES, "deputize:undo"))
        plan: dict[str, Any] = (await self.gateway.post("/v1/undo/plan", selection, token=token)).json()
        return plan

    async def undo_all(self, **selection: str) -> dict[str, Any]:
        """Take back what a plan has ready, and return what was made and what is left."""
        token = self.gateway.token(scopes=(*SCOPES, "deputize:undo"))
        body = {**selection, "digest": (await self.plan_undo(**selection))["digest"]}
        done: dict[str, Any] = (await self.gateway.post("/v1/undo", body, token=token)).json()
        return done

    async def undo(self, call_id: str) -> dict[str, Any]:
        """Take a call back, and return the step that did it."""
        (step,) = (await self.undo_all(call_id=call_id))["made"]
        made: dict[str, Any] = step
        return made


def load_settings(repository: Path, remote: Path | None = None) -> Settings:
    return Settings(
        environment="development", builtin=BuiltinSettings(git=GitSettings(repository=repository, remote=remote))
    )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def git(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GitGateway]:
    folder = tmp_path_factory.mktemp("project")
    ground = make_ground(tmp_path_factory.mktemp("ground") / "clean")
    policy_file = folder / "git.cedar"
    policy_file.write_text(OPEN_POLICY + NO_RELEASES)
    project_tools = load_project(load_settings(ground.repository), folder)
    assert not project_tools.refusals

    def use_policies(settings: Settings) -> Settings:
        return settings.model_copy(update={"policy": PolicySettings(files=(str(policy_file),))})

    options = {"tools": tuple(project_tools.tools)}
    async with serve_gateway(module_database, folder, change=use_policies, gateway_options=options) as gateway:
        yield GitGateway(gateway=gateway, ground=ground, folder=folder)


async def test_an_afternoon_on_a_branch_is_undone_call_by_call(git: GitGateway) -> None:
    begun = await git.call("start", branch="agent/one", ref="main")
    head = begun["result"]["head"]
    page = await git.get_result("read", branch="agent/one", path="a.txt")
    written = await git.call(
        "write", branch="agent/one", path="a.txt", content="new\n", expected_sha256=page["sha256"]
    )  # fmt: skip
    status = await git.get_result("status", branch="agent/one")
    assert status["changes"] == [{"path": "a.txt", "change": "modified"}]
    made = await git.call("commit", branch="agent/one", message="Renew a", expected_head=head)
    shown = await git.get_result("show", ref="agent/one")
    assert "-one\n+new" in shown["diff"]["diff"]
    assert shown["commit"]["parents"] == [head]
    assert shown["commit"]["author"] == "bot"
    assert "On-behalf-of: ana\n" in shown["commit"]["message"]
    for call in (made, written):
        assert (await git.undo(call["call_id"]))["state"] == "succeeded"
    assert (await git.get_result("status", branch="agent/one"))["changes"] == []
    ended = await git.undo(begun["call_id"])
    assert (await git.get_result("branches"))["agent_branches"] == []
    await git.undo(ended["call_id"])
    assert (await git.get_result("branches"))["agent_branches"] == [{"branch": "agent/one", "head": head}]
    await git.get_result("drop", branch="agent/one", expected_head=head)
    assert git.ground.git("status", "--porcelain") == ""


async def test_a_branch_that_was_only_begun_is_taken_back_with_its_files(git: GitGateway) -> None:
    await git.call("start", session="begun", branch="agent/begun", ref="main")
    await git.call(
        "write", session="begun", branch="agent/begun", path="n.txt", content="n\n", expected_sha256="absent"
    )  # fmt: skip
    assert [each["verdict"] for each in (await git.plan_undo(session="begun"))["steps"]] == ["ready", "ready"]
    done = await git.undo_all(session="begun")
    assert (len(done["made"]), done["left"]["ready"], done["left"]["blocked"]) == (2, 0, 0), done
    assert (await git.get_result("branches", search="agent/begun"))["agent_branches"] == []


async def test_a_branch_that_was_dropped_is_taken_back_with_the_changes_of_its_files(git: GitGateway) -> None:
    arguments: dict[str, Any] = {"branch": "agent/done", "session": "done"}
    head = (await git.call("start", ref="main", **arguments))["result"]["head"]
    await git.call("write", path="n.txt", content="n\n", expected_sha256="absent", **arguments)
    made = await git.call("commit", message="Add n", expected_head=head, **arguments)
    await git.call("drop", expected_head=made["result"]["head"], **arguments)
    done = await git.undo_all(session="done")
    assert [each["state"] for each in done["made"]] == ["succeeded"] * 4, done
    assert (await git.get_result("branches", search="agent/done"))["agent_branches"] == []


async def test_a_branch_that_was_moved_since_is_named_and_stays(git: GitGateway) -> None:
    head = (await git.get_result("start", branch="agent/moved", ref="main"))["head"]
    heads, calls = [head], []
    for name in ("one.txt", "two.txt"):
        change = {"path": name, "content": "x\n", "expected_sha256": "absent"}
        await git.get_result("write", branch="agent/moved", **change)
        made = await git.call("commit", branch="agent/moved", message=f"Add {name}", expected_head=heads[-1])
        calls.append(made["call_id"])
        heads.append(made["result"]["head"])
    (step,) = (await git.plan_undo(call_id=calls[0]))["steps"]
    assert (step["verdict"], step["reason"]) == ("blocked", "changed_since")
    assert calls[1] in step["detail"]
    assert (await git.undo_all(call_id=calls[0]))["made"] == []
    # Whoever moves it past the gateway is seen by its tool.
    store = next((git.folder / ".deputize" / "git").glob("*/store"))
    git.ground.git("--git-dir", str(store), "update-ref", "refs/heads/agent/moved", heads[0])
    (step,) = (await git.plan_undo(call_id=calls[1]))["steps"]
    assert (step["verdict"], step["reason"]) == ("blocked", "would_fail")
    assert f"it is at {heads[0]}" in step["detail"]


async def test_a_branch_with_ignored_files_is_not_dropped(git: GitGateway) -> None:
    head = (await git.get_result("start", branch="agent/ignored", ref="main"))["head"]
    for path, content in ((".gitignore", "local.txt\n"), ("local.txt", "x\n")):
        change = {"path": path, "content": content, "expected_sha256": "absent"}
        await git.get_result("write", branch="agent/ignored", **change)
    made = await git.get_result("commit", branch="agent/ignored", message="Ignore", expected_head=head)
    refused = await git.call("drop", branch="agent/ignored", expected_head=made["head"])
    assert refused["error"]["slug"] == "tool-precondition"
    assert "such as local.txt" in refused["error"]["message"]


async def test_a_commit_is_previewed_and_whoever_expects_another_head_loses_nothing(git: GitGateway) -> None:
    head = (await git.get_result("start", branch="agent/two", ref="main"))["head"]
    await git.get_result("write", branch="agent/two", path="n.txt", content="n\n", expected_sha256="absent")
    arguments = {"branch": "agent/two", "message": "Add n", "expected_head": head}
    told = await git.call("commit", dry_run=True, **arguments)
    assert told["would"]["behavior"] == "run", told
    assert told["preview"]["impact"]["files"] == ["added n.txt"]
    assert "+n" in told["preview"]["impact"]["diff"]
    first, second = await asyncio.gather(git.call("commit", **arguments), git.call("commit", **arguments))
    states = sorted(each["state"] for each in (first, second))
    assert states == ["failed", "succeeded"], (first, second)
    failed = first if first["state"] == "failed" else second
    assert failed["error"]["slug"] == "tool-conflict"
    told = await git.call("commit", dry_run=True, **arguments)
    assert told["state"] == "failed" or told["would"]["behavior"] == "refuse", told


async def test_a_push_waits_for_a_person_whatever_the_rules_permit(git: GitGateway) -> None:
    head = (await git.get_result("start", branch="agent/three", ref="main"))["head"]
    told = await git.call("push", dry_run=True, branch="agent/three", expected_head=head)
    assert told["would"]["behavior"] == "ask", told
    waits = await git.call("push", branch="agent/three", expected_head=head)
    assert waits["state"] == "awaiting_approval", waits
    assert "agent/three" not in git.ground.git("branch", "--all")


async def test_rules_see_branches_and_paths(git: GitGateway) -> None:
    envelope = await git.call("start", branch="agent/release-2", ref="main")
    assert envelope["state"] == "denied", envelope
    await git.get_result("start", branch="agent/four", ref="main")
    envelope = await git.call(
        "write", branch="agent/four", path=".github/ci.yml", content="x", expected_sha256="absent"
    )  # fmt: skip
    assert envelope["state"] == "denied", envelope


REFUSED = ("schema-violation", "semantic-violation", "tool-precondition")
HOSTILE_BRANCHES = (
    "main", "agent/", "agent/../main", "agent/x.lock", "refs/heads/main", "refs/heads/agent/x", "--force", "+agent/x",
    "agent/x:refs/heads/main", "agent/x main", "agent/X", "agent/x\n", "agent/-x", "agent//x", "agent/x/../../main",
)  # fmt: skip
HOSTILE_REFS = (
    "--output=/dev/shm/x", "-Oprogram", "--upload-pack=program", "main..other", "main^", "main~1", "main:a.txt",
    ":/one", "main@{1}", "@{-1}", "HEAD^{tree}", "^main", "main --", "main\nother", "../main", "", "@", "stash@{0}",
)  # fmt: skip
HOSTILE_PATHS = (".git/config", "src/.git/hooks/x", "../x", "/etc/passwd", "src/../../x", ".GIT/config", "a\n", "")


@pytest.mark.parametrize("branch", HOSTILE_BRANCHES)
async def test_no_other_name_is_a_branch_of_an_agent(git: GitGateway, branch: str) -> None:
    before = git.ground.git("for-each-ref")
    calls: dict[str, dict[str, Any]] = {
        "start": {"ref": "main"}, "push": {"expected_head": "0" * 40}, "status": {},
        "drop": {"expected_head": "0" * 40},
    }  # fmt: skip
    for tool, arguments in calls.items():
        envelope = await git.call(tool, branch=branch, **arguments)
        assert envelope["error"]["slug"] == "schema-violation", envelope
    assert git.ground.git("for-each-ref") == before


@pytest.mark.parametrize("ref", HOSTILE_REFS)
async def test_a_ref_is_a_name_and_neither_an_option_nor_an_expression(git: GitGateway, ref: str) -> None:
    for tool in ("log", "show", "diff"):
        envelope = await git.call(tool, ref=ref)
        assert envelope["error"]["slug"] in REFUSED, envelope
    assert not Path("/dev/shm/x").exists()


@pytest.mark.parametrize("path", HOSTILE_PATHS)
async def test_a_path_is_below_the_folder_of_the_branch(git: GitGateway, path: str) -> None:
    calls: dict[str, dict[str, Any]] = {
        "read": {"branch": "agent/two"}, "blame": {"ref": "main"}, "log": {"ref": "main"},
        "write": {"branch": "agent/two", "content": "x", "expected_sha256": "absent"},
    }  # fmt: skip
    for tool, arguments in calls.items():
        envelope = await git.call(tool, path=path, **arguments)
        assert envelope["error"]["slug"] in REFUSED, envelope


@pytest.mark.parametrize(
    "remote",
    ["ext::program", "--receive-pack=program", "ssh://-oProxyCommand=program/x", "file:///x", "https://x", "git://x"],
)
def test_a_remote_is_a_folder_and_no_transport(git: GitGateway, remote: str, tmp_path: Path) -> None:
    project_tools = load_project(load_settings(git.ground.repository, Path(remote)), tmp_path)
    (refusal,) = project_tools.refusals
    assert (refusal.what, project_tools.tools) == ("[builtin.git]", [])
    assert "there is no git repository" in refusal.reasons[0]


def test_they_are_off_without_a_repository_and_refused_with_a_wrong_one(tmp_path: Path) -> None:
    assert load_project(Settings(), tmp_path).tools == []
    for path in (Path("none"), Path()):
        (refusal,) = load_project(load_settings(path), tmp_path).refusals
        assert f"repository {path} cannot be used" in refusal.reasons[0]
