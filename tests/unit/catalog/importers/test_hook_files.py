"""Test loading hooks from files, and that each error says how to fix it."""

from pathlib import Path

import pytest

from deputize.catalog.importers.hooks import load_hooks
from deputize.catalog.importers.tool_files import forget_modules, import_file
from deputize.core.config_error import ConfigError
from deputize.core.settings import HookSettings

pytestmark = pytest.mark.requirement("INV-6")

FILE = """
from deputize import hook

seen = []

@hook("before")
async def guard(call):
    seen.append(call)

@hook("after")
def notes(call, result, more=None):
    return None

@hook("failure")
def explains(*everything):
    return None

def plain(call): ...

@hook
def bare(call): ...

@hook("during")
def wrong(call): ...

@hook("after")
def short(call): ...

@hook("before")
def long(call, result): ...

@hook("before")
def generates(call):
    yield None

thing = 7
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "check.py").write_text(FILE)
    (tmp_path / "hooks" / "broken.py").write_text("\nimport no_such_thing\n")
    return tmp_path


def test_hooks_are_loaded_in_the_order_of_the_settings(folder: Path) -> None:
    loaded = load_hooks(
        [
            HookSettings(name="two", function="hooks/check.py:notes", tools="a.*", seconds=0.5),
            HookSettings(name="one", function="hooks/check.py:guard"),
            HookSettings(name="three", function="hooks/check.py:explains"),
        ],
        folder,
    )
    assert [(each.name, each.moment, each.is_async, each.tools, each.seconds) for each in loaded] == [
        ("two", "after", False, "a.*", 0.5),
        ("one", "before", True, "*", 1.0),
        ("three", "failure", False, "*", 1.0),
    ]
    assert {each.file for each in loaded} == {"hooks/check.py"}


def test_a_file_with_tools_and_hooks_is_imported_once(folder: Path) -> None:
    forget_modules()
    module = import_file(folder / "hooks" / "check.py", folder)
    (hook,) = load_hooks([HookSettings(name="one", function="hooks/check.py:guard")], folder)
    assert hook.function is module.guard


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("hooks/check.py", "hooks/check.py is not FILE:FUNCTION; write it like hooks/check.py:guard"),
        ("hooks.check:guard", "hooks.check:guard is not FILE:FUNCTION; write it like hooks/check.py:guard"),
        ("hooks/check.py:a b", "is not FILE:FUNCTION; write it like"),
        ("hooks/other.py:guard", "there is no file hooks/other.py in"),
        ("../check.py:guard", "move it into the folder of deputize.toml"),
        ("hooks/*.py:guard", "hooks/*.py matches 2 files; name the file that contains the function"),
        ("hooks/broken.py:guard", "hooks/broken.py:2: importing it failed with ModuleNotFoundError"),
        ("hooks/check.py:gard", "hooks/check.py has no function gard; correct the name"),
        ("hooks/check.py:plain", 'is not marked as a hook; write @hook("before"), "after" or "failure" above it'),
        ("hooks/check.py:bare", "is not marked as a hook"),
        ("hooks/check.py:wrong", "is not marked as a hook"),
        ("hooks/check.py:thing", "is not marked as a hook"),
        (
            "hooks/check.py:short",
            "does not accept the call short(call, result); give it these parameters",
        ),
        ("hooks/check.py:long", "does not accept the call long(call); give it these parameters"),
        ("hooks/check.py:generates", "is a generator; return one answer or a list of answers"),
    ],
)
def test_a_hook_error_is_reported_with_its_fix(folder: Path, function: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as told:
        load_hooks([HookSettings(name="guard", function=function)], folder)
    assert str(told.value).startswith("The hook guard cannot be loaded: ")
    assert sentence in str(told.value)


def test_two_hooks_of_one_name_cannot_be_told_apart(folder: Path) -> None:
    twice = [HookSettings(name="guard", function="hooks/check.py:guard")] * 2
    with pytest.raises(ConfigError, match="Two hooks are named guard"):
        load_hooks(twice, folder)
