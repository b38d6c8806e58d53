"""Tools as servers really declare them: flat and nested, in two drafts, with and without results, titles and hints."""

from itertools import product
from typing import Any

READ_VERBS = ("get", "list")
WRITE_VERBS = ("create", "cancel", "update")
# What each server deals with; no name of one is, or looks like, a name of the other.
NOUNS_BY_SERVER = {
    "shop": ("order", "invoice", "refund", "voucher", "basket"),
    "depot": ("pallet", "shelf", "parcel", "truck", "ramp"),
}
INSTRUCTIONS = {
    "shop": "Look an order up before you change it.",
    "depot": "Weights are in kilograms, lengths in metres.",
}
ARGUMENTS = {"id": "A-7"}
_ID = {"type": "string", "description": "Its number, as printed on the paper.", "pattern": "^[A-Z]-[0-9]+$"}


def build_tools(server: str) -> list[dict[str, Any]]:
    """Everything a server declares, before anything of it changes."""
    verb_nouns = product((*READ_VERBS, *WRITE_VERBS), NOUNS_BY_SERVER[server])
    return [_build_tool(verb, thing, place) for place, (verb, thing) in enumerate(verb_nouns)]


def is_read(name: str) -> bool:
    return name.startswith(READ_VERBS)


def _build_tool(verb: str, thing: str, place: int) -> dict[str, Any]:
    definition: dict[str, Any] = {
        "name": f"{verb}_{thing}",
        "description": f"{verb.capitalize()} one {thing} by its number. Old ones take a moment.\nSee the handbook.",
        "inputSchema": _SCHEMAS[place % len(_SCHEMAS)](thing),
    }
    if place % 2:
        definition["title"] = f"{verb.capitalize()} {thing}"
    if place % 3:
        hints = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
        definition["annotations"] = {hint: (place + at) % 2 == 0 for at, hint in enumerate(hints)}
    if place % 4 == 0:
        definition["outputSchema"] = {"type": "object", "properties": {"state": {"enum": ["open", "done", "lost"]}}}
    if place % 5 == 0:
        definition["_meta"] = {"example.org/rank": place}
    return definition


def _build_flat_schema(thing: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "id": _ID,
            "note": {"type": ["string", "null"], "description": f"A word about the {thing}.", "maxLength": 200},
            "priority": {"type": "integer", "minimum": 1, "maximum": 5, "default": 3},
        },
        "required": ["id"],
        "additionalProperties": False,
    }


def _build_nested_schema(thing: str) -> dict[str, Any]:
    lines = {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"sku": {"type": "string"}, "count": {"type": "integer", "exclusiveMinimum": 0}},
            "required": ["sku", "count"],
        },
        "maxItems": 50,
    }
    place = {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "string", "minLength": 4}}}
    return {
        "type": "object",
        "properties": {"id": _ID, "lines": lines, "to": {**place, "description": f"Where the {thing} goes."}},
        "required": ["id"],
    }


def _build_choice_schema(thing: str) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "id": _ID,
            "how": {
                "anyOf": [{"$ref": "#/$defs/fast"}, {"type": "string", "enum": ["slow", "never"]}, {"type": "null"}]
            },
            "amount": {"type": "integer", "minimum": 0, "maximum": 2**64 - 1, "description": f"For the {thing}."},
        },
        "required": ["id"],
        "$defs": {"fast": {"type": "object", "properties": {"hours": {"type": "number", "examples": [1.5, 24]}}}},
    }


def _build_draft7_schema(thing: str) -> dict[str, Any]:
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "id": _ID,
            "size": {"type": "array", "items": [{"type": "number"}, {"type": "number"}]},
            "state": {"$ref": "#/definitions/State"},
        },
        "definitions": {"State": {"enum": ["new", "used", "broken"], "description": f"State of the {thing}."}},
        "dependencies": {"size": ["state", "id"]},
        "required": ["id"],
    }


_SCHEMAS = (_build_flat_schema, _build_nested_schema, _build_choice_schema, _build_draft7_schema)
