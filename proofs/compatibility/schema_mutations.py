"""Change schemas: in ways that keep every value valid, in ways that do not, and in ways that may.

A change that widens is made only where widening a part widens the whole: not below `not`, `oneOf`, `if` or `contains`.
"""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

Mutation = Callable[[dict[str, Any], random.Random], bool]
_NEW_NAME = "new_1"
_NOTES = ("title", "description", "examples", "default", "$comment", "x-sensitivity")


def list_open_nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the schemas in which a wider part makes a wider whole."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword in ("properties", "patternProperties"):
        for each in schema.get(keyword, {}).values():
            yield from list_open_nodes(each)
    for keyword in ("items", "additionalProperties"):
        yield from list_open_nodes(schema.get(keyword))
    for keyword in ("anyOf", "allOf", "prefixItems"):
        for each in schema.get(keyword, ()):
            yield from list_open_nodes(each)


def mutate_schema(
    schema: dict[str, Any], mutations: tuple[Mutation, ...], rng: random.Random, *, with_definitions: bool = False
) -> dict[str, Any] | None:
    """Make one change somewhere in a copy; None if none of a few draws fits the schema.

    A definition may be referred to where widening it does not widen the whole.
    """
    for _ in range(12):
        changed: dict[str, Any] = copy.deepcopy(schema)
        nodes = list(list_open_nodes(changed))
        if with_definitions:
            nodes += [node for each in changed.get("$defs", {}).values() for node in list_open_nodes(each)]
        node = rng.choice(nodes)
        if rng.choice(mutations)(node, rng) and repr(changed) != repr(schema):
            return changed
    return None


def _add_optional_property(node: dict[str, Any], rng: random.Random) -> bool:
    if node.get("additionalProperties") is not False or not isinstance(node.get("properties"), dict):
        return False
    if {"patternProperties", "unevaluatedProperties"} & node.keys():
        return False
    node["properties"][_NEW_NAME] = rng.choice(({"type": "string"}, {"type": "integer"}, {"enum": ["a", "b"]}, True))
    return True


def _make_optional(node: dict[str, Any], rng: random.Random) -> bool:
    return bool(node.get("required")) and node["required"].pop(rng.randrange(len(node["required"]))) is not None


def _add_type(node: dict[str, Any], rng: random.Random) -> bool:
    if "type" not in node:
        return False
    kinds = node["type"] if isinstance(node["type"], list) else [node["type"]]
    if kinds == ["integer"] and rng.random() < 0.5:
        node["type"] = "number"
    else:
        node["type"] = sorted({*kinds, rng.choice(("null", "string", "boolean"))})
    return True


def _add_value(node: dict[str, Any], rng: random.Random) -> bool:
    if "const" in node and "enum" not in node:
        node["enum"] = [node.pop("const"), "another"]
        return True
    if "enum" in node:
        node["enum"].append("another")
    return "enum" in node


def _relax_limit(node: dict[str, Any], rng: random.Random) -> bool:
    limits = [keyword for keyword in node if keyword.startswith(("min", "max", "exclusiveM"))]
    limits = [keyword for keyword in limits if not keyword.endswith("Contains")]
    if not limits:
        return False
    keyword = rng.choice(limits)
    sign = -1 if "min" in keyword.lower() else 1
    is_size = keyword.endswith(("Length", "Items", "Properties"))
    node[keyword] = max(0, node[keyword] + sign) if is_size else node[keyword] + sign * rng.choice((1, 2, 0.5))
    return True


def _drop_limit(node: dict[str, Any], rng: random.Random) -> bool:
    keywords = {
        "pattern", "format", "uniqueItems", "multipleOf", "minLength", "maxLength", "minimum", "maximum", "minItems",
        "maxItems", "minProperties", "maxProperties", "propertyNames", "not", "const", "enum", "contains",
    }  # fmt: skip
    droppable = [keyword for keyword in node if keyword in keywords]
    if not droppable:
        return False
    del node[rng.choice(droppable)]
    return True


def _add_alternative(node: dict[str, Any], rng: random.Random) -> bool:
    if "$defs" in node:
        return False
    before = dict(node)
    node.clear()
    node["anyOf"] = [before, rng.choice(({"type": "null"}, {"type": "string", "maxLength": 3}, {"const": "another"}))]
    return True


def _explain_differently(node: dict[str, Any], rng: random.Random) -> bool:
    node[rng.choice(_NOTES[:1] + _NOTES[1:2])] = "Said in other words."
    node["default"] = rng.choice((1, "a", None))
    return True


def _rewrite_types(node: dict[str, Any], rng: random.Random) -> bool:
    if not isinstance(node.get("type"), list) or "anyOf" in node:
        return False
    node["anyOf"] = [{"type": kind} for kind in node.pop("type")]
    return True


def _wrap(node: dict[str, Any], rng: random.Random) -> bool:
    if "$defs" in node:
        return False
    before = dict(node)
    node.clear()
    node["allOf"] = [before]
    return True


def _reorder(node: dict[str, Any], rng: random.Random) -> bool:
    items = list(node.items())
    rng.shuffle(items)
    node.clear()
    node.update(items)
    for keyword in ("required", "enum"):
        rng.shuffle(node.get(keyword, []))
    # The order alone is not a change to Python, so that something else has to be.
    node["title"] = "Reordered"
    return True


def _remove_property(node: dict[str, Any], rng: random.Random) -> bool:
    if not node.get("properties"):
        return False
    name = rng.choice(sorted(node["properties"]))
    del node["properties"][name]
    node["required"] = [each for each in node.get("required", ()) if each != name]
    return True


def _require_property(node: dict[str, Any], rng: random.Random) -> bool:
    optional = sorted(node.get("properties", {}).keys() - set(node.get("required", ())))
    if optional:
        node["required"] = [*node.get("required", ()), rng.choice(optional)]
    return bool(optional)


def _rename_property(node: dict[str, Any], rng: random.Random) -> bool:
    if not node.get("properties"):
        return False
    name = rng.choice(sorted(node["properties"]))
    node["properties"][f"{name}_2"] = node["properties"].pop(name)
    node["required"] = [f"{name}_2" if each == name else each for each in node.get("required", ())]
    return True


def _change_type(node: dict[str, Any], rng: random.Random) -> bool:
    if "type" not in node:
        return False
    kinds = node["type"] if isinstance(node["type"], list) else [node["type"]]
    if len(kinds) > 1:
        node["type"] = kinds[:-1]
    else:
        node["type"] = (
            "integer"
            if kinds == ["number"]
            else rng.choice([each for each in ("string", "boolean", "array") if [each] != kinds])
        )
    return True


def _remove_value(node: dict[str, Any], rng: random.Random) -> bool:
    if len(node.get("enum", ())) < 2:
        return False
    node["enum"].pop(rng.randrange(len(node["enum"])))
    return True


def _add_limit(node: dict[str, Any], rng: random.Random) -> bool:
    kinds = node.get("type", ())
    kinds = kinds if isinstance(kinds, list) else [kinds]
    choices: dict[str, list[tuple[str, Any]]] = {
        "string": [("minLength", 2), ("maxLength", 2), ("pattern", "^[a-z]+$"), ("format", "email")],
        "integer": [("minimum", 1), ("maximum", 5), ("multipleOf", 2)],
        "number": [("exclusiveMinimum", 0), ("maximum", 5.5), ("multipleOf", 0.5)],
        "array": [("minItems", 1), ("maxItems", 1), ("uniqueItems", True)],
        "object": [("minProperties", 2), ("maxProperties", 1), ("additionalProperties", False)],
    }
    fitting = [each for kind in kinds for each in choices.get(kind, ())]
    if fitting:
        node.update([rng.choice(fitting)])
    return bool(fitting)


WIDENING: tuple[Mutation, ...] = (
    _add_optional_property, _make_optional, _add_type, _add_value, _relax_limit, _drop_limit, _add_alternative,
    _explain_differently, _rewrite_types, _wrap, _reorder,
)  # fmt: skip
NARROWING: tuple[Mutation, ...] = (
    _remove_property, _require_property, _rename_property, _change_type, _remove_value, _add_limit,
)  # fmt: skip
