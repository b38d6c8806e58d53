"""Examples written once, shown twice: calls give examples to their properties, properties make up a call."""

from collections.abc import Iterable, Mapping
from typing import Any

from deputize.catalog.schemas import MAX_DEPTH, follow
from deputize.core.contract import Schema

_MOST = 3
_SPEAKING = ("examples", "enum", "const", "default")
_NONE = object()


def spread_examples(schema: Schema, calls: Iterable[Mapping[str, Any]]) -> None:
    """Let each property that has no example show the values it takes in the tool's example calls."""
    examples = list(calls)
    for name, part in schema.get("properties", {}).items():
        values: list[Any] = []
        for call in examples:
            if name in call and call[name] not in values:
                values.append(call[name])
        if values and not any(key in part for key in _SPEAKING):
            part["examples"] = values[:_MOST]


def example_call(schema: Schema) -> dict[str, Any] | None:
    """The smallest call the schema's own examples allow; None when a required one has nothing to show."""
    made = _example(schema, schema, 0)
    return made if isinstance(made, dict) else None


def _example(root: Schema, node: Any, level: int) -> Any:
    node = follow(root, node)
    if not isinstance(node, dict) or level > MAX_DEPTH:
        return _NONE
    for key in ("examples", "enum"):
        if isinstance(node.get(key), list) and node[key]:
            return node[key][0]
    for key in ("const", "default"):
        if key in node:
            return node[key]
    if "properties" in node:
        parts = {name: _example(root, node["properties"].get(name), level + 1) for name in node.get("required", ())}
        return _NONE if any(value is _NONE for value in parts.values()) else parts
    if node.get("type") == "array":
        item = _example(root, node.get("items"), level + 1)
        return _NONE if item is _NONE else [item]
    if node.get("type") in ("boolean", "object", "null"):
        return {"boolean": True, "object": {}, "null": None}[node["type"]]
    branches = [_example(root, branch, level + 1) for key in ("anyOf", "oneOf") for branch in node.get(key, ())]
    return next((value for value in branches if value is not _NONE and value is not None), _NONE)
