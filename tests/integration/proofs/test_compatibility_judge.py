"""The judge of the compatibility proof finds one planted fault of each category, and values find what is refused."""

import random
from dataclasses import fields
from typing import Any

import pytest

from proofs.compatibility.experiment import decide_level
from proofs.compatibility.judge import Findings, find_refused_value, judge_pair
from proofs.compatibility.schema_pairs import SchemaPair, load_real_schemas

pytestmark = pytest.mark.nightly

TEXT, ANY_TEXT = {"type": "string", "maxLength": 3}, {"type": "string"}


def judge(old: dict[str, Any], new: dict[str, Any], level: str, *, is_widened: bool) -> set[str]:
    findings = Findings()
    pair = SchemaPair(origin="generated", old=old, new=new, is_widened=is_widened)
    judge_pair(pair, lambda *_: level, random.Random(1), findings)
    return {each.name for each in fields(Findings) if "list[str]" in str(each.type) and getattr(findings, each.name)}


@pytest.mark.parametrize(
    ("old", "new", "level", "is_widened", "categories"),
    [
        (TEXT, ANY_TEXT, "minor", True, set()),
        (ANY_TEXT, TEXT, "major", False, set()),
        (ANY_TEXT, TEXT, "minor", False, {"breaks_called_compatible"}),
        (TEXT, ANY_TEXT, "patch", True, {"additions_called_patches"}),
        (TEXT, ANY_TEXT, "major", True, {"false_alarms"}),
        (ANY_TEXT, TEXT, "major", True, {"widened_and_broken"}),
    ],
)
def test_a_wrong_verdict_is_found_in_its_category(
    old: dict[str, Any], new: dict[str, Any], level: str, is_widened: bool, categories: set[str]
) -> None:
    assert judge(old, new, level, is_widened=is_widened) == categories


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"type": "integer"}, {"type": "integer", "maximum": 41}),
        ({"enum": ["a", "far-fetched"]}, {"enum": ["a"]}),
        ({"properties": {"a": {"items": {"minimum": 17}}}}, {"properties": {"a": {"items": {"minimum": 18}}}}),
        ({"type": "object"}, {"type": "object", "properties": {"a": {"type": "string"}}}),
        (
            {
                "$ref": "#/$defs/n",
                "$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}, "v": {"type": "number"}}}},
            },
            {
                "$ref": "#/$defs/n",
                "$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}, "v": {"type": "integer"}}}},
            },
        ),
    ],
)
def test_values_show_a_break(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert find_refused_value(first, second, random.Random(1)) is not None
    assert find_refused_value(first, first, random.Random(1)) is None
    assert decide_level(first, second) == "major"


def test_the_published_schemas_are_there() -> None:
    assert len(load_real_schemas()) > 7_000
