"""Test how edited tool files are loaded beside those in use."""

import sys
from pathlib import Path

import pytest

from deputize.core.contract.tools import PythonTool
from deputize.core.settings import Settings
from deputize.interfaces.cli.local.edit_loop.file_watch import FileDigests, list_folders
from deputize.interfaces.cli.local.edit_loop.tool_reload import (
    combine_tools,
    group_by_file,
    list_changed_files,
    stage_tools,
)
from deputize.interfaces.cli.local.tool_loader import ProjectTools, load_tool_files

TOOL = '''
from deputize import tool
from .words import WORD
state = []


@tool(effects="read", examples=[{{"name": "Ana"}}])
def {name}(name: str) -> str:
    """Say hello to a person.

    Args:
        name: Who to greet.
    """
    {lazy}
    return f"{{WORD}}, {{name}}{sign}"
'''


def write_tool(base: Path, name: str, *, sign: str = "!", lazy: str = "state.append(name)") -> Path:
    file = base / "tools" / f"{name}.py"
    file.write_text(TOOL.format(name=name, sign=sign, lazy=lazy))
    return file


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "words.py").write_text("WORD = 'Hello'\n")
    write_tool(tmp_path, "one")
    write_tool(tmp_path, "two")
    return tmp_path


@pytest.fixture
def settings() -> Settings:
    return Settings.model_validate({"tools": {"python": ["tools/*.py"], "manifests": []}})


def load(base: Path) -> ProjectTools:
    return load_tool_files(["tools/*.py"], [], base)


def call(project_tools: ProjectTools, name: str) -> str:
    tool = next(each for each in project_tools.tools if each.contract.full_name == name)
    assert isinstance(tool, PythonTool)
    return str(tool.run(name="Ana"))


def test_only_the_edited_file_is_imported_again(base: Path, settings: Settings) -> None:
    old = load(base)
    other_module = sys.modules["_deputize_tools.tools.two"]
    staged = stage_tools(settings, base, [write_tool(base, "one", sign="?")])
    assert call(staged.project_tools, "one.one") == "Hello, Ana?"
    assert call(old, "one.one") == "Hello, Ana!"
    assert sys.modules["_deputize_tools.tools.two"] is other_module
    assert list_changed_files(group_by_file(old), group_by_file(staged.project_tools)) == ["tools/one.py"]


def test_an_edited_helper_reloads_every_file_that_imports_it(base: Path, settings: Settings) -> None:
    old = load(base)
    words = base / "tools" / "words.py"
    words.write_text("WORD = 'Hi'\n")
    staged = stage_tools(settings, base, [words])
    assert call(staged.project_tools, "one.one") == call(staged.project_tools, "two.two") == "Hi, Ana!"
    assert call(old, "two.two") == "Hello, Ana!"


def test_a_helper_that_is_imported_inside_a_function_counts(base: Path, settings: Settings) -> None:
    (base / "tools" / "later.py").write_text("X = 1\n")
    write_tool(base, "one", lazy="from .later import X")
    old = load(base)
    (base / "tools" / "later.py").write_text("X = 2\n")
    staged = stage_tools(settings, base, [base / "tools" / "later.py"])
    changed = list_changed_files(group_by_file(old), group_by_file(staged.project_tools))
    assert changed == ["tools/one.py"]
    assert call(staged.project_tools, "one.one") == "Hello, Ana!"


def test_a_file_that_fails_keeps_its_tools_and_its_module(base: Path, settings: Settings) -> None:
    old = load(base)
    module = sys.modules["_deputize_tools.tools.one"]
    file = base / "tools" / "one.py"
    file.write_text("def broken(:\n")
    staged = stage_tools(settings, base, [file])
    (refusal,) = staged.project_tools.refusals
    assert refusal.file == "tools/one.py"
    assert ":1" in refusal.reasons[0] or "1" in refusal.reasons[0]
    staged.keep_old_modules(["tools/one.py"])
    assert sys.modules["_deputize_tools.tools.one"] is module
    groups = combine_tools(group_by_file(old), group_by_file(staged.project_tools), {"tools/one.py"})
    assert [each.contract.full_name for each in groups["tools/one.py"]] == ["one.one"]
    write_tool(base, "one", sign="?")
    again = stage_tools(settings, base, [file])
    assert again.project_tools.refusals == []
    assert call(again.project_tools, "one.one") == "Hello, Ana?"


def test_a_removed_file_takes_its_tools_along(base: Path, settings: Settings) -> None:
    old = load(base)
    (base / "tools" / "two.py").unlink()
    staged = stage_tools(settings, base, [base / "tools" / "two.py"])
    changed_files = list_changed_files(group_by_file(old), group_by_file(staged.project_tools))
    assert changed_files == []


def test_the_code_digest_follows_the_code_in_use(base: Path, settings: Settings) -> None:
    old = load(base)
    file = write_tool(base, "one", sign="?")
    staged = stage_tools(settings, base, [file])
    write_tool(base, "one")
    back = stage_tools(settings, base, [file])
    digests = [
        next(each.code_digest for each in tools.tools if each.contract.full_name == "one.one")
        for tools in (old, staged.project_tools, back.project_tools)
    ]
    assert digests[0] == digests[2] != digests[1]


def test_caches_environments_and_state_are_not_watched(base: Path) -> None:
    for name in (".git", "tools/__pycache__", "env/lib", ".deputize/pg", "docs"):
        (base / name).mkdir(parents=True)
    (base / "env" / "pyvenv.cfg").touch()
    names = {str(each.relative_to(base)) for each in list_folders(base, base / ".deputize")}
    assert names == {".", "tools", "docs"}


def test_a_file_written_by_rename_has_another_digest(tmp_path: Path) -> None:
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_text("one")
    digests = FileDigests()
    before = digests.read_all([file, tmp_path / "missing"])
    other.write_text("two")
    other.replace(file)
    after = digests.read_all([file])
    assert list(before) == list(after) == [file]
    assert before != after
