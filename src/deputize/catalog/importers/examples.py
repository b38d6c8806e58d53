"""Derive examples: a property's from example calls, and an example call from the properties' examples."""

from collections.abc import Iterable, Mapping
from typing import Any

from deputize.catalog.schemas import MAX_DEPTH, resolve_refs
from deputize.core.contract.contract import Schema

_MAX_EXAMPLES = 3
_EXAMPLE_KEYWORDS = ("examples", "enum", "const", "default")
_NO_EXAMPLE = object()


def spread_examples(schema: Schema, calls: Iterable[Mapping[str, Any]]) -> None:
    """Give each property without an example the values it has in the example calls."""
    examples = list(calls)
    for name, part in schema.get("properties", {}).items():
        values: list[Any] = []
        for call in examples:
            if name in call and call[name] not in values:
                values.append(call[name])
        if values and not any(key in part for key in _EXAMPLE_KEYWORDS):
            part["examples"] = values[:_MAX_EXAMPLES]


def build_example_call(schema: Schema) -> dict[str, Any] | None:
    """Build the smallest call from the schema's own examples; None if a required property has no example."""
    example = _build_example(schema, schema, 0)
    return example if isinstance(example, dict) else None


def _build_example(root: Schema, node: Any, level: int) -> Any:
    node = resolve_refs(root, node)
    if not isinstance(node, dict) or level > MAX_DEPTH:
        return _NO_EXAMPLE
    for key in ("examples", "enum"):
        if isinstance(node.get(key), list) and node[key]:
            return node[key][0]
    for key in ("const", "default"):
        if key in node:
            return node[key]
    if "properties" in node:
        parts = {
            name: _build_example(root, node["properties"].get(name), level + 1) for name in node.get("required", ())
        }
        return _NO_EXAMPLE if any(value is _NO_EXAMPLE for value in parts.values()) else parts
    if node.get("type") == "array":
        item = _build_example(root, node.get("items"), level + 1)
        return _NO_EXAMPLE if item is _NO_EXAMPLE else [item]
    if node.get("type") in ("boolean", "object", "null"):
        return {"boolean": True, "object": {}, "null": None}[node["type"]]
    branches = [_build_example(root, branch, level + 1) for key in ("anyOf", "oneOf") for branch in node.get(key, ())]
    return next((value for value in branches if value is not _NO_EXAMPLE and value is not None), _NO_EXAMPLE)
