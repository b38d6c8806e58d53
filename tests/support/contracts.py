"""Contracts for tests: one that is admitted as it stands, to be changed where a test needs it worse."""

from typing import Any

from deputize.catalog.snapshot import TenantTools, ToolEntry, ToolVersion
from deputize.core.canonical import canonicalize
from deputize.core.contract.contract import Contract, LifecycleState

INPUT: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["id"],
    "properties": {
        "id": {"type": "integer", "description": "Number of the user", "examples": [7]},
        "plan": {"type": "string", "description": "What they pay for", "enum": ["free", "pro"]},
    },
}


def make_contract(**changes: Any) -> Contract:
    fields: dict[str, Any] = {
        "namespace": "crm",
        "name": "get_user",
        "version": "1.0.0",
        "description": "Look up one user by number.",
        "handler": {"driver": "python", "target": "tools.crm:get_user"},
        "input_schema": INPUT,
        "output_schema": {"type": "object"},
        "examples": [{"id": 7}],
        "effects": "read",
        "auth": {"scopes": ["crm:read"]},
        "timeout": {},
        "idempotency": {},
        "observability": {},
    }
    return Contract.model_validate({**fields, **changes})


def make_input_schema(**properties: Any) -> dict[str, Any]:
    """An input schema of exactly these properties, all of them optional."""
    return {"type": "object", "additionalProperties": False, "properties": properties}


def make_version(contract: Contract, state: LifecycleState = LifecycleState.AVAILABLE) -> ToolVersion:
    raw = canonicalize(contract.model_dump(mode="json"))
    return ToolVersion(version=contract.version, digest=contract.digest, raw=raw, state=state)


def make_snapshot(*tools: ToolVersion, tenant: str = "dev", epoch: int = 1) -> TenantTools:
    """A snapshot as the registry would build it from these versions."""
    grouped: dict[str, list[ToolVersion]] = {}
    for each in tools:
        grouped.setdefault(each.contract.full_name, []).append(each)
    entries = {
        name: ToolEntry.from_versions(name, {each.version: each for each in versions})
        for name, versions in grouped.items()
    }
    return TenantTools(tenant=tenant).replace_entries(epoch, entries)
