"""Find the smallest single changes that would allow a call (counterfactuals), by evaluating changed requests.

Only values that rules mention are tried: their groups, agents, strings and numbers, the possible values of trust and
environment, and the matching rules themselves. The call's own fact values never appear in the result.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from deputize.core.decision import Behavior, PolicyRequest, Verdict
from deputize.core.value_types import frozen
from deputize.govern.policy import cedar_schema
from deputize.govern.policy.cedar import CompiledPolicies, evaluate_slice, load_query_entities
from deputize.govern.policy.cedar_schema import FactTypes, PolicyQuery, get_proven_agent
from deputize.govern.policy.checks.attribute_reads import resolve_attribute_path
from deputize.govern.policy.policy_parser import PolicyRule
from deputize.govern.policy.slices import PolicySlice

MAX_TRIALS = 400
# Each trial compiles a set of rules of its own, which is slow with thousands of rules.
MAX_RULE_TRIALS = 20
_TRUSTS = ("untrusted", "standard", "trusted")
_ENVIRONMENTS = ("development", "staging", "production")
_COMPARISON_OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "contains", "containsAll", "containsAny", "in")
_HOUR, _DAY = 3_600_000, 86_400_000


@frozen
class Counterfactual:
    """A single change of a request: what it changes, by how much, its description, and the changed query."""

    subject: str
    distance: int
    description: str
    query: PolicyQuery


def find_smallest_changes(
    policies: CompiledPolicies, request: PolicyRequest | PolicyQuery, *, may_take_long: bool = False
) -> list[str]:
    """Describe single changes that would allow a call, smallest first; none if it is allowed already.

    Rules that take long deny, unless they may because no event loop waits for them.
    """
    query = cedar_schema.build_query(request) if isinstance(request, PolicyRequest) else request
    verdict = policies.evaluate_query(query, may_take_long=may_take_long)
    if verdict.behavior is Behavior.ALLOW:
        return []
    slice_ = policies.get_query_slice(query)
    nearest: dict[str, Counterfactual] = {}
    for change, _ in zip(_generate_changes(slice_, query, policies.facts), range(MAX_TRIALS), strict=False):
        current = nearest.get(change.subject)
        is_nearer = current is None or change.distance < current.distance
        if not is_nearer:
            continue
        if policies.evaluate_query(change.query, may_take_long=may_take_long).behavior is Behavior.ALLOW:
            nearest[change.subject] = change
    return [
        *(change.description for change in nearest.values()),
        *_find_rule_changes(slice_, query, verdict, may_take_long=may_take_long),
    ]


def _generate_changes(slice_: PolicySlice, query: PolicyQuery, types: FactTypes) -> Iterator[Counterfactual]:
    """Yield possible changes, the most useful kinds first."""
    literals_by_path = _collect_literals(slice_.rules)
    yield from _vary_caller(query, literals_by_path)
    yield from _vary_undone(query)
    yield from _vary_groups(query, _collect_entity_ids(slice_.rules, "Group"))
    yield from _vary_agents(query, _collect_entity_ids(slice_.rules, "Agent"))
    yield from _vary_facts(query, literals_by_path, types)
    yield from _vary_context(query, literals_by_path)


def _vary_caller(query: PolicyQuery, literals_by_path: Mapping[str, Sequence[Any]]) -> Iterator[Counterfactual]:
    caller = query.caller
    trust, environment = caller["trust"], query.environment
    for step in sorted(_TRUSTS, key=lambda each: abs(_TRUSTS.index(each) - _TRUSTS.index(trust))):
        if step != trust:
            description = f"if the caller's trust were {step}, not {trust}"
            yield Counterfactual(
                subject="trust", distance=1, description=description, query=_replace_caller(query, trust=step)
            )
    for other in _ENVIRONMENTS:
        if other != environment:
            description = f"if the environment were {other}, not {environment}"
            yield Counterfactual(
                subject=other, distance=1, description=description, query=replace(query, environment=other)
            )
    description = "if the caller were not human" if caller["human"] else "if the caller were human"
    yield Counterfactual(
        subject="human", distance=1, description=description, query=_replace_caller(query, human=not caller["human"])
    )
    if query.is_sweeping:
        description = "if the call named every resource it changes"
        yield Counterfactual(
            subject="sweeping", distance=1, description=description, query=replace(query, is_sweeping=False)
        )
    for scope in _select_texts(literals_by_path.get("principal.scopes", ())):
        description, scopes = _toggle_item(
            "the token had the scope", "the token did not have the scope", scope, caller["scopes"]
        )
        yield Counterfactual(
            subject=f"scope {scope}", distance=1, description=description, query=_replace_caller(query, scopes=scopes)
        )
    for task in (*_select_texts(literals_by_path.get("context.task", ())), None):
        if task != caller["task"]:
            description = (
                f"if the delegation were for the task {task}" if task else "if the delegation were for no task"
            )
            yield Counterfactual(
                subject=f"task {task}", distance=1, description=description, query=_replace_caller(query, task=task)
            )


def _vary_undone(query: PolicyQuery) -> Iterator[Counterfactual]:
    undone = query.undone
    if undone is None:
        return
    description = "if it took no other call back"
    yield Counterfactual(subject="undoes", distance=2, description=description, query=replace(query, undone=None))
    if undone.agents:
        description = "if the call that it takes back was made without an agent"
        without_agents = replace(query, undone=replace(undone, agents=()))
        yield Counterfactual(subject="undoes", distance=1, description=description, query=without_agents)


def _vary_groups(query: PolicyQuery, group_names: Sequence[str]) -> Iterator[Counterfactual]:
    groups = query.caller["groups"]
    for group in dict.fromkeys([*group_names, *groups]):
        description, others = _toggle_item(
            "the caller were in the group", "the caller were not in the group", group, groups
        )
        yield Counterfactual(
            subject=f"group {group}", distance=1, description=description, query=_replace_caller(query, groups=others)
        )


def _vary_agents(query: PolicyQuery, agent_names: Sequence[str]) -> Iterator[Counterfactual]:
    agents = query.caller["agents"]
    if agents:
        description = "if the caller used no agent"
        yield Counterfactual(
            subject="agents",
            distance=1,
            description=description,
            query=_replace_caller(query, agents=[], proven_agent=None),
        )
    for agent in agent_names:
        if get_proven_agent(query.caller) != agent:
            acted = "proved its identity" if agent in agents else "acted for the caller"
            description = f"if the agent {agent} {acted}"
            yield Counterfactual(
                subject=f"agent {agent}",
                distance=1,
                description=description,
                query=_replace_caller(query, agents=[agent], proven_agent=agent),
            )


def _vary_facts(
    query: PolicyQuery, literals_by_path: Mapping[str, Sequence[Any]], types: FactTypes
) -> Iterator[Counterfactual]:
    for path, literals in literals_by_path.items():
        name = path.removeprefix("context.facts.")
        if name == path:
            continue
        current = query.facts.get(name)
        if types.get(name) == "Set<String>" or isinstance(current, tuple):
            yield from _vary_list_fact(query, name, _select_texts(literals))
            continue
        for value in _list_alternatives(current, literals):
            description = f"if the fact {name} were {orjson.dumps(value).decode()}"
            facts = {**query.facts, name: value}
            yield Counterfactual(
                subject=path,
                distance=_measure_distance(current, value),
                description=description,
                query=replace(query, facts=facts),
            )
    for name in query.facts:
        other_facts = {other: value for other, value in query.facts.items() if other != name}
        description = f"if the fact {name} were absent"
        yield Counterfactual(
            subject=f"without {name}", distance=1, description=description, query=replace(query, facts=other_facts)
        )


def _vary_list_fact(query: PolicyQuery, name: str, items: Sequence[str]) -> Iterator[Counterfactual]:
    for item in items:
        description, values = _toggle_item(
            f"the fact {name} contained", f"the fact {name} did not contain", item, query.facts.get(name, ())
        )
        facts = {**query.facts, name: tuple(values)}
        yield Counterfactual(
            subject=f"{name} {item}", distance=1, description=description, query=replace(query, facts=facts)
        )


def _vary_context(query: PolicyQuery, literals_by_path: Mapping[str, Sequence[Any]]) -> Iterator[Counterfactual]:
    now = cedar_schema.build_time_attributes(query.now_ms)
    for name, unit in (("hour", _HOUR), ("weekday", _DAY)):
        for value in _list_alternatives(now[name], literals_by_path.get(f"context.time.{name}", ())):
            later = query.now_ms + (value - now[name]) * unit
            description = (
                f"if the {name} were {value}, not {now[name]} (UTC{', 0 is Monday' if name == 'weekday' else ''})"
            )
            distance = abs(value - now[name])
            yield Counterfactual(
                subject=name, distance=distance, description=description, query=replace(query, now_ms=later)
            )
    for cost in _list_alternatives(query.cost_micros, literals_by_path.get("context.cost", ())):
        description = f"if the session had cost {cost} micros so far"
        distance = _measure_distance(query.cost_micros, cost)
        yield Counterfactual(
            subject="cost", distance=distance, description=description, query=replace(query, cost_micros=cost)
        )
    for label in dict.fromkeys([*_select_texts(literals_by_path.get("context.labels", ())), *sorted(query.labels)]):
        description, labels = _toggle_item(
            "the session had read data labelled",
            "the session had not read data labelled",
            label,
            sorted(query.labels),
        )
        yield Counterfactual(
            subject=f"label {label}",
            distance=1,
            description=description,
            query=replace(query, labels=frozenset(labels)),
        )


def _find_rule_changes(
    slice_: PolicySlice, query: PolicyQuery, verdict: Verdict, *, may_take_long: bool
) -> Iterator[str]:
    """Yield the matching or failed rules without which, or without whose approval, the call would be allowed."""
    cedar_entities = load_query_entities(query)
    rule_ids = {rule.id for rule in verdict.rules}
    trial_count = 0
    for index, rule in enumerate(slice_.rules):
        rule_name = f"{rule.id} ({rule.where})"
        has_failed = any(error.startswith(f"{rule_name} ") for error in verdict.errors)
        if rule.id not in rule_ids and not has_failed:
            continue
        trial_count += 1
        if trial_count > MAX_RULE_TRIALS:
            return
        others = [*slice_.rules[:index], *slice_.rules[index + 1 :]]
        if rule.effect == "permit" and rule.requires_approval and not has_failed:
            plain_rule = replace(rule, content=replace(rule.content, requires_approval=False))
            others.insert(index, plain_rule)
            description = f"if {rule_name} required no approval"
        else:
            description = f"if {rule_name} did not fail" if has_failed else f"if {rule_name} did not forbid it"
        changed_verdict = evaluate_slice(PolicySlice(others), query, cedar_entities, may_take_long=may_take_long)
        if changed_verdict.behavior is Behavior.ALLOW:
            yield description


def _collect_literals(rules: Sequence[PolicyRule]) -> dict[str, list[Any]]:
    """Collect the literals that rules compare with each attribute."""
    literals_by_path: dict[str, list[Any]] = {}
    for node in _iterate_nodes(
        [condition["body"] for rule in rules for condition in orjson.loads(rule.ast)["conditions"]]
    ):
        for operator in _COMPARISON_OPERATORS:
            sides = node.get(operator)
            if isinstance(sides, dict) and "left" in sides and "right" in sides:
                for path, literal in ((sides["left"], sides["right"]), (sides["right"], sides["left"])):
                    names = resolve_attribute_path(path)
                    if names is not None:
                        literals_by_path.setdefault(".".join(names), []).extend(_extract_literals(literal))
    return literals_by_path


def _collect_entity_ids(rules: Sequence[PolicyRule], kind: str) -> list[str]:
    """Collect the ids of one entity type from the scopes and conditions of rules."""
    ids: dict[str, None] = {}
    for rule in rules:
        for node in _iterate_nodes(orjson.loads(rule.ast)):
            if node.get("type") == kind and isinstance(node.get("id"), str):
                ids[node["id"]] = None
    return list(ids)


def _iterate_nodes(root: Any) -> Iterator[dict[str, Any]]:
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack.extend(reversed(node.values()))
        elif isinstance(node, list):
            stack.extend(reversed(node))


def _extract_literals(node: Any) -> list[Any]:
    match node:
        case {"Value": bool() | int() | str() as value}:
            return [value]
        case {"Set": list(members)}:
            return [value for member in members for value in _extract_literals(member)]
        case _:
            return []


def _list_alternatives(current: Any, literals: Sequence[Any]) -> list[Any]:
    """List values to try: those in the rules, and for numbers also the neighbours."""
    alternatives: dict[Any, None] = {}
    for literal in literals:
        if type(literal) is int:
            alternatives |= dict.fromkeys((literal - 1, literal, literal + 1))
        else:
            alternatives[literal] = None
    if isinstance(current, bool):
        alternatives[not current] = None
    return [value for value in alternatives if value != current]


def _select_texts(literals: Sequence[Any]) -> list[str]:
    return [literal for literal in dict.fromkeys(literals) if isinstance(literal, str)]


def _measure_distance(current: Any, value: Any) -> int:
    return abs(value - current) if type(current) is int and type(value) is int else 1


def _toggle_item(addition_text: str, removal_text: str, item: str, present: Sequence[str]) -> tuple[str, list[str]]:
    if item in present:
        return f"if {removal_text} {item}", [each for each in present if each != item]
    return f"if {addition_text} {item}", sorted({*present, item})


def _replace_caller(query: PolicyQuery, **changes: Any) -> PolicyQuery:
    return replace(query, caller={**query.caller, **changes})
