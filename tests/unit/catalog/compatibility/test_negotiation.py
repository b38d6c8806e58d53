"""What an agent expects, and how well a version offers it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.catalog.compatibility.negotiation import Match, judge_match, list_missing_parts
from deputize.catalog.schemas import compile_schema
from deputize.core.contract.contract import Effects
from deputize.core.contract.expectation import AgentExpectation, ExpectedSide

pytestmark = pytest.mark.requirement("CON-9")
TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
OFFERED_INPUT = {
    "type": "object",
    "properties": {"id": WHOLE, "region": {"enum": ["eu", "us"]}, "page": {"$ref": "#/$defs/page"}},
    "required": ["id"],
    "additionalProperties": False,
    "$defs": {"page": {"type": "object", "properties": {"size": WHOLE, "after": TEXT}, "required": ["size"]}},
}
OFFERED_OUTPUT = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "email": TEXT,
        "orders": {"type": "array", "items": {"type": "object", "properties": {"id": WHOLE}, "required": ["id"]}},
    },
    "required": ["name", "orders"],
}


def negotiate(**expected: Any) -> tuple[Match, dict[str, tuple[bool, str]]]:
    sides = {name: ExpectedSide(**expected[name]) for name in ("input", "output") if name in expected}
    parts = list_missing_parts(
        AgentExpectation(**sides, effects=expected.get("effects")),
        input_schema=OFFERED_INPUT,
        output_schema=OFFERED_OUTPUT,
        effects=Effects.WRITE,
    )
    return judge_match(parts), {each.path: (each.is_required, each.reason) for each in parts}


def make_object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


@pytest.mark.parametrize(
    "expected",
    [
        {},
        {"input": {"schema": make_object("id", id=WHOLE)}},
        {"input": {"schema": make_object("id", id=WHOLE, region={"const": "eu"})}},
        {"input": {"schema": make_object("id", id=WHOLE, page=make_object("size", size=WHOLE))}},
        {"output": {"schema": make_object("name", name=TEXT)}},
        {"output": {"schema": make_object("name", name=TEXT, email=TEXT)}},
        {"input": {"fields": ("/id",), "optional_fields": ("/region",)}},
        {"output": {"fields": ("/name", "/orders/*/id"), "optional_fields": ("/email",)}},
        {"effects": Effects.WRITE},
    ],
)
def test_what_is_all_offered_matches_in_full(expected: dict[str, Any]) -> None:
    assert negotiate(**expected) == (Match.FULL, {})


@pytest.mark.parametrize(
    ("expected", "path", "reason"),
    [
        ({"input": {"schema": make_object("id", id=WHOLE, color=TEXT)}}, "/input/color", "is not accepted"),
        ({"input": {"schema": make_object("id", id=WHOLE, region=TEXT)}}, "/input/region", "must be"),
        ({"output": {"schema": make_object("name", name=TEXT, phone=TEXT)}}, "/output/phone", "is not in the result"),
        ({"output": {"schema": make_object("name", name=TEXT, email=WHOLE)}}, "/output/email", "can be string"),
        ({"input": {"fields": ("/id",), "optional_fields": ("/color",)}}, "/input/color", "is not accepted"),
        ({"output": {"optional_fields": ("/orders/*/total",)}}, "/output/orders/*/total", "is not in the result"),
    ],
)
def test_a_missing_optional_part_makes_a_partial_match(expected: dict[str, Any], path: str, reason: str) -> None:
    match, missing = negotiate(**expected)
    assert match is Match.PARTIAL
    assert missing.keys() == {path}
    assert missing[path][0] is False
    assert missing[path][1].startswith(reason)


@pytest.mark.parametrize(
    ("expected", "path", "reason"),
    [
        ({"input": {"schema": make_object("color", "id", id=WHOLE, color=TEXT)}}, "/input/color", "is not accepted"),
        ({"input": {"schema": make_object(id=WHOLE)}}, "/input/id", "is required, and you do not always send it"),
        ({"input": {"schema": make_object()}}, "/input/id", "is required, and you do not always send it"),
        ({"input": {"schema": make_object("id", id=TEXT)}}, "/input/id", "must be integer, and you may send string"),
        ({"output": {"schema": make_object("email", email=TEXT)}}, "/output/email", "is not always in the result"),
        ({"output": {"schema": make_object("name", name=WHOLE)}}, "/output/name", "can be string"),
        ({"input": {"fields": ("/region",)}}, "/input/id", "is required, and you do not send it"),
        ({"input": {"fields": ("/id", "/page/after")}}, "/input/page/size", "is required, and you do not send it"),
        ({"output": {"fields": ("/email",)}}, "/output/email", "is not always in the result"),
        ({"output": {"fields": ("/phone",)}}, "/output/phone", "is not in the result"),
        ({"effects": Effects.READ}, "/effects", "is write, and you accept at most read"),
    ],
)
def test_a_missing_required_part_is_incompatible(expected: dict[str, Any], path: str, reason: str) -> None:
    match, missing = negotiate(**expected)
    assert match is Match.INCOMPATIBLE
    assert missing[path][0] is True
    assert missing[path][1].startswith(reason)


_KINDS = st.sampled_from([TEXT, WHOLE, {"type": "null"}, {"enum": ["eu"]}, {"type": ["string", "integer"]}])
_SENT = st.dictionaries(st.sampled_from(["id", "region", "color"]), _KINDS).flatmap(
    lambda properties: st.sets(st.sampled_from(sorted(properties) or ["id"])).map(
        lambda required: make_object(*sorted(required), **properties)
    )
)
_VALUES = st.dictionaries(st.sampled_from(["id", "region", "color"]), st.sampled_from(["eu", "x", 1, None]))


@given(sent_schema=_SENT, value=_VALUES)
def test_what_an_agent_sends_after_a_full_match_is_accepted(sent_schema: dict[str, Any], value: dict[str, Any]) -> None:
    match, _ = negotiate(input={"schema": sent_schema})
    if match is Match.FULL and compile_schema({**sent_schema, "additionalProperties": False}).is_valid(value):
        assert compile_schema(OFFERED_INPUT).is_valid(value)
