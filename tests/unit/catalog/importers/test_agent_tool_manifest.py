"""Manifests in the standard's form are read as they are, by recorded rules."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.catalog.importers.agent_tool_manifest import StandardManifest, to_tool_name, to_word
from deputize.catalog.importers.manifest import parse_contract, parse_manifest
from deputize.catalog.registration_rules import admit_contract
from deputize.core.contract.contract import Contract, Effects, TimeoutClass
from deputize.core.contract.names import to_outward_name
from deputize.core.contract.unenforced_fields import list_unenforced_fields
from deputize.core.errors import ToolNotAdmitted

pytestmark = pytest.mark.requirement("CON-2")

REQUIRED: dict[str, Any] = {
    "tool_id": "book_room",
    "version": "2.1.0",
    "name": "Room booking",
    "description": "Book a meeting room for a team.",
    "provider": "Office Services",
    "protocol": "native",
    "parameters": {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]},
}
FULL: dict[str, Any] = {
    **REQUIRED,
    "result_schema": {"type": "object", "properties": {"booking": {"type": "string"}}},
    "required_permissions": ["network:https://rooms.example", "credentials:rooms"],
    "timeout_default": 45,
    "timeout_max": 600,
    "retry_policy": {
        "max_attempts": 2, "backoff_multiplier": 1.5, "backoff_max_seconds": 9, "retry_on_status_codes": [503],
    },
    "circuit_breaker_config": {
        "failure_threshold": 7, "success_threshold": 2, "timeout_seconds": 30, "half_open_max_calls": 4,
    },
    "resource_limits": {"cpu": "500m", "memory": "1Gi", "ephemeral_storage": "2Gi"},
    "network_policy": {"allowed_domains": ["*.rooms.example"], "allowed_ports": [443], "deny_all_egress": False},
    "external_service": "Rooms API",
    "checkpoint_config": {"enabled": True, "micro_interval_seconds": 60, "macro_events": ["held"]},
    "lifecycle_state": "deprecated",
    "deprecation_date": "2030-01-31",
    "sunset_date": "2030-06-30",
    "migration_guide_url": "https://rooms.example/3",
    "replacement_tool_id": "reserve_room",
    "priority": 9,
    "tags": ["rooms"],
    "changelog": "Holds rooms longer.",
    "breaking_changes": True,
    "documentation_url": "https://rooms.example/docs",
    "source_code_url": "https://rooms.example/code",
    "license": "MIT",
    "author": {"name": "Ana", "email": "ana@example.org", "url": "https://ana.example"},
    "cost_center": {"number": 12},
}  # fmt: skip


def read(**changes: Any) -> Contract:
    return parse_contract({**REQUIRED, **changes})


def list_reasons(**changes: Any) -> list[str]:
    with pytest.raises(ToolNotAdmitted) as refused:
        read(**changes)
    assert all(each["reason"] and each["fix"] for each in refused.value.details["reasons"])
    return [each["path"] for each in refused.value.details["reasons"]]


def test_the_smallest_manifest_is_admitted_with_cautious_values() -> None:
    contract = read()
    admit_contract(contract)
    assert (contract.full_name, contract.title) == ("office_services.book_room", "Room booking")
    assert contract.effects is Effects.DESTRUCTIVE
    assert {each.op for each in contract.resources} == {"create", "update", "delete"}
    assert contract.auth.required_scopes == ("tool:book_room",)
    assert (contract.timeout.timeout_class, contract.timeout.effective_seconds) == (TimeoutClass.LONG_RUNNING, 30)
    assert contract.priority == 6
    assert contract.input_schema["additionalProperties"] is False
    assert contract.output_schema == {}
    assert contract.external_mappings["tool_manifest"] == {
        "tool_id": "book_room", "protocol": "native", "lifecycle_state": "active",
    }  # fmt: skip
    assert list_unenforced_fields(contract) == ("/handler",)


def test_every_field_arrives() -> None:
    contract = parse_contract(FULL)
    admit_contract(contract)
    fields = contract.model_dump(mode="json")
    assert fields["output_schema"] == FULL["result_schema"]
    assert fields["auth"]["permissions"] == FULL["required_permissions"]
    assert (fields["timeout"]["seconds"], fields["timeout"]["max_seconds"]) == (45, 600)
    assert FULL["retry_policy"].items() <= fields["retry"].items()
    assert fields["breaker"] == FULL["circuit_breaker_config"]
    assert fields["limits"] == FULL["resource_limits"]
    assert fields["network"] == FULL["network_policy"]
    assert fields["checkpoints"] == FULL["checkpoint_config"]
    assert fields["external_service"] == "rooms_api"
    assert fields["life"] == {
        "deprecation_date": "2030-01-31", "sunset_date": "2030-06-30", "migration_guide_url": "https://rooms.example/3",
        "replacement": "office_services.reserve_room",
    }  # fmt: skip
    assert fields["priority"] == 2
    for name in ("tags", "changelog", "breaking_changes", "documentation_url", "source_code_url", "license", "author"):
        assert fields[name] == FULL[name], name
    assert fields["external_mappings"]["tool_manifest"] == {
        "tool_id": "book_room", "protocol": "native", "lifecycle_state": "deprecated", "external_service": "Rooms API",
        "replacement_tool_id": "reserve_room", "other_fields": {"cost_center": {"number": 12}},
    }  # fmt: skip
    # Every field of the form is in the full manifest, so that none is forgotten here.
    assert set(StandardManifest.model_fields) - {"extension"} <= FULL.keys()


@pytest.mark.parametrize(
    ("seconds", "timeout_class"), [(1, "standard"), (5, "standard"), (30, "long-running"), (7200, "async")]
)
def test_the_shortest_class_that_allows_the_timeout_is_chosen(seconds: int, timeout_class: str) -> None:
    timeout = read(timeout_default=seconds).timeout
    assert (timeout.timeout_class, timeout.effective_seconds) == (timeout_class, seconds)


@pytest.mark.parametrize("priority", range(1, 11))
def test_priorities_are_turned_round(priority: int) -> None:
    assert read(priority=priority).priority == 11 - priority


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"tool_id": "ab"}, "/tool_id"),
        ({"tool_id": "Book"}, "/tool_id"),
        ({"tool_id": "a" * 256}, "/tool_id"),
        ({"timeout_default": 0}, "/timeout_default"),
        ({"timeout_default": 7201}, "/timeout_default"),
        ({"timeout_max": 86_401}, "/timeout_max"),
        ({"priority": 11}, "/priority"),
        ({"protocol": "telnet"}, "/protocol"),
        ({"name": "ab"}, "/name"),
        ({"retry_policy": {"max_attempts": 11}}, "/retry_policy/max_attempts"),
        ({"resource_limits": {"gpu": "1"}}, "/resource_limits/gpu"),
        ({"lifecycle_state": "removed"}, "/lifecycle_state"),
        ({"effects": "read"}, "/effects"),
        ({"requires_user_interaction": True}, "/requires_user_interaction"),
        ({"x-deputize": {"colour": "blue"}}, "/colour"),
        ({"version": "01.0.0"}, "/version"),
        ({"required_permissions": ["everything"]}, "/auth/permissions/0"),
    ],
)
def test_what_the_form_does_not_allow_is_refused(changes: dict[str, Any], path: str) -> None:
    assert list_reasons(**changes) == [path]


def test_what_the_form_requires_is_missed_by_name() -> None:
    with pytest.raises(ToolNotAdmitted) as refused:
        parse_contract({"tool_id": "book_room"})
    paths = {each["path"] for each in refused.value.details["reasons"]}
    assert paths == {"/version", "/name", "/description", "/provider", "/protocol", "/parameters"}


def test_contract_fields_are_added_under_the_extension() -> None:
    contract = read(
        **{
            "x-deputize": {
                "namespace": "rooms",
                "effects": "read",
                "resources": [],
                "handler": {"target": "tools.rooms:book"},
                "timeout": "standard",
                "idempotency": "idempotent",
            }
        }
    )
    assert (contract.full_name, contract.effects) == ("rooms.book_room", Effects.READ)
    assert (contract.handler.driver, contract.handler.target) == ("python", "tools.rooms:book")
    assert contract.timeout.timeout_class is TimeoutClass.STANDARD
    assert list_unenforced_fields(contract) == ()


def test_a_yaml_manifest_of_this_form_is_read_too() -> None:
    text = "".join(f"{name}: {value!r}\n" for name, value in REQUIRED.items())
    assert [each.full_name for each in parse_manifest(text, source="rooms.yaml")] == ["office_services.book_room"]


def test_an_invalid_schema_is_left_to_admission() -> None:
    with pytest.raises(ToolNotAdmitted, match="input_schema"):
        admit_contract(read(parameters={"type": "object", "properties": 5}))


_ids = st.from_regex(r"[a-z][a-z0-9_]{2,254}", fullmatch=True)


@given(_ids, st.text(min_size=1, max_size=120))
def test_every_id_becomes_a_name_that_model_apis_accept(tool_id: str, provider: str) -> None:
    contract = read(tool_id=tool_id, provider=provider)
    assert len(to_outward_name(contract.full_name)) <= 64
    assert contract.external_mappings["tool_manifest"]["tool_id"] == tool_id


@given(st.sets(_ids, min_size=2, max_size=20))
def test_different_ids_become_different_names(tool_ids: set[str]) -> None:
    assert len({to_tool_name(each, "office_services") for each in tool_ids}) == len(tool_ids)


@pytest.mark.parametrize(
    ("text", "word"),
    [("Platform Team", "platform_team"), ("  ACME, Inc. ", "acme_inc"), ("3M", "of_3m"), ("株式会社", "of")],
)
def test_a_provider_becomes_a_namespace(text: str, word: str) -> None:
    assert to_word(text, 20, "of") == word
