"""`deputize dev` from its first line to its last: what it starts, what it leaves out, how it ends."""

import json
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.acceptance.cli.shell import Running, deputize, make_project, postgres_of

UNFINISHED = '''
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
def test_a_tool_that_is_not_admitted_hears_every_reason_and_keeps_nobody_out(desk: Path) -> None:
    folder = make_project(desk / "unfinished")
    (folder / "tools" / "sums.py").write_text(UNFINISHED)
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
        timeout: interactive
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
    with Running("dev", folder=folder) as dev:
        dev.until("▶")
        said = "\n".join(dev.said)

        assert "✓ 1 tool from tools/sums.py: 1 read" in said
        assert "✗ sums.poke 0.1.0 (tools/sums.py) was left out:" in said
        for reason in ("number has no description", "auth lets anybody", "resources are missing", "undo is missing"):
            assert reason in said
        assert "nowhere_to_be_found" in said
        assert deputize("call", "sums.add", "first=2", "second=3", folder=folder).out == "5\n"
        assert deputize("call", "plain.shout", "text=hi", folder=folder).out == '"HI"\n'
        assert dev.interrupt() == 0


def test_an_end_and_a_new_start_keep_everything_but_the_processes(desk: Path) -> None:
    folder = make_project(desk / "again")
    words = ("call", "hello.remember", "text=once", "--key", "k1")
    with Running("dev", folder=folder) as dev:
        dev.until("▶")
        token = (folder / ".deputize" / "token").read_text()
        assert any(line.strip() == token.strip() for line in dev.said)
        first = deputize(*words, folder=folder)
        assert postgres_of(folder)
        assert dev.interrupt() == 0
        assert dev.said[-1] == "✓ stopped; keys and data stay in .deputize for the next time"
    assert postgres_of(folder) == []
    assert not (folder / ".deputize" / "dev.json").exists()
    gone = deputize(*words, folder=folder)
    assert (gone.code, "start one with deputize dev" in gone.err) == (2, True)

    with Running("dev", folder=folder) as dev:
        dev.until("▶")
        assert not any("eyJ" in line for line in dev.said), "the token is shown once"
        assert deputize(*words, folder=folder).out == first.out
        assert (folder / "notes.txt").read_text() == "once\n"
        assert dev.interrupt(signal.SIGTERM) == 0
    assert postgres_of(folder) == []


def test_a_declaration_that_changed_under_its_version_is_told_how_to_go_on(desk: Path) -> None:
    folder = make_project(desk / "changed")
    file = folder / "tools" / "hello.py"
    with Running("dev", folder=folder) as dev:
        dev.until("▶")
        dev.interrupt()
    file.write_text(file.read_text().replace("Say hello to somebody.", "Say hello, warmly."))
    with Running("dev", folder=folder) as dev:
        dev.until("▶")
        said = "\n".join(dev.said)
        assert "✗ hello.greet 0.1.0 (tools/hello.py) was left out:" in said
        assert 'raise the version, as in version="0.1.1"' in said
        done = deputize("call", "hello.remember", "text=still here", folder=folder)
        assert done.code == 0, done.said
        dev.interrupt()


def test_what_a_killed_gateway_left_behind_is_taken_over_and_ended(desk: Path) -> None:
    folder = make_project(desk / "killed")
    with Running("dev", folder=folder) as dev:
        dev.until("▶")
        dev.interrupt(signal.SIGKILL)
    assert postgres_of(folder)
    assert deputize("call", "hello.greet", "name=Ana", folder=folder).code == 2
    with Running("dev", folder=folder) as dev:
        dev.until("▶")
        assert deputize("call", "hello.greet", "name=Ana", folder=folder).code == 0
        twice = deputize("dev", folder=folder)
        assert (twice.code, "already runs for this project at http" in twice.err) == (2, True)
        dev.interrupt()
    assert postgres_of(folder) == []


def test_an_interrupt_on_the_way_leaves_nothing_running(desk: Path) -> None:
    folder = make_project(desk / "hasty")
    with Running("dev", folder=folder) as dev:
        dev.until("✓ PostgreSQL")
        assert dev.interrupt() == 0
        assert dev.said[-1].startswith("✓ stopped")
    assert postgres_of(folder) == []


def test_every_event_is_a_line_of_json_for_programs(desk: Path) -> None:
    folder = make_project(desk / "machine")
    with Running("dev", "--json", folder=folder) as dev:
        dev.until('{"event": "ready"')
        dev.interrupt()
        events = [json.loads(line) for line in dev.said]
    told = ["postgres", "schema", "token", "tools", "policies", "ready", "stopped"]
    assert [each["event"] for each in events] == told
    assert events[4] == {"event": "policies", "files": ["policies/default.cedar"], "rules": 5}
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/docs", events[5]["docs"])


def test_a_port_that_is_taken_is_refused_when_asked_for_and_passed_over_when_usual(desk: Path) -> None:
    folder = make_project(desk / "ports")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused = deputize("dev", "--port", str(port), folder=folder)
        assert (refused.code, f"Port {port} is taken" in refused.err, "--port 0" in refused.err) == (2, True, True)
        settings = folder / "deputize.toml"
        settings.write_text(settings.read_text().replace("\nport = 0", f"\nport = {port}"))
        with Running("dev", folder=folder) as dev:
            dev.until("▶")
            assert any(line.startswith(f"! port {port} is taken, so ") for line in dev.said)
            dev.interrupt()


@pytest.mark.requirement("GOV-3")
def test_a_call_that_waits_for_a_person_shows_its_code_here_and_nowhere_else(desk: Path) -> None:
    folder = make_project(desk / "waiting")
    with Running("dev", folder=folder) as dev:
        dev.until("▶")
        deputize("call", "hello.remember", "text=milk", folder=folder)
        call = deputize("call", "hello.forget", "number=1", folder=folder)
        line = dev.until("⏸")
        code = re.fullmatch(r"⏸ ticket ([0-9a-f-]{36}) hello\.forget for developer · code (.{4}-.{4})", line)
        assert code is not None, line
        shown = deputize("calls", "list", "--json", folder=folder)
        assert code[2] not in call.said + shown.said
        assert not [path for path in folder.rglob("*") if path.is_file() and code[2].encode() in path.read_bytes()]
        assert dev.interrupt() == 0
    with Running("dev", folder=folder) as dev:
        dev.until("▶")
        again = dev.until("⏸")
        assert code[1] in again
        assert code[2] not in again
        assert dev.interrupt() == 0
