"""Test finding and importing tool files, their stable module names, and errors that name the file."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.importers.python import collect_tools
from deputize.catalog.importers.tool_files import find_files, forget_modules, import_file
from deputize.core.contract.tools import PythonTool

HELLO = '''
from typing import Annotated
from pydantic import Field
from deputize.catalog.importers.python import tool
from .shared import sign

@tool(effects="read")
def greet(name: Annotated[str, Field(description="Who", examples=["Ana"])]) -> str:
    """Say hello to a person."""
    return f"Hello, {name}" + sign
'''


def load_tools(patterns: Sequence[str], folder: Path) -> list[PythonTool]:
    forget_modules()
    base = folder.resolve()
    tools = [tool for path in find_files(patterns, base) for tool in collect_tools(import_file(path, base))]
    return [tool for tool in tools if isinstance(tool, PythonTool)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "hello.py").write_text(HELLO)
    (tmp_path / "tools" / "shared.py").write_text("sign = '!'\n")
    return tmp_path


@pytest.mark.requirement("CON-1")
def test_files_are_loaded_by_path_under_names_that_are_the_same_everywhere(folder: Path) -> None:
    (found,) = load_tools(["tools/*.py"], folder)
    assert found.contract.full_name == "hello.greet"
    assert found.target == "tools.hello:greet"
    assert found.run(name="Bo") == "Hello, Bo!"


def test_loading_again_reads_edited_files_and_their_neighbours(folder: Path) -> None:
    load_tools(["tools/hello.py"], folder)
    (folder / "tools" / "shared.py").write_text("sign = '?!'  # longer, so that no cached bytecode fits\n")
    (found,) = load_tools(["tools/hello.py"], folder)
    assert found.run(name="Bo") == "Hello, Bo?!"


def test_a_tool_imported_from_another_file_is_collected_once(folder: Path) -> None:
    (folder / "tools" / "zoo.py").write_text("from .hello import greet\n")
    assert [each.target for each in load_tools(["tools/*.py"], folder)] == ["tools.hello:greet"]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("bad.py", "x = = 1\n", "tools/bad.py:1: importing it failed with SyntaxError"),
        ("bad.py", "\nimport no_such_thing\n", "tools/bad.py:2: importing it failed with ModuleNotFoundError"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_in_one_sentence(folder: Path, name: str, text: str, sentence: str) -> None:
    (folder / "tools" / name).write_text(text)
    with pytest.raises(WrongDeclaration) as refused:
        load_tools(["tools/*.py"], folder)
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize("pattern", ["tools/none.py", "../*.py", "/etc/*.py"])
def test_a_pattern_that_names_nothing_here_is_refused(folder: Path, pattern: str) -> None:
    with pytest.raises(WrongDeclaration, match=r"deputize\.toml"):
        load_tools([pattern], folder)


def test_collect_finds_the_tools_of_a_module_only() -> None:
    assert collect_tools(pytest) == []


def test_every_fault_of_the_types_in_a_file_is_told_at_once(tmp_path: Path) -> None:
    source = """
import socket
from deputize.catalog.importers.python import tool

@tool(effects="read")
def find(what, where):
    \"""Find a thing somewhere.\"""

@tool(effects="read")
def connect(peer: socket.socket, name: str) -> str:
    \"""Connect to a peer.\"""
    return name
"""
    (tmp_path / "many.py").write_text(source)
    with pytest.raises(WrongDeclaration) as raised:
        load_tools(["many.py"], tmp_path)
    find, connect = "many.py:5 find", "many.py:9 connect"
    assert raised.value.sentences == (
        f"{find}: the argument what has no type; write what: str, or its type",
        f"{find}: the argument where has no type; write where: str, or its type",
        f"{find}: it has no return type; write -> str, or its type",
        f"{connect}: the argument peer is a socket, which has no form in JSON; use str, int, float, bool, list, "
        "dict, a dataclass or a pydantic model",
    )
