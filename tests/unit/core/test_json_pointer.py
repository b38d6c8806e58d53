"""JSON Pointers are parsed as RFC 6901 says, and lead to one value or nowhere."""

from typing import Any

import pytest

from deputize.core.json_pointer import MISSING, find_value, parse_pointer

DOCUMENT: dict[str, Any] = {"a": {"b/c": [10, {"~": None}]}, "": {"": 1}, "0": "member"}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/a/b~1c/0", 10),
        ("/a/b~1c/1/~0", None),
        ("//", 1),
        ("/0", "member"),
        ("/a/b~1c/2", MISSING),
        ("/a/b~1c/-", MISSING),
        ("/a/b~1c/00", MISSING),
        ("/a/b~1c/\N{ARABIC-INDIC DIGIT ZERO}", MISSING),
        ("/a/b~1c/" + "9" * 200, MISSING),
        ("/a/b~1c/0/0", MISSING),
        ("/b", MISSING),
    ],
)
def test_a_pointer_leads_to_one_value_or_nowhere(pointer: str, value: Any) -> None:
    assert find_value(DOCUMENT, parse_pointer(pointer)) is value


@pytest.mark.parametrize("text", ["", "a", "#/a", "/a~", "/a~2", "/" + "a" * 300])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a JSON Pointer"):
        parse_pointer(text)
