"""What rules were told: the values behind the attributes they read, for whoever has to understand an answer."""

from collections.abc import Iterable, Mapping
from typing import Any

from deputize.core.decision import Verdict
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.reads import reads_of
from deputize.govern.policy.world import TOOL, USER, Asked, context

REDACTED = "(not kept)"
ABSENT = "(absent)"


def spoken(
    policies: CompiledPolicies | None, verdict: Verdict, asked: Asked, redacted: frozenset[str] = frozenset()
) -> list[dict[str, Any]]:
    """The rules that spoke, each with its text and what it read, as far as these policies have them."""
    known = {rule.id: rule for rule in policies.rules} if policies else {}
    shown = []
    for rule in verdict.rules:
        each: dict[str, Any] = {"id": rule.id, "where": rule.where, "reason": rule.reason}
        if rule.id in known:
            read = told(asked, reads_of([known[rule.id]]).paths, redacted)
            each |= {"effect": known[rule.id].effect, "asks": known[rule.id].asks, "read": read}
        shown.append(each)
    return shown


def told(asked: Asked, paths: Iterable[str], redacted: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Each path with its value, as a record would spell it. `redacted` are names like `facts.iban`."""
    return {path: _value(asked, path.split("."), redacted) for path in paths}


def _value(asked: Asked, steps: list[str], redacted: frozenset[str]) -> Any:
    match steps:
        case ["principal"]:
            return asked.caller["user"]
        case ["principal", name, *_] if name in USER:
            return asked.caller[name]
        case ["resource"]:
            return asked.tool["name"]
        case ["resource", "name", *_]:
            return asked.tool["name"].rpartition(".")[2]
        case ["resource", name, *_] if name in TOOL:
            return asked.tool[name]
        case ["context", *rest] if ".".join(rest) in redacted:
            return REDACTED
        case ["context", name, *rest]:
            return _inside(context(asked, [name], None).get(name, ABSENT), rest)
        case _:
            return ABSENT


def _inside(value: Any, steps: list[str]) -> Any:
    for step in steps:
        value = value.get(step, ABSENT) if isinstance(value, Mapping) else ABSENT
    return _plain(value)


def _plain(value: Any) -> Any:
    """Entities by their names: a person knows what an agent is."""
    match value:
        case {"__entity": {"id": str(name)}}:
            return name
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return value
