"""Read manifests in the form of the tool standard, which name a tool by `tool_id`, as contracts.

The form says less than a contract: not what a tool changes, nor where it runs. What it leaves out gets the cautious
value, and its author can add contract fields under `x-deputize`. What a contract cannot express is kept in
`external_mappings.tool_manifest`. `docs/how-to/register-with-a-manifest.md` has the rules.
"""

import copy
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from deputize.catalog.importers.declaration import expand_timeout, explain_validation_error
from deputize.catalog.importers.server_schemas import close_objects
from deputize.catalog.schema_rules import Reason, check_structure
from deputize.core.contract.contract import (
    Author,
    Checkpoints,
    CircuitBreaker,
    Contract,
    Effects,
    NetworkPolicy,
    ResourceLimits,
    RetryPolicy,
    Schema,
    ToolKind,
)
from deputize.core.contract.handler import NO_DRIVER

IDENTIFYING_FIELD: Final = "tool_id"
EXTENSION_FIELD: Final = "x-deputize"
MAPPING_NAME: Final = "tool_manifest"
_TOOL_ID = r"^[a-z][a-z0-9_]*$"
_VERSION = r"^\d+\.\d+\.\d+(-[a-z0-9.]+)?(\+[a-z0-9.]+)?$"
_KINDS: Final[Mapping[str, ToolKind]] = {
    "native": ToolKind.FUNCTION, "mcp": ToolKind.MCP_TOOL, "openapi": ToolKind.OPENAPI_OPERATION,
    "langchain": ToolKind.CUSTOM, "custom": ToolKind.CUSTOM,
}  # fmt: skip
# Both names and the two underscores between them are 64 characters at most, which model APIs accept.
_MAX_NAMESPACE: Final = 20
_MAX_NAMES: Final = 62
_MAX_WORD: Final = 48
_DIGEST_LENGTH: Final = 8
_NOT_WORD = re.compile(r"[^a-z0-9]+")
# Contract fields that the form has too, with the same meaning.
_SHARED_FIELDS: Final = frozenset(
    {"version", "name", "description", "provider", "external_service", "priority", "tags", "changelog",
     "breaking_changes", "documentation_url", "source_code_url", "license", "author"}
)  # fmt: skip


class InvalidStandardManifest(ValueError):
    """A manifest in the standard's form is invalid, for these reasons."""

    def __init__(self, reasons: list[Reason]) -> None:
        super().__init__(reasons[0].reason)
        self.reasons = reasons


class StandardManifest(BaseModel):
    """A manifest in the standard's form. Fields that it does not define are kept."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    tool_id: Annotated[str, StringConstraints(pattern=_TOOL_ID, min_length=3, max_length=255)]
    version: Annotated[str, StringConstraints(pattern=_VERSION, max_length=64)]
    name: Annotated[str, StringConstraints(min_length=3, max_length=255)]
    description: Annotated[str, StringConstraints(min_length=10, max_length=2000)]
    provider: Annotated[str, StringConstraints(min_length=1, max_length=120)]
    protocol: Literal["native", "mcp", "openapi", "langchain", "custom"]
    parameters: Schema
    result_schema: Schema | None = None
    required_permissions: tuple[str, ...] = ()
    timeout_default: Annotated[int, Field(ge=1, le=7200)] = 30
    timeout_max: Annotated[int, Field(ge=1, le=86_400)] | None = None
    retry_policy: RetryPolicy = RetryPolicy()
    circuit_breaker_config: CircuitBreaker = CircuitBreaker()
    resource_limits: ResourceLimits = ResourceLimits()
    network_policy: NetworkPolicy = NetworkPolicy()
    external_service: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    checkpoint_config: Checkpoints = Checkpoints()
    lifecycle_state: Literal["active", "deprecated", "sunset", "removed"] = "active"
    deprecation_date: str | None = None
    sunset_date: str | None = None
    migration_guide_url: str | None = None
    replacement_tool_id: Annotated[str, StringConstraints(pattern=_TOOL_ID, min_length=3, max_length=255)] | None = None
    # 1 is the least urgent and 10 the most, the other way round than in a contract.
    priority: Annotated[int, Field(ge=1, le=10)] = 5
    tags: tuple[str, ...] = ()
    changelog: str = ""
    breaking_changes: bool = False
    documentation_url: str = ""
    source_code_url: str = ""
    license: str = ""
    author: Author = Author()
    extension: Annotated[dict[str, Any] | None, Field(alias=EXTENSION_FIELD)] = None


def is_standard_manifest(value: Mapping[str, Any]) -> bool:
    """Tell whether a manifest has the standard's form."""
    return IDENTIFYING_FIELD in value


def read_standard_manifest(value: Mapping[str, Any]) -> dict[str, Any]:
    """Read a manifest as the fields of a contract, or raise `InvalidStandardManifest` with every reason."""
    try:
        manifest = StandardManifest.model_validate(value)
    except ValidationError as error:
        raise InvalidStandardManifest(list(explain_validation_error(error))) from error
    reasons = list(_check_form(manifest))
    if reasons:
        raise InvalidStandardManifest(reasons)
    namespace = str((manifest.extension or {}).get("namespace") or to_word(manifest.provider, _MAX_NAMESPACE, "of"))
    service = manifest.external_service
    return {
        "namespace": namespace,
        "name": to_tool_name(manifest.tool_id, namespace),
        "version": manifest.version,
        "title": manifest.name,
        "description": manifest.description,
        "kind": _KINDS[manifest.protocol],
        "handler": {"driver": NO_DRIVER, "target": manifest.tool_id},
        "input_schema": _close_schema(manifest.parameters),
        "output_schema": manifest.result_schema or {},
        # The form does not say what a tool changes, so it counts as anything.
        "effects": Effects.DESTRUCTIVE,
        "resources": [{"resource": "*", "op": each, "scope": "*"} for each in ("create", "update", "delete")],
        "auth": {"permissions": manifest.required_permissions or (f"tool:{manifest.tool_id}",)},
        "timeout": {**expand_timeout(manifest.timeout_default), "max_seconds": manifest.timeout_max},
        "idempotency": {},
        "observability": {},
        "retry": manifest.retry_policy,
        "breaker": manifest.circuit_breaker_config,
        "limits": manifest.resource_limits,
        "network": manifest.network_policy,
        "checkpoints": manifest.checkpoint_config,
        "external_service": None if service is None else to_word(service, _MAX_WORD, "service"),
        "priority": 11 - manifest.priority,
        "life": _build_life(manifest, namespace),
        **{
            name: getattr(manifest, name)
            for name in _SHARED_FIELDS - {"version", "name", "description", "external_service", "priority"}
        },
        "external_mappings": {MAPPING_NAME: _build_mapping(manifest)},
        **(manifest.extension or {}),
    }


def to_word(text: str, max_length: int, fallback: str) -> str:
    """Turn a text into lower-case words joined by underscores, as names of a contract are."""
    word = _NOT_WORD.sub("_", text.lower()).strip("_")
    if not word[:1].isalpha():
        word = f"{fallback}_{word}".strip("_")
    return word[:max_length].strip("_")


def to_tool_name(tool_id: str, namespace: str) -> str:
    """Turn a tool id into a name. One that is too long, or has an empty part, ends with a digest of the id, so that two
    ids do not become one name.
    """
    limit = min(_MAX_WORD, _MAX_NAMES - len(namespace))
    word = to_word(tool_id, len(tool_id), "tool")
    if word == tool_id and len(word) <= limit:
        return word
    digest = hashlib.sha256(tool_id.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{word[: max(limit - _DIGEST_LENGTH - 1, 1)].strip('_')}_{digest}"


def _check_form(manifest: StandardManifest) -> Iterator[Reason]:
    """Check what the form allows and this gateway does not read: mixed forms, and tools that are gone."""
    for name in sorted((manifest.model_extra or {}).keys() & Contract.model_fields.keys()):
        fix = f"write it under {EXTENSION_FIELD}, as in {EXTENSION_FIELD}: {{{name}: …}}"
        yield _make_reason(f"/{name}", "is not a field of manifests with a tool_id", fix)
    if manifest.lifecycle_state == "removed":
        yield _make_reason("/lifecycle_state", "says that the tool was removed", "register a version that is active")


def _close_schema(schema: Schema) -> Schema:
    """Close objects with named properties, as for the tools of servers. Admission reports a schema that is invalid."""
    if any(check_structure("parameters", schema)):
        return schema
    closed_schema = copy.deepcopy(schema)
    closed_schema.setdefault("type", "object")
    closed_schema.setdefault("properties", {})
    close_objects(closed_schema)
    return closed_schema


def _build_life(manifest: StandardManifest, namespace: str) -> dict[str, Any]:
    replacement = manifest.replacement_tool_id
    return {
        "deprecation_date": manifest.deprecation_date,
        "sunset_date": manifest.sunset_date,
        "migration_guide_url": manifest.migration_guide_url,
        "replacement": None if replacement is None else f"{namespace}.{to_tool_name(replacement, namespace)}",
    }


def _build_mapping(manifest: StandardManifest) -> dict[str, Any]:
    """Build what a contract cannot express: ids and names as they were written, and fields of others."""
    values = {
        "tool_id": manifest.tool_id,
        "protocol": manifest.protocol,
        "lifecycle_state": manifest.lifecycle_state,
        "external_service": manifest.external_service,
        "replacement_tool_id": manifest.replacement_tool_id,
        "other_fields": manifest.model_extra or None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _make_reason(path: str, reason: str, fix: str) -> Reason:
    return Reason(conjunct="declaration", path=path, reason=reason, fix=fix)
