"""What would have to be otherwise for a call to be allowed: one thing at a time, found by asking again.

Only what rules mention is tried: the groups, agents, words and numbers that stand in them, the few values trust and
environment can have, and the rules that spoke. Values of facts are never told, only those the rules name themselves.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from deputize.core.decision import Behavior, Question, Verdict
from deputize.core.frozen import frozen
from deputize.govern.policy import world
from deputize.govern.policy.cedar import CompiledPolicies, judge, parsed_entities
from deputize.govern.policy.reads import chain
from deputize.govern.policy.rules import PolicyRule
from deputize.govern.policy.slices import Slice
from deputize.govern.policy.world import Asked, FactTypes

MOST_TRIED = 400
# Each of them is tried with a set of rules of its own, which takes its time where there are thousands.
MOST_RULES_TRIED = 20
_TRUSTS = ("untrusted", "standard", "trusted")
_ENVIRONMENTS = ("development", "staging", "production")
_COMPARING = ("==", "!=", "<", "<=", ">", ">=", "contains", "containsAll", "containsAny", "in")
_HOUR, _DAY = 3_600_000, 86_400_000


@frozen
class Change:
    """One thing that could be otherwise: how far that is from how it is, in words, and the question it makes."""

    about: str
    distance: int
    words: str
    asked: Asked


def smallest_change(policies: CompiledPolicies, question: Question | Asked) -> list[str]:
    """Single changes that would allow a call that is denied or asked about, smallest first; none if it is allowed."""
    asked = world.asked(question) if isinstance(question, Question) else question
    verdict = policies.replay(asked)
    if verdict.behavior is Behavior.ALLOW:
        return []
    slice_ = policies.slice_for(asked)
    nearest: dict[str, Change] = {}
    for change, _ in zip(_changes(slice_, asked, policies.facts), range(MOST_TRIED), strict=False):
        known = nearest.get(change.about)
        nearer = known is None or change.distance < known.distance
        if nearer and policies.replay(change.asked).behavior is Behavior.ALLOW:
            nearest[change.about] = change
    return [change.words for change in nearest.values()] + list(_rule_changes(slice_, asked, verdict))


def _changes(slice_: Slice, asked: Asked, types: FactTypes) -> Iterator[Change]:
    """In the order in which people would rather hear of them."""
    mentioned = _mentioned(slice_.rules)
    yield from _words_of_callers(asked, mentioned)
    yield from _memberships(asked, _entities(slice_.rules, "Group"))
    yield from _agents(asked, _entities(slice_.rules, "Agent"))
    yield from _facts(asked, mentioned, types)
    yield from _moments(asked, mentioned)


def _words_of_callers(asked: Asked, mentioned: Mapping[str, Sequence[Any]]) -> Iterator[Change]:
    caller = asked.caller
    trust, environment = caller["trust"], asked.environment
    for step in sorted(_TRUSTS, key=lambda each: abs(_TRUSTS.index(each) - _TRUSTS.index(trust))):
        if step != trust:
            words = f"if the caller's trust were {step}, not {trust}"
            yield Change(about="trust", distance=1, words=words, asked=_with_caller(asked, trust=step))
    for place in _ENVIRONMENTS:
        if place != environment:
            words = f"if the environment were {place}, not {environment}"
            yield Change(about=place, distance=1, words=words, asked=replace(asked, environment=place))
    who = "if the caller were no human" if caller["human"] else "if the caller were a human"
    yield Change(about="human", distance=1, words=who, asked=_with_caller(asked, human=not caller["human"]))
    if asked.sweeping:
        words = "if the call named each thing it changes"
        yield Change(about="sweeping", distance=1, words=words, asked=replace(asked, sweeping=False))
    for scope in _texts(mentioned.get("principal.scopes", ())):
        words, scopes = _toggled("the token had the scope", "the token did not have the scope", scope, caller["scopes"])
        yield Change(about=f"scope {scope}", distance=1, words=words, asked=_with_caller(asked, scopes=scopes))
    for task in (*_texts(mentioned.get("context.task", ())), None):
        if task != caller["task"]:
            words = f"if the delegation were for the task {task}" if task else "if the delegation were for no task"
            yield Change(about=f"task {task}", distance=1, words=words, asked=_with_caller(asked, task=task))


def _memberships(asked: Asked, named: Sequence[str]) -> Iterator[Change]:
    groups = asked.caller["groups"]
    for group in dict.fromkeys([*named, *groups]):
        words, others = _toggled("the caller were in the group", "the caller were not in the group", group, groups)
        yield Change(about=f"group {group}", distance=1, words=words, asked=_with_caller(asked, groups=others))


def _agents(asked: Asked, named: Sequence[str]) -> Iterator[Change]:
    agents = asked.caller["agents"]
    if agents:
        words = "if the caller called without an agent"
        yield Change(about="agents", distance=1, words=words, asked=_with_caller(asked, agents=[]))
    for agent in named:
        if agents[:1] != [agent]:
            words = f"if the agent {agent} acted for the caller"
            yield Change(about=f"agent {agent}", distance=1, words=words, asked=_with_caller(asked, agents=[agent]))


def _facts(asked: Asked, mentioned: Mapping[str, Sequence[Any]], types: FactTypes) -> Iterator[Change]:
    for path, literals in mentioned.items():
        name = path.removeprefix("context.facts.")
        if name == path:
            continue
        now = asked.facts.get(name)
        if types.get(name) == "Set<String>" or isinstance(now, tuple):
            yield from _in_list(asked, name, _texts(literals))
            continue
        for value in _others(now, literals):
            words = f"if the fact {name} were {orjson.dumps(value).decode()}"
            facts = {**asked.facts, name: value}
            yield Change(about=path, distance=_far(now, value), words=words, asked=replace(asked, facts=facts))
    for name in asked.facts:
        less = {other: value for other, value in asked.facts.items() if other != name}
        words = f"if the fact {name} were absent"
        yield Change(about=f"without {name}", distance=1, words=words, asked=replace(asked, facts=less))


def _in_list(asked: Asked, name: str, items: Sequence[str]) -> Iterator[Change]:
    for item in items:
        words, held = _toggled(
            f"the fact {name} held", f"the fact {name} did not hold", item, asked.facts.get(name, ())
        )
        facts = {**asked.facts, name: tuple(held)}
        yield Change(about=f"{name} {item}", distance=1, words=words, asked=replace(asked, facts=facts))


def _moments(asked: Asked, mentioned: Mapping[str, Sequence[Any]]) -> Iterator[Change]:
    now = world.clock(asked.now_ms)
    for name, unit in (("hour", _HOUR), ("weekday", _DAY)):
        for value in _others(now[name], mentioned.get(f"context.time.{name}", ())):
            later = asked.now_ms + (value - now[name]) * unit
            words = f"if the {name} were {value}, not {now[name]} (UTC{', 0 is Monday' if name == 'weekday' else ''})"
            distance = abs(value - now[name])
            yield Change(about=name, distance=distance, words=words, asked=replace(asked, now_ms=later))
    for cost in _others(asked.cost_micros, mentioned.get("context.cost", ())):
        words = f"if the session had cost {cost} micros so far"
        distance = _far(asked.cost_micros, cost)
        yield Change(about="cost", distance=distance, words=words, asked=replace(asked, cost_micros=cost))
    for label in dict.fromkeys([*_texts(mentioned.get("context.labels", ())), *sorted(asked.labels)]):
        words, labels = _toggled(
            "the session had read what is labelled",
            "the session had not read what is labelled",
            label,
            sorted(asked.labels),
        )
        yield Change(about=f"label {label}", distance=1, words=words, asked=replace(asked, labels=frozenset(labels)))


def _rule_changes(slice_: Slice, asked: Asked, verdict: Verdict) -> Iterator[str]:
    """Of the rules that spoke or failed: whether it would be allowed without one, or if one did not ask."""
    known = parsed_entities(asked)
    spoke = {rule.id for rule in verdict.rules}
    tried = 0
    for place, rule in enumerate(slice_.rules):
        named = f"{rule.id} ({rule.where})"
        failed = any(error.startswith(f"{named} ") for error in verdict.errors)
        if rule.id not in spoke and not failed:
            continue
        tried += 1
        if tried > MOST_RULES_TRIED:
            return
        others = [*slice_.rules[:place], *slice_.rules[place + 1 :]]
        if rule.effect == "permit" and rule.asks and not failed:
            plain = replace(rule, read=replace(rule.read, asks=False))
            others.insert(place, plain)
            how = f"if {named} did not ask"
        else:
            how = f"if {named} did not fail" if failed else f"if {named} did not forbid it"
        if judge(Slice(others), asked, known).behavior is Behavior.ALLOW:
            yield how


def _mentioned(rules: Sequence[PolicyRule]) -> dict[str, list[Any]]:
    """Which values stand beside which attribute in a comparison."""
    found: dict[str, list[Any]] = {}
    for node in _nodes([condition["body"] for rule in rules for condition in orjson.loads(rule.ast)["conditions"]]):
        for operator in _COMPARING:
            sides = node.get(operator)
            if isinstance(sides, dict) and "left" in sides and "right" in sides:
                for path, literal in ((sides["left"], sides["right"]), (sides["right"], sides["left"])):
                    names = chain(path)
                    if names is not None:
                        found.setdefault(".".join(names), []).extend(_literals(literal))
    return found


def _entities(rules: Sequence[PolicyRule], kind: str) -> list[str]:
    """The groups or agents that rules name, in scopes and conditions alike."""
    found: dict[str, None] = {}
    for rule in rules:
        for node in _nodes(orjson.loads(rule.ast)):
            if node.get("type") == kind and isinstance(node.get("id"), str):
                found[node["id"]] = None
    return list(found)


def _nodes(root: Any) -> Iterator[dict[str, Any]]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(reversed(node.values()))
        elif isinstance(node, list):
            waiting.extend(reversed(node))


def _literals(node: Any) -> list[Any]:
    match node:
        case {"Value": bool() | int() | str() as value}:
            return [value]
        case {"Set": list(several)}:
            return [value for each in several for value in _literals(each)]
        case _:
            return []


def _others(now: Any, literals: Sequence[Any]) -> list[Any]:
    """Values worth trying: those in the rules, and beside a number its neighbours."""
    tried: dict[Any, None] = {}
    for literal in literals:
        if type(literal) is int:
            tried |= dict.fromkeys((literal - 1, literal, literal + 1))
        else:
            tried[literal] = None
    if isinstance(now, bool):
        tried[not now] = None
    return [value for value in tried if value != now]


def _texts(literals: Sequence[Any]) -> list[str]:
    return [literal for literal in dict.fromkeys(literals) if isinstance(literal, str)]


def _far(now: Any, value: Any) -> int:
    return abs(value - now) if type(now) is int and type(value) is int else 1


def _toggled(added: str, removed: str, item: str, present: Sequence[str]) -> tuple[str, list[str]]:
    if item in present:
        return f"if {removed} {item}", [each for each in present if each != item]
    return f"if {added} {item}", sorted({*present, item})


def _with_caller(asked: Asked, **changes: Any) -> Asked:
    return replace(asked, caller={**asked.caller, **changes})
