"""Run `deputize dev` from its first line to its last: what it starts, what it refuses, how it stops."""

import json
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.acceptance.cli.cli_process import (
    BackgroundCommand,
    find_postgres_pids,
    list_files_containing,
    make_project,
    run_deputize,
)
from tests.acceptance.cli.dev_terminal import edit_file

pytestmark = pytest.mark.nightly

REJECTED_TOOL = '''
from deputize import tool


@tool(effects="write")
def poke(number: int) -> int:
    """Pokes at a number, hard."""
    return number


@tool(effects="read", examples=[{"first": 2, "second": 3}])
def add(first: int, second: int) -> int:
    """Add two numbers.

    Args:
        first: One number.
        second: Another number.
    """
    return first + second
'''


@pytest.mark.requirement("CON-7")
def test_a_tool_that_is_not_admitted_hears_every_reason_and_keeps_nobody_out(workspace: Path) -> None:
    folder = make_project(workspace / "unfinished")
    (folder / "tools" / "sums.py").write_text(REJECTED_TOOL)
    (folder / "tools" / "broken.py").write_text("import nowhere_to_be_found\n")
    (folder / "tools" / "plain.py").write_text("def shout(text):\n    return text.upper()\n")
    (folder / "tools" / "plain.yaml").write_text(
        """
        name: plain.shout
        version: 1.0.0
        description: Say something in capital letters.
        effects: read
        handler: {target: "tools.plain:shout"}
        auth: {}
        timeout: standard
        idempotency: idempotent
        input_schema:
          type: object
          additionalProperties: false
          required: [text]
          properties: {text: {type: string, description: What to say., examples: [hello]}}
        output_schema: {type: string}
        examples: [{text: hello}]
        """
    )
    with BackgroundCommand("dev", folder=folder) as dev:
        dev.wait_for_line("▶")
        said = "\n".join(dev.lines)

        assert "✓ 1 tool from tools/sums.py: 1 read" in said
        assert "✗ sums.poke 0.1.0 (tools/sums.py) was not registered:" in said
        for reason in (
            "the parameter number has no description",
            "the tool requires no scope",
            "resources is missing",
            "undo is missing",
        ):
            assert reason in said
        assert "nowhere_to_be_found" in said
        assert run_deputize("call", "sums.add", "first=2", "second=3", folder=folder).out == "5\n"
        assert run_deputize("call", "plain.shout", "text=hi", folder=folder).out == '"HI"\n'
        assert dev.interrupt() == 0


def test_an_end_and_a_new_start_keep_everything_but_the_processes(workspace: Path) -> None:
    folder = make_project(workspace / "again")
    words = ("call", "hello.remember", "text=once", "--key", "k1")
    with BackgroundCommand("dev", folder=folder) as dev:
        dev.wait_for_line("▶")
        token, agent_token = ((folder / ".deputize" / name).read_text().strip() for name in ("token", "agent-token"))
        said = "\n".join(dev.lines)
        assert (agent_token in said, token in said) == (True, False), "what is printed is pasted into clients"
        first = run_deputize(*words, folder=folder)
        assert find_postgres_pids(folder)
        assert dev.interrupt() == 0
        assert dev.lines[-1] == "✓ Stopped. Keys and data are kept in .deputize."
    assert find_postgres_pids(folder) == []
    assert not (folder / ".deputize" / "dev.json").exists()
    gone = run_deputize(*words, folder=folder)
    assert (gone.code, "start one with deputize dev" in gone.err) == (2, True)

    with BackgroundCommand("dev", folder=folder) as dev:
        dev.wait_for_line("▶")
        assert not any("eyJ" in line for line in dev.lines), "the token is shown once"
        assert run_deputize(*words, folder=folder).out == first.out
        assert (folder / "notes.txt").read_text() == "once\n"
        assert dev.interrupt(signal.SIGTERM) == 0
    assert find_postgres_pids(folder) == []


def test_without_a_terminal_edited_code_is_used_and_nothing_that_changes_authority(workspace: Path) -> None:
    folder = make_project(workspace / "changed")
    file = folder / "tools" / "hello.py"
    with BackgroundCommand("dev", folder=folder) as dev:
        dev.wait_for_line("▶")
        dev.interrupt()
    file.write_text(file.read_text().replace("Say hello to a person.", "Say hello, warmly."))
    with BackgroundCommand("dev", folder=folder) as dev:
        dev.wait_for_line("▶")
        assert not any("was not registered" in line for line in dev.lines)
        assert "Say hello, warmly." in run_deputize("tool", "show", "hello.greet", folder=folder).out
        edit_file(folder, "tools/hello.py", "Hello, {name}!", "Hi, {name}!")
        dev.wait_for_line("✓ tools/hello.py loaded: hello.greet 0.1.0-dev")
        assert run_deputize("call", "hello.greet", "name=Ana", folder=folder).out == '"Hi, Ana!"\n'
        edit_file(folder, "policies/default.cedar", "@id", '@id("all")\npermit(principal, action, resource);\n\n@id')
        dev.wait_for_line("! This changes what callers may do and was not taken over; what was confirmed last")
        run_deputize("call", "hello.remember", "text=milk", folder=folder)
        assert run_deputize("call", "hello.forget", "number=1", folder=folder).code == 3
        dev.interrupt()


def test_what_a_killed_gateway_left_behind_is_taken_over_and_ended(workspace: Path) -> None:
    folder = make_project(workspace / "killed")
    with BackgroundCommand("dev", folder=folder) as dev:
        dev.wait_for_line("▶")
        dev.interrupt(signal.SIGKILL)
    assert find_postgres_pids(folder)
    assert run_deputize("call", "hello.greet", "name=Ana", folder=folder).code == 2
    with BackgroundCommand("dev", folder=folder) as dev:
        dev.wait_for_line("▶")
        assert run_deputize("call", "hello.greet", "name=Ana", folder=folder).code == 0
        twice = run_deputize("dev", folder=folder)
        assert (twice.code, "is already running for this project at http" in twice.err) == (2, True)
        dev.interrupt()
    assert find_postgres_pids(folder) == []


def test_an_interrupt_on_the_way_leaves_nothing_running(workspace: Path) -> None:
    folder = make_project(workspace / "hasty")
    with BackgroundCommand("dev", folder=folder) as dev:
        dev.wait_for_line("✓ PostgreSQL")
        assert dev.interrupt() == 0
        assert dev.lines[-1].startswith("✓ Stopped")
    assert find_postgres_pids(folder) == []


def test_every_event_is_a_line_of_json_for_programs(workspace: Path) -> None:
    folder = make_project(workspace / "machine")
    # Not stderr, where the gateway logs, such as that the machine let it wait.
    with BackgroundCommand("dev", "--json", folder=folder, with_stderr=False) as dev:
        dev.wait_for_line('{"event": "ready"')
        dev.interrupt()
        events = [json.loads(line) for line in dev.lines]
    names = ["files", "postgres", "schema", "token", "tools", "policies", "ready", "stopped"]
    assert [each["event"] for each in events] == names
    assert events[5] == {"event": "policies", "files": ["policies/default.cedar"], "rules": 5}
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/docs", events[6]["docs"])


def test_a_port_that_is_taken_is_refused_when_asked_for_and_passed_over_when_usual(workspace: Path) -> None:
    folder = make_project(workspace / "ports")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused = run_deputize("dev", "--port", str(port), folder=folder)
        assert (refused.code, f"Port {port} is in use" in refused.err, "--port 0" in refused.err) == (2, True, True)
        settings = folder / "deputize.toml"
        settings.write_text(settings.read_text().replace("\nport = 0", f"\nport = {port}"))
        with BackgroundCommand("dev", folder=folder) as dev:
            dev.wait_for_line("▶")
            assert any(line.startswith(f"! Port {port} is in use; using ") for line in dev.lines)
            dev.interrupt()


@pytest.mark.requirement("GOV-3")
def test_a_call_that_waits_for_a_person_shows_its_code_here_and_nowhere_else(workspace: Path) -> None:
    folder = make_project(workspace / "waiting")
    with BackgroundCommand("dev", folder=folder) as dev:
        dev.wait_for_line("▶")
        run_deputize("call", "hello.remember", "text=milk", folder=folder)
        call = run_deputize("call", "hello.forget", "number=1", folder=folder)
        line = dev.wait_for_line("⏸")
        code = re.fullmatch(r"⏸ approval request ([0-9a-f-]{36}): hello\.forget for developer · code (.{4}-.{4})", line)
        assert code is not None, line
        shown = run_deputize("calls", "list", "--json", folder=folder)
        assert code[2] not in call.output + shown.output
        assert list_files_containing(folder, code[2]) == []
        assert dev.interrupt() == 0
    with BackgroundCommand("dev", folder=folder) as dev:
        dev.wait_for_line("▶")
        again = dev.wait_for_line("⏸")
        assert code[1] in again
        assert code[2] not in again
        assert dev.interrupt() == 0


@pytest.mark.requirement("GOV-3")
def test_without_its_lock_file_there_is_still_only_one_gateway_that_shows_codes(workspace: Path) -> None:
    folder = make_project(workspace / "alone")
    with BackgroundCommand("dev", folder=folder) as dev:
        dev.wait_for_line("▶")
        (folder / ".deputize" / "dev.lock").unlink()
        second = run_deputize("dev", folder=folder)
        assert second.code == 2
        assert f"Another deputize dev (process {dev.pid}) is running on the database" in second.err
        assert "code" not in second.out
        assert run_deputize("call", "hello.greet", "name=Ana", folder=folder).code == 0, "it keeps its database"
        assert dev.interrupt() == 0
