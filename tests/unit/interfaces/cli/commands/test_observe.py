"""Test what `deputize observe` writes: no secret, nothing over policies of one's own, and what enforcing replaces."""

import json
import tomllib
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_group

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.commands.observe.group import ObserveGroup, group
from deputize.interfaces.cli.commands.observe.start import _add_servers
from deputize.interfaces.cli.local.observed_project import (
    OBSERVING_POLICY,
    enter_observed_project,
    read_new_policy,
    replace_observing_policy,
)

pytestmark = pytest.mark.requirement("NEW-8")
SECRET = "ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_without_a_project_becomes_one_that_allows_every_call(project: Path) -> None:
    assert enter_observed_project()
    assert "permit (principal, action" in OBSERVING_POLICY.read_text()
    assert tomllib.loads((project / "deputize.toml").read_text())["policy"]["files"] == ["policies/*.cedar"]
    assert not enter_observed_project()


def test_a_project_with_policies_of_its_own_is_left_alone(project: Path) -> None:
    (project / "deputize.toml").write_text('[policy]\nfiles = ["mine.cedar"]\n')
    with pytest.raises(ConfigError, match="policies of its own"):
        enter_observed_project()
    assert not OBSERVING_POLICY.exists()


def test_a_policy_that_has_this_name_is_left_alone_and_the_next_start_says_so_again(project: Path) -> None:
    OBSERVING_POLICY.parent.mkdir()
    OBSERVING_POLICY.write_text("// mine")
    for _ in range(2):
        with pytest.raises(ConfigError, match="exists already"):
            enter_observed_project()
    assert OBSERVING_POLICY.read_text() == "// mine"
    assert not (project / "deputize.toml").exists()


def test_after_a_start_that_failed_the_same_command_makes_the_project(project: Path) -> None:
    # A link to nowhere stands for any failure while files are written.
    (project / ".gitignore").symlink_to("missing/gitignore")
    with pytest.raises(ConfigError, match="cannot be written"):
        enter_observed_project()
    assert not (project / "deputize.toml").exists()
    (project / ".gitignore").unlink()
    assert enter_observed_project()
    assert not enter_observed_project()


def test_secrets_of_the_file_are_written_nowhere_and_every_argument_is_recorded(project: Path) -> None:
    enter_observed_project()
    entry = {"command": "python", "args": ["-c", "pass"], "env": {"GITHUB_TOKEN": SECRET, "LOG_LEVEL": "info"}}
    text = json.dumps({"mcpServers": {"github": entry}})
    _add_servers(text, project / ".mcp.json")
    for file in project.rglob("*"):
        assert not file.is_file() or SECRET not in file.read_text(), file
    (server,) = tomllib.loads((project / "deputize.toml").read_text())["servers"]
    assert server["record_arguments"] is True
    assert server["secret"] == "github/github-token"
    _add_servers(text, project / ".mcp.json")
    assert len(tomllib.loads((project / "deputize.toml").read_text())["servers"]) == 1


def test_enforcing_puts_exactly_the_activated_text_in_the_place_of_the_observing_policy(project: Path) -> None:
    enter_observed_project()
    source = project / "observed.cedar"
    source.write_text("// one")
    target, text = read_new_policy(source)
    # What changes meanwhile was not activated.
    source.write_text("// two")
    replace_observing_policy(source, target, text)
    assert [each.name for each in Path("policies").glob("*.cedar")] == ["observed.cedar"]
    assert target.read_text() == "// one"
    assert not source.exists()
    with pytest.raises(ConfigError, match="does not observe"):
        read_new_policy(target)


@pytest.mark.parametrize("name", ["observe.cedar", "observed.txt"])
def test_only_another_policy_can_take_over(project: Path, name: str) -> None:
    enter_observed_project()
    (project / name).write_text("// x")
    with pytest.raises(ConfigError, match="cannot take over"):
        read_new_policy(project / name)


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["--port", "7080", ".mcp.json"], "start"),
        ([".mcp.json", "--port", "7080"], "start"),
        (["clients/mcp"], "start"),
        (["servers"], "start"),
        (["report"], "report"),
        (["reprot"], "reprot"),
    ],
)
def test_a_file_or_an_option_belongs_to_start_and_a_mistyped_command_does_not(
    project: Path, words: list[str], first: str
) -> None:
    (project / "servers").write_text("{}")
    command = get_group(group)
    assert isinstance(command, TyperGroup)
    observe_group = ObserveGroup(name="observe", commands=dict(command.commands))
    context = observe_group.make_context("observe", list(words), resilient_parsing=False)
    assert [*context._protected_args, *context.args][0] == first
