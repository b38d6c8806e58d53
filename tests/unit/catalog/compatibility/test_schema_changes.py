"""Two versions of a schema: what is proven compatible, and what is called a break, where."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.catalog.compatibility.changes import ChangeLevel
from deputize.catalog.compatibility.schema_changes import Direction, compare_schemas, find_breaks
from deputize.catalog.schemas import compile_schema, format_pointer

pytestmark = pytest.mark.requirement("CON-8")
TEXT, WHOLE, NUMBER, NOTHING = ({"type": kind} for kind in ("string", "integer", "number", "null"))


def make_object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def make_list(**more: Any) -> dict[str, Any]:
    return {"type": "array", **more}


def make_tree(**properties: Any) -> dict[str, Any]:
    node = make_object(children=make_list(items={"$ref": "#/$defs/node"}), **properties)
    return {"$ref": "#/$defs/node", "$defs": {"node": node}}


def make_variants(*kinds: str, keyword: str = "oneOf") -> dict[str, Any]:
    return {keyword: [make_object("kind", kind={"const": kind}, value=TEXT) for kind in kinds]}


COMPATIBLE: list[tuple[Any, Any]] = [
    (make_object(a=TEXT), make_object(a=TEXT, b=TEXT)),
    (make_object("a", a=TEXT), make_object(a=TEXT)),
    (make_object(a=TEXT), {**make_object(a=TEXT), "additionalProperties": TEXT}),
    (make_object(a=TEXT), {"type": "object", "additionalProperties": TEXT}),
    (make_object(a=TEXT), {"type": "object", "maxProperties": 1}),
    (make_object("a", a=TEXT), {"type": "object", "minProperties": 1}),
    (make_object(a=TEXT), {"type": "object", "propertyNames": {"maxLength": 1}}),
    ({"patternProperties": {"^x-": WHOLE}}, {"patternProperties": {"^x-": NUMBER}}),
    (WHOLE, NUMBER),
    ({"type": "number", "multipleOf": 4}, {"type": "integer", "multipleOf": 2}),
    (TEXT, {"type": ["string", "null"]}),
    ({"type": ["string", "null"]}, {"anyOf": [TEXT, NOTHING]}),
    ({"anyOf": [TEXT, NOTHING]}, {"type": ["null", "string"]}),
    ({"enum": ["a", "b"]}, {"enum": ["c", "b", "a"]}),
    ({"const": 1}, {"enum": [1.0, 2]}),
    ({"enum": ["a", "bc"]}, {"type": "string", "minLength": 1, "pattern": "^[a-c]+$"}),
    ({"type": "boolean"}, {"enum": [True, False, None]}),
    ({"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 1}),
    ({"minimum": 2, "maximum": 3, "type": "number"}, {"exclusiveMinimum": 1, "maximum": 3}),
    ({"type": "string", "minLength": 2, "pattern": "a"}, {"type": "string", "minLength": 1, "pattern": "a"}),
    (make_list(items=WHOLE, maxItems=2), make_list(items=NUMBER, maxItems=3)),
    (make_list(prefixItems=[WHOLE, TEXT], items=False), make_list(items={"type": ["integer", "string"]})),
    (make_list(items=WHOLE, minItems=1), make_list(contains=NUMBER)),
    (make_list(maxItems=1), make_list(uniqueItems=True)),
    ({"allOf": [TEXT, {"minLength": 2}]}, {"type": "string", "minLength": 1}),
    ({"type": "string", "minLength": 2}, {"allOf": [TEXT, {"minLength": 1}]}),
    (make_variants("a", "b"), make_variants("a", "b", "c")),
    (make_variants("a", "b"), make_variants("a", "b", keyword="anyOf")),
    (make_tree(), make_tree(name=TEXT)),
    ({"not": WHOLE}, {"not": {"type": "integer", "minimum": 0}}),
    (TEXT, {"not": WHOLE}),
    (
        {"if": {"required": ["a"]}, "then": {"required": ["b", "c"]}},
        {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
    ),
    ({"dependentRequired": {"a": ["b", "c"]}}, {"dependentRequired": {"a": ["b"]}}),
    (TEXT, {**TEXT, "description": "A name.", "default": "a", "examples": ["b"], "x-sensitivity": "pii"}),
    ({"unknown": 1, **TEXT}, {"unknown": 1, "type": ["string", "null"]}),
    (make_object(a=WHOLE), {"$ref": "#/$defs/x", "$defs": {"x": make_object(a=NUMBER)}}),
    (False, TEXT),
    (TEXT, True),
]


@pytest.mark.parametrize(("old", "new"), COMPATIBLE)
def test_what_allows_at_least_as_much_is_proven(old: Any, new: Any) -> None:
    assert find_breaks(old, new) == []


BREAKS: list[tuple[Any, Any, str]] = [
    (make_object(a=TEXT, b=TEXT), make_object(a=TEXT), "/properties/b"),
    (make_object(a=TEXT), make_object("a", a=TEXT), "/properties/a"),
    (make_object(a=TEXT), make_object("b", a=TEXT, b=TEXT), "/properties/b"),
    ({"type": "object", "properties": {"a": TEXT}}, make_object(a=TEXT), "/additionalProperties"),
    # An open object could have any value under the new name.
    ({"type": "object"}, {"type": "object", "properties": {"a": TEXT}}, "/properties/a/type"),
    (make_object(a=NUMBER), make_object(a=WHOLE), "/properties/a/type"),
    ({"type": ["string", "null"]}, TEXT, "/type"),
    ({"enum": ["a", "b"]}, {"enum": ["a"]}, "/enum"),
    ({"enum": [True]}, {"enum": [1]}, "/enum"),
    ({"const": 1}, {"const": True}, "/const"),
    (TEXT, {"enum": ["a"]}, "/enum"),
    ({"type": "number", "minimum": 0}, {"type": "number", "exclusiveMinimum": 0}, "/exclusiveMinimum"),
    ({"type": "number", "exclusiveMinimum": 0}, {"type": "number", "minimum": 1}, "/minimum"),
    (WHOLE, {"type": "integer", "maximum": 5}, "/maximum"),
    (WHOLE, {"type": "integer", "multipleOf": 2}, "/multipleOf"),
    # Validators compare multiples of fractions in binary.
    ({"type": "number", "multipleOf": 0.2}, {"type": "number", "multipleOf": 0.1}, "/multipleOf"),
    (TEXT, {**TEXT, "pattern": "a"}, "/pattern"),
    # Formats are enforced here.
    (TEXT, {**TEXT, "format": "email"}, "/format"),
    (make_list(items=TEXT), make_list(items=TEXT, minItems=1), "/minItems"),
    (make_list(items=NUMBER), make_list(items=WHOLE), "/items/type"),
    (make_list(items=NUMBER), make_list(prefixItems=[WHOLE], items=NUMBER), "/prefixItems/0/type"),
    (make_list(prefixItems=[TEXT], items=WHOLE), make_list(items=WHOLE), "/items/type"),
    (make_list(items=TEXT), make_list(items=TEXT, uniqueItems=True), "/uniqueItems"),
    (make_list(items=WHOLE), make_list(items=WHOLE, contains=WHOLE), "/contains"),
    ({"anyOf": [WHOLE, NOTHING]}, {"anyOf": [{"type": "integer", "maximum": 4}, NOTHING]}, "/anyOf/0/maximum"),
    # Both alternatives allow it, so that oneOf refuses it.
    (WHOLE, {"oneOf": [WHOLE, NUMBER]}, "/oneOf"),
    (make_variants("a", "b"), make_variants("a"), "/oneOf/0/properties/kind/const"),
    (make_tree(name=TEXT), make_tree(name=WHOLE), "/properties/name/type"),
    (make_tree(name=TEXT), make_tree(), "/properties/name"),
    (True, {"not": WHOLE}, "/not"),
    ({"if": TEXT, "then": {"minLength": 1}}, {"if": TEXT, "then": {"minLength": 2}}, "/if"),
    ({"if": TEXT, "then": {"minLength": 2}}, {"if": WHOLE, "then": {"minLength": 2}, "else": {"minLength": 1}}, "/if"),
    (TEXT, {**TEXT, "unknown": 1}, "/unknown"),
    ({"unknown": 2}, {"unknown": 1}, "/unknown"),
    (TEXT, {"$ref": "#/$defs/gone"}, ""),
    (TEXT, {"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}}, ""),
    ({"type": "object"}, {"type": "object", "propertyNames": {"maxLength": 3}}, "/propertyNames/maxLength"),
    (make_object(a=TEXT), {"allOf": [{}], "unevaluatedProperties": False}, "/unevaluatedProperties"),
    ({"$ref": "#/$defs/x", "$defs": {"x": TEXT}}, {"$ref": "#/$defs/x", "$defs": {"x": WHOLE}}, "/type"),
    ({"$id": "https://a.example/", "$ref": "#/$defs/x", "$defs": {"x": TEXT}}, TEXT, ""),
    # What the text of a schema leaves out can still be referred to.
    ({"$ref": "#/x-type", "x-type": NUMBER}, {"$ref": "#/x-type", "x-type": WHOLE}, "/type"),
    (
        {"$ref": "#/$defs/x/examples/0", "$defs": {"x": {"examples": [NUMBER]}}},
        {"$ref": "#/$defs/x/examples/0", "$defs": {"x": {"examples": [WHOLE]}}},
        "/type",
    ),
    (
        {"$ref": "#/$defs/a%20b", "$defs": {"a%20b": TEXT, "a b": NUMBER}},
        {"$ref": "#/$defs/a%20b", "$defs": {"a%20b": TEXT, "a b": WHOLE}},
        "",
    ),
]


@pytest.mark.parametrize(("old", "new", "path"), BREAKS)
def test_what_allows_less_or_cannot_be_judged_is_a_break_at_its_place(old: Any, new: Any, path: str) -> None:
    assert path in [format_pointer(each.path) for each in find_breaks(old, new)]


@pytest.mark.parametrize(
    ("old", "new", "direction", "level", "reason"),
    [
        (make_object(a=TEXT), make_object(a=TEXT, b=TEXT), Direction.INPUT, "minor", "is accepted now, and was not"),
        (
            make_object(a=TEXT),
            make_object(a=TEXT, b=TEXT),
            Direction.RESULT,
            "major",
            "is possible now, and was excluded",
        ),
        (
            make_object("a", a=TEXT),
            make_object(a=TEXT),
            Direction.RESULT,
            "major",
            "can be missing now, and was always there",
        ),
        (
            make_object(a=TEXT),
            make_object("a", a=TEXT),
            Direction.RESULT,
            "minor",
            "is always there now, and could be missing",
        ),
        (NUMBER, WHOLE, Direction.INPUT, "major", "must be integer now, and could be number"),
        (NUMBER, WHOLE, Direction.RESULT, "minor", "is always integer now, and could be number"),
        (TEXT, {**TEXT, "title": "Name"}, Direction.INPUT, "patch", "is written differently, and means the same"),
        (
            {"type": ["string", "null"]},
            {"anyOf": [TEXT, NOTHING]},
            Direction.INPUT,
            "patch",
            "is written differently, and means the same",
        ),
        (
            {**TEXT, "default": "a"},
            {**TEXT, "default": "b"},
            Direction.INPUT,
            "minor",
            "changes what leaving it out means",
        ),
    ],
)
def test_a_change_is_told_from_the_side_of_callers(
    old: Any, new: Any, direction: Direction, level: str, reason: str
) -> None:
    (change,) = compare_schemas("/x", old, new, direction)
    assert (change.level.label, change.reason) == (level, reason)


def test_a_schema_that_did_not_change_has_no_changes() -> None:
    assert compare_schemas("/x", make_tree(), make_tree(), Direction.INPUT) == []
    assert compare_schemas("/x", {"const": 1}, {"const": True}, Direction.INPUT)[0].level is ChangeLevel.MAJOR


@pytest.mark.parametrize(
    "bomb",
    [
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"anyOf": [{"items": {"$ref": "#/$defs/a"}, "minItems": n} for n in range(60)]}},
        },
        {"allOf": [{"anyOf": [{"minLength": n, "maxItems": m} for n in range(9)]} for m in range(40)]},
        {
            "$defs": {f"d{n}": {"oneOf": [{"properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}}] * 4} for n in range(40)}
            | {"d40": {}},
            "$ref": "#/$defs/d0",
        },
    ],
)
def test_no_schema_makes_a_comparison_take_long(bomb: dict[str, Any]) -> None:
    began = time.thread_time()
    assert find_breaks(bomb, {"oneOf": [bomb, {"type": "string", "minLength": 3, "x": 1}], "not": {"const": 77}})
    assert time.thread_time() - began < 5


@pytest.mark.parametrize(
    "value", [{"type": 5}, {"required": 7}, {"properties": [1]}, {"enum": 3}, {"minimum": "a"}, {"anyOf": 1}]
)
def test_what_is_no_schema_is_called_a_break_and_raises_nothing(value: Any) -> None:
    assert find_breaks(True, value)
    find_breaks(value, value | {"title": "a"})


def test_a_schema_that_is_nested_too_deep_is_a_break() -> None:
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"items": deep}
    assert "nested" in find_breaks(deep, {"items": deep})[0].need


SCALARS = st.sampled_from([None, True, False, 0, 1, 2, -1, 1.5, "", "a", "ab", "abc"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=5,
)
LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.booleans(),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["string", "integer", "number", "null", "boolean", "object", "array"])}
    ),
    st.fixed_dictionaries({"enum": st.lists(SCALARS, min_size=1, max_size=4)}),
    st.fixed_dictionaries({"const": SCALARS}),
    st.fixed_dictionaries(
        {},
        optional={
            "minimum": st.integers(-1, 2),
            "exclusiveMaximum": st.integers(0, 3),
            "multipleOf": st.integers(1, 3),
        },
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "minLength": st.integers(0, 2),
            "maxLength": st.integers(0, 3),
            "pattern": st.sampled_from(["a", "^b"]),
        },
    ),
)
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(["object", ["object", "null"]]),
                "properties": st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=2),
                "required": st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True),
                "additionalProperties": st.just(False) | inner,
                "patternProperties": st.dictionaries(st.sampled_from(["a", "b|c"]), inner, max_size=1),
                "maxProperties": st.integers(0, 2),
            },
        ),
        st.fixed_dictionaries(
            {},
            optional={
                "items": inner,
                "prefixItems": st.lists(inner, min_size=1, max_size=2),
                "contains": inner,
                "minItems": st.integers(0, 2),
                "maxItems": st.integers(0, 2),
                "uniqueItems": st.booleans(),
                "maxContains": st.integers(0, 2),
                "minContains": st.integers(0, 2),
            },
        ),
        st.builds(
            lambda keyword, parts: {keyword: parts},
            st.sampled_from(["anyOf", "oneOf", "allOf"]),
            st.lists(inner, min_size=1, max_size=3),
        ),
        st.builds(lambda part: {"not": part}, inner),
        st.fixed_dictionaries({"if": inner}, optional={"then": inner, "else": inner}),
    ),
    max_leaves=6,
)


@given(old=SCHEMAS, new=SCHEMAS, values=st.lists(VALUES, min_size=5, max_size=20))
def test_no_value_contradicts_a_proof(old: Any, new: Any, values: list[Any]) -> None:
    if not find_breaks(old, new):
        allowing, refusing = compile_schema(old), compile_schema(new)
        assert [value for value in values if allowing.is_valid(value) and not refusing.is_valid(value)] == []


@given(schema=SCHEMAS)
def test_every_schema_is_compatible_with_itself_and_with_anything_goes(schema: Any) -> None:
    assert find_breaks(schema, schema) == []
    assert find_breaks(schema, {"anyOf": [schema, {"const": "another"}]}) == []
    assert find_breaks({"allOf": [schema, {"type": "object"}]}, schema) == []
