"""Suggest permits for calls that people approve repeatedly: drafts of the narrowest rules that would allow them.

A draft needs, for one caller, tool and rule, at least five approved calls, at least two different approvers and no
denial. It matches only what was approved, and it expires. Each draft is evaluated against every request it was learned
from and every request that was denied; one that fails is withheld with the reason. Nothing here activates a policy.
Pure: `operations/admin/policy/suggestions.py` loads approval requests, votes and decision records.
"""

import hashlib
import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, TypeVar

from deputize.core.decision import Behavior, Verdict
from deputize.core.errors import PolicyInvalid
from deputize.core.value_types import frozen
from deputize.govern.approvals.permit_draft import (
    MAX_COMBINATIONS,
    MAX_VALUES,
    FixedConditions,
    PermitConditions,
    format_day,
    quote_text,
    render_permit,
)
from deputize.govern.approvals.requirements import normalize_person
from deputize.govern.policy.cedar import CompiledPolicies, evaluate_slice, load_query_entities
from deputize.govern.policy.cedar_schema import FactTypes, get_proven_agent
from deputize.govern.policy.checks.attribute_reads import AttributeReads, collect_reads
from deputize.govern.policy.decision_records import Replay
from deputize.govern.policy.policy_parser import PolicyFile, parse_policies
from deputize.govern.policy.slices import PolicySlice

MIN_CALLS = 5
MIN_PEOPLE = 2
T = TypeVar("T")
_INVALID_IN_ID = re.compile(r"[^A-Za-z0-9_]+")
# Rules see the nearest agent, and the others only as an unordered set: with two agents the order is still certain.
_MAX_AGENTS = 2
_EXTERNAL_RULE_PREFIXES = ("hook:", "authzen:")
_ENTRY_ATTRIBUTES = frozenset({"time", "session"})


@frozen
class PastDecision:
    """A decided approval request: the decision, its approvers, the replay and the rules that required approval."""

    approval_id: str
    is_approved: bool
    people: frozenset[str]
    at_ms: int
    rules: frozenset[str]
    replay: Replay


@frozen
class ToolFacts:
    """A tool's current digest, with the arguments rules can read as facts and those they cannot."""

    digest: str
    facts: FactTypes
    hidden_arguments: tuple[str, ...]


# Finds a tool by name and version.
ToolLookup = Callable[[str, str], ToolFacts | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class CallPattern:
    """What calls must share to be learned from together: caller, tool version and the rules that required approval."""

    tool: str
    version: str
    digest: str
    environment: str
    user: str
    issuer: str
    trust: str
    human: bool
    agents: tuple[str, ...]
    proven_agent: str | None
    task: str | None
    rules: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "tool": self.tool, "version": self.version, "environment": self.environment, "user": self.user,
            "agents": list(self.agents), "task": self.task, "required_by": list(self.rules),
        }  # fmt: skip


@frozen
class PermitDraft:
    """A suggested rule, with the decisions it was learned from."""

    pattern: CallPattern
    name: str
    rule: str
    until: int
    evidence: tuple[PastDecision, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            **self.pattern.to_json(),
            "id": self.name,
            "rule": self.rule,
            "until": self.until,
            **_summarize_evidence(self.evidence),
        }


@frozen
class WithheldDraft:
    """A pattern with enough approvals for which no permit can be suggested, and the reason."""

    pattern: CallPattern
    why: str
    evidence: tuple[PastDecision, ...]

    def to_json(self) -> dict[str, Any]:
        return {**self.pattern.to_json(), "why": self.why, **_summarize_evidence(self.evidence)}


@frozen
class SuggestionResult:
    """All suggested and withheld drafts."""

    drafts: tuple[PermitDraft, ...]
    withheld: tuple[WithheldDraft, ...]
    # All drafts as one policy file, each with a comment about its evidence; None without drafts.
    file: PolicyFile | None


class _NoSuggestion(Exception):
    """The reason why no permit is suggested for a pattern."""


def suggest_permits(
    past: Sequence[PastDecision], policies: CompiledPolicies, find_tool: ToolLookup, *, now_ms: int, until: int
) -> SuggestionResult:
    """Suggest permits from past decisions and the active policies. Drafts expire at `until`, in seconds since 1970."""
    learner = _Learner(policies, find_tool, now_ms, until, [each for each in past if not each.is_approved])
    groups: dict[CallPattern, list[PastDecision]] = {}
    for each in past:
        groups.setdefault(_build_pattern(each), []).append(each)
    sorted_groups = sorted(groups.items(), key=lambda item: repr(item[0]))
    results = [each for pattern, decisions in sorted_groups for each in learner.learn_drafts(pattern, decisions)]
    drafts = tuple(each for each in results if isinstance(each, PermitDraft))
    return SuggestionResult(
        drafts=drafts,
        withheld=tuple(each for each in results if isinstance(each, WithheldDraft)),
        file=_build_file(drafts, {file.path for file in policies.files}, until) if drafts else None,
    )


class _Learner:
    def __init__(
        self,
        policies: CompiledPolicies,
        find_tool: ToolLookup,
        now_ms: int,
        until: int,
        denials: Sequence[PastDecision],
    ) -> None:
        self._policies = policies
        self._find_tool = find_tool
        self._now_ms = now_ms
        self._until = until
        self._denials = denials
        self._rule_ids = {rule.id for rule in policies.rules}

    def learn_drafts(
        self, pattern: CallPattern, decisions: Sequence[PastDecision]
    ) -> Iterator[PermitDraft | WithheldDraft]:
        approvals = [each for each in decisions if each.is_approved]
        if not _has_enough_approvals(approvals):
            return
        try:
            tool, reads = self._require_learnable(pattern, decisions)
            open_decisions = self._select_open_decisions(approvals)
            if not open_decisions:
                return  # the active policies already allow these calls
            parts = _split_by_facts(open_decisions, tool)
            learnable_parts = [part for part in parts if _has_enough_approvals(part)]
            if not learnable_parts:
                raise _NoSuggestion("facts other than numbers differ from call to call")
        except _NoSuggestion as reason:
            yield WithheldDraft(pattern=pattern, why=str(reason), evidence=tuple(approvals))
            return
        for part in learnable_parts:
            try:
                yield self._check_draft(self._build_draft(pattern, part, tool, reads))
            except _NoSuggestion as reason:
                yield WithheldDraft(pattern=pattern, why=str(reason), evidence=tuple(part))

    def _require_learnable(
        self, pattern: CallPattern, decisions: Sequence[PastDecision]
    ) -> tuple[ToolFacts, AttributeReads]:
        """Require that a permit can be as narrow as what was approved; return the tool and what its rules read."""
        denial_count = sum(not each.is_approved for each in decisions)
        if denial_count:
            raise _NoSuggestion(f"people denied {denial_count} of these calls")
        tool = self._find_tool(pattern.tool, pattern.version)
        if tool is None or tool.digest != pattern.digest:
            raise _NoSuggestion("the tool has changed since these calls were approved")
        if tool.hidden_arguments:
            raise _NoSuggestion(
                f"rules cannot read {', '.join(tool.hidden_arguments)}, so a permit would allow any value: "
                "mark the argument with Fact if it is a number, a string or a boolean"
            )
        if len(pattern.agents) > _MAX_AGENTS:
            raise _NoSuggestion("more than two agents are in the chain, and rules cannot read their order")
        rules = {rule.id: rule for rule in self._policies.get_query_slice(decisions[0].replay.query).rules}
        absent_rules = [name for name in pattern.rules if name not in rules]
        if any(name.startswith(_EXTERNAL_RULE_PREFIXES) for name in absent_rules):
            raise _NoSuggestion("a hook or an external decision point required approval, and no permit overrides that")
        if absent_rules:
            raise _NoSuggestion(f"{', '.join(absent_rules)} required approval, and is not in the active policies")
        reads = collect_reads([rules[name] for name in pattern.rules])
        if "time" in reads.context:
            raise _NoSuggestion("the rule that requires approval reads the time, so a permit would depend on it too")
        return tool, reads

    def _select_open_decisions(self, approvals: Sequence[PastDecision]) -> list[PastDecision]:
        slice_ = self._policies.get_query_slice(approvals[0].replay.query)
        return [each for each in approvals if self._evaluate_decision(slice_, each).behavior is not Behavior.ALLOW]

    def _build_draft(
        self, pattern: CallPattern, part: Sequence[PastDecision], tool: ToolFacts, reads: AttributeReads
    ) -> PermitDraft:
        conditions = _build_conditions(pattern, part, tool, reads)
        name = _find_free_name(
            _build_rule_id(pattern, render_permit(conditions, name="", reason="", until=0), self._until), self._rule_ids
        )
        reason = f"People approved {len(part)} calls like this and denied none. Expires {format_day(self._until)}."
        rule = render_permit(conditions, name=name, reason=reason, until=self._until)
        return PermitDraft(pattern=pattern, name=name, rule=rule, until=self._until, evidence=tuple(part))

    def _check_draft(self, draft: PermitDraft) -> PermitDraft:
        """Require that the draft matches no denied request, and allows its evidence beside the active policies."""
        try:
            (draft_rule,) = parse_policies([PolicyFile(path="draft", text=draft.rule)])
        except PolicyInvalid as error:
            raise _NoSuggestion(f"the drafted rule is invalid: {error.message}") from error
        draft_slice = PolicySlice([draft_rule])
        for each in self._denials:
            if (
                each.replay.query.tool["name"] == draft.pattern.tool
                and self._evaluate_decision(draft_slice, each).behavior is Behavior.ALLOW
            ):
                raise _NoSuggestion("a permit for these calls would also allow a call that people denied")
        full_slice = PolicySlice([*self._policies.get_query_slice(draft.evidence[0].replay.query).rules, draft_rule])
        for each in draft.evidence:
            verdict = self._evaluate_decision(full_slice, each)
            if verdict.behavior is not Behavior.ALLOW:
                rule_names = ", ".join(f"{rule.id} ({rule.where})" for rule in verdict.rules)
                raise _NoSuggestion(f"no permit overrides {rule_names}: narrow that rule to allow these calls")
        return draft

    def _evaluate_decision(self, slice_: PolicySlice, decision: PastDecision) -> Verdict:
        """Evaluate the request of a past decision with these rules, as of now."""
        query = replace(decision.replay.query, now_ms=self._now_ms)
        return evaluate_slice(slice_, query, load_query_entities(query))


def is_evidence(replay: Replay, policies: CompiledPolicies) -> bool:
    """Tell whether a record holds all that the active policies read, so that they can be evaluated on it again.

    Who approved an undo said nothing of calls that take nothing back.
    """
    if replay.query.undone is not None:
        return False
    missing = set(replay.find_missing(policies.get_query_slice(replay.query).reads)) - _ENTRY_ATTRIBUTES
    return not missing and replay.verdict.source == "cedar"


def _build_pattern(decision: PastDecision) -> CallPattern:
    query = decision.replay.query
    caller, tool = query.caller, query.tool
    return CallPattern(
        tool=tool["name"], version=tool["version"], digest=tool["digest"], environment=query.environment,
        user=caller["user"], issuer=caller["issuer"], trust=caller["trust"], human=caller["human"],
        agents=tuple(caller["agents"]), proven_agent=get_proven_agent(caller), task=caller["task"],
        rules=tuple(sorted(decision.rules)),
    )  # fmt: skip


def _has_enough_approvals(approvals: Sequence[PastDecision]) -> bool:
    people = {normalize_person(name) for each in approvals for name in each.people}
    return len(approvals) >= MIN_CALLS and len(people) >= MIN_PEOPLE


def _split_by_facts(approvals: Sequence[PastDecision], tool: ToolFacts) -> list[list[PastDecision]]:
    """Group approvals by which facts are present and by the values of all facts that are not numbers."""
    parts: dict[tuple[Any, ...], list[PastDecision]] = {}
    for each in approvals:
        facts = each.replay.query.facts
        if any(isinstance(value, tuple) and value for value in facts.values()):
            raise _NoSuggestion("a fact is a list, and rules cannot read the order of a list")
        key = tuple((name, _make_fact_key(facts.get(name))) for name in sorted(tool.facts))
        parts.setdefault(key, []).append(each)
    return list(parts.values())


def _make_fact_key(value: Any) -> tuple[str, Any]:
    """Return a grouping key that contains the type, because `True == 1` in Python."""
    return type(value).__name__, None if type(value) is int else value


def _build_conditions(
    pattern: CallPattern, part: Sequence[PastDecision], tool: ToolFacts, reads: AttributeReads
) -> PermitConditions:
    queries = [each.replay.query for each in part]
    facts = {name: queries[0].facts.get(name) for name in sorted(tool.facts)}
    numbers = tuple(name for name, value in facts.items() if type(value) is int)
    combinations = sorted({tuple(each.facts[name] for name in numbers) for each in queries})
    variable_count = sum(len({each[index] for each in combinations}) > 1 for index in range(len(numbers)))
    if len(combinations) > (MAX_VALUES if variable_count == 1 else MAX_COMBINATIONS):
        raise _NoSuggestion(f"{len(combinations)} different values were approved, too many for one rule")
    return PermitConditions(
        common=FixedConditions(
            tool=pattern.tool,
            version=pattern.version,
            environment=pattern.environment,
            user=pattern.user,
            issuer=pattern.issuer,
            trust=pattern.trust,
            human=pattern.human,
            agents=pattern.agents,
            proven_agent=pattern.proven_agent,
            task=pattern.task,
        ),
        groups=tuple(sorted(set[str].intersection(*(set(each.caller["groups"]) for each in queries)))),
        scopes=_require_few({tuple(sorted(each.caller["scopes"])) for each in queries}, "sets of scopes"),
        labels=_require_few({tuple(sorted(each.labels)) for each in queries}, "labels")
        if "labels" in reads.context
        else None,
        sessions=_require_few({each.session for each in queries}, "sessions") if "session" in reads.context else None,
        max_cost=max(each.cost_micros for each in queries) if "cost" in reads.context else None,
        facts={name: value for name, value in facts.items() if name not in numbers},
        numbers=numbers,
        combinations=tuple(combinations),
    )


def _require_few(values: set[T], kind: str) -> tuple[T, ...]:
    if len(values) > MAX_COMBINATIONS:
        raise _NoSuggestion(f"the calls have {len(values)} different {kind}, too many for one rule")
    return tuple(sorted(values, key=repr))


def _build_rule_id(pattern: CallPattern, rule_text: str, until: int) -> str:
    """Build an id from the rule's text and expiry: an equal draft has the same id, and its successor a new one."""
    digest = hashlib.sha256(f"{until} {rule_text}".encode()).hexdigest()[:8]
    return f"learned-{_INVALID_IN_ID.sub('-', pattern.tool)[:80]}-{digest}"


def _find_free_name(name: str, names: Container[str], suffix: str = "") -> str:
    """Return the name, or the first unused variant of it with a number."""
    candidates = chain([f"{name}{suffix}"], (f"{name}-{number}{suffix}" for number in count(2)))
    return next(each for each in candidates if each not in names)


def _build_file(drafts: Sequence[PermitDraft], paths: Container[str], until: int) -> PolicyFile:
    """Build one policy file, named after its expiry date so that expired files are easy to find."""
    path = _find_free_name(f"policies/learned-until-{format_day(until)}", paths, ".cedar")
    return PolicyFile(path=path, text="\n".join(_render_draft(draft) for draft in drafts))


def _summarize_evidence(past: Sequence[PastDecision]) -> dict[str, Any]:
    return {
        "calls": len(past),
        "people": sorted({name for each in past for name in each.people}),
        "first_ms": min(each.at_ms for each in past),
        "last_ms": max(each.at_ms for each in past),
        "approval_ids": sorted(each.approval_id for each in past),
    }


def _render_draft(draft: PermitDraft) -> str:
    """Render a draft with a comment about its evidence. Quoting keeps names from ending the comment."""
    pattern, summary = draft.pattern, _summarize_evidence(draft.evidence)
    agents = f" through {', '.join(quote_text(agent) for agent in pattern.agents)}" if pattern.agents else ""
    people = ", ".join(quote_text(name) for name in summary["people"])
    return (
        f"// {pattern.tool} {pattern.version} for {quote_text(pattern.user)}{agents}; approval required by "
        f"{', '.join(pattern.rules)}.\n"
        f"// {people} approved {summary['calls']} calls between {format_day(summary['first_ms'] // 1000)} and "
        f"{format_day(summary['last_ms'] // 1000)}, none denied.\n{draft.rule}"
    )
