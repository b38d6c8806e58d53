"""Complete the contract of a foreign document: with the cautious default for each statement that is missing."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from deputize.catalog.exchange.agent_tool.field_mapping import MISSING, Record, get_path
from deputize.catalog.importers.tool_names import normalize_name
from deputize.catalog.registration_rules import LONGEST_OUTWARD
from deputize.catalog.versions import FIRST_VERSION
from deputize.core.contract.contract import Effects, Schema
from deputize.core.contract.handler import NO_DRIVER

_MAX_NAME: Final = 48
_MAX_TITLE: Final = 255
_MAX_HINT: Final = 120
_MAX_ALIAS: Final = 97
_ALIAS: Final = re.compile(r"[a-z](?:_?[a-z0-9])*\.[a-z](?:_?[a-z0-9])*")
_NO_ARGUMENTS: Final[Schema] = {"type": "object", "properties": {}, "additionalProperties": False}


def complete_foreign_fields(record: Record, document: Record) -> Record:
    """Fit what was read into the fields of a contract, and add what it requires. Nothing is assumed to be harmless."""
    declaration: Record = document["tool_declaration"]
    namespace = normalize_name(record["namespace"], _MAX_NAME)
    max_length = min(_MAX_NAME, LONGEST_OUTWARD - len("__") - len(namespace))
    defaults: Record = {
        **{name: {} for name in ("auth", "timeout", "idempotency", "observability")},
        "version": FIRST_VERSION,
        "handler": {"driver": NO_DRIVER, "target": declaration["tool_id"]},
    }
    fields = {
        **defaults,
        **_read_safety(document),
        **record,
        "namespace": namespace,
        "name": normalize_name(record["name"], max_length),
        "input_schema": _choose_input_schema(record, declaration),
        "output_schema": record.get("output_schema", {}),
    }
    for name, fit in _FITS.items():
        if name in fields:
            fields[name] = fit(fields[name])
    if get_path(document, "tool_permission_profile/approval/required") is True:
        fields["requires_user_interaction"] = True
    return fields


def _choose_input_schema(record: Record, declaration: Record) -> Schema:
    """Choose the runtime's schema; arguments that the model's schema does not have are internal."""
    model_schema = get_path(declaration, "input_contract/model_input_schema")
    runtime_schema: Schema | None = record.get("input_schema")
    if runtime_schema is None:
        return _NO_ARGUMENTS if model_schema is MISSING else dict(model_schema)
    properties = runtime_schema.get("properties")
    model_properties = MISSING if model_schema is MISSING else model_schema.get("properties", {})
    if not isinstance(properties, dict) or not isinstance(model_properties, dict):
        return runtime_schema
    parts = {
        name: {**part, "x-internal": True} if isinstance(part, dict) and name not in model_properties else part
        for name, part in properties.items()
    }
    return {**runtime_schema, "properties": parts}


def _read_safety(document: Record) -> Record:
    """Read what an interface says of safety, for a document without a permission profile that says it."""
    safety = get_path(document, "tool_interface/safety")
    if safety is MISSING:
        return {"effects": Effects.DESTRUCTIVE}
    if safety.get("is_read_only") is True and safety.get("is_destructive") is not True:
        effects = Effects.READ
    else:
        effects = Effects.WRITE if safety.get("is_destructive") is False else Effects.DESTRUCTIVE
    fields: Record = {"effects": effects}
    if safety.get("is_open_world") is False:
        fields["open_world"] = False
    if safety.get("requires_user_interaction") is True:
        fields["requires_user_interaction"] = True
    return fields


def _is_alias(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_ALIAS and _ALIAS.fullmatch(value) is not None


# Texts and lists that describe a tool: what does not fit is cut here, and kept beside the contract as it was.
_FITS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "title": lambda text: text[:_MAX_TITLE],
    "search_hint": lambda text: text[:_MAX_HINT],
    "aliases": lambda names: [each for each in names if _is_alias(each)],
    "tags": lambda tags: [each for each in tags if 1 <= len(each) <= _MAX_NAME],
    "capability_refs": lambda references: [each for each in references if isinstance(each, str)],
}
