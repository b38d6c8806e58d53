"""Find rules that a caller could turn in its favour by a name: who delegates chooses the agent's name.

`context.agent` is proven. `context.agents` and `context.agent_label` are names: an agent can add any to its own chain,
and remove none. So a rule may depend on a name that is there, as a forbid does, or on the whole chain of one
user, which no other delegation of theirs has; not on a name that would allow more if it were added.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from deputize.govern.policy.checks.attribute_reads import resolve_attribute_path
from deputize.govern.policy.policy_parser import PolicyRule

_AGENT, _LABEL, _NAMES = ("context", "agent"), ("context", "agent_label"), ("context", "agents")
_PRINCIPAL = ("principal",)


def is_open_to_names(rule: PolicyRule) -> bool:
    """Tell whether a chosen name alone could make a permit match, or a forbid not match."""
    ast = orjson.loads(rule.ast)
    findings: set[str] = set() if ast["principal"]["op"] != "==" else {"user"}
    for condition in ast["conditions"]:
        # What a name must not be able to do: fulfil a condition of a permit, or spoil one of a forbid.
        findings.update(_find_uses(condition["body"], (rule.effect == "permit") == (condition["kind"] == "when")))
    if "proof" in findings:
        return False
    is_whole_chain = {"chain", "user"} <= findings
    return "name" in findings or (not is_whole_chain and not findings.isdisjoint({"chain", "label"}))


def _find_uses(root: Any, is_fulfilling: bool) -> Iterator[str]:
    """Yield how a condition uses agents: `proof`, `chain`, `label`, or `name` for what an added name could change in
    the caller's favour; and `user` if it compares the principal. Iterative, because long conditions are deep trees.
    """
    stack: list[tuple[Any, bool | None]] = [(root, is_fulfilling)]
    while stack:
        node, wanted = stack.pop()
        if isinstance(node, list):
            stack += [(each, None) for each in node]
            continue
        operator, parts = next(iter(node.items())) if isinstance(node, dict) and len(node) == 1 else ("", {})
        path = resolve_attribute_path(node)
        sides = (
            [resolve_attribute_path(parts.get(side)) for side in ("left", "right", "arg")]
            if isinstance(parts, dict)
            else []
        )
        if operator in ("&&", "||"):
            stack += [(parts["left"], wanted), (parts["right"], wanted)]
        elif operator == "!":
            stack.append((parts["arg"], None if wanted is None else not wanted))
        elif operator == "if-then-else":
            stack += [(parts["if"], None), (parts["then"], wanted), (parts["else"], wanted)]
        elif operator.startswith("contains") and sides[0] == _NAMES:
            yield from ("name",) if wanted is not False else ()
        elif operator == "isEmpty" and sides[2] == _NAMES:
            yield from ("name",) if wanted is not True else ()
        elif operator in ("==", "!=", "contains") and (_NAMES in sides or _LABEL in sides):
            is_equal = wanted is (operator != "!=")
            yield ("chain" if _NAMES in sides else "label") if is_equal else "name"
        elif operator in ("==", "contains") and _PRINCIPAL in sides:
            yield "user"
        elif path in (_NAMES, _LABEL):
            yield "name"
        elif path == _AGENT:
            yield "proof"
        elif isinstance(node, dict) and operator != "has":
            stack += [(each, None) for each in node.values()]
