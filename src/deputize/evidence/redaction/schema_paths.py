"""Survey a JSON Schema as a graph of nodes, for `evidence/redaction/plan.py` to walk with a document.

A node is what one schema says of one position in a document. References become edges, so a recursive schema is
described at every depth. Branches (`anyOf`, `allOf`, `then`, ...) are nodes beside each other, and what any of them
says counts. Where a keyword is more exact than this, the survey errs towards sensitive or undescribed.

Each schema object becomes one node, however it is referred to, so a survey takes time in proportion to the schema. The
branches that stand beside each other can be more than that, so their number is limited; `SchemaTooComplex` names it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from deputize.core.patterns import InvalidPattern, LinearPattern, compile_pattern

# Branches beside each other, counted for every node of a schema. Contracts in use have less than a thousand.
MAX_EDGES: Final = 50_000
_SENSITIVE_LEVELS = frozenset({"pii", "secret"})
# The author says that what is there may be shown, so only secrets are hidden in it.
_VISIBLE_LEVELS = frozenset({"public", "internal"})
_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLES = ("if", "then", "else")
_MAPS = ("dependentSchemas", "dependencies")
_OTHERS = ("additionalProperties", "unevaluatedProperties")
_REST = ("items", "additionalItems", "unevaluatedItems")
# A schema with one of these describes its values there.
_DESCRIBED_BY = ("$ref", "allOf", "anyOf", "oneOf", "enum", "const")
_NO_NODES: Final[tuple["SchemaNode", ...]] = ()


@dataclass(slots=True, eq=False)
class SchemaNode:
    """A position in a document. `is_open` means that it may contain fields or items that no schema describes."""

    is_sensitive: bool = False
    is_open: bool = False
    needs_check: bool = False
    shows_personal_data: bool = False
    fields: dict[str, "SchemaNode"] = field(default_factory=dict)
    patterns: list[tuple[LinearPattern, "SchemaNode"]] = field(default_factory=list)
    additional: list["SchemaNode"] = field(default_factory=list)
    prefix: list["SchemaNode"] = field(default_factory=list)
    rest: list["SchemaNode"] = field(default_factory=list)
    contains: list["SchemaNode"] = field(default_factory=list)
    branches: list["SchemaNode"] = field(default_factory=list)
    closure: tuple["SchemaNode", ...] = ()

    def find_field_nodes(self, name: str) -> tuple["SchemaNode", ...]:
        """Find the nodes that describe a field."""
        pattern_nodes = [node for pattern, node in self.patterns if pattern.matches_in(name)] if self.patterns else []
        field_node = self.fields.get(name)
        if field_node is not None:
            return _flatten_closures([field_node, *pattern_nodes]) if pattern_nodes else field_node.closure
        return _flatten_closures(pattern_nodes or self.additional)

    def find_item_nodes(self, index: int) -> tuple["SchemaNode", ...]:
        """Find the nodes that describe an item of a list."""
        return self.prefix[index].closure if index < len(self.prefix) else _flatten_closures(self.rest)

    @property
    def contains_nodes(self) -> tuple["SchemaNode", ...]:
        """The nodes of `contains`, which may describe any item."""
        return _flatten_closures(self.contains)

    def iterate_children(self) -> Iterable["SchemaNode"]:
        """Yield the nodes of all fields and items."""
        yield from self.fields.values()
        yield from (node for _, node in self.patterns)
        yield from (*self.additional, *self.prefix, *self.rest, *self.contains)


def _flatten_closures(nodes: list[SchemaNode]) -> tuple[SchemaNode, ...]:
    return tuple(each for node in nodes for each in node.closure) if nodes else _NO_NODES


class SchemaTooComplex(ValueError):
    """The schema combines too many branches; the message completes "it …"."""


def survey_schema(schema: Any, is_sensitive_name: Callable[[str], bool]) -> tuple[SchemaNode, ...]:
    """Survey a schema, and return the nodes of the document itself; raise `SchemaTooComplex` past `MAX_EDGES`."""
    surveyor = _SchemaSurveyor(schema, is_sensitive_name)
    root = surveyor.add_node(schema)
    surveyor.finish()
    return root.closure


def collect_sensitive_names(root: tuple[SchemaNode, ...]) -> frozenset[str]:
    """Collect the names of sensitive fields at any depth."""
    names: set[str] = set()
    known_nodes: set[SchemaNode] = set()
    stack = list(root)
    while stack:
        node = stack.pop()
        if node in known_nodes:
            continue
        known_nodes.add(node)
        for name, field_node in node.fields.items():
            if any(each.is_sensitive for each in field_node.closure):
                names.add(name)
        stack += [each for child in node.iterate_children() for each in child.closure]
    return frozenset(names)


class _SchemaSurveyor:
    """Builds the nodes of one schema."""

    def __init__(self, root: Any, is_sensitive_name: Callable[[str], bool]) -> None:
        self._root = root
        self._is_sensitive_name = is_sensitive_name
        # By the identity of the schema object, which `root` keeps alive.
        self._nodes_by_schema: dict[int, SchemaNode] = {}
        self._nodes: list[SchemaNode] = []

    def add_node(self, schema: Any) -> SchemaNode:
        """Add the node of a schema, with everything below it; the same schema is described once."""
        if isinstance(schema, dict) and (node := self._nodes_by_schema.get(id(schema))) is not None:
            return node
        node = SchemaNode()
        self._nodes.append(node)
        if isinstance(schema, dict):
            self._nodes_by_schema[id(schema)] = node
        self._describe(node, schema)
        return node

    def _describe(self, node: SchemaNode, schema: Any) -> None:
        if not isinstance(schema, dict):
            node.is_open = schema is not False
            return
        if schema.get("x-sensitivity") in _SENSITIVE_LEVELS or schema.get("writeOnly") is True:
            node.is_sensitive = True
            return
        node.shows_personal_data = schema.get("x-sensitivity") in _VISIBLE_LEVELS
        node.is_open = _can_hold_undescribed(schema)
        self._describe_object(node, schema)
        self._describe_array(node, schema)
        for key in _LISTS:
            node.branches += map(self.add_node, schema.get(key, ()))
        node.branches += [self.add_node(schema[key]) for key in _SINGLES if key in schema]
        for key in _MAPS:
            node.branches += [self.add_node(each) for each in schema.get(key, {}).values() if isinstance(each, dict)]
        if "$ref" in schema:
            node.branches.append(self.add_node(_resolve(self._root, schema["$ref"])))

    def _describe_object(self, node: SchemaNode, schema: dict[str, Any]) -> None:
        for name, child in schema.get("properties", {}).items():
            node.fields[name] = self._add_sensitive_node() if self._is_sensitive_name(name) else self.add_node(child)
        for pattern, child in schema.get("patternProperties", {}).items():
            node.patterns.append((_compile_pattern(pattern), self.add_node(child)))
        node.additional += [self.add_node(schema[key]) for key in _OTHERS if isinstance(schema.get(key), dict)]

    def _describe_array(self, node: SchemaNode, schema: dict[str, Any]) -> None:
        prefix_schemas = schema.get("prefixItems", ())
        if isinstance(schema.get("items"), list):
            prefix_schemas = schema["items"]
        node.prefix += map(self.add_node, prefix_schemas)
        node.rest += [self.add_node(schema[key]) for key in _REST if isinstance(schema.get(key), dict)]
        if isinstance(schema.get("contains"), dict):
            node.contains.append(self.add_node(schema["contains"]))

    def _add_sensitive_node(self) -> SchemaNode:
        node = SchemaNode(is_sensitive=True)
        self._nodes.append(node)
        return node

    def finish(self) -> None:
        """Compute the branches of every node, and which nodes need a check of the data."""
        edges_left = MAX_EDGES
        for node in self._nodes:
            edges_left = _collect_branches(node, edges_left)
        self._mark_nodes_to_check()

    def _mark_nodes_to_check(self) -> None:
        """Mark the nodes that are sensitive or open, or have such a node anywhere below them."""
        positions_by_node: defaultdict[SchemaNode, list[SchemaNode]] = defaultdict(list)
        parents: defaultdict[SchemaNode, list[SchemaNode]] = defaultdict(list)
        for node in self._nodes:
            for each in node.closure:
                positions_by_node[each].append(node)
            for child in node.iterate_children():
                parents[child].append(node)
        stack = [node for node in self._nodes if node.is_sensitive or node.is_open]
        for node in stack:
            node.needs_check = True
        while stack:
            for position in positions_by_node.pop(stack.pop(), ()):
                for parent in parents.pop(position, ()):
                    if not parent.needs_check:
                        parent.needs_check = True
                        stack.append(parent)


def _collect_branches(node: SchemaNode, edges_left: int) -> int:
    """Collect the node and its branches into its closure, and return how many edges are left.

    A schema that only refers to itself describes nothing, so it is open.
    """
    closure: dict[SchemaNode, None] = {node: None}
    stack = [node]
    while stack:
        branches = stack.pop().branches
        edges_left -= len(branches)
        if edges_left < 0:
            raise SchemaTooComplex(f"combines its parts in more than {MAX_EDGES:,} ways")
        for each in branches:
            if each is node:
                node.is_open = True
            if each not in closure:
                closure[each] = None
                stack.append(each)
    node.closure = tuple(closure)
    return edges_left


def _can_hold_undescribed(schema: dict[str, Any]) -> bool:
    """Tell whether a document of this schema alone may contain something that the schema does not describe."""
    if "$dynamicRef" in schema or "$recursiveRef" in schema:
        return True
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if kind is None and any(key in schema for key in _DESCRIBED_BY):
        kinds = ["object"] if "properties" in schema else []
    elif kind is None:
        kinds = ["object", "array"]
    if "object" in kinds and not any(schema.get(key) is False for key in _OTHERS):
        return not any(key in schema for key in _DESCRIBED_BY) or "properties" in schema
    return "array" in kinds and not any(isinstance(schema.get(key), dict) or schema.get(key) is False for key in _REST)


def _compile_pattern(pattern: str) -> LinearPattern:
    """Compile a pattern; one that is not admitted matches everything."""
    try:
        return compile_pattern(pattern)
    except InvalidPattern:
        return compile_pattern("")


def _resolve(root: Any, ref: Any) -> Any:
    """Follow a reference within the schema; return None, and so undescribed, for any other."""
    if ref == "#":
        return root
    if not isinstance(ref, str) or not ref.startswith("#/"):
        return None
    target = root
    for part in ref[2:].split("/"):
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target.get(key)
        elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            return None
    return target
