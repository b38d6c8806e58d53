"""What a contract declares and the gateway does not enforce is named."""

from typing import Any

import pytest

from deputize.core.contract.contract import Contract
from deputize.core.contract.unenforced_fields import list_unenforced_fields
from tests.support.policy_inputs import make_tool


def test_a_contract_that_sets_nothing_unenforced_has_none() -> None:
    assert list_unenforced_fields(make_tool(retry={"max_attempts": 2}, checkpoints={"enabled": True})) == ()


@pytest.mark.parametrize(
    ("declared", "field"),
    [
        ({"breaker": {"timeout_seconds": 5}}, "/breaker"),
        ({"limits": {"cpu": "2"}}, "/limits"),
        ({"network": {"deny_all_egress": True}}, "/network"),
        ({"retry": {"retry_on_status_codes": []}}, "/retry/retry_on_status_codes"),
        ({"checkpoints": {"macro_events": ["paid"]}}, "/checkpoints/macro_events"),
        ({"error_schema": {}}, "/error_schema"),
    ],
)
def test_each_field_is_named_also_after_it_was_stored(declared: dict[str, Any], field: str) -> None:
    contract = make_tool(**declared)
    assert list_unenforced_fields(contract) == (field,)
    assert list_unenforced_fields(Contract.model_validate_json(contract.model_dump_json())) == (field,)
