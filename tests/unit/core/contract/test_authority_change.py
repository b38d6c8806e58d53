"""Test in what a contract gives more authority than another one."""

from typing import Any

import pytest

from deputize.core.contract.authority_change import list_authority_reasons
from deputize.core.contract.contract import Contract
from tests.support.contracts import make_contract


def change(contract: Contract, **changes: Any) -> Contract:
    return Contract.model_validate(contract.model_dump() | changes)


def test_a_description_an_example_or_a_stricter_contract_changes_no_authority() -> None:
    old = make_contract()
    assert list_authority_reasons(old, change(old, description="Say something else, at some length.")) == []
    assert list_authority_reasons(old, change(old, tags=(*old.tags, "critical"))) == []
    assert list_authority_reasons(old, old) == []


def test_weaker_effects_are_named_with_both_values() -> None:
    old = change(make_contract(), effects="destructive", undo=None)
    assert "effects: destructive → read" in list_authority_reasons(old, change(old, effects="read"))


@pytest.mark.parametrize(
    "auth",
    [
        {"scopes": []},
        {"scopes": ["notes:read", "notes:write"]},
        {"scopes": ["notes:read"], "credential": "vault", "secret": "crm/api-key"},
    ],
    ids=["fewer scopes", "more scopes", "a credential"],
)
def test_every_other_auth_has_to_be_confirmed(auth: dict[str, Any]) -> None:
    old = change(make_contract(), auth={"scopes": ["notes:read"]})
    reasons = list_authority_reasons(old, change(old, auth=auth))
    assert len(reasons) == 1
    assert reasons[0].startswith("auth")


def test_a_new_tool_needs_a_key_only_if_it_gets_a_credential() -> None:
    contract = make_contract()
    assert list_authority_reasons(None, contract) == []
    with_secret = change(contract, auth={"scopes": ["notes:read"], "credential": "vault", "secret": "crm/api-key"})
    assert list_authority_reasons(None, with_secret) == ["a new tool that gets a credential (vault)"]


def test_another_type_of_an_argument_is_no_authority_and_a_wider_bound_is() -> None:
    old = change(make_contract(), input_schema=build_schema(type="integer", maximum=10, default=1))
    assert list_authority_reasons(old, change(old, input_schema=build_schema(type="number", maximum=10))) == []
    reasons = list_authority_reasons(old, change(old, input_schema=build_schema(type="integer", maximum=99, default=1)))
    assert reasons == ["input_schema.properties.number.maximum: 10 → 99"]


def build_schema(**keywords: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {"number": {"description": "A number.", **keywords}},
    }
