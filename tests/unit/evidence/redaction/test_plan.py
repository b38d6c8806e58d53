"""No value under a sensitive mark or name gets out, whatever shape the schema has; nothing else is touched."""

import copy
from time import thread_time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.sensitive.marks import REDACTION_MARK
from deputize.core.sensitive.names import is_sensitive_name
from deputize.evidence.redaction.plan import MAX_PATHS, RedactionPlan

pytestmark = pytest.mark.requirement("GOV-6")

Schema = dict[str, Any]
CLOSED: Schema = {"type": "object", "additionalProperties": False}
PLAIN: Schema = {"type": "string"}
SECRET_NAMES = ("password", "apiKey", "db_password", "Authorization", "x-api-key", "newPassword")
SENSITIVE_MARKS: tuple[Schema, ...] = ({"x-sensitivity": "secret"}, {"x-sensitivity": "pii"}, {"writeOnly": True})


class SchemaCase:
    """A schema with a document that fits it; secrets hold `hidden`, everything else `plain`."""

    def __init__(self, schema: Schema, document: Any) -> None:
        self.schema = schema
        self.document = document


def _make_leaf(secret: bool) -> SchemaCase:
    return SchemaCase(dict(PLAIN), "hidden" if secret else "plain")


@st.composite
def schema_cases(draw: st.DrawFn, depth: int = 3, secret: bool = False) -> SchemaCase:
    shapes = ["leaf", "marked"] + (
        ["object", "open", "map", "pattern", "list", "tuple", "any", "all", "ref", "then"] if depth else []
    )
    shape = draw(st.sampled_from(shapes))
    if shape == "leaf":
        return _make_leaf(secret)
    if shape == "marked":
        below = draw(schema_cases(max(depth - 1, 0), True))
        return SchemaCase({**below.schema, **draw(st.sampled_from(SENSITIVE_MARKS))}, below.document)
    if shape in ("object", "open"):
        return _draw_object(draw, depth, secret, is_closed=shape == "object")
    one, other = draw(schema_cases(depth - 1, secret)), draw(schema_cases(depth - 1, secret))
    match shape:
        case "map":
            return SchemaCase({"type": "object", "additionalProperties": one.schema}, {"anything": one.document})
        case "pattern":
            schema = {**CLOSED, "patternProperties": {"^x_": one.schema}}
            return SchemaCase(schema, {"x_1": one.document})
        case "list":
            return SchemaCase({"type": ["array", "null"], "items": one.schema}, [one.document, one.document])
        case "tuple":
            return SchemaCase(
                {"type": "array", "prefixItems": [one.schema], "items": other.schema}, [one.document, other.document]
            )
        case "any":
            return SchemaCase({"anyOf": [one.schema, other.schema]}, draw(st.sampled_from([one, other])).document)
        case "all":
            return SchemaCase({"allOf": [one.schema]}, one.document)
        case "ref":
            # A reference with a neighbour that says nothing about this document.
            return SchemaCase({"$ref": "#/$defs/here", "$defs": {"here": one.schema}, "description": "a"}, one.document)
        case _:
            return SchemaCase({"if": {"const": "never"}, "then": other.schema, "else": one.schema}, one.document)


def _draw_object(draw: st.DrawFn, depth: int, secret: bool, *, is_closed: bool) -> SchemaCase:
    properties, document = {}, {}
    for name in draw(st.lists(st.sampled_from(["a", "b", "c"]), unique=True, max_size=3)):
        below = draw(schema_cases(depth - 1, secret))
        properties[name], document[name] = below.schema, below.document
    for name in draw(st.lists(st.sampled_from(SECRET_NAMES), unique=True, max_size=2)):
        below = draw(schema_cases(depth - 1, True))
        document[name] = below.document
        if is_closed:
            properties[name] = below.schema
    schema: Schema = {"type": "object", "properties": properties}
    return SchemaCase({**schema, "additionalProperties": False} if is_closed else schema, document)


def _wrap_path(schema: Schema, path: str = "#") -> Schema:
    """References are made relative to where their definitions stand, so that nested ones point at their own."""
    rooted: Schema = {}
    for key, value in schema.items():
        below = f"{path}/{key}"
        if key == "$ref":
            rooted[key] = value.replace("#", path, 1)
        elif isinstance(value, dict):
            rooted[key] = (
                {
                    name: _wrap_path(each, f"{below}/{name}") if isinstance(each, dict) else each
                    for name, each in value.items()
                }
                if key in ("properties", "patternProperties", "$defs")
                else _wrap_path(value, below)
            )
        elif isinstance(value, list) and key in ("anyOf", "allOf", "prefixItems"):
            rooted[key] = [_wrap_path(each, f"{below}/{n}") for n, each in enumerate(value)]
        else:
            rooted[key] = value
    return rooted


@given(schema_cases())
def test_nothing_under_a_sensitive_mark_or_name_gets_out(case: SchemaCase) -> None:
    plan = RedactionPlan(_wrap_path(case.schema))
    before = copy.deepcopy(case.document)
    # With a search of its texts, and without one.
    for canonical in (None, b""):
        redacted, paths = plan.apply(case.document, canonical)
        assert b"hidden" not in orjson.dumps(redacted)
        assert case.document == before
        assert (b"hidden" in orjson.dumps(before)) <= bool(paths)
        if plan.trivial:
            assert redacted is case.document


@given(schema_cases())
def test_every_redaction_is_named_by_its_path_and_everything_else_stays(case: SchemaCase) -> None:
    redacted, paths = RedactionPlan(_wrap_path(case.schema)).apply(case.document)
    found: list[str] = []
    _require_redacted(case.document, redacted, "", found)
    assert sorted(found) == sorted(paths)


def _require_redacted(before: Any, after: Any, path: str, paths: list[str]) -> None:
    if after == REDACTION_MARK:
        paths.append(path or "/")
    elif isinstance(before, dict):
        assert list(before) == list(after)
        for name, value in before.items():
            _require_redacted(value, after[name], f"{path}/{name}", paths)
    elif isinstance(before, list):
        assert len(before) == len(after)
        for n, value in enumerate(before):
            _require_redacted(value, after[n], f"{path}/{n}", paths)
    else:
        assert before == after


def _redact_document(schema: Any, document: Any) -> tuple[Any, tuple[str, ...]]:
    return RedactionPlan(schema).apply(document)


NODE: Schema = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            **CLOSED,
            "properties": {
                "note": {"type": "string", "x-sensitivity": "secret"},
                "label": PLAIN,
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
        }
    },
}


@given(st.integers(0, 12))
def test_a_schema_that_contains_itself_is_redacted_at_every_depth(depth: int) -> None:
    document: dict[str, Any] = {"note": "hidden", "label": "plain", "children": []}
    for _ in range(depth):
        document = {"note": "hidden", "label": "plain", "children": [document, {"note": "hidden", "children": []}]}
    redacted, paths = _redact_document(NODE, document)
    text = orjson.dumps(redacted)
    assert b"hidden" not in text
    assert text.count(b"plain") == depth + 1
    assert len(paths) == 2 * depth + 1


def test_a_schema_that_is_only_itself_ends() -> None:
    plan = RedactionPlan({"$ref": "#"})
    assert plan.apply({"password": "x", "a": 1}) == ({"password": REDACTION_MARK, "a": 1}, ("/password",))


@pytest.mark.parametrize(
    "schema",
    [
        {**CLOSED, "properties": {"a": PLAIN, "b": {"type": "integer"}, "c": {"type": "array", "items": PLAIN}}},
        {**CLOSED, "properties": {"a": {"anyOf": [PLAIN, {"type": "null"}]}, "b": {"enum": ["x", "y"]}}},
        {**CLOSED, "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {**CLOSED, "properties": {"c": PLAIN}}}},
        {"type": "string"},
        {**CLOSED, "properties": {"a": {"x-sensitivity": "public", "type": "string"}}},
        {**CLOSED, "properties": {"t": {"type": "array", "prefixItems": [PLAIN, PLAIN], "items": False}}},
        False,
    ],
)
def test_a_schema_with_nothing_to_hide_makes_a_trivial_plan(schema: Any) -> None:
    plan = RedactionPlan(schema)
    document = {"a": "x"}
    assert plan.trivial
    assert plan.apply(document)[0] is document


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object"},
        {"type": ["array", "null"]},
        {"type": "array"},
        {"items": {}},
        {"$ref": "https://elsewhere.example/s"},
        {"anyOf": [PLAIN, {}]},
        {"description": "anything"},
        {"not": PLAIN},
        {"type": "object", "unevaluatedProperties": {}},
        {"$ref": "#/$defs/missing"},
        {"$dynamicRef": "#x"},
    ],
)
def test_where_a_schema_leaves_room_names_are_checked_as_they_come(schema: Any) -> None:
    plan = RedactionPlan(schema)
    for inner in ({"password": "hidden", "deep": [{"api_key": "hidden", "n": 1}]},):
        for document in (inner, [inner], {"x": inner}, ["a", inner]):
            assert b"hidden" not in orjson.dumps(plan.apply(document)[0])


@pytest.mark.parametrize(
    ("schema", "document", "wanted"),
    [
        (
            {"$ref": "#/$defs/a", "properties": {"s": {"x-sensitivity": "secret"}}, "$defs": {"a": {"type": "object"}}},
            {"s": 1, "t": 2},
            {"s": REDACTION_MARK, "t": 2},
        ),
        ({"type": "object", "additionalProperties": {"x-sensitivity": "secret"}}, {"any": 1}, {"any": REDACTION_MARK}),
        ({**CLOSED, "patternProperties": {"^s_": {"x-sensitivity": "pii"}}}, {"s_1": 1}, {"s_1": REDACTION_MARK}),
        ({"type": "array", "prefixItems": [PLAIN, {"writeOnly": True}]}, ["a", "b"], ["a", REDACTION_MARK]),
        (
            {"anyOf": [{"properties": {"a": {**CLOSED, "properties": {"b": {"writeOnly": True}}}}}, {}]},
            {"a": {"password": "x", "b": 1}},
            {"a": {"password": REDACTION_MARK, "b": REDACTION_MARK}},
        ),
        (
            {"type": "object", "dependentSchemas": {"a": {"properties": {"s": {"x-sensitivity": "secret"}}}}},
            {"a": 1, "s": 2},
            {"a": 1, "s": REDACTION_MARK},
        ),
        ({"type": "array", "prefixItems": [PLAIN]}, ["a", {"password": 1}], ["a", {"password": REDACTION_MARK}]),
        ({"type": "array", "contains": {"x-sensitivity": "secret"}}, ["a"], [REDACTION_MARK]),
        ({"type": "object", "unevaluatedProperties": {"x-sensitivity": "secret"}}, {"a": 1}, {"a": REDACTION_MARK}),
        ({"x-sensitivity": "secret"}, {"a": 1}, REDACTION_MARK),
        ({**CLOSED, "properties": {"a/b~c": {"writeOnly": True}}}, {"a/b~c": 1}, {"a/b~c": REDACTION_MARK}),
    ],
)
def test_every_keyword_that_can_carry_a_mark_is_followed(schema: Any, document: Any, wanted: Any) -> None:
    assert _redact_document(schema, document)[0] == wanted


def test_a_path_is_a_json_pointer() -> None:
    schema = {**CLOSED, "properties": {"a/b~c": {"type": "array", "items": {"writeOnly": True}}}}
    assert _redact_document(schema, {"a/b~c": [1, 2]})[1] == ("/a~1b~0c/0", "/a~1b~0c/1")


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "Password",
        "PASSWORD",
        "userPassword",
        "new_password",
        "db-password",
        "passwd",
        "api_key",
        "apiKey",
        "APIKey",
        "API_KEY",
        "x-api-key",
        "stripeApiKey",
        "token",
        "accessToken",
        "access-token",
        "auth_token",
        "client_secret",
        "clientSecret",
        "secret",
        "secrets",
        "passwords",
        "private_key",
        "privateKey",
        "Authorization",
        "set-cookie",
        "Cookie",
        "credentials",
        "creditCard",
        "card_number",
        "cvv",
        "ssn",
        "otp",
        "pin",
        "secretAccessKey",
        "aws_secret_access_key",
        "secret_key",
    ],
)
def test_names_that_hold_secrets_are_known_in_any_spelling(name: str) -> None:
    assert is_sensitive_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "id",
        "name",
        "max_tokens",
        "tokens",
        "pinned",
        "shipping",
        "secretary",
        "authorized_by",
        "key",
        "keys",
        "passport_country",
        "token_count",
        "opinion",
        "spin",
        "cookies_enabled",
        "author",
        "",
    ],
)
def test_names_that_only_sound_like_it_are_left_alone(name: str) -> None:
    assert not is_sensitive_name(name)


def test_a_pattern_of_a_server_takes_linear_time() -> None:
    began = thread_time()
    plan = RedactionPlan({"type": "object", "patternProperties": {"^(a+)+$": {"type": "string"}}})
    plan.apply({"a" * 5000 + "!": "x"})
    assert thread_time() - began < 3


def test_a_schema_that_combines_its_parts_too_often_hides_everything() -> None:
    definition = {"allOf": [{"type": "string"} for _ in range(4000)]}
    schema = {"properties": {f"p{each}": {"$ref": "#/$defs/d"} for each in range(2000)}, "$defs": {"d": definition}}
    began = thread_time()
    assert RedactionPlan(schema).apply({"p1": "x"}) == (REDACTION_MARK, ("/",))
    assert thread_time() - began < 2


def test_a_reference_is_described_once_however_it_is_written() -> None:
    definition = {"type": "object", "properties": {f"p{each}": PLAIN for each in range(5000)}}
    references = [{"$ref": "#/$defs/" + "".join(f"%{ord(each):02x}" for each in "abcdefg"[:n]) + "abcdefg"[n:]}
                  for n in range(8)]  # fmt: skip
    began = thread_time()
    plan = RedactionPlan({"anyOf": references * 100, "$defs": {"abcdefg": definition}})
    assert thread_time() - began < 2
    assert plan.apply({"p1": "x", "password": "y"})[0] == {"p1": "x", "password": REDACTION_MARK}


def test_a_recursive_schema_with_two_branches_takes_linear_time() -> None:
    document: Any = {"password": 1}
    for _ in range(60):
        document = [document]
    branch = {"items": {"$ref": "#"}}
    began = thread_time()
    _, paths = RedactionPlan({"type": ["array", "object"], "allOf": [branch, branch]}).apply(document)
    assert thread_time() - began < 3
    assert paths == ("/0" * 60 + "/password",)


def test_long_names_and_many_secrets_are_not_all_listed() -> None:
    document = {"n" * 100_000: {f"a{each}_token": 1 for each in range(5000)}}
    redacted, paths = RedactionPlan({"type": "object"}).apply(document)
    assert set(redacted["n" * 100_000].values()) == {REDACTION_MARK}
    assert len(paths) == MAX_PATHS + 1
    assert max(map(len, paths)) < 200


def test_a_very_long_name_is_judged_by_its_end() -> None:
    began = thread_time()
    assert is_sensitive_name("a_" * 200_000 + "api_key")
    assert not is_sensitive_name("token_" * 200_000 + "a")
    assert thread_time() - began < 3


@given(schema_cases())
def test_redacting_a_document_twice_changes_nothing(case: SchemaCase) -> None:
    plan = RedactionPlan(_wrap_path(case.schema))
    redacted, _ = plan.apply(case.document)
    assert plan.apply(redacted)[0] == redacted
