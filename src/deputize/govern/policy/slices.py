"""The rules that can speak about one tool, and no others, ready to be evaluated.

A rule belongs to a tool's slice when its scope can match: no resource named, the tool itself, or anything the tool is
in. A rule left out could not have been satisfied, nor failed, because Cedar looks at scopes before conditions. So a
slice answers what the whole set would; `tests/unit/govern/policy/test_slices.py` holds the two equal.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

import cedarpy

from deputize.core.canonical import digest
from deputize.govern.policy.kept import Kept
from deputize.govern.policy.reads import Reads, reads_of
from deputize.govern.policy.rules import PolicyRule, as_set
from deputize.govern.policy.world import ACTION, ancestors

Place = tuple[str, str]
# Rules in all the slices of a set together: each takes some kilobytes, and a tenant may have as many tools as it likes.
MOST_CUT = 100_000


class Slice:
    """Some rules of a set, in the order they were written."""

    def __init__(self, rules: Sequence[PolicyRule]) -> None:
        self.rules = tuple(rules)
        self.by_id: Mapping[str, int] = {rule.id: place for place, rule in enumerate(self.rules)}
        self.policies = policy_set(self.rules)
        self.reads: Reads = reads_of(self.rules)
        # Asked at every decision, so worked out once.
        self.fleeting = self.reads.fleeting
        self.per_call = self.reads.per_call
        self.sweeping = self.reads.sweeping

    @cached_property
    def digest(self) -> str:
        """Over what the rules say and whom they ask, not how they are laid out: an approval outlives a comment."""
        return digest({"rules": [_said(rule) for rule in self.rules]})

    @cached_property
    def without_asking_forbids(self) -> cedarpy.PolicySet:
        return policy_set([rule for rule in self.rules if not (rule.asks and rule.effect == "forbid")])


class Slices:
    """Cuts slices from one set of rules. Tools about which the same rules can speak share one slice."""

    def __init__(self, rules: Sequence[PolicyRule]) -> None:
        self._rules = rules
        self._everywhere: list[int] = []
        self._exactly: dict[Place, list[int]] = defaultdict(list)
        self._inside: dict[Place, list[int]] = defaultdict(list)
        self._cut: Kept[tuple[int, ...], Slice] = Kept(MOST_CUT)
        # What explains an answer works in a thread.
        self._cutting = Lock()
        for place, rule in enumerate(rules):
            if _about_calls(rule.read.action):
                self._index(place, rule.read.resource)

    def _index(self, place: int, scope: Mapping[str, Any]) -> None:
        match scope:
            case {"op": "All"} | {"op": "is", "entity_type": "Tool", "in": None}:
                self._everywhere.append(place)
            case {"op": "==", "entity": entity}:
                self._exactly[_place(entity)].append(place)
            case {"op": "in", "entity": entity} | {"op": "is", "entity_type": "Tool", "in": {"entity": entity}}:
                self._inside[_place(entity)].append(place)
            case {"op": "is", "entity_type": "Tool"}:
                self._everywhere.append(place)
            case {"op": "is"}:
                pass  # about another type of thing, which is never called
            case _:
                # A form this code does not know: it is evaluated for every tool, which is slow and right.
                self._everywhere.append(place)

    def of(self, tool: Mapping[str, Any], tenant: str) -> Slice:
        itself = ("Tool", tool["name"])
        places = [*self._everywhere, *self._exactly.get(itself, ()), *self._inside.get(itself, ())]
        for ancestor in ancestors(tool, tenant):
            places += self._inside.get(ancestor, ())
        chosen = tuple(sorted(places))
        found = self._cut.get(chosen)
        if found is None:
            found = Slice([self._rules[place] for place in chosen])
            with self._cutting:
                self._cut.keep(chosen, found, weight=max(len(chosen), 1))
        return found


def _said(rule: PolicyRule) -> dict[str, Any]:
    said = {"id": rule.id, "asks": rule.asks, "reason": rule.reason, "rule": rule.ast.decode()}
    if rule.asks:
        said["wants"] = rule.wants.to_json()
    return said


def policy_set(rules: Sequence[PolicyRule]) -> cedarpy.PolicySet:
    return cedarpy.PolicySet.from_json_str(as_set((rule.id, rule.ast) for rule in rules))


def _about_calls(scope: Mapping[str, Any]) -> bool:
    match scope:
        case {"op": "==", "entity": entity} | {"op": "in", "entity": entity}:
            return bool(_place(entity) == _place(ACTION))
        case {"op": "in", "entities": list(several)}:
            return any(_place(entity) == _place(ACTION) for entity in several)
        case _:
            return True


def _place(entity: Mapping[str, Any]) -> Place:
    # Cedar writes an entity either bare or wrapped.
    bare = entity.get("__entity", entity)
    return bare["type"], bare["id"]
