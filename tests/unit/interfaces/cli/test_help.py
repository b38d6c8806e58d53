"""Help is plain text: it keeps brackets, shows no type for a flag, lists exit codes, and loads little."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
import typer
import typer.main

from deputize.interfaces.cli.main import app
from deputize.interfaces.cli.render.help import find_help, use_plain_help
from deputize.interfaces.cli.render.output import EXIT_CODES

COMMAND = typer.main.get_command(app)
# Each of these takes longer to load than all the rest of the help.
_SLOW_MODULES = ("asyncio", "cedarpy", "httpx2", "pydantic", "rich", "ssl", "starlette", "deputize.app")
_LIST_MODULES = """
import sys
from deputize.interfaces.cli.main import run_cli
sys.argv = ["deputize", *sys.argv[1:]]
run_cli(None)
print("loaded:", *sys.modules)
"""


def _list_commands() -> Iterator[tuple[list[str], Any]]:
    def walk(words: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
        yield words, command
        for name, each in getattr(command, "commands", {}).items():
            yield from walk([*words, name], each)

    return walk([], COMMAND)


def test_every_command_has_help_without_a_type_for_its_flags() -> None:
    for words, command in _list_commands():
        text = find_help(COMMAND, [*words, "--help"])

        assert text is not None
        assert text.startswith(" ".join(["Usage: deputize", *words]))
        assert re.search(r"<\w+>", text) is None, text
        assert ("Exit codes:" in text) == (not words or not hasattr(command, "commands")), text


def test_the_exit_codes_are_listed() -> None:
    text = find_help(COMMAND, ["-h"]) or ""

    assert all(f"  {code}  {meaning}\n" in text for code, meaning in EXIT_CODES.items())


def test_help_keeps_brackets() -> None:
    sample = typer.Typer(name="sample")

    @sample.command(epilog="Example: sample one [[servers]] name[0]")
    def one(file: Annotated[str, typer.Option(help="Under [tools] or [[servers]], as in facts[0].")] = "") -> None:
        """Read [database] of the settings."""

    sample.command()(lambda: None)
    use_plain_help(sample)
    text = find_help(typer.main.get_command(sample), ["one", "--help"]) or ""

    assert "Read [database] of the settings." in text
    assert "Under [tools] or [[servers]], as in facts[0]." in text
    assert text.endswith("\nExample: sample one [[servers]] name[0]")


@pytest.mark.parametrize("words", [["call", "hello.greet", "--help"], ["nothing", "--help"], ["tool", "list"], []])
def test_other_words_are_left_to_the_parser(words: list[str]) -> None:
    assert find_help(COMMAND, words) is None


@pytest.mark.parametrize("words", [[], ["tool", "check"], ["mcp"]])
def test_help_loads_no_slow_module(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LIST_MODULES, *words, "--help"], capture_output=True, text=True, timeout=120, check=True
    )
    loaded = done.stdout.rpartition("loaded:")[2].split()

    assert "typer" in loaded
    assert sorted(set(loaded).intersection(_SLOW_MODULES)) == []


_RUN_MAIN = """
import sys
from deputize.__main__ import main
sys.argv = ["deputize", sys.argv[1]]
main()
print("loaded:", *sys.modules)
"""


@pytest.mark.parametrize("word", ["--help", "-h"])
@pytest.mark.parametrize(("columns", "is_file"), [("200", True), ("80", True), ("60", False)])
def test_the_help_of_all_commands_is_a_file_unless_the_terminal_is_narrow(
    word: str, columns: str, is_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    done = subprocess.run(
        [sys.executable, "-c", _RUN_MAIN, word], capture_output=True, text=True, timeout=120, check=True
    )
    text, _, loaded = done.stdout.rpartition("loaded:")
    assert text == f"{find_help(COMMAND, [word])}\n"
    assert ("typer" not in loaded.split()) is is_file
