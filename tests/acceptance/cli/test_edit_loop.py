"""Edit a project while `deputize dev` runs in a terminal: a real pseudo-terminal, whose keys the test presses."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli.cli_process import find_postgres_pids, make_project, run_deputize
from tests.acceptance.cli.dev_terminal import DevTerminal, edit_file

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def dev(workspace: Path) -> Iterator[DevTerminal]:
    terminal = DevTerminal(make_project(workspace / "edited"))
    terminal.wait_for("Press Ctrl-C to stop everything.")
    yield terminal
    terminal.stop()


def call(dev: DevTerminal, *words: str) -> str:
    return run_deputize("call", *words, folder=dev.folder).out.strip()


def test_saved_code_is_used_and_broken_code_leaves_the_old(dev: DevTerminal) -> None:
    edit_file(dev.folder, "tools/hello.py", "Hello, {name}!", "Hi, {name}!")
    dev.wait_for("tools/hello.py loaded: hello.greet 0.1.0-dev")
    assert call(dev, "hello.greet", "name=Ana") == '"Hi, Ana!"'
    edit_file(dev.folder, "tools/hello.py", "def greet(", "def greet((")
    line = dev.wait_for("What was in use before stays in use.")
    assert "tools/hello.py was not loaded" in line
    assert re.search(r"line 2\d|:2\d", line), line
    assert call(dev, "hello.greet", "name=Ana") == '"Hi, Ana!"'
    (dev.folder / "tools" / "orders.py").write_text("from deputize import tool\n\n@tool\ndef status(\n")
    dev.wait_for("tools/orders.py was not loaded")
    missing = run_deputize("call", "orders.status", folder=dev.folder)
    assert "orders.status is not loaded: tools/orders.py" in missing.err
    (dev.folder / "tools" / "orders.py").unlink()
    broken = (dev.folder / "tools" / "hello.py").read_text()
    edit_file(
        dev.folder,
        "tools/hello.py",
        broken,
        broken.replace("greet((", "greet(").replace("Hi, {name}!", "Good day, {name}!"),
    )
    dev.wait_for("tools/hello.py loaded")
    assert call(dev, "hello.greet", "name=Ana") == '"Good day, Ana!"'
    assert "hello.greet · allow by" in dev.wait_for("succeeded")


def test_a_new_tool_with_a_new_scope_can_be_called_at_once(dev: DevTerminal) -> None:
    old_token = (dev.folder / ".deputize" / "agent-token").read_text().strip()
    text = '''from deputize import tool

@tool(effects="read", scopes=["stock:read"])
def count(item: str) -> int:
    """Count the items of a kind in stock."""
    return 3
'''
    (dev.folder / "tools" / "stock.py").write_text(text)
    dev.wait_for("tokens renewed, with the scopes that the tools need now: yours in .deputize/token")
    assert call(dev, "stock.count", "item=apple") == "3"
    assert call(dev, "hello.greet", "name=Ana", "--token", old_token) == '"Good day, Ana!"'
    refused = run_deputize("call", "stock.count", "item=apple", "--token", old_token, folder=dev.folder)
    assert ".deputize/agent-token for agents" in refused.err


@pytest.mark.requirement("GOV-3")
def test_what_changes_authority_waits_for_the_key(dev: DevTerminal) -> None:
    call(dev, "hello.remember", "text=milk")
    text = '@id("all")\npermit(principal, action, resource);\n\n@id'
    # Typed before the question is shown, a key is no answer.
    dev.press("y")
    edit_file(dev.folder, "policies/default.cedar", "@id", text)
    dev.wait_for("Press y to apply it")
    assert run_deputize("call", "hello.forget", "number=1", folder=dev.folder).code == 3
    dev.press("n")
    dev.wait_for("Not applied: what was active stays active")
    edit_file(dev.folder, "policies/default.cedar", '@id("all")', '@id("most")')
    dev.wait_for("Press y to apply it")
    unmatched = '@id("never")\nforbid(principal, action, resource == Tool::"hello.nope");\n\n@id("everything")'
    edit_file(dev.folder, "policies/default.cedar", '@id("most")', unmatched)
    dev.wait_for("The question is withdrawn")
    question = dev.wait_for("Press y to apply it")
    assert "everything" in question
    assert "warning: policies/default.cedar" in question
    assert "hello.nope" in question
    dev.press("y")
    dev.wait_for("policies active: policies/default.cedar")
    assert "everything" in run_deputize("policy", "show", folder=dev.folder).out


def test_a_tool_is_used_as_its_file_has_it_and_leaves_with_it(dev: DevTerminal) -> None:
    forget = '    effects="destructive",\n    resources=["delete'
    weaker = '    effects="write",\n    undo="hello.remember",\n    resources=["delete'
    edit_file(dev.folder, "tools/hello.py", forget, weaker)
    line = dev.wait_for("hello.forget has more authority than before: effects: destructive → write")
    assert "Press" not in line
    edit_file(dev.folder, "tools/stock.py", "def count(", "def number(")
    dev.wait_for("tools/stock.py no longer has stock.count")
    dev.wait_for("It has stock.number now.")
    assert "stock.count" not in run_deputize("tool", "list", folder=dev.folder).out
    gone = run_deputize("call", "stock.count", "item=apple", folder=dev.folder)
    assert "there is no tool stock.count any more: it was in tools/stock.py, which has stock.number now" in gone.err
    assert call(dev, "stock.number", "item=apple") == "3"
    edit_file(dev.folder, "tools/stock.py", "def number(", "def count(")
    dev.wait_for("It has stock.count now.")


def test_a_setting_is_applied_by_a_restart_in_place_and_a_closed_terminal_ends_it(dev: DevTerminal) -> None:
    with (dev.folder / "deputize.toml").open("a") as file:
        file.write("\n[telemetry]\nlog_level = 'debug'\n")
    assert 'telemetry.log_level: "info" → "debug"' in dev.wait_for("apply it and restart the gateway")
    dev.press("y")
    dev.wait_for("Restarting with the new settings.")
    restarted = dev.wait_for("Press Ctrl-C to stop everything.")
    assert "deputize.toml changed" not in restarted
    assert call(dev, "stock.count", "item=apple") == "3"
    dev.hang_up()
    assert find_postgres_pids(dev.folder) == []
