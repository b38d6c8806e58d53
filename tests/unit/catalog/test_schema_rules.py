"""A schema that was found to be correct is not checked again, and nothing else passes for it."""

from typing import Any

import pytest

from deputize.catalog.schema_rules import check_schema


@pytest.mark.requirement("CON-3")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ({"type": "integer", "minimum": 1}, {"type": "integer", "minimum": "1"}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "dates"}),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, {"$ref": "#/$defs/b", "$defs": {"a": {}}}),
        ({"const": None}, {"const": None, "x-token-cost": -1}),
    ],
)
def test_a_schema_that_differs_is_checked_and_named_by_its_place(right: dict[str, Any], wrong: dict[str, Any]) -> None:
    for _ in range(2):
        for where in ("input_schema", "output_schema"):
            assert list(check_schema(where, right)) == []
            reasons = list(check_schema(where, wrong))
            assert reasons
            assert all(each.path.startswith(f"/{where}") for each in reasons)
