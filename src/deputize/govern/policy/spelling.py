"""Values that an attribute never has: `resource.effects == "red"` is well typed, and always false.

Such a typing error makes a permit silent, which somebody notices, and a forbid silent, which nobody does.
"""

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, Final, get_args

import orjson

from deputize.core.caller import Trust
from deputize.core.contract import Effects, MutationClass, SideEffect, ToolKind
from deputize.core.decision import Environment
from deputize.govern.policy.reads import Path, chain
from deputize.govern.policy.rules import PolicyRule

_TRUST = get_args(Trust)
_VALUES: Final[dict[Path, Sequence[str]]] = {
    ("principal", "trust"): _TRUST,
    ("context", "trust"): _TRUST,
    ("context", "environment"): get_args(Environment),
    ("context", "operations"): get_args(SideEffect.model_fields["op"].annotation),
    ("resource", "effects"): [each.value for each in Effects],
    ("resource", "mutation_class"): [each.value for each in MutationClass],
    ("resource", "kind"): [each.value for each in ToolKind],
}
_COMPARING = frozenset({"==", "!=", "contains", "containsAll", "containsAny"})


def misspelt(rule: PolicyRule) -> list[str]:
    """A sentence for each value that is compared with what it can never be."""
    found = (
        _sentence(rule.id, path, value)
        for condition in orjson.loads(rule.ast)["conditions"]
        for path, value in _compared(condition["body"])
        if value not in _VALUES[path]
    )
    return list(dict.fromkeys(found))


def _sentence(rule: str, path: Path, value: str) -> str:
    known = _VALUES[path]
    near = difflib.get_close_matches(value, known, n=1)
    fix = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"{rule} compares {'.'.join(path)} with {value[:60]!r}, which it never is; {fix}"


def _compared(root: Any) -> Iterator[tuple[Path, str]]:
    """Without recursion, because a condition of many parts is a deep tree."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            for name, part in node.items():
                if name in _COMPARING:
                    yield from _sides(part["left"], part["right"])
                waiting.append(part)
        elif isinstance(node, list):
            waiting += node


def _sides(left: Any, right: Any) -> Iterator[tuple[Path, str]]:
    for one, other in ((left, right), (right, left)):
        path = chain(one)
        if path in _VALUES:
            yield from ((path, value) for value in _texts(other))


def _texts(node: Any) -> Iterator[str]:
    match node:
        case {"Value": str(value)}:
            yield value
        case {"Set": list(members)}:
            for member in members:
                yield from _texts(member)
        case _:
            pass
