"""Show the attribute values that rules read, to explain a decision to a person."""

from collections.abc import Iterable, Mapping
from typing import Any

from deputize.core.decision import MatchedRule, Verdict
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.cedar_schema import (
    TOOL_ATTRIBUTES,
    USER_ATTRIBUTES,
    PolicyQuery,
    build_context,
    get_tool_attribute,
)
from deputize.govern.policy.checks.attribute_reads import collect_reads

REDACTED_TEXT = "(not recorded)"
ABSENT_TEXT = "(absent)"


def describe_rules(
    policies: CompiledPolicies | None,
    verdict: Verdict,
    query: PolicyQuery,
    redacted_names: frozenset[str] = frozenset(),
) -> list[dict[str, Any]]:
    """Describe the rules of a verdict, with effect and read values for those found in these policies.

    Rules that demand a sandbox are among them, also if others require approval.
    """
    rules_by_id = {rule.id: rule for rule in policies.rules} if policies else {}
    descriptions = []
    demands = [MatchedRule(id=each.rule, where=each.where, reason=each.title) for each in verdict.backend_demands]
    for rule in (*verdict.rules, *(each for each in demands if each not in verdict.rules)):
        each: dict[str, Any] = {"id": rule.id, "where": rule.where, "reason": rule.reason}
        if rule.id in rules_by_id:
            values = resolve_values(query, collect_reads([rules_by_id[rule.id]]).paths, redacted_names)
            each |= {
                "effect": rules_by_id[rule.id].effect,
                "requires_approval": rules_by_id[rule.id].requires_approval,
                "read": values,
            }
        descriptions.append(each)
    return descriptions


def resolve_values(
    query: PolicyQuery, paths: Iterable[str], redacted_names: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Resolve each attribute path to its value. `redacted_names` are names like `facts.iban`."""
    return {path: _resolve_value(query, path.split("."), redacted_names) for path in paths}


def _resolve_value(query: PolicyQuery, steps: list[str], redacted_names: frozenset[str]) -> Any:
    match steps:
        case ["principal"]:
            return query.caller["user"]
        case ["principal", name, *_] if name in USER_ATTRIBUTES:
            return query.caller[name]
        case ["resource"]:
            return query.tool["name"]
        case ["resource", name, *_] if name in TOOL_ATTRIBUTES:
            return get_tool_attribute(query.tool, name)
        case ["context", *rest] if ".".join(rest) in redacted_names:
            return REDACTED_TEXT
        case ["context", name, *rest]:
            return _follow_steps(build_context(query, [name], None).get(name, ABSENT_TEXT), rest)
        case _:
            return ABSENT_TEXT


def _follow_steps(value: Any, steps: list[str]) -> Any:
    for step in steps:
        value = value.get(step, ABSENT_TEXT) if isinstance(value, Mapping) else ABSENT_TEXT
    return _simplify_value(value)


def _simplify_value(value: Any) -> Any:
    """Replace entities by their names."""
    match value:
        case {"__entity": {"id": str(name)}}:
            return name
        case dict():
            return {name: _simplify_value(each) for name, each in value.items()}
        case list() | tuple():
            return [_simplify_value(each) for each in value]
        case _:
            return value
