"""Validate policies before they become active: parse, type-check strictly, and find rules that never match.

All findings are reported at once, by file and line. Cedar's validator knows which conditions are always false, but
`cedarpy` does not report it. It does not check what follows such a condition, though: so a type error is appended to
each rule, and a rule in which the validator does not find it can never match.
"""

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cedarpy
import orjson

from deputize.govern.policy.cedar_schema import (
    CONTEXT_ATTRIBUTES,
    TOOL_ATTRIBUTES,
    USER_ATTRIBUTES,
    FactTypes,
    build_schema,
)
from deputize.govern.policy.checks.agent_names import is_open_to_names
from deputize.govern.policy.checks.attribute_reads import AttributeReads, collect_reads
from deputize.govern.policy.checks.value_lint import find_impossible_values
from deputize.govern.policy.policy_parser import (
    PolicyDiagnostic,
    PolicyFile,
    PolicyRule,
    build_invalid_error,
    parse_with_diagnostics,
)
from deputize.govern.policy.slice_cost import MAX_SCOPE_SECONDS, measure_rules

# Existing names by entity type, with the facts of their tools: `{"Tool": {"crm.refund": {"amount"}}, "Namespace": …,
# "Server": …, "Tenant": …}`. Types without a key are not checked.
KnownNames = Mapping[str, Mapping[str, Collection[str]]]

_POLICY_PREFIX = re.compile(r"^for policy `[^`]*`, ")
_UNKNOWN_ATTRIBUTE = re.compile(r"attribute `(\w{1,60})` ")
_BATCH_SIZE = 100
_MAX_MESSAGE_LENGTH = 600
# Each call evaluates every rule that can match its tool, and blocks all other calls meanwhile: 5,000 took 28 ms.
MAX_RULES_PER_SCOPE = 1_000
_MOST_NAMED_FACTS = 20
_FACT_PREFIX = "context.facts."
_TYPE_FAULT = "resource.nothing_is_called_this"
_REMEDIES = {
    "unable to guarantee safety of access to optional attribute": "first test with has whether it exists",
    "unable to find an applicable action": "the principal must be a User, the resource a Tool, and the action call",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyFindings:
    """Errors keep policies from becoming active; warnings inform their author.

    `mismatches` are the warnings about what does not exist: a name, an attribute or a value. They do not keep policies
    from becoming active, because a gateway starts before its servers were seen.
    """

    errors: tuple[PolicyDiagnostic, ...] = ()
    warnings: tuple[PolicyDiagnostic, ...] = ()
    mismatches: tuple[PolicyDiagnostic, ...] = ()

    def for_author(self) -> "PolicyFindings":
        """Count mismatches as errors, for those who ask whether their rules are right."""
        errors = sorted(self.errors + self.mismatches, key=lambda each: (each.file, each.line))
        mismatches = frozenset(self.mismatches)
        others = tuple(each for each in self.warnings if each not in mismatches)
        return PolicyFindings(errors=tuple(errors), warnings=others)

    def raise_errors(self) -> None:
        """Raise `PolicyInvalid` with all errors, if there are any."""
        if self.errors:
            raise build_invalid_error(self.errors)

    def to_json(self) -> dict[str, list[dict[str, Any]]]:
        """Write the findings as JSON values, from which they can be made again."""
        return {
            "errors": [each.to_json() for each in self.errors],
            "warnings": [each.to_json() for each in self.warnings],
            "mismatches": [each.to_json() for each in self.mismatches],
        }


def validate_policies(
    files: Sequence[PolicyFile],
    facts: FactTypes,
    *,
    known_names: KnownNames | None = None,
    unseen_servers: Collection[str] = (),
) -> PolicyFindings:
    """Find what is wrong with policies; nothing is said of the tools and facts of servers that were not seen yet."""
    rules, diagnostics = parse_with_diagnostics(files)
    type_errors = list(_find_type_errors(rules, facts))
    faulty_ids = {id(rule) for rule, _ in type_errors}
    valid_rules = [rule for rule in rules if id(rule) not in faulty_ids]
    errors = [
        *diagnostics,
        *(_make_diagnostic(rule, message) for rule, message in type_errors),
        *_find_crowded_scopes(rules),
        *_find_name_permits(valid_rules),
    ]
    mismatches = [
        *_find_unreachable_rules(valid_rules, facts, known_names or {}, unseen_servers),
        *_find_unknown_resources(valid_rules, known_names or {}, unseen_servers),
        *(_make_diagnostic(rule, message) for rule in valid_rules for message in find_impossible_values(rule)),
    ]
    warnings = [*_find_narrow_forbids(valid_rules), *_find_shadowed_rules(valid_rules), *mismatches]
    order = {file.path: index for index, file in enumerate(files)}
    return PolicyFindings(
        errors=_sort_diagnostics(errors, order),
        warnings=_sort_diagnostics(warnings, order),
        mismatches=_sort_diagnostics(mismatches, order),
    )


def _sort_diagnostics(
    diagnostics: Sequence[PolicyDiagnostic], order: Mapping[str, int]
) -> tuple[PolicyDiagnostic, ...]:
    return tuple(sorted(dict.fromkeys(diagnostics), key=lambda each: (order[each.file], each.line)))


def _find_type_errors(rules: Sequence[PolicyRule], facts: FactTypes) -> Iterator[tuple[PolicyRule, str]]:
    for rule, message in _validate_rules(rules, [rule.text for rule in rules], facts):
        # Cedar quotes names and whole types, which can be as long as a rule.
        text = _POLICY_PREFIX.sub("", message)[:_MAX_MESSAGE_LENGTH]
        remedy = next((fix for start, fix in _REMEDIES.items() if text.startswith(start)), _suggest_attribute(text))
        yield rule, f"{text}: {remedy}" if remedy else text


def _suggest_attribute(message: str) -> str:
    unknown = _UNKNOWN_ATTRIBUTE.match(message)
    matches = (
        difflib.get_close_matches(unknown[1], {*USER_ATTRIBUTES, *TOOL_ATTRIBUTES, *CONTEXT_ATTRIBUTES}, n=1)
        if unknown
        else []
    )
    return f"did you mean {matches[0]}?" if matches else ""


def _validate_rules(
    rules: Sequence[PolicyRule], texts: Sequence[str], facts: FactTypes
) -> Iterator[tuple[PolicyRule, str]]:
    """Validate rules in batches, and yield each error with its rule. Cedar numbers policies by their order in the text.

    Batches, because validation time grows with the square of the errors (10,000 faulty rules: 14 s at once, 1 s in
    batches of 100).
    """
    cedar_schema = build_schema(facts)
    for start in range(0, len(rules), _BATCH_SIZE):
        result = cedarpy.validate_policies(
            "\n".join(texts[start : start + _BATCH_SIZE]), cedar_schema, release_gil=True
        )
        for error in result.errors:
            yield rules[start + int(error.policy_id.removeprefix("policy"))], error.error


def _find_unreachable_rules(
    rules: Sequence[PolicyRule], facts: FactTypes, known_names: KnownNames, unseen_servers: Collection[str]
) -> Iterator[PolicyDiagnostic]:
    faulty_texts = [f"{rule.text.removesuffix(';')}\nwhen {{ {_TYPE_FAULT} }};" for rule in rules]
    reachable_ids = {id(rule) for rule, _ in _validate_rules(rules, faulty_texts, facts)}
    for rule in rules:
        reads = collect_reads([rule])
        unknown = _find_unknown_attributes(reads, facts)
        if unseen_servers and any(path.startswith(_FACT_PREFIX) for path in unknown):
            continue
        if unknown:
            yield _make_diagnostic(
                rule, f"rule {rule.id} tests for unknown attributes: {', '.join(unknown)}; check the spelling"
            )
        elif id(rule) not in reachable_ids:
            yield _make_diagnostic(rule, f"rule {rule.id} never matches: its conditions are always false")
        else:
            yield from _find_missing_facts(rule, reads.facts or (), known_names)


def _find_missing_facts(
    rule: PolicyRule, facts: Collection[str], known_names: KnownNames
) -> Iterator[PolicyDiagnostic]:
    """Find facts that a rule tests for and that exist, but for no tool that it can be about: `has` is always false."""
    kind, name = _get_resource_scope(rule) or ("", "")
    existing = known_names.get(kind, {}).get(name)
    missing = [] if existing is None else sorted(each for each in facts if each not in existing)
    if missing and existing is not None:
        others = f"has only {', '.join(sorted(existing)[:_MOST_NAMED_FACTS])}" if existing else "has none"
        yield _make_diagnostic(
            rule,
            f"rule {rule.id} tests for what never exists: no tool in this scope has the fact {', '.join(missing)}; "
            f"{kind} {name} {others}",
        )


def _find_unknown_attributes(reads: AttributeReads, facts: FactTypes) -> list[str]:
    """Find attributes that `has` tests for and that never exist; the type check accepts them, as always false."""
    attributes = {"principal": USER_ATTRIBUTES, "resource": TOOL_ATTRIBUTES, "context": CONTEXT_ATTRIBUTES}
    unknown_paths: list[str] = []
    for path in reads.paths:
        variable, *names = path.split(".")
        is_fact = variable == "context" and names[:1] == ["facts"] and len(names) > 1
        if (is_fact and names[1] not in facts) or (names and names[0] not in attributes[variable]):
            unknown_paths.append(path)
    return unknown_paths


def _get_resource_scope(rule: PolicyRule) -> tuple[str, str] | None:
    """Return the type and id of the resource in a rule's scope, or None."""
    scope = rule.content.resource
    entity = scope.get("entity") or (scope.get("in") or {}).get("entity")
    return None if entity is None else (entity["type"], entity["id"])


def _find_crowded_scopes(rules: Sequence[PolicyRule]) -> Iterator[PolicyDiagnostic]:
    counts = Counter[tuple[str, str] | None]()
    costs: defaultdict[tuple[str, str] | None, float] = defaultdict(float)
    for rule in rules:
        scope = _get_resource_scope(rule)
        counts[scope] += 1
        scope_name = "every tool" if scope is None else " ".join(scope)
        seconds = measure_rules((rule.ast,)).estimate_seconds()
        if costs[scope] <= MAX_SCOPE_SECONDS < costs[scope] + seconds:
            yield _make_diagnostic(
                rule,
                f"rule {rule.id} is one of the rules about {scope_name} that could take more than "
                f"{MAX_SCOPE_SECONDS:g} s to evaluate: shorten the patterns after like, and long sets",
            )
        costs[scope] += seconds
        if counts[scope] == MAX_RULES_PER_SCOPE + 1:
            yield _make_diagnostic(
                rule,
                f"rule {rule.id} is one of more than {MAX_RULES_PER_SCOPE} rules about {scope_name}, which every call "
                "would evaluate: name tools or namespaces in their scopes, or use sets as in [a, b].contains(c)",
            )


def _find_name_permits(rules: Sequence[PolicyRule]) -> Iterator[PolicyDiagnostic]:
    for rule in rules:
        if is_open_to_names(rule):
            yield _make_diagnostic(
                rule,
                f"rule {rule.id} lets an agent gain by a name, or by proving none, and whoever delegates chooses the "
                'name: require context has agent && context.agent == Agent::"NAME", which is proven, or, if no agent '
                "may act, !context.delegated",
            )


def _find_narrow_forbids(rules: Sequence[PolicyRule]) -> Iterator[PolicyDiagnostic]:
    for rule in rules:
        reads = collect_reads([rule]).context if rule.effect == "forbid" else ()
        if "agent" in reads and "agents" not in reads:
            yield _make_diagnostic(
                rule,
                f"rule {rule.id} reaches only agents whose identity is proven: to reach every delegation of that name, "
                'write context.agents.contains(Agent::"NAME")',
            )


def _find_unknown_resources(
    rules: Sequence[PolicyRule], known_names: KnownNames, unseen_servers: Collection[str]
) -> Iterator[PolicyDiagnostic]:
    for rule in rules:
        scope = _get_resource_scope(rule)
        if scope is not None:
            kind, name = scope
            # A server's tools are in the namespace of its name.
            is_unseen = kind != "Tenant" and name.partition(".")[0] in unseen_servers
            if kind in known_names and name not in known_names[kind] and not is_unseen:
                yield _make_diagnostic(rule, f"rule {rule.id} never matches: unknown {kind.lower()} {name}")


def _find_shadowed_rules(rules: Sequence[PolicyRule]) -> Iterator[PolicyDiagnostic]:
    """Find rules with the same scope and conditions as a stronger rule, which always decides instead."""
    strongest: dict[bytes, PolicyRule] = {}
    for rule in sorted(rules, key=_rank_weakness):
        conditions = {key: value for key, value in orjson.loads(rule.ast).items() if key != "effect"}
        stronger = strongest.setdefault(orjson.dumps(conditions, option=orjson.OPT_SORT_KEYS), rule)
        if stronger is not rule and not _has_own_effect(stronger, rule):
            yield _make_diagnostic(
                rule, f"rule {rule.id} never decides: {stronger.id} ({stronger.where}) has the same conditions"
            )


def _rank_weakness(rule: PolicyRule) -> int:
    """Rank rules from strongest to weakest: forbid, forbid with a condition, permit, permit with approval."""
    return {("forbid", False): 0, ("forbid", True): 1, ("permit", False): 2, ("permit", True): 3}[
        rule.effect, rule.requires_approval or rule.is_conditional_forbid
    ]


def _has_own_effect(stronger: PolicyRule, rule: PolicyRule) -> bool:
    """Tell whether the weaker rule still matters: as the permit behind a forbid with a condition, by its approvers, by
    its backend, or by what it says of changed tools and of calls without a key.
    """
    if stronger.is_conditional_forbid and (rule.effect == "permit" or rule.content.backend != stronger.content.backend):
        return True
    if rule.content.admitted_drift > stronger.content.admitted_drift and stronger.effect == "permit":
        return True
    if rule.content.is_key_optional and not stronger.content.is_key_optional and stronger.effect == "permit":
        return True
    return stronger.requires_approval and rule.requires_approval and stronger.approval_terms != rule.approval_terms


def _make_diagnostic(rule: PolicyRule, message: str) -> PolicyDiagnostic:
    return PolicyDiagnostic(file=rule.file, line=rule.line, message=message)
