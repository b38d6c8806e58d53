"""Generate values from a JSON Schema 2020-12: valid ones, those at its limits, and those just beyond them.

Every value is checked by a compiled validator before it is used, so an unusual schema costs coverage, never a wrong
expectation. Randomness is passed in; the same seed generates the same values.
"""

import copy
import random
from collections.abc import Iterator
from typing import Any, Final

from deputize.catalog.schemas import resolve_refs
from deputize.core.contract.contract import Schema
from deputize.testing.pattern_texts import UnsupportedPattern, generate_matching_text

_MAX_DEPTH: Final = 8
_MAX_LENGTH: Final = 2_000
_MAX_ITEMS: Final = 50
_MAX_INTEGER: Final = 2**53 - 1
_WORDS: Final = ("alpha", "Blue 7", "Ünïcode", "x", "2030-01-31", "north-east")
_FORMAT_SAMPLES: Final = {
    "date": "2030-01-31", "date-time": "2030-01-31T12:00:00Z", "time": "12:00:00Z", "duration": "P1D",
    "email": "ana@example.com", "idn-email": "ana@example.com", "hostname": "host.example.com",
    "idn-hostname": "host.example.com", "ipv4": "192.0.2.1", "ipv6": "2001:db8::1", "uri": "https://example.com/a",
    "uri-reference": "/a/b", "iri": "https://example.com/a", "iri-reference": "/a/b",
    "uuid": "0190f5fe-7c00-7a00-8000-000000000001", "uri-template": "/a/{id}", "json-pointer": "/a",
    "relative-json-pointer": "0/a", "regex": "^a$",
}  # fmt: skip


class NoValueError(ValueError):
    """No valid value could be generated for a schema."""


class ValueGenerator:
    """Generates values for the parts of one schema."""

    def __init__(self, root: Schema, rng: random.Random) -> None:
        self.root = root
        self._rng = rng

    def generate(self, node: Any, depth: int = 0) -> Any:
        """Generate a value that the schema probably allows; the caller validates it."""
        node = self.merge(node)
        if "const" in node:
            return copy.deepcopy(node["const"])
        if node.get("enum"):
            return copy.deepcopy(self._rng.choice(node["enum"]))
        samples = [*(node.get("examples") or ()), *([node["default"]] if "default" in node else ())]
        if samples and self._rng.random() < 0.5:
            return copy.deepcopy(self._rng.choice(samples))
        kind = self.choose_type(node)
        if kind == "object":
            return self._generate_object(node, depth)
        if kind == "array":
            return self._generate_array(node, depth)
        if kind == "string":
            return self._generate_text(node)
        if kind in ("integer", "number"):
            return self._generate_number(node, kind)
        return self._rng.random() < 0.5 if kind == "boolean" else None

    def merge(self, node: Any) -> Schema:
        """Resolve references, and merge the branches of `allOf` and one branch of `anyOf` or `oneOf` into the node."""
        node = resolve_refs(self.root, node)
        for _ in range(_MAX_DEPTH):
            if not isinstance(node, dict):
                return {}
            branches = list(node.get("allOf") or ())
            branches += [self._rng.choice(node[key]) for key in ("anyOf", "oneOf") if node.get(key)]
            if not branches:
                return node
            union = {key: value for key, value in node.items() if key not in ("allOf", "anyOf", "oneOf")}
            for branch in branches:
                part = resolve_refs(self.root, branch)
                union = _combine(union, part) if isinstance(part, dict) else union
            node = union
        return {}

    def choose_type(self, node: Schema) -> str:
        """Choose one of the types a node allows; without any, the one its keywords are about."""
        kind = node.get("type")
        if isinstance(kind, list):
            kinds = [each for each in kind if each != "null"] or kind
            return str(self._rng.choice(kinds))
        if isinstance(kind, str):
            return kind
        if "properties" in node:
            return "object"
        if "items" in node or "prefixItems" in node:
            return "array"
        return "integer" if "minimum" in node or "maximum" in node else "string"

    def _generate_object(self, node: Schema, depth: int) -> dict[str, Any]:
        properties = node.get("properties") or {}
        required_names = list(node.get("required") or ())
        names = required_names + [
            name
            for name in properties
            if name not in required_names and depth < _MAX_DEPTH and self._rng.random() < 0.5
        ]
        value = {name: self.generate(properties.get(name, {}), depth + 1) for name in names}
        inside = node.get("additionalProperties")
        for number in range(int(node.get("minProperties") or 0) - len(value)):
            value[f"key_{number}"] = self.generate(inside if isinstance(inside, dict) else {}, depth + 1)
        return value

    def _generate_array(self, node: Schema, depth: int) -> list[Any]:
        least = int(node.get("minItems") or 0)
        most = min(int(node.get("maxItems") or least + 2), least + 2, _MAX_ITEMS)
        count = least if depth >= _MAX_DEPTH else self._rng.randint(least, max(least, most))
        return self.fill_array(node, count, depth)

    def fill_array(self, node: Schema, count: int, depth: int = 0) -> list[Any]:
        """Generate an array of a length; different items where the schema wants them to differ."""
        prefix, items = node.get("prefixItems") or [], node.get("items", {})
        values: list[Any] = []
        for place in range(count):
            part = prefix[place] if place < len(prefix) else items
            for _ in range(20):
                value = self.generate(part, depth + 1)
                if not node.get("uniqueItems") or value not in values:
                    break
            values.append(value)
        return values

    def _generate_text(self, node: Schema) -> str:
        if (sample := _FORMAT_SAMPLES.get(str(node.get("format")))) is not None:
            return sample
        if isinstance(node.get("pattern"), str):
            try:
                return generate_matching_text(node["pattern"], self._rng)
            except UnsupportedPattern:
                return ""
        least = int(node.get("minLength") or 0)
        most = min(int(node.get("maxLength", max(least, 24))), _MAX_LENGTH)
        word = self._rng.choice(_WORDS)
        return (word + "a" * max(0, least - len(word)))[: max(most, least)]

    def _generate_number(self, node: Schema, kind: str) -> int | float:
        low, high = find_bounds(node)
        low = -100 if low is None and high is None else (high or 0) - 100 if low is None else low
        high = low + 100 if high is None else high
        step = node.get("multipleOf")
        if step:
            first = -(-low // step)
            return _normalize_number(self._rng.randint(int(first), max(int(first), int(high // step))) * step, kind)
        if kind == "integer":
            return self._rng.randint(_ceil(low), max(_ceil(low), int(high // 1)))
        return _normalize_number(round(self._rng.uniform(low, high), 3), kind)


def find_bounds(node: Schema) -> tuple[float | None, float | None]:
    """Find the least and the greatest number that a node allows; an exclusive limit counts as one beyond it."""
    lows = [node[key] + extra for key, extra in (("minimum", 0), ("exclusiveMinimum", 1)) if _is_number(node.get(key))]
    highs = [node[key] - extra for key, extra in (("maximum", 0), ("exclusiveMaximum", 1)) if _is_number(node.get(key))]
    return max(lows, default=None), min(highs, default=None)


def list_limits(generator: ValueGenerator, node: Schema) -> Iterator[tuple[str, Any]]:
    """Yield the values at the limits of a node, each with the name of the limit."""
    kind = generator.choose_type(node)
    if node.get("enum"):
        yield from ((f"enum-{place}", copy.deepcopy(each)) for place, each in enumerate(node["enum"][:10]))
    elif kind == "string" and "pattern" not in node and "format" not in node:
        for key in ("minLength", "maxLength"):
            if isinstance(node.get(key), int) and node[key] <= _MAX_LENGTH:
                yield key, "a" * node[key]
    elif kind in ("integer", "number"):
        for key, bound in zip(("minimum", "maximum"), find_bounds(node), strict=True):
            if bound is not None:
                yield key, _normalize_number(bound, kind)
    elif kind == "array":
        for key in ("minItems", "maxItems"):
            if isinstance(node.get(key), int) and node[key] <= _MAX_ITEMS:
                yield key, generator.fill_array(node, node[key])
    elif kind == "boolean":
        yield from (("true", True), ("false", False))


def list_excesses(generator: ValueGenerator, node: Schema) -> Iterator[tuple[str, Any]]:
    """Yield values just beyond the limits of a node, and one of a wrong type, each with the name of what it breaks."""
    kind = generator.choose_type(node)
    if kind == "string":
        if isinstance(node.get("maxLength"), int) and node["maxLength"] < 100_000:
            yield "maxLength", "a" * (node["maxLength"] + 1)
        if isinstance(node.get("minLength"), int) and node["minLength"] > 0:
            yield "minLength", "a" * (node["minLength"] - 1)
        for key in ("pattern", "format"):
            if key in node:
                yield key, "\u00a7 not this \u00a7"
    elif kind in ("integer", "number"):
        low, high = find_bounds(node)
        if low is not None:
            yield "minimum", _normalize_number(low - 1, kind)
        if high is not None:
            yield "maximum", _normalize_number(high + 1, kind)
    elif kind == "array":
        if isinstance(node.get("maxItems"), int) and node["maxItems"] < 10 * _MAX_ITEMS:
            yield "maxItems", generator.fill_array(node, node["maxItems"] + 1)
        if isinstance(node.get("minItems"), int) and node["minItems"] > 0:
            yield "minItems", generator.fill_array(node, node["minItems"] - 1)
    if node.get("enum"):
        yield "enum", "not one of the values"
    # No coercion turns these into a value of another type.
    yield "type", [[True]] if kind != "array" else {"wrong": True}


def _combine(one: Schema, other: Schema) -> Schema:
    combination = {**one, **other}
    if "properties" in one and "properties" in other:
        combination["properties"] = {**one["properties"], **other["properties"]}
    if "required" in one and "required" in other:
        combination["required"] = [
            *one["required"],
            *(each for each in other["required"] if each not in one["required"]),
        ]
    return combination


def _normalize_number(value: float, kind: str) -> int | float:
    value = max(-_MAX_INTEGER, min(_MAX_INTEGER, value))
    return int(value) if kind == "integer" or float(value).is_integer() else float(value)


def _ceil(value: float) -> int:
    return int(-(-value // 1))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
