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


def _paths(node: Any) -> Iterator[Path]:
    """Every chain of attributes from a variable; the variable alone where it is used whole."""
    match node:
        case {"Var": str(name)} if name in _VARIABLES:
            yield (name,)
        case {"Value": _}:
            return
        case {"Record": dict(fields)}:
            for each in fields.values():
                yield from _paths(each)
        case {".": {"left": left, "attr": str(attribute)}}:
            found = chain(left)
            yield from _paths(left) if found is None else iter([(*found, attribute)])
        case {"has": {"left": left, "attr": str(attribute)}}:
            found = chain(left)
            # `context has facts` asks only whether the record is there, which reads none of its fields.
            asked = (attribute, "") if found == ("context",) and attribute == "facts" else (attribute,)
            yield from _paths(left) if found is None else iter([(*found, *asked)])
        case dict():
            for each in node.values():
                yield from _paths(each)
        case list():
            for each in node:
                yield from _paths(each)
        case _:
            pass


def chain(node: Any) -> Path | None:
    """The attributes from a variable to here, if nothing but attributes lies between."""
    match node:
        case {"Var": str(name)} if name in _VARIABLES:
            return (name,)
        case {".": {"left": left, "attr": str(attribute)}}:
            found = chain(left)
            return None if found is None else (*found, attribute)
        case _:
            return None
