"""Draw values that a schema probably allows, to look for one that another schema refuses."""

import random
from typing import Any

_WORDS = ("", "a", "ab", "abc", "x-1", "Ana", "2026-01-31", "a@b.example", "0", "hello world", "ü", "zz" * 6)
_NAMES = ("a", "b", "c", "x-1", "extra", "kind")
_DEEPEST = 8


class ValueSampler:
    """Draws values along one schema, mostly within it."""

    def __init__(self, root: Any, rng: random.Random) -> None:
        self._root = root
        self._rng = rng

    def draw(self, schema: Any = None, depth: int = 0) -> Any:
        """Draw a value; about one part in twelve is drawn without looking at its schema."""
        rng = self._rng
        schema = self._root if schema is None and depth == 0 else schema
        if depth > _DEEPEST or not isinstance(schema, dict) or rng.random() < 0.08:
            return self._draw_anything(depth)
        merged = self._merge(schema, 0)
        if "const" in merged:
            return merged["const"]
        if merged.get("enum"):
            return rng.choice(merged["enum"])
        kinds = merged.get("type") or self._guess_type(merged)
        return self._draw_kind(rng.choice(kinds) if isinstance(kinds, list) else kinds, merged, depth)

    def _merge(self, schema: Any, depth: int) -> dict[str, Any]:
        """Merge what applies to one value, with one alternative of each choice, roughly."""
        if not isinstance(schema, dict) or depth > _DEEPEST:
            return {}
        parts = [{key: each for key, each in schema.items() if key not in ("$ref", "allOf", "anyOf", "oneOf")}]
        if "$ref" in schema:
            parts.append(self._merge(self._follow(schema["$ref"]), depth + 1))
        parts += [self._merge(each, depth + 1) for each in schema.get("allOf", ())]
        parts += [
            self._merge(self._rng.choice(schema[keyword]), depth + 1)
            for keyword in ("anyOf", "oneOf")
            if schema.get(keyword)
        ]
        merged: dict[str, Any] = {}
        for part in parts:
            for key, each in part.items():
                if key == "properties":
                    merged[key] = {**merged.get(key, {}), **each}
                elif key == "required":
                    merged[key] = [*merged.get(key, []), *each]
                else:
                    merged[key] = each
        return merged

    def _follow(self, reference: str) -> Any:
        node = self._root
        for step in reference.removeprefix("#").split("/")[1:]:
            node = node[int(step)] if isinstance(node, list) else node[step]
        return node

    def _guess_type(self, schema: dict[str, Any]) -> str:
        for kind, keywords in (
            ("object", ("properties", "required", "patternProperties", "minProperties")),
            ("array", ("items", "prefixItems", "minItems", "contains")),
            ("string", ("minLength", "maxLength", "pattern")),
            ("number", ("minimum", "maximum", "multipleOf")),
        ):
            if any(keyword in schema for keyword in keywords):
                return kind
        return self._rng.choice(("object", "array", "string", "number", "integer", "boolean", "null"))

    def _draw_kind(self, kind: str, schema: dict[str, Any], depth: int) -> Any:
        rng = self._rng
        match kind:
            case "null":
                return None
            case "boolean":
                return rng.random() < 0.5
            case "string":
                return self._draw_text(schema)
            case "array":
                return self._draw_list(schema, depth)
            case "object":
                return self._draw_object(schema, depth)
            case _:
                return self._draw_number(schema, is_whole=kind == "integer")

    def _draw_text(self, schema: dict[str, Any]) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength", 24)
        text = self._rng.choice(_WORDS)
        return (text + "a" * max(0, int(least) - len(text)))[: int(max(most, 0))]

    def _draw_number(self, schema: dict[str, Any], *, is_whole: bool) -> float:
        least = schema.get("minimum", schema.get("exclusiveMinimum", -20))
        most = schema.get("maximum", schema.get("exclusiveMaximum", max(20, least + 20)))
        step = schema.get("multipleOf", 1 if is_whole or self._rng.random() < 0.5 else 0.25)
        number = least + self._rng.random() * max(0, most - least)
        number = self._rng.choice((number, least, most))
        result = round(number / step) * step
        return int(result) if float(result).is_integer() and self._rng.random() < 0.8 else result

    def _draw_list(self, schema: dict[str, Any], depth: int) -> list[Any]:
        least = int(schema.get("minItems", 0))
        most = max(least, int(min(schema.get("maxItems", least + 3), least + 4)))
        prefix = schema.get("prefixItems", [])
        return [
            self.draw(
                prefix[place] if place < len(prefix) else schema.get("items", schema.get("contains", True)), depth + 1
            )
            for place in range(self._rng.randint(least, most))
        ]

    def _draw_object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        optional_share = self._rng.choice((0.1, 0.5, 0.9))
        result = {
            name: self.draw(part, depth + 1)
            for name, part in properties.items()
            if name in schema.get("required", ()) or self._rng.random() < optional_share
        }
        for name in schema.get("required", ()):
            result.setdefault(name, self._draw_anything(depth))
        additional = schema.get("additionalProperties", True)
        if additional is not False and self._rng.random() < 0.4:
            result[self._rng.choice(_NAMES)] = self.draw(additional, depth + 1)
        return result

    def _draw_anything(self, depth: int) -> Any:
        rng = self._rng
        choices: list[Any] = [None, True, False, 0, 1, -3, 2.5, *_WORDS[:6]]
        if depth < _DEEPEST and rng.random() < 0.3:
            return rng.choice(([], {}, [rng.choice(choices)], {rng.choice(_NAMES): rng.choice(choices)}))
        return rng.choice(choices)
