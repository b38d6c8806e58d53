"""Words of a shell become a tool's arguments, each read as the schema says."""

from typing import Any

import pytest

from deputize.interfaces.cli.local.arguments import ArgumentSyntaxError, parse_arguments

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "nickname": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "id": {"type": "integer"},
        "price": {"type": "number"},
        "urgent": {"type": "boolean"},
        "limit": {"type": ["integer", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "numbers": {"type": "array", "items": {"$ref": "#/$defs/Number"}},
        "address": {"$ref": "#/$defs/Address"},
        "level": {"enum": [1, 2, "high"]},
        "either": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    },
    "$defs": {"Number": {"type": "integer"}, "Address": {"type": "object"}},
}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("name=Ana", "Ana"),
        ("name=7", "7"),
        ("name=true", "true"),
        ("name=", ""),
        ("name=a=b", "a=b"),
        ('name="quoted"', '"quoted"'),
        ("nickname=null", "null"),
        ("id=7", 7),
        ("id=-7", -7),
        ("id=seven", "seven"),
        ("id=7.5", "7.5"),
        ("id=true", "true"),
        ("price=7", 7),
        ("price=7.5", 7.5),
        ("price=1e3", 1000.0),
        ("price=NaN", "NaN"),
        ("urgent=true", True),
        ("urgent=yes", "yes"),
        ("limit=null", None),
        ("limit=3", 3),
        ("tags=red", ["red"]),
        ('tags=["red", "blue"]', ["red", "blue"]),
        ("numbers=4", [4]),
        ('address={"city": "Oslo"}', {"city": "Oslo"}),
        ("level=2", 2),
        ("level=high", "high"),
        ("either=12", 12),
        ("either=twelve", "twelve"),
        ("unknown=7", "7"),
    ],
)
def test_a_value_is_read_as_its_type_and_stays_text_where_that_fails(word: str, value: Any) -> None:
    (found,) = parse_arguments([word], SCHEMA).values()

    assert found == value
    assert type(found) is type(value)


def test_a_name_given_twice_makes_a_list_where_a_list_is_wanted() -> None:
    assert parse_arguments(["tags=a", "tags=b", "name=x", "name=y"], SCHEMA) == {"tags": ["a", "b"], "name": "y"}


def test_words_are_laid_over_a_whole_object() -> None:
    assert parse_arguments(["id=2"], SCHEMA, '{"id": 1, "name": "Ana"}') == {"id": 2, "name": "Ana"}


@pytest.mark.parametrize("word", ["Ana", "=Ana", ""])
def test_a_word_that_names_nothing_says_how_to_write_it(word: str) -> None:
    with pytest.raises(ArgumentSyntaxError, match="write name=value"):
        parse_arguments([word], SCHEMA)


@pytest.mark.parametrize("whole", ["{", "[1]", "7", ""])
def test_a_whole_that_is_no_object_says_how_to_write_it(whole: str) -> None:
    with pytest.raises(ArgumentSyntaxError, match="write it like --args"):
        parse_arguments([], SCHEMA, whole)


def test_a_schema_that_refers_to_itself_ends() -> None:
    endless = {"properties": {"a": {"$ref": "#/properties/a"}, "b": {"anyOf": [{"$ref": "#/properties/b"}]}}}

    assert parse_arguments(["a=1", "b=2"], endless) == {"a": "1", "b": "2"}
