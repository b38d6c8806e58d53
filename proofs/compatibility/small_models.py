"""Decide by small models whether a schema allows a value that another one refuses, without the checker's rules.

For each place of both schemas, the values are listed at which any keyword there can change its answer: both sides of
each limit, each listed value, one value of each kind, objects with and without each property. Combined, they contain a
value that tells the two schemas apart wherever one can be built from these, and the validator of calls judges each.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import jsonschema_rs

_KINDS: tuple[Any, ...] = (None, True, False, 0, 7, -7, 2.5, "", "a", "x-1", [], [1], {}, {"a": 1}, {"x-1": "a"})
_TEXTS = ("", "a", "ab", "A1", "x-1", "abc123", "2026-01-31", "a@b.example")
_NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_DEEPEST = 5
_MOST_LOCAL = 60
_MOST_OBJECTS = 160


class SmallModels:
    """Lists the values at which two schemas can differ."""

    def __init__(self, first: Any, second: Any) -> None:
        self._roots = (first, second)
        self._validators: dict[int, jsonschema_rs.Draft202012Validator | bool] = {}

    def list_values(self) -> list[Any]:
        return self._list_values([(0, self._roots[0]), (1, self._roots[1])], 0)

    def _list_values(self, nodes: list[tuple[int, Any]], depth: int) -> list[Any]:
        """List the values for a place that these schemas describe; each comes with the number of its document."""
        nodes = self._expand(nodes)
        schemas = [node for _, node in nodes]
        values = _Distinct(_KINDS if depth < 2 else _KINDS[:11])
        for schema in schemas:
            values.add_all(_list_scalars(schema))
        if depth < _DEEPEST:
            values.add_all(self._list_objects(nodes, depth))
            values.add_all(self._list_lists(nodes, depth))
        return values.items

    def _expand(self, nodes: list[tuple[int, Any]]) -> list[tuple[int, dict[str, Any]]]:
        """Follow everything that describes the same value."""
        found: dict[int, tuple[int, dict[str, Any]]] = {}
        stack = [node for node in nodes if isinstance(node[1], dict)]
        while stack and len(found) < 100:
            owner, node = stack.pop(0)
            if id(node) in found:
                continue
            found[id(node)] = (owner, node)
            inner = [*node.get("allOf", ()), *node.get("anyOf", ()), *node.get("oneOf", ())]
            inner += [node[keyword] for keyword in ("not", "if", "then", "else") if keyword in node]
            inner += node.get("dependentSchemas", {}).values()
            if "$ref" in node:
                inner.append(self._follow(owner, node["$ref"]))
            stack += [(owner, each) for each in inner if isinstance(each, dict)]
        return list(found.values())

    def _follow(self, owner: int, reference: str) -> Any:
        node = self._roots[owner]
        for step in reference.removeprefix("#").split("/")[1:]:
            node = node[int(step)] if isinstance(node, list) else node[step]
        return node

    def _list_objects(self, nodes: list[tuple[int, dict[str, Any]]], depth: int) -> Iterator[dict[str, Any]]:
        parts: dict[str, list[tuple[int, Any]]] = {}
        for owner, node in nodes:
            for name, part in node.get("properties", {}).items():
                parts.setdefault(name, []).append((owner, part))
            for name in (*node.get("required", ()), *node.get("dependentRequired", ())):
                parts.setdefault(name, [])
        others = [
            (owner, node[keyword])
            for owner, node in nodes
            for keyword in ("additionalProperties", "unevaluatedProperties")
            if keyword in node
        ] + [(owner, each) for owner, node in nodes for each in node.get("patternProperties", {}).values()]
        if not parts and not others and not any("minProperties" in node for _, node in nodes):
            return
        if others or len(parts) < 4:
            parts |= {name: [] for name in ("extra_one", "x-1", "zz") if name not in parts}
        # A description of every property is also one of those that a schema does not name.
        options = {name: self._list_values([*each, *others], depth + 1)[:_MOST_LOCAL] for name, each in parts.items()}
        yield from itertools.islice(self._combine(nodes, options), _MOST_OBJECTS * 4)

    def _combine(
        self, nodes: list[tuple[int, dict[str, Any]]], options: dict[str, list[Any]]
    ) -> Iterator[dict[str, Any]]:
        """Combine properties: bases that one of the schemas allows, and every single change of each."""
        required = {name for _, node in nodes for name in node.get("required", ())}
        owners = sorted({owner for owner, _ in nodes})
        bases: list[dict[str, Any]] = [{}]
        for owner in owners:
            good = {
                name: next((value for value in values if self._is_good(owner, nodes, name, value)), values[0])
                for name, values in options.items()
            }
            known = {name for each, node in nodes if each == owner for name in node.get("properties", {})}
            needed = {name for each, node in nodes if each == owner for name in node.get("required", ())}
            bases += [
                {name: good[name] for name in good if name in names}
                for names in (needed, known, required, known | needed)
            ]
        for base in bases:
            yield base
            for name in base:
                yield {key: each for key, each in base.items() if key != name}
        for base in bases:
            for name, values in options.items():
                for value in values:
                    yield {**base, name: value}

    def _is_good(self, owner: int, nodes: list[tuple[int, dict[str, Any]]], name: str, value: Any) -> bool:
        parts = [
            node["properties"][name] for each, node in nodes if each == owner and name in node.get("properties", {})
        ]
        return all(self._is_allowed(owner, part, value) for part in parts)

    def _is_allowed(self, owner: int, part: Any, value: Any) -> bool:
        """Tell whether a part of a schema allows a value."""
        if not isinstance(part, dict):
            return bool(part)
        validator = self._validators.get(id(part))
        if validator is None:
            definitions = {"$defs": self._roots[owner].get("$defs", {})}
            try:
                validator = compile_schema({**definitions, **part})
            except (ValueError, jsonschema_rs.ReferencingError, jsonschema_rs.ValidationError):
                validator = False
            self._validators[id(part)] = validator
        return validator if isinstance(validator, bool) else validator.is_valid(value)

    def _list_lists(self, nodes: list[tuple[int, dict[str, Any]]], depth: int) -> Iterator[list[Any]]:
        parts = [
            (owner, part)
            for owner, node in nodes
            for part in (*node.get("prefixItems", ()), node.get("items"), node.get("contains"))
            if part is not None
        ]
        sizes = {
            max(0, int(node[keyword]) + change)
            for _, node in nodes
            for keyword in ("minItems", "maxItems", "minContains", "maxContains")
            if keyword in node
            for change in (-1, 0, 1)
        } | {len(node.get("prefixItems", ())) + 1 for _, node in nodes if "prefixItems" in node}
        if not parts and not sizes and not any(node.get("uniqueItems") for _, node in nodes):
            return
        values = self._list_values(parts, depth + 1)[:_MOST_LOCAL] if parts else [0, "a", 1, 2, 3, 4, 5, 6]
        for value in values:
            yield [value]
        for size in sorted(size for size in sizes | {1, 2, 3} if size <= 12):
            yield values[:size]
            for value in values:
                yield [value] * size
        for first, second in itertools.islice(itertools.product(values, values), 200):
            yield [first, second]


def find_witness(first: Any, second: Any) -> tuple[Any] | None:
    """Find a value that the first schema allows and the second refuses; None if no small model is one."""
    allowing, refusing = (compile_schema(schema) for schema in (first, second))
    for value in SmallModels(first, second).list_values():
        if allowing.is_valid(value) and not refusing.is_valid(value):
            return (value,)
    return None


def compile_schema(schema: Any) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(
        schema, validate_formats=True, offline=True, pattern_options=jsonschema_rs.RegexOptions()
    )


def _list_scalars(schema: dict[str, Any]) -> Iterator[Any]:
    yield from schema.get("enum", ())
    if "const" in schema:
        yield schema["const"]
    for keyword in _NUMERIC:
        if keyword in schema:
            yield from (schema[keyword] + change for change in (-1, -0.5, 0, 0.5, 1))
    if "multipleOf" in schema:
        yield from (schema["multipleOf"] * factor for factor in (1, 2, 3, 1.5))
    for keyword in ("minLength", "maxLength"):
        if keyword in schema:
            yield from ("a" * max(0, int(schema[keyword]) + change) for change in (-1, 0, 1))
    if "pattern" in schema or "format" in schema:
        yield from _TEXTS


class _Distinct:
    """A list without repetitions, in which true and 1 are different values."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self.items: list[Any] = []
        self._known: set[str] = set()
        self.add_all(values)

    def add_all(self, values: Iterable[Any]) -> None:
        for value in values:
            key = repr(value)
            if key not in self._known:
                self._known.add(key)
                self.items.append(value)
