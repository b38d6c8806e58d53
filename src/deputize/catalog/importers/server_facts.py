"""Mark arguments of the tools of servers and services as policy facts, as their `facts` in the settings say.

The server's author knows nothing of policies, so the operator names the arguments. What a rule reads is exactly what
the server gets: a path is accepted in its one normal form and refused in every other, never rewritten. A fact has the
type that the settings give it; a tool whose argument has another type does not have the fact.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from deputize.catalog.policy_facts import (
    PATH_PATTERN,
    POLICY_KEYWORD,
    TEXT_OR_PATH_PATTERN,
    FactType,
    resolve_fact_type,
)
from deputize.catalog.schemas import get_properties, resolve_refs
from deputize.core.contract.contract import Schema
from deputize.core.contract.http_request import BODY_ARGUMENT
from deputize.core.settings import McpServerSettings, ServiceSettings
from deputize.core.settings.servers import BODY_PREFIX, ServerFactSettings

MAX_PATH_LENGTH: Final = 4_096
_CEDAR_TYPES: Final[Mapping[str | None, FactType]] = {
    None: "String",
    "text": "String",
    "path": "String",
    "integer": "Long",
    "boolean": "Bool",
    "texts": "Set<String>",
    "paths": "Set<String>",
}
_PATH: Final = {"pattern": PATH_PATTERN, "maxLength": MAX_PATH_LENGTH}
_CONSTRAINTS: Final[Mapping[str | None, Schema]] = {
    None: {"pattern": TEXT_OR_PATH_PATTERN, "maxLength": MAX_PATH_LENGTH},
    "path": _PATH,
    "paths": {"items": _PATH},
}
# What the facts of `record_arguments` are called by their type: a fact name has one type in the whole tenant.
_NAME_ENDINGS: Final[Mapping[FactType, str]] = {
    "String": "text",
    "Long": "number",
    "Bool": "flag",
    "Set<String>": "list",
}
_MAX_RECORDED_ARGUMENTS: Final = 50
_RECORDED_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,56}")
# Arguments that hold documents: each call's decision record would contain a whole one.
_DOCUMENT_NAMES: Final = frozenset(
    {"body", "code", "content", "contents", "data", "diff", "file_text", "html", "input", "markdown", "message",
     "new_str", "old_str", "patch", "payload", "prompt", "script", "source", "text"}
)  # fmt: skip
# Keywords that the gateway reads from the property itself: they are repeated beside the server's own schema.
_READ_KEYWORDS: Final = ("type", "anyOf", "oneOf", "items", "title", "description")


def mark_arguments(schema: Schema, settings: McpServerSettings | ServiceSettings) -> None:
    """Mark the arguments of a tool that the settings make facts, in its converted input schema."""
    mark_facts(schema, settings.facts)
    if settings.record_arguments:
        mark_recorded_arguments(schema)


def mark_facts(schema: Schema, facts: Mapping[str, ServerFactSettings]) -> None:
    """Mark the arguments that are facts in a converted input schema, and constrain those that are paths."""
    properties = get_properties(schema)
    assert isinstance(properties, dict)
    for name, fact in facts.items():
        argument, owner = fact.argument_name, properties
        if argument.startswith(BODY_PREFIX):
            argument, owner = argument.removeprefix(BODY_PREFIX), _own_body_properties(schema, properties)
        part = owner.get(argument)
        if isinstance(part, dict) and resolve_fact_type(schema, part) == _CEDAR_TYPES[fact.type]:
            owner[argument] = _mark_property(schema, part, name, _CONSTRAINTS.get(fact.type))


def _own_body_properties(schema: Schema, properties: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of the argument `body`, copied beside its schema: definitions are shared with others."""
    body = properties.get(BODY_ARGUMENT)
    full = resolve_refs(schema, body)
    if not isinstance(body, dict) or not isinstance(full.get("properties"), dict):
        return {}
    own = {**full["properties"]}
    # Properties that stand beside a reference are an additional demand, and no weaker one.
    properties[BODY_ARGUMENT] = {**body, "properties": own}
    return own


def mark_recorded_arguments(schema: Schema) -> None:
    """Mark every argument that can be a fact and is none yet, under a name that says its type, without a constraint."""
    properties = get_properties(schema)
    assert isinstance(properties, dict)
    recorded_count = 0
    for argument, part in list(properties.items()):
        if not isinstance(part, dict) or POLICY_KEYWORD in part or argument.lower() in _DOCUMENT_NAMES:
            continue
        kind = resolve_fact_type(schema, part)
        if kind is None or not _RECORDED_NAME.fullmatch(argument) or recorded_count == _MAX_RECORDED_ARGUMENTS:
            continue
        recorded_count += 1
        properties[argument] = _mark_property(schema, part, f"{argument}_{_NAME_ENDINGS[kind]}", None)


def _mark_property(schema: Schema, part: Schema, name: str, constraint: Schema | None) -> Schema:
    """Add the mark, and the constraint beside whatever the server demands.

    Without a default: an argument that the caller left out is an absent fact, because the server does with it whatever
    it likes.
    """
    full = resolve_refs(schema, part)
    own: dict[str, Any] = {key: full[key] for key in _READ_KEYWORDS if key in full}
    if "$ref" not in part and "allOf" not in part:
        own = {key: value for key, value in part.items() if key != "default"}
        branches = []
    else:
        branches = [part]
    if constraint is not None:
        branches.append(constraint)
    return {**own, **({"allOf": branches} if branches else {}), POLICY_KEYWORD: name}
