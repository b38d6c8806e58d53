"""The engine: one version of a tenant's rules, and what they answer.

    a rule failed to evaluate              deny, whatever else permits
    a forbid spoke                         deny
    a forbid marked `ask` spoke            ask, if something permits without it; else deny
    a permit spoke                         allow
    only permits marked `ask` spoke        ask
    nothing spoke                          deny

Where it asks, every asking rule that spoke has its demand: the forbids, and the permits unless a plain one spoke.

Cedar skips a rule that fails and goes on; here a failed rule denies. `decisions.py` keeps answers, `force.py` says
which version holds.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import cedarpy
import orjson

from deputize.core.decision import Behavior, Question, Rule, Verdict
from deputize.govern.policy.kept import Kept
from deputize.govern.policy.rules import EVALUATION_ERROR, NOTHING_PERMITS, PolicyFile, PolicyRule, parse, set_digest
from deputize.govern.policy.slices import Slice, Slices
from deputize.govern.policy.world import (
    ACTION,
    Asked,
    FactTypes,
    context,
    describe_caller,
    describe_tool,
    entities,
    scopes_of,
    uid,
)

_MOST_TOOLS = 4096
# Parsed entities of a caller and a tool, 14 KB each, by standing and digest: one bounded store for every tenant and
# version, because neither the rules nor anything else that may change has a part in them.
_pairs: Kept[tuple[str, str], tuple[Mapping[str, Any], cedarpy.Entities]] = Kept(4096)
# Held against a pattern, a text costs up to the square of its length, and everybody waits for it: 200 KB took 16 s.
LONGEST_FACT = 8192
_FAILED = re.compile(r"error while evaluating policy `([^`]*)`: (.*)", re.DOTALL)
_ABSENT = re.compile(r"does not have the attribute `(\w{1,64})`")


class CompiledPolicies:
    """Made once per version. Slices and entities are made when a tool is first asked about."""

    def __init__(self, files: Sequence[PolicyFile], facts: FactTypes | None = None) -> None:
        self.files = tuple(files)
        self.facts: FactTypes = facts or {}
        self.rules = parse(self.files)
        self.digest = set_digest(self.files)
        self._slices = Slices(self.rules)
        self._tools: Kept[tuple[str, str], tuple[Slice, Mapping[str, Any]]] = Kept(_MOST_TOOLS)

    def decide(self, question: Question) -> Verdict:
        return judge(*self.prepare(question))

    def replay(self, asked: Asked) -> Verdict:
        """The same, from words that may have been written down long ago."""
        return judge(self.slice_for(asked), asked, parsed_entities(asked))

    def slice_of(self, question: Question) -> Slice:
        return self._tool(question)[0]

    def slice_for(self, asked: Asked) -> Slice:
        return self._slices.of(asked.tool, asked.caller["tenant"])

    def prepare(self, question: Question) -> tuple[Slice, Asked, cedarpy.Entities]:
        slice_, tool = self._tool(question)
        caller, known = _pair(question, tool)
        asked = Asked(
            caller=caller, tool=tool, environment=question.environment, session=question.session,
            now_ms=question.now_ms, facts=question.facts, scopes=scopes_of(question) if question.touches else (),
            sweeping=question.sweeping, cost_micros=question.cost_micros, labels=question.labels,
        )  # fmt: skip
        return slice_, asked, known

    def _tool(self, question: Question) -> tuple[Slice, Mapping[str, Any]]:
        key = (question.caller.tenant, question.contract.digest)
        found = self._tools.get(key)
        if found is None:
            tool = describe_tool(question.contract)
            slice_ = self._slices.of(tool, question.caller.tenant)
            found = self._tools.keep(key, (slice_, tool), weight=1 + len(slice_.rules) // 25)
        return found


def _pair(question: Question, tool: Mapping[str, Any]) -> tuple[Mapping[str, Any], cedarpy.Entities]:
    caller = question.caller
    key = (caller.standing, question.contract.digest)
    found = _pairs.get(key) if caller.standing else None
    if found is None:
        described = describe_caller(caller)
        found = (described, _parsed(described, tool))
        if caller.standing:
            # Each group is an entity of its own, and takes a kilobyte.
            _pairs.keep(key, found, weight=1 + len(caller.groups) // 12)
    return found


def judge(slice_: Slice, asked: Asked, known: cedarpy.Entities) -> Verdict:
    reads = slice_.reads
    words = context(asked, reads.context, reads.facts)
    for name, value in words.get("facts", {}).items():
        if isinstance(value, str) and len(value) > LONGEST_FACT:
            return _failed(slice_, (), f"the fact {name} is longer than the {LONGEST_FACT} characters rules may read")
    try:
        told = orjson.dumps(words).decode()
    except TypeError:
        return _failed(slice_, ())  # a value that is no JSON cannot be judged
    request = {
        "principal": uid("User", asked.caller["user"]),
        "action": ACTION,
        "resource": uid("Tool", asked.tool["name"]),
        "context": told,
    }
    answer = cedarpy.is_authorized(request, slice_.policies, known)
    diagnostics = answer.diagnostics
    if diagnostics.errors or answer.decision is cedarpy.Decision.NoDecision:
        return _failed(slice_, diagnostics.errors)
    spoke = _spoken(slice_, diagnostics.reasons)
    plain = tuple(rule for rule in spoke if not rule.asks)
    if answer.decision is cedarpy.Decision.Allow:
        return _verdict(slice_, Behavior.ALLOW, plain) if plain else _verdict(slice_, Behavior.ASK, spoke)
    if plain:
        return _verdict(slice_, Behavior.DENY, plain)
    if spoke:
        otherwise = cedarpy.is_authorized(request, slice_.without_asking_forbids, known)
        if otherwise.allowed:
            permits = _spoken(slice_, otherwise.diagnostics.reasons)
            # A forbid that asks must not spare a permit that asks its question.
            asking = permits if all(rule.asks for rule in permits) else []
            return _verdict(slice_, Behavior.ASK, _ordered(slice_, [*spoke, *asking]))
    return _nothing_permits(slice_, asked)


def _spoken(slice_: Slice, ids: Sequence[str]) -> list[PolicyRule]:
    """Cedar answers with a set; people get the order of the files."""
    return [slice_.rules[place] for place in sorted(slice_.by_id[each] for each in ids)]


def _ordered(slice_: Slice, rules: Sequence[PolicyRule]) -> list[PolicyRule]:
    return sorted(rules, key=lambda rule: slice_.by_id[rule.id])


def _verdict(slice_: Slice, behavior: Behavior, spoke: Sequence[PolicyRule]) -> Verdict:
    reason = next((rule.reason for rule in spoke if rule.reason), "")
    demands = tuple(rule.demand for rule in spoke) if behavior is Behavior.ASK else ()
    return Verdict(
        behavior=behavior, rules=tuple(rule.said for rule in spoke), digest=slice_.digest, reason=reason,
        demands=demands,
    )  # fmt: skip


def _nothing_permits(slice_: Slice, asked: Asked) -> Verdict:
    tool = asked.tool
    return Verdict(
        behavior=Behavior.DENY,
        rules=(Rule(id=NOTHING_PERMITS, reason="No rule permits this call."),),
        digest=slice_.digest,
        reason="No rule permits this call.",
        suggestion=f"Ask for a rule that permits {tool['name']}, which declares its effects as {tool['effects']}.",
    )


def _failed(slice_: Slice, errors: Sequence[str], why: str = "the request could not be evaluated") -> Verdict:
    reason = "A rule could not be evaluated, so the answer is no."
    return Verdict(
        behavior=Behavior.DENY,
        rules=(Rule(id=EVALUATION_ERROR, reason=reason),),
        digest=slice_.digest,
        reason=reason,
        errors=tuple(sorted(_told(slice_, error) for error in errors)) or (why,),
        suggestion="Mend the rule in errors; deputize policy check finds most such rules beforehand.",
    )


def _told(slice_: Slice, error: str) -> str:
    """Which rule failed and how, in our own words: Cedar's may quote the values it stumbled over."""
    found = _FAILED.fullmatch(error)
    if found is None or found[1] not in slice_.by_id:
        return "the request could not be evaluated"
    absent = _ABSENT.search(found[2])
    if absent:
        how = f"reads the attribute {absent[1]}, which is absent"
    elif found[2].startswith("integer overflow"):
        how = "overflows an integer"
    elif found[2].startswith("type error"):
        how = "meets a value of another type than it expects"
    else:
        how = "failed"
    rule = slice_.rules[slice_.by_id[found[1]]]
    return f"{rule.id} ({rule.where}) {how}"


def parsed_entities(asked: Asked) -> cedarpy.Entities:
    return _parsed(asked.caller, asked.tool)


def _parsed(caller: Mapping[str, Any], tool: Mapping[str, Any]) -> cedarpy.Entities:
    return cedarpy.Entities.from_json_str(orjson.dumps(entities(caller, tool)).decode())
