"""Generate schemas of every keyword that is compared, and some of keywords that are not."""

import random
from typing import Any

_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_NAMES = ("a", "b", "c", "kind", "x-1")
_PATTERNS = ("^x-", "^[a-z]+$", "[0-9]", "^a")
_FORMATS = ("date", "email", "uuid")
_VALUES: tuple[Any, ...] = ("a", "ab", "x-1", 0, 1, 2, 1.5, True, False, None, [], {"a": 1})


class SchemaGenerator:
    """Draws schemas; small ones, so that small models can decide about them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._has_definitions = False

    def draw_document(self) -> dict[str, Any]:
        """Draw a schema with its definitions, some of them recursive."""
        self._has_definitions = self._rng.random() < 0.25
        schema = self._draw_object(2) if self._rng.random() < 0.6 else self._draw_schema(2)
        document: dict[str, Any] = schema if isinstance(schema, dict) else {"type": "object"}
        if self._has_definitions:
            document["$defs"] = {"node": self._draw_node(), "leaf": self._draw_schema(0)}
        return document

    def _draw_node(self) -> dict[str, Any]:
        node: dict[str, Any] = {
            "type": "object",
            "properties": {"value": self._draw_schema(0), "next": {"$ref": "#/$defs/node"}},
            "additionalProperties": False,
        }
        if self._rng.random() < 0.4:
            node["properties"]["items"] = {"type": "array", "items": {"$ref": "#/$defs/node"}}
        return node

    def _draw_schema(self, depth: int) -> Any:
        rng = self._rng
        chance = rng.random()
        if chance < 0.03:
            return rng.random() < 0.7
        if self._has_definitions and chance < 0.13:
            return {"$ref": rng.choice(("#/$defs/node", "#/$defs/leaf")) if depth else "#/$defs/node"}
        if depth and chance < 0.33:
            return self._draw_combination(depth)
        if chance < 0.42:
            return {"enum": rng.sample(_VALUES, rng.randint(1, 4))}
        if chance < 0.46:
            return {"const": rng.choice(_VALUES)}
        kind = rng.choice(_TYPES)
        schema = self._draw_kind(kind, depth)
        if rng.random() < 0.85:
            schema["type"] = kind if rng.random() < 0.8 else sorted({kind, rng.choice(_TYPES)})
        if rng.random() < 0.04:
            schema["unknownKeyword"] = rng.randint(1, 3)
        return schema

    def _draw_combination(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        keyword = rng.choice(("anyOf", "anyOf", "oneOf", "allOf", "not", "if"))
        if keyword == "not":
            return {"not": self._draw_schema(depth - 1)}
        if keyword == "if":
            return {
                each: self._draw_schema(depth - 1)
                for each in ("if", "then", "else")
                if each == "if" or rng.random() < 0.8
            }
        return {keyword: [self._draw_schema(depth - 1) for _ in range(rng.randint(1, 3))]}

    def _draw_kind(self, kind: str, depth: int) -> dict[str, Any]:
        match kind:
            case "object":
                return self._draw_object(depth)
            case "array":
                return self._draw_array(depth)
            case "string":
                return self._pick({
                    "minLength": self._rng.randint(0, 3), "maxLength": self._rng.randint(1, 5),
                    "pattern": self._rng.choice(_PATTERNS), "format": self._rng.choice(_FORMATS),
                }, 0.3)  # fmt: skip
            case "integer" | "number":
                return self._pick({
                    "minimum": self._rng.choice((-2, 0, 1, 0.5)), "maximum": self._rng.choice((2, 3, 5, 4.5)),
                    "exclusiveMinimum": self._rng.choice((-1, 0, 0.5)), "exclusiveMaximum": self._rng.choice((3, 6)),
                    "multipleOf": self._rng.choice((1, 2, 3, 0.5)),
                }, 0.25)  # fmt: skip
            case _:
                return {}

    def _draw_object(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        names = rng.sample(_NAMES, rng.randint(0, 3))
        inner = max(0, depth - 1)
        schema: dict[str, Any] = {"type": "object"}
        if names:
            schema["properties"] = {name: self._draw_schema(inner) for name in names}
        if names and rng.random() < 0.6:
            schema["required"] = rng.sample(names, rng.randint(1, len(names)))
        if rng.random() < 0.7:
            schema["additionalProperties"] = False if rng.random() < 0.7 else self._draw_schema(0)
        return schema | self._pick({
            "patternProperties": {rng.choice(_PATTERNS): self._draw_schema(0)},
            "propertyNames": rng.choice(({"pattern": "^[a-z]"}, {"maxLength": 3}, {"enum": list(_NAMES)})),
            "minProperties": rng.randint(0, 2), "maxProperties": rng.randint(1, 4),
            "dependentRequired": {rng.choice(_NAMES): [rng.choice(_NAMES)]},
            "dependentSchemas": {rng.choice(_NAMES): self._draw_schema(0)},
            "unevaluatedProperties": rng.choice((False, {"type": "string"})),
        }, 0.07)  # fmt: skip

    def _draw_array(self, depth: int) -> dict[str, Any]:
        rng, inner = self._rng, max(0, depth - 1)
        return self._pick({"items": self._draw_schema(inner)}, 0.7) | self._pick({
            "prefixItems": [self._draw_schema(inner) for _ in range(rng.randint(1, 2))],
            "minItems": rng.randint(0, 2), "maxItems": rng.randint(1, 4), "uniqueItems": rng.random() < 0.7,
        }, 0.25) | self._pick({"contains": self._draw_schema(0)}, 0.12) | self._pick({
            "minContains": rng.randint(0, 2), "maxContains": rng.randint(1, 3),
        }, 0.06)  # fmt: skip

    def _pick(self, keywords: dict[str, Any], share: float) -> dict[str, Any]:
        return {keyword: value for keyword, value in keywords.items() if self._rng.random() < share}
