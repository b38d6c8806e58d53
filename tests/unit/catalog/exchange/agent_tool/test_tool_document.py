"""Documents of the standard: read with cautious defaults, written with everything that a foreign one said."""

from typing import Any

import pytest

from deputize.catalog.exchange.agent_tool import contract_mapping
from deputize.catalog.exchange.agent_tool.external_mappings import _ID_PARTS
from deputize.catalog.exchange.agent_tool.tool_document import (
    ToolDocument,
    export_tool_document,
    import_tool_document,
    is_tool_document,
)
from deputize.catalog.importers.manifest import parse_contract
from deputize.core.canonical import canonicalize, compute_digest
from deputize.core.contract.contract import Contract, Effects, LifecycleState
from deputize.core.contract.native_ids import NativeIds
from deputize.core.errors import ToolNotAdmitted
from tests.support.contracts import make_contract

AVAILABLE = LifecycleState.AVAILABLE
DECLARATION: dict[str, Any] = {
    "schema_version": "0.2.0",
    "tool_id": "urn:vendor:users#7",
    "namespace": "Vendor CRM",
    "name": "getUser",
    "aliases": ["oldGetUser", "vendor.get_user"],
    "description": "Look up one user of the CRM by number.",
    "lifecycle": "deferred",
    "tool_kind": "openapi_operation",
    "capability_refs": ["crm", {"ref": "capability:users"}],
    "input_contract": {"model_input_schema": {"type": "object", "properties": {"id": {"type": "integer"}}}},
    "external_mappings": [
        {"source": "openapi", "method": "GET", "path": "/users/{id}", "operation_id": "getUser", "x-vendor": 1},
        {"native": "something else"},
    ],
    "annotations": {"color": None},
    "vendor_rating": {"stars": 4.5, "by": ["ana", None]},
}
EXECUTION: dict[str, Any] = {"schema_version": "0.2.0", "handler": {"target": "tools.crm:get_user"}, "region": "eu"}


def make_document(**objects: Any) -> dict[str, Any]:
    return {
        "schema_version": "0.2.0",
        "tool_declaration": DECLARATION,
        "tool_execution_profile": EXECUTION,
        **objects,
    }


def make_interface(**safety: Any) -> dict[str, Any]:
    return {"schema_version": "0.2.0", "tool_id": "urn:vendor:users#7", "name": "getUser", "safety": safety}


def make_profile(**fields: Any) -> dict[str, Any]:
    return {"schema_version": "0.2.0", **fields}


def list_refusals(document: dict[str, Any]) -> list[str]:
    with pytest.raises(ToolNotAdmitted) as refusal:
        import_tool_document(document)
    return [reason["path"] for reason in refusal.value.details["reasons"]]


def assert_kept(document: dict[str, Any], returned: ToolDocument) -> dict[str, Any]:
    """Assert that each object of a foreign document is written again byte for byte."""
    written = export_tool_document(returned.contract, returned.lifecycle, hooks=returned.hooks)
    for name, value in document.items():
        assert canonicalize({"": written[name]}) == canonicalize({"": value}), name
    return written


@pytest.mark.requirement("CON-3")
def test_every_field_of_a_contract_has_one_home() -> None:
    homes = [each.ours for mapping in contract_mapping.HOME_MAPPINGS for each in mapping.fields]
    assert len(homes) == len(set(homes))
    assert set(homes) - {"lifecycle"} == set(Contract.model_fields) - {"native_ids", "external_mappings"}
    assert set(_ID_PARTS) == set(NativeIds.model_fields)


@pytest.mark.requirement("CON-3")
def test_a_foreign_document_keeps_its_unknown_fields_and_its_ids() -> None:
    document = make_document(
        tool_interface=make_interface(is_read_only=True),
        tool_permission_profile=make_profile(risk="low", data_access=["crm"]),
        tool_namespace={"schema_version": "0.2.0", "namespace": "Vendor CRM", "owner": {"team": "x"}},
        tool_hook=[{"schema_version": "0.2.0", "hook_id": "audit", "moment": "pre", "priority": 3}],
        vendor_signature="abc",
    )
    returned = import_tool_document(document)
    written = assert_kept(document, returned)
    assert written["tool_declaration"]["tool_id"] == "urn:vendor:users#7"
    assert written["tool_scheduler_policy"]["sibling_failure"] == "ignore"
    contract = returned.contract
    assert contract.full_name == "vendor_crm.get_user"
    assert contract.aliases == ("vendor.get_user",)
    assert contract.native_ids is not None
    assert contract.native_ids.openapi is not None
    assert contract.native_ids.openapi.operation_id == "getUser"
    assert returned.lifecycle is LifecycleState.DEFERRED


def test_foreign_fields_survive_registration_and_a_new_version() -> None:
    contract = parse_contract(make_document())
    stored = Contract.model_validate_json(contract.model_dump_json())
    assert stored.digest == contract.digest
    next_version = stored.model_copy(update={"version": "1.1.0", "title": "Users"})
    declaration = export_tool_document(next_version, AVAILABLE)["tool_declaration"]
    assert declaration["vendor_rating"] == DECLARATION["vendor_rating"]
    assert (declaration["version"], declaration["title"]) == ("1.1.0", "Users")


def test_a_declaration_alone_is_a_document() -> None:
    assert is_tool_document(DECLARATION)
    returned = import_tool_document(DECLARATION)
    assert returned.contract.handler.model_dump(exclude_none=True) == {
        "driver": "none",
        "target": DECLARATION["tool_id"],
    }
    written = export_tool_document(returned.contract, returned.lifecycle)
    assert canonicalize(written["tool_declaration"]) == canonicalize(DECLARATION)
    assert not is_tool_document({"tool_id": "get_user", "name": "Get a user"})


@pytest.mark.parametrize(
    ("safety", "effects", "is_open_world"),
    [
        ({}, Effects.DESTRUCTIVE, True),
        ({"is_read_only": True}, Effects.READ, True),
        ({"is_read_only": False, "is_destructive": False}, Effects.WRITE, True),
        ({"is_read_only": True, "is_open_world": False}, Effects.READ, False),
    ],
)
def test_what_is_not_stated_counts_as_the_worse(safety: dict[str, Any], effects: Effects, is_open_world: bool) -> None:
    document = make_document(tool_interface=make_interface(**safety))
    returned = import_tool_document(document)
    assert (returned.contract.effects, returned.contract.is_open_world) == (effects, is_open_world)
    assert_kept(document, returned)


def test_a_required_approval_becomes_a_call_that_needs_a_person() -> None:
    document = make_document(tool_permission_profile=make_profile(approval={"required": True, "by": "ops"}))
    returned = import_tool_document(document)
    assert returned.contract.requires_user_interaction
    assert_kept(document, returned)


def test_statements_that_contradict_each_other_are_refused() -> None:
    both = make_interface(is_read_only=True, is_destructive=True)
    assert list_refusals(make_document(tool_interface=both)) == ["/tool_interface/safety/is_read_only"]
    profile = make_profile(effects="destructive")
    harmless = make_document(tool_interface=make_interface(is_read_only=True), tool_permission_profile=profile)
    assert list_refusals(harmless) == ["/tool_interface/safety/is_read_only"]


def test_a_statement_that_cannot_be_enforced_is_refused_at_its_place() -> None:
    profile = make_profile(sandbox="strong", credentials={"type": "magic"})
    assert set(list_refusals(make_document(tool_permission_profile=profile))) == {
        "/tool_permission_profile/sandbox",
        "/tool_permission_profile/credentials/type",
    }
    assert list_refusals({**make_document(), "schema_version": "0.3.0"}) == ["/schema_version"]
    assert list_refusals({**make_document(), "tool_interface": 7}) == ["/tool_interface"]


def test_arguments_that_the_model_does_not_see_are_internal() -> None:
    runtime = {"type": "object", "properties": {"id": {"type": "integer"}, "tenant": {"type": "string"}}}
    model = DECLARATION["input_contract"]["model_input_schema"]
    contracts = {"model_input_schema": model, "runtime_input_schema": runtime}
    document = make_document(tool_declaration={**DECLARATION, "input_contract": contracts})
    returned = import_tool_document(document)
    assert returned.contract.input_schema["properties"]["tenant"]["x-internal"] is True
    assert_kept(document, returned)


def test_a_contract_cannot_claim_to_be_harmless_in_its_foreign_fields() -> None:
    profile = export_tool_document(make_contract(effects="destructive"), AVAILABLE)["tool_permission_profile"]
    claims = [
        {
            "path": "/tool_permission_profile/effects",
            "instead_of": compute_digest({"": "destructive"}),
            "value": "read",
        },
        {
            "path": "/tool_permission_profile",
            "instead_of": compute_digest({"": profile}),
            "value": {**profile, "effects": "read"},
        },
    ]
    contract = make_contract(effects="destructive", external_mappings={"agent_tool": claims})
    document = export_tool_document(contract, AVAILABLE)
    assert document["tool_permission_profile"]["effects"] == "destructive"


def test_a_caller_gets_neither_the_handler_nor_internal_arguments() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "tenant": {"type": "string", "x-internal": True}},
    }
    document = export_tool_document(make_contract(input_schema=schema), AVAILABLE, is_whole=False)
    assert "handler" not in document["tool_execution_profile"]
    assert b"tenant" not in canonicalize(document)
    assert import_tool_document(document).contract.handler.driver == "none"
