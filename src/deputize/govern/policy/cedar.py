"""Evaluate one version of a tenant's Cedar policies.

    a rule failed to evaluate                           deny, whatever else matches
    a forbid matches                                    deny
    a forbid with @decision("ask") matches              ask, if a permit matches too; else deny
    a permit matches                                    allow
    only permits with @decision("ask") match            ask
    no rule matches                                     deny

If the verdict is ask, each matching rule with @decision("ask") adds its approval requirement: the forbids, and the
permits unless a plain permit matches.

Cedar skips a rule that fails to evaluate; here it denies. `decision_cache.py` caches verdicts, `active_policies.py`
selects the version.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import cedarpy
import orjson

from deputize.core.bounded_dict import BoundedDict
from deputize.core.contract.availability import AdmittedDrift
from deputize.core.contract.isolation import BackendDemand
from deputize.core.decision import Behavior, MatchedRule, PolicyRequest, Verdict
from deputize.core.value_types import frozen
from deputize.govern.policy.cedar_schema import (
    ACTION,
    FactTypes,
    PolicyQuery,
    build_context,
    build_entities,
    describe_caller,
    describe_tool,
    get_tool_attribute,
    list_scopes,
    make_uid,
)
from deputize.govern.policy.policy_parser import (
    EVALUATION_ERROR,
    NOTHING_PERMITS,
    PolicyFile,
    PolicyRule,
    compute_set_digest,
    parse_policies,
)
from deputize.govern.policy.slice_cost import MAX_FACT_LENGTH, MAX_LOOP_SECONDS, find_longest_text
from deputize.govern.policy.slices import PolicySlice, SliceIndex
from deputize.govern.policy.user_interaction import require_person

_MAX_TOOLS = 4096
# Building a slice takes about 100 ns for each byte of its rules.
_LARGE_RULES_BYTES = 400_000
# Parsed entities of a caller and a tool, 14 KB each, by the caller's cache key and the contract's digest. One bounded
# cache for all tenants and versions, because the entities do not depend on the policies.
_entity_cache: BoundedDict[tuple[str, str], tuple[Mapping[str, Any], cedarpy.Entities]] = BoundedDict(4096)
_ERROR_PATTERN = re.compile(r"error while evaluating policy `([^`]*)`: (.*)", re.DOTALL)
_ABSENT_PATTERN = re.compile(r"does not have the attribute `(\w{1,64})`")


class CompiledPolicies:
    """One version of the policies, parsed once. Slices are built when a tool is first called."""

    def __init__(self, files: Sequence[PolicyFile], facts: FactTypes | None = None) -> None:
        self.files = tuple(files)
        self.facts: FactTypes = facts or {}
        self.rules = parse_policies(self.files)
        self.digest = compute_set_digest(self.files)
        self._slices = SliceIndex(self.rules)
        # The most that any rule lets pass of tools that their servers changed.
        self.admitted_drift = max((rule.content.admitted_drift for rule in self.rules), default=AdmittedDrift.NONE)
        self.is_key_optional = any(rule.content.is_key_optional for rule in self.rules)
        self._is_large = sum(len(rule.ast) for rule in self.rules) > _LARGE_RULES_BYTES
        self._tools: BoundedDict[tuple[str, str], tuple[PolicySlice, Mapping[str, Any]]] = BoundedDict(_MAX_TOOLS)

    def decide(self, request: PolicyRequest) -> Verdict:
        return evaluate_slice(*self.prepare_query(request))

    def evaluate_query(self, query: PolicyQuery, *, may_take_long: bool = False) -> Verdict:
        """Decide a query, which may come from an old decision record."""
        slice_, cedar_entities = self.get_query_slice(query), load_query_entities(query)
        return evaluate_slice(slice_, query, cedar_entities, may_take_long=may_take_long)

    async def load_request_slice(self, request: PolicyRequest) -> PolicySlice:
        """Return the slice; build a large one in a thread, because that takes long."""
        if self.must_build_off_loop(request):
            tool = describe_tool(request.contract)
            await asyncio.to_thread(self._slices.get_slice, tool, request.caller.tenant)
        return self.get_request_slice(request)

    def must_build_off_loop(self, request: PolicyRequest) -> bool:
        """Tell whether the slice is not there yet and may take long to build."""
        return self._is_large and self._tools.get((request.caller.tenant, request.contract.digest)) is None

    def get_request_slice(self, request: PolicyRequest) -> PolicySlice:
        return self._get_tool_slice(request)[0]

    def get_query_slice(self, query: PolicyQuery) -> PolicySlice:
        return self._slices.get_slice(query.tool, query.caller["tenant"])

    def prepare_query(self, request: PolicyRequest) -> tuple[PolicySlice, PolicyQuery, cedarpy.Entities]:
        slice_, tool = self._get_tool_slice(request)
        caller, cedar_entities = _get_entities(request, tool)
        query = PolicyQuery(
            caller=caller, tool=tool, environment=request.environment, session=request.session,
            now_ms=request.now_ms, facts=request.facts, scopes=list_scopes(request) if request.side_effects else (),
            is_sweeping=request.has_unbounded_scope, cost_micros=request.cost_micros, labels=request.labels,
            undone=request.undone,
        )  # fmt: skip
        return slice_, query, cedar_entities

    def _get_tool_slice(self, request: PolicyRequest) -> tuple[PolicySlice, Mapping[str, Any]]:
        key = (request.caller.tenant, request.contract.digest)
        entry = self._tools.get(key)
        if entry is None:
            tool = describe_tool(request.contract)
            slice_ = self._slices.get_slice(tool, request.caller.tenant)
            entry = self._tools.put(key, (slice_, tool), weight=1 + len(slice_.rules) // 25)
        return entry


def _get_entities(request: PolicyRequest, tool: Mapping[str, Any]) -> tuple[Mapping[str, Any], cedarpy.Entities]:
    caller = request.caller
    key = (caller.decision_cache_key, request.contract.digest)
    entry = _entity_cache.get(key) if caller.decision_cache_key else None
    if entry is None:
        caller_data = describe_caller(caller)
        entry = (caller_data, _load_entities(caller_data, tool))
        if caller.decision_cache_key:
            # Each group is an entity of about one kilobyte.
            _entity_cache.put(key, entry, weight=1 + len(caller.groups) // 12)
    return entry


@frozen
class CedarAnswer:
    """Cedar's answer to one question: its decision, the ids of the rules that matched, and errors."""

    decision: str
    reasons: Sequence[str]
    errors: Sequence[str]


@frozen
class CedarQuestion:
    """A question to Cedar, as its own JSON."""

    principal: Mapping[str, str]
    action: Mapping[str, str]
    resource: Mapping[str, str]
    context: str

    def ask(self, policies: cedarpy.PolicySet, entities: cedarpy.Entities) -> CedarAnswer:
        """Ask Cedar."""
        request = {
            "principal": self.principal, "action": self.action, "resource": self.resource, "context": self.context
        }  # fmt: skip
        answer = cedarpy.is_authorized(request, policies, entities)
        return CedarAnswer(
            decision=answer.decision.name, reasons=answer.diagnostics.reasons, errors=answer.diagnostics.errors
        )


def is_costly(slice_: PolicySlice, facts: Mapping[str, Any]) -> bool:
    """Tell whether evaluating the slice may take longer than the event loop can wait."""
    return not slice_.is_quick and slice_.cost.estimate_seconds(find_longest_text(facts)) > MAX_LOOP_SECONDS


def evaluate_slice(
    slice_: PolicySlice, query: PolicyQuery, cedar_entities: cedarpy.Entities, *, may_take_long: bool = False
) -> Verdict:
    """Evaluate a slice here. A costly one denies, unless it may take long because no event loop waits for it.

    `evaluation_job.py` evaluates costly slices in another process.
    """
    question = build_question(slice_, query)
    if isinstance(question, Verdict):
        return question
    if not may_take_long and is_costly(slice_, query.facts):
        return deny_costly_slice(slice_)
    return judge_answers(
        slice_,
        query,
        lambda number: question.ask(slice_.without_conditional_forbids if number else slice_.policies, cedar_entities),
    )


def build_question(slice_: PolicySlice, query: PolicyQuery) -> CedarQuestion | Verdict:
    """Build the question, or the verdict if it cannot be asked."""
    reads = slice_.reads
    context_values = build_context(query, reads.context, reads.facts)
    for name, value in context_values.get("facts", {}).items():
        if isinstance(value, str) and len(value) > MAX_FACT_LENGTH:
            return _deny_on_error(slice_, (), f"the fact {name} is longer than {MAX_FACT_LENGTH} characters")
    try:
        context_json = orjson.dumps(context_values).decode()
    except TypeError:
        return _deny_on_error(slice_, ())  # Cedar takes only JSON values
    return CedarQuestion(
        principal=make_uid("User", query.caller["user"]),
        action=ACTION,
        resource=make_uid("Tool", query.tool["name"]),
        context=context_json,
    )


def judge_answers(slice_: PolicySlice, query: PolicyQuery, ask: Callable[[int], CedarAnswer]) -> Verdict:
    """Reach the verdict. `ask(0)` is the answer of all rules, `ask(1)` that without conditional forbids."""
    is_required = get_tool_attribute(query.tool, "requires_user_interaction")
    verdict = _judge_rules(slice_, query, ask)
    return require_person(verdict, is_required=is_required, is_human=query.caller["human"])


def _judge_rules(slice_: PolicySlice, query: PolicyQuery, ask: Callable[[int], CedarAnswer]) -> Verdict:
    answer = ask(0)
    if answer.errors or answer.decision == cedarpy.Decision.NoDecision.name:
        return _deny_on_error(slice_, answer.errors)
    matching_rules = _select_rules(slice_, answer.reasons)
    plain_rules = tuple(rule for rule in matching_rules if not (rule.requires_approval or rule.is_conditional_forbid))
    if answer.decision == cedarpy.Decision.Allow.name:
        return (
            _build_verdict(slice_, Behavior.ALLOW, plain_rules)
            if plain_rules
            else _build_verdict(slice_, Behavior.ASK, matching_rules)
        )
    if plain_rules:
        return _build_verdict(slice_, Behavior.DENY, plain_rules)
    if matching_rules:
        without_forbids = ask(1)
        if without_forbids.decision == cedarpy.Decision.Allow.name:
            permits = _select_rules(slice_, without_forbids.reasons)
            return _judge_conditions(slice_, matching_rules, permits)
    return _deny_by_default(slice_, query)


def _judge_conditions(slice_: PolicySlice, forbids: Sequence[PolicyRule], permits: Sequence[PolicyRule]) -> Verdict:
    """Reach the verdict of a permitted call that conditional forbids match."""
    plain_permits = [rule for rule in permits if not rule.requires_approval]
    # A forbid with @decision("ask") must not replace the approval that a permit requires.
    asking_rules = [rule for rule in forbids if rule.requires_approval] + [*(() if plain_permits else permits)]
    verdict = (
        _build_verdict(slice_, Behavior.ASK, _sort_rules(slice_, asking_rules))
        if asking_rules
        else _build_verdict(slice_, Behavior.ALLOW, _sort_rules(slice_, [*forbids, *plain_permits]))
    )
    demands = {
        rule.id: BackendDemand(rule=rule.id, where=rule.where, reason=rule.reason, backend=rule.content.backend)
        for rule in forbids
        if rule.content.backend is not None
    }
    # Such a rule does not allow a call, but says where it may be made.
    rules = [replace(each, reason=demands[each.id].title) if each.id in demands else each for each in verdict.rules]
    reason = next((each.reason for each in rules if each.reason), "")
    return replace(verdict, rules=tuple(rules), reason=reason, backend_demands=tuple(demands.values()))


def deny_costly_slice(slice_: PolicySlice) -> Verdict:
    """Deny because the rules take too long; the error names their cost."""
    cost = slice_.cost
    return _deny_on_error(
        slice_,
        (),
        f"the {len(slice_.rules)} rules for this tool take too long: their like patterns have {cost.like_length:,} "
        f"characters, and everything else {cost.size:,} bytes",
    )


def _select_rules(slice_: PolicySlice, ids: Sequence[str]) -> list[PolicyRule]:
    """Select rules by id, in file order: Cedar returns an unordered set."""
    return [slice_.rules[index] for index in sorted(slice_.index_by_id[each] for each in ids)]


def _sort_rules(slice_: PolicySlice, rules: Sequence[PolicyRule]) -> list[PolicyRule]:
    return sorted(rules, key=lambda rule: slice_.index_by_id[rule.id])


def _build_verdict(slice_: PolicySlice, behavior: Behavior, rules: Sequence[PolicyRule]) -> Verdict:
    reason = next((rule.reason for rule in rules if rule.reason), "")
    requirements = tuple(rule.requirement for rule in rules) if behavior is Behavior.ASK else ()
    admissions = [rule.content.admitted_drift for rule in rules] if behavior is Behavior.ALLOW else []
    return Verdict(
        behavior=behavior, rules=tuple(rule.rule_ref for rule in rules), digest=slice_.digest, reason=reason,
        requirements=requirements, admitted_drift=max(admissions, default=AdmittedDrift.NONE),
        is_key_optional=behavior is Behavior.ALLOW and any(rule.content.is_key_optional for rule in rules),
    )  # fmt: skip


def _deny_by_default(slice_: PolicySlice, query: PolicyQuery) -> Verdict:
    tool = query.tool
    return Verdict(
        behavior=Behavior.DENY,
        rules=(MatchedRule(id=NOTHING_PERMITS, reason="No rule permits this call."),),
        digest=slice_.digest,
        reason="No rule permits this call.",
        suggestion=f"Add a rule that permits {tool['name']} (effects: {tool['effects']}), or ask an administrator to.",
    )


def _deny_on_error(
    slice_: PolicySlice, errors: Sequence[str], cause: str = "the request could not be evaluated"
) -> Verdict:
    reason = "A rule could not be evaluated, so the call is denied."
    return Verdict(
        behavior=Behavior.DENY,
        rules=(MatchedRule(id=EVALUATION_ERROR, reason=reason),),
        digest=slice_.digest,
        reason=reason,
        errors=tuple(sorted(_describe_error(slice_, error) for error in errors)) or (cause,),
        suggestion="Fix the rule named in errors. deputize policy check finds most such rules in advance.",
    )


def _describe_error(slice_: PolicySlice, error: str) -> str:
    """Describe which rule failed and how, without Cedar's own message, which may quote sensitive values."""
    match = _ERROR_PATTERN.fullmatch(error)
    if match is None or match[1] not in slice_.index_by_id:
        return "the request could not be evaluated"
    absent = _ABSENT_PATTERN.search(match[2])
    if absent:
        failure = f"reads the attribute {absent[1]}, which is missing"
    elif match[2].startswith("integer overflow"):
        failure = "overflows an integer"
    elif match[2].startswith("type error"):
        failure = "reads a value of an unexpected type"
    else:
        failure = "failed"
    rule = slice_.rules[slice_.index_by_id[match[1]]]
    return f"{rule.id} ({rule.where}) {failure}"


def load_query_entities(query: PolicyQuery) -> cedarpy.Entities:
    return _load_entities(query.caller, query.tool)


def _load_entities(caller: Mapping[str, Any], tool: Mapping[str, Any]) -> cedarpy.Entities:
    return cedarpy.Entities.from_json_str(orjson.dumps(build_entities(caller, tool)).decode())
