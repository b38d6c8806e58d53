"""Find comparisons with impossible values: `resource.effects == "red"` is well typed, but always false.

A permit that never matches is soon noticed; a forbid that never matches is not.
"""

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, Final, get_args

import orjson

from deputize.core.caller import Trust
from deputize.core.contract.contract import Behaviour, Effects, MutationClass, SideEffect, ToolKind
from deputize.core.decision import Environment
from deputize.govern.policy.checks.attribute_reads import AttributePath, resolve_attribute_path
from deputize.govern.policy.policy_parser import PolicyRule

_TRUST = get_args(Trust)
_VALUES: Final[dict[AttributePath, Sequence[str]]] = {
    ("principal", "trust"): _TRUST,
    ("context", "trust"): _TRUST,
    ("context", "environment"): get_args(Environment),
    ("context", "operations"): get_args(SideEffect.model_fields["op"].annotation),
    ("resource", "effects"): [each.value for each in Effects],
    ("resource", "mutation_class"): [each.value for each in MutationClass],
    ("resource", "behaviours"): get_args(Behaviour),
    ("resource", "kind"): [each.value for each in ToolKind],
}
_COMPARISON_OPERATORS = frozenset({"==", "!=", "contains", "containsAll", "containsAny"})


def find_impossible_values(rule: PolicyRule) -> list[str]:
    """List a message for each value that the compared attribute never has."""
    messages = (
        _describe_mismatch(rule.id, path, value)
        for condition in orjson.loads(rule.ast)["conditions"]
        for path, value in _extract_comparisons(condition["body"])
        if value not in _VALUES[path]
    )
    return list(dict.fromkeys(messages))


def _describe_mismatch(rule: str, path: AttributePath, value: str) -> str:
    values = _VALUES[path]
    matches = difflib.get_close_matches(value, values, n=1)
    fix = f"did you mean {matches[0]}?" if matches else f"possible values are {', '.join(values)}"
    return f"rule {rule} compares {'.'.join(path)} with {value[:60]!r}, a value it never has; {fix}"


def _extract_comparisons(root: Any) -> Iterator[tuple[AttributePath, str]]:
    """Yield compared attributes and values. Iterative, because long conditions are deep trees."""
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            for name, part in node.items():
                if name in _COMPARISON_OPERATORS:
                    yield from _match_sides(part["left"], part["right"])
                stack.append(part)
        elif isinstance(node, list):
            stack += node


def _match_sides(left: Any, right: Any) -> Iterator[tuple[AttributePath, str]]:
    for path_side, value_side in ((left, right), (right, left)):
        path = resolve_attribute_path(path_side)
        if path in _VALUES:
            yield from ((path, value) for value in _extract_texts(value_side))


def _extract_texts(node: Any) -> Iterator[str]:
    match node:
        case {"Value": str(value)}:
            yield value
        case {"Set": list(members)}:
            for member in members:
                yield from _extract_texts(member)
        case _:
            pass
