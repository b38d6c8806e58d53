"""Test facts of servers' tools: what a rule reads is what the server gets, and anything else is refused."""

import posixpath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from deputize.catalog.compiled_tool import CompiledTool
from deputize.catalog.importers.server_facts import MAX_PATH_LENGTH
from deputize.catalog.policy_facts import PATH_PATTERN, TEXT_OR_PATH_PATTERN, list_facts
from deputize.core.patterns import compile_pattern
from deputize.core.settings import McpServerSettings
from tests.unit.catalog.importers.test_mcp import import_contract, make_server, make_tool

pytestmark = pytest.mark.requirement("NEW-4")

ABNORMAL_PATHS = (
    "/srv/../etc/passwd", "/srv/.", "/srv/./a", "/srv//a", "//srv", "/srv/", "srv/a", "./srv", "../srv", "~/a", "/a\\b",
    "\\srv\\a", "C:\\a", "/srv/a\0b", "/srv/a\n", "/srv/a\x7f", "/..", "/.",
)  # fmt: skip
NORMAL_PATHS = (
    "/",
    "/srv",
    "/srv/a.txt",
    "/srv/..a",
    "/srv/...",
    "/srv/.hidden",
    "/srv/a b",
    "/sr v/ä",
    "/srv/a.",
    "/~",
)


def import_tool(part: Any, fact: Any = "arguments.path", **schema: Any) -> CompiledTool:
    schema = {"type": "object", "properties": {"path": part}, **schema}
    return CompiledTool(import_contract(make_tool(inputSchema=schema), facts={"path": fact}))


@pytest.mark.parametrize("fact", ["arguments.path", {"argument": "arguments.path", "type": "path"}])
def test_a_path_is_accepted_only_in_its_normal_form(fact: Any) -> None:
    tool = import_tool({"type": "string"}, fact)
    for path in NORMAL_PATHS:
        assert tool.is_valid_input({"path": path}), path
        assert tool.read_facts({"path": path}) == {"path": path}
    for path in ABNORMAL_PATHS:
        if fact != "arguments.path" or "/" in path or "\\" in path:
            assert not tool.is_valid_input({"path": path}), path
            assert tool.coerce_arguments({"path": path}) == ({"path": path}, ()), path
            message = tool.list_input_errors({"path": path})[0]["message"]
            assert message.startswith("must be an absolute path without . or .. segments")
    assert not tool.is_valid_input({"path": "/" + "a" * MAX_PATH_LENGTH})


@given(st.lists(st.sampled_from(["/", ".", "..", "a", "\\", "\0", " ", "ä", "~"]), max_size=8).map("".join))
def test_the_normal_form_is_the_one_that_every_path_library_keeps(path: str) -> None:
    has_odd_characters = "\\" in path or "\0" in path
    is_normal = path.startswith("/") and not path.startswith("//") and posixpath.normpath(path) == path
    expected = is_normal and not has_odd_characters
    assert compile_pattern(PATH_PATTERN).matches_whole(path) is expected
    is_plain_text = "/" not in path and not has_odd_characters
    assert compile_pattern(TEXT_OR_PATH_PATTERN).matches_whole(path) is (expected or is_plain_text)
    assert import_tool({"type": "string"}, {"argument": "arguments.path", "type": "path"}).is_valid_input(
        {"path": path}
    ) is expected  # fmt: skip


def test_text_without_a_type_may_be_anything_but_an_abnormal_path() -> None:
    tool = import_tool({"type": "string"})
    assert tool.is_valid_input({"path": "Ana of the shop"})
    assert not tool.is_valid_input({"path": "https://shop.example/a"})
    url = import_tool({"type": "string"}, {"argument": "arguments.path", "type": "text"})
    assert url.is_valid_input({"path": "https://shop.example/a/../b"})


def test_an_argument_that_is_missing_or_of_another_type_is_an_absent_fact() -> None:
    with_default = import_tool({"type": "string", "default": "/srv/a"})
    assert with_default.read_facts(with_default.fill_defaults({})) == {}
    nullable = import_tool({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None})
    assert nullable.is_valid_input({"path": None})
    assert nullable.read_facts({"path": None}) == {}
    assert nullable.read_facts({"path": "/srv/a"}) == {"path": "/srv/a"}
    for part in (
        {"type": "integer"},
        {"type": "array", "items": {"type": "string"}},
        {},
        {"type": ["string", "integer"]},
    ):
        assert list_facts(import_tool(part).contract) == ()
    assert list_facts(import_contract(make_tool(), facts={"path": "arguments.path"})) == ()


def test_lists_and_numbers_are_facts_if_the_settings_say_so() -> None:
    paths = import_tool({"type": "array", "items": {"type": "string"}}, {"argument": "arguments.path", "type": "paths"})
    assert paths.read_facts({"path": ["/b", "/a"]}) == {"path": ("/a", "/b")}
    assert not paths.is_valid_input({"path": ["/a", "/a/../b"]})
    number = import_tool({"type": "integer"}, {"argument": "arguments.path", "type": "integer"})
    assert number.read_facts({"path": 3}) == {"path": 3}


def test_what_the_server_demands_of_the_argument_stays_demanded() -> None:
    own_pattern = import_tool({"type": "string", "pattern": "txt$"})
    assert own_pattern.is_valid_input({"path": "/a.txt"})
    assert not own_pattern.is_valid_input({"path": "/a.png"})
    assert not own_pattern.is_valid_input({"path": "/a/../b.txt"})
    definitions = {"Path": {"type": "string", "pattern": "txt$", "default": "/a.txt"}}
    for part in ({"$ref": "#/$defs/Path", "maxLength": 9}, {"allOf": [{"$ref": "#/$defs/Path"}], "maxLength": 9}):
        tool = import_tool(part, **{"$defs": definitions})
        assert list_facts(tool.contract)[0].name == "path"
        assert tool.fill_defaults({}) == {}
        assert [tool.is_valid_input({"path": each}) for each in ("/a.txt", "/a.png", "/../a.txt", "/aaaaaaa.txt")] == [
            True, False, False, False,
        ]  # fmt: skip


def test_a_server_cannot_mark_its_own_arguments() -> None:
    marked = {"type": "object", "properties": {"path": {"type": "string", "x-policy": "amount"}}}
    assert list_facts(import_contract(make_tool(inputSchema=marked))) == ()


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"path": "path"}, 'write the argument as in "arguments.path"'),
        ({"path": "arguments."}, 'write the argument as in "arguments.path"'),
        ({"path": "arguments.options.path"}, "not parts of them"),
        ({"not a name": "arguments.path"}, "should match pattern"),
        ({"path": {"argument": "arguments.path", "type": "glob"}}, "type"),
        ({"a": "arguments.path", "b": "arguments.path"}, "an argument can be one fact only"),
    ],
)
def test_facts_that_mean_nothing_are_refused(facts: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make_server(facts=facts)


def test_settings_with_facts_survive_the_way_to_another_process() -> None:
    server = make_server(facts={"path": "arguments.path"})
    assert McpServerSettings.model_validate(server.model_dump(mode="json")) == server
