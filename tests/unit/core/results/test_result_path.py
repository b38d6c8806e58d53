"""Paths to parts of results: JSON Pointers, and the JSONPath that can be read in time proportional to its answer."""

import pytest

from deputize.core.results.result_path import ResultPath, parse_path

pytestmark = pytest.mark.requirement("INV-10")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", ResultPath()),
        ("$", ResultPath()),
        ("/rows/0", ResultPath(steps=("rows", "0"))),
        ("/a~1b", ResultPath(steps=("a/b",))),
        ("$.rows[0].first-name", ResultPath(steps=("rows", "0", "first-name"))),
        ("$['a b'][\"c.d\"]", ResultPath(steps=("a b", "c.d"))),
        ("$.rows[*].name", ResultPath(steps=("rows",), each_steps=("name",))),
        ("$[*]", ResultPath(each_steps=())),
        ("$.rows.*", ResultPath(steps=("rows",), each_steps=())),
    ],
)
def test_a_path_is_parsed(text: str, path: ResultPath) -> None:
    assert parse_path(text) == path


@pytest.mark.parametrize(
    "text",
    ["rows", "$..name", "$.rows[?@.a]", "$.rows[0:3]", "$.a[*].b[*]", "$.a.", "$[01]", "$x", "$" + ".a" * 200, "/a~2"],
)
def test_what_could_take_long_or_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="path must be"):
        parse_path(text)
