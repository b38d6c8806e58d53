"""Test how the exception of a tool is shown to its author."""

import json
from pathlib import Path
from typing import Any

import pytest

from deputize.core.errors import ToolTimeout
from deputize.interfaces.cli.render.tool_errors import ToolErrorPrinter, format_error
from tests.support.policy_inputs import make_tool


def run_source(file: Path, source: str) -> dict[str, Any]:
    """Run a file of a project, as its loader does, and return its names."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)
    names: dict[str, Any] = {"json": json}
    exec(compile(source, str(file), "exec"), names)
    return names


def catch(function: Any, *arguments: Any) -> BaseException:
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001 -- whatever the tool raises is what is shown
        return error
    raise AssertionError("it raised nothing")


def test_the_authors_frames_come_first_and_the_innermost_leads(tmp_path: Path) -> None:
    source = "def outer(text):\n    return inner(text)\n\n\ndef inner(text):\n    return json.loads(text)\n"
    names = run_source(tmp_path / "tools" / "notes.py", source)
    lines = list(format_error(catch(names["outer"], "{"), tmp_path))
    assert lines[0].startswith("JSONDecodeError: Expecting property name")
    assert lines[1:5] == [
        "tools/notes.py:6 in inner",
        "    return json.loads(text)",
        "tools/notes.py:2 in outer",
        "    return inner(text)",
    ]
    assert lines[5].startswith("(4 frames of libraries and the gateway not shown, ending in decoder.py:")
    assert len(lines) == 6


def test_installed_packages_inside_the_project_are_not_the_authors(tmp_path: Path) -> None:
    names = run_source(tmp_path / ".venv" / "site-packages" / "lib.py", "def fail():\n    raise KeyError('x')\n")
    lines = list(format_error(catch(names["fail"]), tmp_path))
    assert lines[0] == "KeyError: 'x'"
    assert len(lines) == 2
    assert "lib.py:2" in lines[1]


def test_a_cause_follows_what_it_led_to(tmp_path: Path) -> None:
    source = (
        "def fail():\n    try:\n        int('x')\n    except ValueError as error:\n"
        "        raise RuntimeError('no number') from error\n"
    )
    names = run_source(tmp_path / "tool.py", source)
    lines = list(format_error(catch(names["fail"]), tmp_path))
    assert lines[0] == "RuntimeError: no number"
    assert "caused by ValueError: invalid literal for int() with base 10: 'x'" in lines


def test_secrets_and_control_characters_are_not_shown(tmp_path: Path) -> None:
    source = "def fail():\n    raise RuntimeError('password=hunter2hunter2 \\x1b[2J')\n"
    names = run_source(tmp_path / "tool.py", source)
    text = "\n".join(format_error(catch(names["fail"]), tmp_path))
    assert "hunter2" not in text
    assert "\x1b" not in text


def test_a_deep_recursion_stays_readable(tmp_path: Path) -> None:
    source = "def sink(depth):\n    return sink(depth - 1) if depth else 1 / 0\n"
    names = run_source(tmp_path / "tool.py", source)
    assert len(list(format_error(catch(names["sink"], 200), tmp_path))) < 40


def test_a_timeout_names_the_declaration_that_its_author_can_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = make_tool()
    ToolErrorPrinter(tmp_path)(contract, ToolTimeout(f"{contract.full_name} did not end within 5 s"))
    captured = capsys.readouterr()
    assert "If it needs longer, write @tool(timeout=…) with its seconds." in captured.out + captured.err
