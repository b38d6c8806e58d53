"""Constraints of delegations: what can be enforced is parsed exactly, and everything else is refused."""

from typing import Any

import orjson
import pytest

from deputize.core.grant_constraints import InvalidConstraints, load_constraints, parse_constraints

pytestmark = pytest.mark.requirement("GOV-2")

REFUNDS = {
    "environments": ["staging", "production"],
    "arguments": {
        "shop.refund": {
            "amount": {"minimum": 1, "maximum": 50},
            "unit": {"const": "EUR"},
            "reason": {"enum": ["broken", "late"]},
            "notify": {"const": True},
        }
    },
}
ALLOWED = {"amount": 50, "unit": "EUR", "reason": "late", "notify": True, "note": "anything"}


def _find_violation(
    arguments: dict[str, Any], *, environment: str = "production", tool: str = "shop.refund"
) -> str | None:
    text, _ = parse_constraints(orjson.dumps(REFUNDS))
    return load_constraints(text).find_violation(environment=environment, tool=tool, arguments=arguments)


def test_a_call_within_all_constraints_is_allowed() -> None:
    assert _find_violation(ALLOWED) is None
    assert _find_violation({}, tool="shop.list") is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"amount": 51}, "it requires amount to have maximum 50"),
        ({"amount": 0}, "it requires amount to have minimum 1"),
        ({"amount": "2"}, "it requires amount to have maximum 50"),
        ({"amount": True}, "it requires amount to have maximum 50"),
        ({"unit": "USD"}, 'it requires unit to have const "EUR"'),
        ({"reason": None}, 'it requires reason to have enum ["broken","late"]'),
        # JSON's true is not 1.
        ({"notify": 1}, "it requires notify to have const true"),
    ],
)
def test_each_condition_is_checked(change: dict[str, Any], reason: str) -> None:
    assert _find_violation({**ALLOWED, **change}) == reason


def test_an_argument_with_conditions_cannot_be_left_out() -> None:
    without = {name: value for name, value in ALLOWED.items() if name != "amount"}
    assert _find_violation(without) == "it requires the argument amount"


def test_another_environment_is_refused() -> None:
    assert "this gateway is development" in (_find_violation(ALLOWED, environment="development") or "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "not a JSON object"),
        ("{", "not a JSON object"),
        ('{"most": 5}', "contains most, which this gateway cannot enforce"),
        ('{"environments": "staging"}', "environments is not a list"),
        ('{"environments": []}', "environments is not a list"),
        ('{"environments": ["stagging"]}', "environments is not a list"),
        ('{"environments": [["staging"]]}', "environments is not a list"),
        ('{"arguments": []}', "arguments is not a JSON object"),
        ('{"arguments": {"a.b": {"c": {}}}}', "has no condition"),
        ('{"arguments": {"a.b": {"c": 5}}}', "is not a JSON object"),
        ('{"arguments": {"a.b": {"c": {"pattern": ".*"}}}}', "contains pattern"),
        ('{"arguments": {"a.b": {"c": {"maximum": "5"}}}}', "maximum is not a number"),
        ('{"arguments": {"a.b": {"c": {"maximum": true}}}}', "maximum is not a number"),
        ('{"arguments": {"a.b": {"c": {"enum": 5}}}}', "enum is not a list"),
        ('{"arguments": {"a.b": {"c": {"const": "' + "x" * 4096 + '"}}}}', "longer than 4096 bytes"),
    ],
)
def test_what_cannot_be_enforced_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidConstraints, match=reason):
        parse_constraints(text.encode())
