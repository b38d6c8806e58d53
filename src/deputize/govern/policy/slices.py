"""Select the rules that can match one tool, ready for evaluation.

A rule belongs to a tool's slice if its scope can match: no resource, the tool itself, or an entity the tool belongs to.
Any other rule could neither match nor fail, because Cedar checks scopes before conditions. So a slice gives the same
verdict as the whole set; `tests/unit/govern/policy/test_slices.py` checks this.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

import cedarpy

from deputize.core.bounded_dict import BoundedDict
from deputize.core.canonical import compute_digest
from deputize.govern.policy.cedar_schema import ACTION, list_ancestors
from deputize.govern.policy.checks.attribute_reads import AttributeReads, collect_reads
from deputize.govern.policy.policy_parser import PolicyRule, build_set_json
from deputize.govern.policy.slice_cost import MAX_LOOP_SECONDS, RuleCost, measure_rules

EntityKey = tuple[str, str]
# Rules in all slices of a version together: each takes some kilobytes, and a tenant's number of tools is unlimited.
MAX_SLICE_RULES = 100_000


class PolicySlice:
    """The rules that can match a tool, in file order."""

    def __init__(self, rules: Sequence[PolicyRule]) -> None:
        self.rules = tuple(rules)
        self.index_by_id: Mapping[str, int] = {rule.id: index for index, rule in enumerate(self.rules)}
        self.reads: AttributeReads = collect_reads(self.rules)
        self.cost: RuleCost = measure_rules(rule.ast for rule in self.rules)
        # Needed for every decision, so computed once.
        self.is_volatile = self.reads.is_volatile
        self.is_per_call = self.reads.is_per_call
        self.has_sweeping = self.reads.has_sweeping
        self.is_quick = self.cost.estimate_seconds() <= MAX_LOOP_SECONDS

    @cached_property
    def policies(self) -> cedarpy.PolicySet:
        """Parsed on first use: a costly slice is evaluated in another process, and never here."""
        return build_policy_set(self.rules)

    @cached_property
    def digest(self) -> str:
        """A digest of the rules without comments and layout, so that approvals survive a changed comment."""
        return compute_digest({"rules": [_describe_rule(rule) for rule in self.rules]})

    @cached_property
    def without_conditional_forbids(self) -> cedarpy.PolicySet:
        return build_policy_set([rule for rule in self.rules if not rule.is_conditional_forbid])


class SliceIndex:
    """Builds slices from one set of rules. Tools that the same rules can match share one slice."""

    def __init__(self, rules: Sequence[PolicyRule]) -> None:
        self._rules = rules
        self._everywhere: list[int] = []
        self._exactly: dict[EntityKey, list[int]] = defaultdict(list)
        self._inside: dict[EntityKey, list[int]] = defaultdict(list)
        self._slices: BoundedDict[tuple[int, ...], PolicySlice] = BoundedDict(MAX_SLICE_RULES)
        # Explanations run in a thread.
        self._slices_lock = Lock()
        for index, rule in enumerate(rules):
            if _is_call_rule(rule.content.action):
                self._index_rule(index, rule.content.resource)

    def _index_rule(self, index: int, scope: Mapping[str, Any]) -> None:
        match scope:
            case {"op": "All"} | {"op": "is", "entity_type": "Tool", "in": None}:
                self._everywhere.append(index)
            case {"op": "==", "entity": entity}:
                self._exactly[_get_entity_key(entity)].append(index)
            case {"op": "in", "entity": entity} | {"op": "is", "entity_type": "Tool", "in": {"entity": entity}}:
                self._inside[_get_entity_key(entity)].append(index)
            case {"op": "is", "entity_type": "Tool"}:
                self._everywhere.append(index)
            case {"op": "is"}:
                pass  # another entity type, which is never called
            case _:
                # An unknown scope operator: evaluate the rule for every tool, which is slow but correct.
                self._everywhere.append(index)

    def get_slice(self, tool: Mapping[str, Any], tenant: str) -> PolicySlice:
        tool_key = ("Tool", tool["name"])
        indexes = [*self._everywhere, *self._exactly.get(tool_key, ()), *self._inside.get(tool_key, ())]
        for ancestor in list_ancestors(tool, tenant):
            indexes += self._inside.get(ancestor, ())
        rule_indexes = tuple(sorted(indexes))
        slice_ = self._slices.get(rule_indexes)
        if slice_ is None:
            slice_ = PolicySlice([self._rules[index] for index in rule_indexes])
            with self._slices_lock:
                self._slices.put(rule_indexes, slice_, weight=max(len(rule_indexes), 1))
        return slice_


def _describe_rule(rule: PolicyRule) -> dict[str, Any]:
    description = {
        "id": rule.id,
        "requires_approval": rule.requires_approval,
        "reason": rule.reason,
        "rule": rule.ast.decode(),
    }
    if rule.requires_approval:
        description["approval_terms"] = rule.approval_terms.to_json()
    if rule.content.backend is not None:
        description["backend"] = rule.content.backend
    return description


def build_policy_set(rules: Sequence[PolicyRule]) -> cedarpy.PolicySet:
    return cedarpy.PolicySet.from_json_str(build_set_json((rule.id, rule.ast) for rule in rules))


def _is_call_rule(scope: Mapping[str, Any]) -> bool:
    match scope:
        case {"op": "==", "entity": entity} | {"op": "in", "entity": entity}:
            return bool(_get_entity_key(entity) == _get_entity_key(ACTION))
        case {"op": "in", "entities": list(entities)}:
            return any(_get_entity_key(entity) == _get_entity_key(ACTION) for entity in entities)
        case _:
            return True


def _get_entity_key(entity: Mapping[str, Any]) -> EntityKey:
    # Cedar's JSON has two forms of an entity.
    bare = entity.get("__entity", entity)
    return bare["type"], bare["id"]
