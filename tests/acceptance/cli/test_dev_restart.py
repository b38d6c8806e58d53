"""Start `deputize dev` again after authority changed in the files: what was confirmed last is used until a key."""

from pathlib import Path

import pytest

from tests.acceptance.cli.cli_process import BackgroundCommand, make_project, run_deputize
from tests.acceptance.cli.dev_terminal import DevTerminal, edit_file

pytestmark = pytest.mark.nightly

READY = "Press Ctrl-C to stop everything."
ASKED = "Press y to apply it"
POLICIES, TOOLS, SETTINGS = "policies/default.cedar", "tools/hello.py", "deputize.toml"
FORGET = '    effects="destructive",\n    resources=["delete'
WEAKER = '    effects="write",\n    undo="hello.remember",\n    resources=["delete'
EVERYTHING = '@id("everything")\npermit(principal, action, resource);\n\n@id'


@pytest.fixture(scope="module")
def project(workspace: Path) -> Path:
    """A project whose policies an agent changed, which a person refused; then a tool and a setting, after the end."""
    folder = make_project(workspace / "restarted")
    dev = DevTerminal(folder)
    assert "first start" in dev.wait_for(READY)
    edit_file(folder, POLICIES, "@id", EVERYTHING)
    dev.wait_for(ASKED)
    dev.press("n")
    dev.wait_for("the next start of deputize dev asks again")
    dev.stop()
    edit_file(folder, TOOLS, FORGET, WEAKER)
    with (folder / SETTINGS).open("a") as file:
        file.write("\n[approvals]\nfresh_seconds = 120\n")
    return folder


def _start_in_background(folder: Path, *options: str) -> BackgroundCommand:
    dev = BackgroundCommand("dev", *options, folder=folder)
    dev.wait_for_line(f"  {READY}")
    return dev


def _list_active_policies(folder: Path) -> str:
    return run_deputize("policy", "show", folder=folder).out


@pytest.mark.requirement("GOV-3")
def test_without_a_terminal_what_was_confirmed_last_is_used(project: Path) -> None:
    with _start_in_background(project) as dev:
        dev.wait_for_line("! This changes what callers may do and was not taken over; what was confirmed last is used")
        # Tools are as their files have them.
        shown = "\n".join(dev.lines)
        assert "everything" in shown
        assert "hello.forget has more authority than before: effects: destructive → write" in shown
        assert "deputize.toml changed, and the settings confirmed last are used" in shown
        assert "active policies as confirmed last" in shown
        assert "everything" not in _list_active_policies(project)
        run_deputize("call", "hello.remember", "text=milk", folder=project)
        assert run_deputize("call", "hello.forget", "number=1", folder=project).code == 0


@pytest.mark.requirement("GOV-3")
def test_the_terminal_asks_at_the_start_and_again_after_a_kill(project: Path) -> None:
    killed = DevTerminal(project)
    killed.wait_for("Press y to start with it")
    killed.kill_hard()
    refused = DevTerminal(project)
    refused.wait_for("Press y to start with it")
    refused.press("n")
    refused.wait_for("Not applied")
    refused.wait_for(ASKED)
    assert "everything" not in _list_active_policies(project)
    refused.press("n")
    refused.wait_for("Not applied")
    refused.stop()

    dev = DevTerminal(project)
    assert "approvals." in dev.wait_for("Press y to start with it")
    dev.press("y")
    question = dev.wait_for(ASKED)
    assert "everything" in question
    dev.press("y")
    dev.wait_for("policies active: policies/default.cedar")
    assert "everything" in _list_active_policies(project)
    dev.stop()
    assert "Press y" not in dev.shown.partition("policies active: policies/default.cedar")[2]


def test_what_was_confirmed_is_not_asked_about_again_and_a_flag_confirms_unasked(project: Path) -> None:
    with _start_in_background(project) as dev:
        assert "everything" in _list_active_policies(project)
    assert not any("confirmed last" in line for line in dev.lines)
    edit_file(project, POLICIES, '@id("everything")', '@id("all")')
    with _start_in_background(project, "--accept-changes"):
        active_policies = _list_active_policies(project)
    assert ("everything" in active_policies, "all" in active_policies) == (False, True)
