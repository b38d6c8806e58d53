"""What rules read. A decision is told no more than its rules read, so what is kept for it can be keyed by the same.

If this analysis ever missed something, the rule would find it absent and fail, and a rule that fails denies.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from deputize.core.frozen import frozen
from deputize.govern.policy.rules import PolicyRule
from deputize.govern.policy.world import CONTEXT

# What changes without anything about the question changing: never kept.
FLEETING = frozenset({"time", "cost", "labels"})
# What differs from call to call of one caller.
PER_CALL = frozenset({"session", "scopes", "facts"})

_VARIABLES = frozenset({"principal", "action", "resource", "context"})
Path = tuple[str, ...]


@frozen
class Reads:
    """`paths` are for people; `context` names the attributes, `facts` those of `context.facts` (None: all of them)."""

    paths: tuple[str, ...]
    context: tuple[str, ...]
    facts: frozenset[str] | None

    @property
    def fleeting(self) -> bool:
        return not FLEETING.isdisjoint(self.context)

    @property
    def sweeping(self) -> bool:
        """Apart from what differs per call, because it is one of two things."""
        return "sweeping" in self.context

    @property
    def per_call(self) -> bool:
        return not PER_CALL.isdisjoint(self.context)


def reads_of(rules: Iterable[PolicyRule]) -> Reads:
    paths: set[Path] = set()
    for rule in rules:
        for condition in orjson.loads(rule.ast)["conditions"]:
            paths.update(_paths(condition["body"]))
    context = {path[1] for path in paths if path[0] == "context" and len(path) > 1}
    facts = frozenset(path[2] for path in paths if path[:2] == ("context", "facts") and len(path) > 2)
    if ("context",) in paths:
        return Reads(paths=_spelt(paths), context=tuple(sorted(CONTEXT)), facts=None)
    whole = ("context", "facts") in paths
    known = tuple(sorted(CONTEXT & context))
    return Reads(paths=_spelt(paths), context=known, facts=None if whole else facts - {""})


def _spelt(paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(sorted({".".join(path[:3]).rstrip(".") for path in paths}))


def _paths(root: Any) -> Iterator[Path]:
    """Every chain of attributes from a variable; the variable alone where it is used whole. Without recursion, because
    a condition of many parts is a deep tree.
    """
    waiting = [root]
    while waiting:
        match waiting.pop():
            case {"Var": str(name)} if name in _VARIABLES:
                yield (name,)
            case {"Value": _}:
                pass
            case {"Record": dict(fields)}:
                waiting += fields.values()
            case {".": {"left": left, "attr": str(attribute)}}:
                found = chain(left)
                if found is None:
                    waiting.append(left)
                else:
                    yield (*found, attribute)
            case {"has": {"left": left, "attr": str(attribute)}}:
                found = chain(left)
                if found is None:
                    waiting.append(left)
                elif found == ("context",) and attribute == "facts":
                    yield ("context", "facts", "")  # whether the record is there, which reads none of its fields
                else:
                    yield (*found, attribute)
            case dict() as node:
                waiting += node.values()
            case list() as nodes:
                waiting += nodes
            case _:
                pass


def chain(node: Any) -> Path | None:
    """The attributes from a variable to here, if nothing but attributes lies between."""
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
