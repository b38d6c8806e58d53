"""What a contract declares and the gateway does not enforce is named."""

from typing import Any

import pytest

from deputize.core.contract.contract import Contract
from deputize.core.contract.unenforced_fields import describe_missing_setup, list_unenforced_fields
from tests.support.policy_inputs import make_tool

COMMAND = {"driver": "command", "target": "lab/run", "command": {"program": "/bin/true", "sha256": "0" * 64}}


def test_a_contract_that_sets_nothing_unenforced_has_none() -> None:
    assert (
        list_unenforced_fields(make_tool(retry={"max_attempts": 2}, checkpoints={"enabled": True}, max_inline=1000))
        == ()
    )
    assert list_unenforced_fields(make_tool(breaker={"failure_threshold": 3}, external_service="crm")) == ()
    server = {"driver": "mcp", "target": "crm/getUser"}
    assert list_unenforced_fields(make_tool(network={"allowed_domains": ["crm.example"]}, handler=server)) == ()
    assert list_unenforced_fields(make_tool(alerts={"error_rate": 0.1})) == ()
    isolated: dict[str, Any] = {
        "handler": COMMAND,
        "limits": {"memory": "1Gi"},
        "sandbox": {"tier": 2, "backend": "namespaces"},
    }
    assert list_unenforced_fields(make_tool(**isolated, network={"allowed_domains": ["crm.example"]})) == ()
    assert list_unenforced_fields(make_tool(service_limits={"max_concurrent": 3}, external_service="crm")) == ()


@pytest.mark.parametrize(
    ("declared", "field"),
    [
        ({"handler": {"driver": "none", "target": "get_user"}}, "/handler"),
        ({"breaker": {"failure_threshold": 3}}, "/breaker"),
        ({"breaker": {"success_threshold": 1}}, "/breaker"),
        ({"breaker": {"timeout_seconds": 5}}, "/breaker"),
        ({"breaker": {"half_open_max_calls": 1}}, "/breaker"),
        ({"breaker": {"window_seconds": 30}}, "/breaker"),
        ({"service_limits": {"max_concurrent": 3}}, "/service_limits"),
        ({"service_limits": {"max_waiting": 0}}, "/service_limits"),
        ({"service_limits": {"max_wait_seconds": 1}}, "/service_limits"),
        ({"service_limits": {"max_calls": 1}}, "/service_limits"),
        ({"limits": {"cpu": "2"}}, "/limits"),
        ({"limits": {"memory": "1Gi"}}, "/limits"),
        ({"limits": {"ephemeral_storage": "2Gi"}}, "/limits"),
        ({"limits": {"processes": 8}}, "/limits"),
        ({"network": {"allowed_domains": ["crm.example"]}}, "/network"),
        ({"network": {"allowed_ports": [443]}}, "/network"),
        ({"network": {"deny_all_egress": True}}, "/network"),
        ({"sandbox": {"tier": 0}}, "/sandbox"),
        ({"alerts": {"error_rate": 0.1, "window_seconds": 60}}, "/alerts/window_seconds"),
        ({"recipient_argument": "to"}, "/recipient_argument"),
        ({"labels": {"adds": ["private"]}}, "/labels"),
    ],
)
def test_each_field_is_named_also_after_it_was_stored(declared: dict[str, Any], field: str) -> None:
    contract = make_tool(**declared)
    assert list_unenforced_fields(contract) == (field,)
    assert list_unenforced_fields(Contract.model_validate_json(contract.model_dump_json())) == (field,)


@pytest.mark.parametrize(
    ("fields", "description"),
    [
        (("/handler",), "is connected to no code (/handler)"),
        (("/limits", "/labels"), "declares what this gateway does not enforce: /limits, /labels"),
        (
            ("/service_limits",),
            "declares limits of a service (/service_limits) and no service (/external_service)",
        ),
        (
            ("/breaker",),
            "declares a circuit breaker (/breaker) and no service that it is for (/external_service)",
        ),
        (
            ("/handler", "/limits"),
            "is connected to no code (/handler) and declares what this gateway does not enforce: /limits",
        ),
    ],
)
def test_what_is_missing_is_said_in_words(fields: tuple[str, ...], description: str) -> None:
    assert describe_missing_setup(fields) == description
