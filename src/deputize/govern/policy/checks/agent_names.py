"""Find rules that a caller could turn in its favour by a name: who delegates chooses the agent's name.

`context.agent` is proven, and absent for an agent that proved nothing: only `context.delegated` tells that nobody acts
for the user. `context.agents`, `context.agent_label` and `context.undoes.agents` are names: an agent can add any to its
own chain, and remove none. So a rule may depend on a name that is there, as a forbid does, or on the whole chain of one
user, which no other delegation of theirs has; not on a name that would allow more if it were added.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from deputize.govern.policy.checks.attribute_reads import resolve_attribute_path
from deputize.govern.policy.policy_parser import PolicyRule

_AGENT, _LABEL, _NAMES = ("context", "agent"), ("context", "agent_label"), ("context", "agents")
# The chains of calls that are taken back: never the whole chain of the caller.
_UNDONE_NAMES = ("context", "undoes", "agents")
_DELEGATED, _PRINCIPAL = ("context", "delegated"), ("principal",)


def is_open_to_names(rule: PolicyRule) -> bool:
    """Tell whether a chosen name, or no proof at all, could make a permit match, or a forbid not match."""
    ast = orjson.loads(rule.ast)
    is_permit = rule.effect == "permit"
    findings: set[str] = set() if ast["principal"]["op"] != "==" else {"user"}
    for condition in ast["conditions"]:
        # What a name must not be able to do: fulfil a condition of a permit, or spoil one of a forbid.
        is_when = condition["kind"] == "when"
        findings.update(_find_uses(condition["body"], is_permit == is_when))
        if is_permit and is_when and _requires_proof(condition["body"]):
            return False
    is_whole_chain = {"chain", "user"} <= findings
    is_by_absence = is_permit and "absence" in findings and "delegated" not in findings
    uses_part = is_by_absence or not findings.isdisjoint({"chain", "label"})
    return "name" in findings or (uses_part and not is_whole_chain)


def _requires_proof(root: Any) -> bool:
    """Tell whether a condition holds only for an agent whose proven identity it compares."""
    stack = [root]
    while stack:
        node = stack.pop()
        operator, parts = next(iter(node.items()))
        if operator == "&&":
            stack += [parts["left"], parts["right"]]
        elif operator in ("==", "contains") and _AGENT in map(resolve_attribute_path, (parts["left"], parts["right"])):
            return True
    return False


def _find_uses(root: Any, is_fulfilling: bool) -> Iterator[str]:
    """Yield how a condition uses agents: `chain`, `label`, `name` for what an added name could change in the caller's
    favour, `absence` where having no proof could, `delegated`; and `user` if it compares the principal. Iterative,
    because long conditions are deep trees.
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
        elif operator.startswith("contains") and sides[0] in (_NAMES, _UNDONE_NAMES):
            yield from ("name",) if wanted is not False else ()
        elif operator == "isEmpty" and sides[2] == _UNDONE_NAMES:
            yield from ("name",) if wanted is not True else ()
        elif path == _UNDONE_NAMES or _UNDONE_NAMES in sides:
            yield "name"
        elif operator == "isEmpty" and sides[2] == _NAMES:
            yield "delegated" if wanted is True else "name"
        elif operator in ("==", "!=", "contains") and (_NAMES in sides or _LABEL in sides):
            is_equal = wanted is (operator != "!=")
            yield ("chain" if _NAMES in sides else "label") if is_equal else "name"
        elif operator in ("==", "contains") and _PRINCIPAL in sides:
            yield "user"
        elif path in (_NAMES, _LABEL):
            yield "name"
        elif operator == "has" and (*(sides[0] or ()), parts.get("attr")) == _AGENT:
            yield from ("absence",) if wanted is not True else ()
        elif path == _DELEGATED:
            yield "delegated"
        elif isinstance(node, dict) and operator != "has":
            stack += [(each, None) for each in node.values()]
