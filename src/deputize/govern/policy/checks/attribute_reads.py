"""Analyse which attributes rules read. A decision gets only these attributes, so they can also form its cache key.

If this analysis missed an attribute, the rule would find it missing and fail, and a failed rule denies.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from deputize.core.value_types import frozen
from deputize.govern.policy.cedar_schema import CONTEXT_ATTRIBUTES
from deputize.govern.policy.policy_parser import PolicyRule

# Attributes that change while the request stays the same, so decisions that read them are never cached.
VOLATILE_ATTRIBUTES = frozenset({"time", "cost", "labels"})
# Attributes that differ between the calls of one caller.
PER_CALL_ATTRIBUTES = frozenset({"session", "scopes", "facts"})

_VARIABLES = frozenset({"principal", "action", "resource", "context"})
AttributePath = tuple[str, ...]


@frozen
class AttributeReads:
    """The attributes that rules read: `context` by name, `facts` by name (None: all facts), `paths` for display."""

    paths: tuple[str, ...]
    context: tuple[str, ...]
    facts: frozenset[str] | None

    @property
    def is_volatile(self) -> bool:
        return not VOLATILE_ATTRIBUTES.isdisjoint(self.context)

    @property
    def has_sweeping(self) -> bool:
        """Separate from `is_per_call`, because it is a boolean and so can be part of a cache key."""
        return "sweeping" in self.context

    @property
    def is_per_call(self) -> bool:
        return not PER_CALL_ATTRIBUTES.isdisjoint(self.context)


def collect_reads(rules: Iterable[PolicyRule]) -> AttributeReads:
    paths: set[AttributePath] = set()
    for rule in rules:
        for condition in orjson.loads(rule.ast)["conditions"]:
            paths.update(_extract_paths(condition["body"]))
    context = {path[1] for path in paths if path[0] == "context" and len(path) > 1}
    facts = frozenset(path[2] for path in paths if path[:2] == ("context", "facts") and len(path) > 2)
    if ("context",) in paths:
        return AttributeReads(paths=_format_paths(paths), context=tuple(sorted(CONTEXT_ATTRIBUTES)), facts=None)
    has_all_facts = ("context", "facts") in paths
    attributes = tuple(sorted(CONTEXT_ATTRIBUTES & context))
    return AttributeReads(paths=_format_paths(paths), context=attributes, facts=None if has_all_facts else facts - {""})


def _format_paths(paths: Iterable[AttributePath]) -> tuple[str, ...]:
    return tuple(sorted({".".join(path[:3]).rstrip(".") for path in paths}))


def _extract_paths(root: Any) -> Iterator[AttributePath]:
    """Yield every attribute path that starts at a variable, or the variable alone if it is used as a whole.

    Iterative, because long conditions are deep trees.
    """
    stack = [root]
    while stack:
        match stack.pop():
            case {"Var": str(name)} if name in _VARIABLES:
                yield (name,)
            case {"Value": _}:
                pass
            case {"Record": dict(fields)}:
                stack += fields.values()
            case {".": {"left": left, "attr": str(attribute)}}:
                path = resolve_attribute_path(left)
                if path is None:
                    stack.append(left)
                else:
                    yield (*path, attribute)
            case {"has": {"left": left, "attr": str(attribute)}}:
                path = resolve_attribute_path(left)
                if path is None:
                    stack.append(left)
                elif path == ("context",) and attribute == "facts":
                    yield ("context", "facts", "")  # tests only for the record, and reads none of its fields
                else:
                    yield (*path, attribute)
            case dict() as node:
                stack += node.values()
            case list() as nodes:
                stack += nodes
            case _:
                pass


def resolve_attribute_path(node: Any) -> AttributePath | None:
    """Return the path from a variable to this node, or None if it contains anything but attributes."""
    names: list[str] = []
    while True:
        match node:
            case {"Var": str(name)} if name in _VARIABLES:
                return (name, *reversed(names))
            case {".": {"left": left, "attr": str(attribute)}}:
                names.append(attribute)
                node = left
            case _:
                return None
