"""Past approval decisions, and the suggestions learned from them."""

from collections.abc import Mapping, Sequence
from typing import Any

from deputize.core.caller import Caller
from deputize.core.contract.contract import Contract
from deputize.core.decision import Behavior
from deputize.govern.approvals.permit_suggestions import (
    PastDecision,
    SuggestionResult,
    ToolFacts,
    is_evidence,
    suggest_permits,
)
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.cedar_schema import FactTypes, PolicyQuery
from deputize.govern.policy.decision_cache import DecisionCache
from deputize.govern.policy.decision_records import parse_replay
from deputize.govern.policy.policy_parser import PolicyFile
from tests.support.policy_inputs import MOMENT, make_caller, make_question, make_tool

DAY = 86_400_000
NOW = MOMENT + 10 * DAY
UNTIL = NOW // 1000 + 30 * 86_400
FACTS: FactTypes = {"amount": "Long", "order": "Long", "note": "String", "fast": "Bool", "to": "Set<String>"}
ASKS = '@id("asks") @decision("ask") permit (principal, action, resource);'
REFUND = make_tool("crm.refund", effects="write")
IDA = make_caller("ida", agents=("bot",), groups=frozenset({"support"}), scopes=frozenset({"crm:write"}))
PEOPLE = ("ana", "ben")
NO_SUGGESTIONS = SuggestionResult(drafts=(), withheld=(), file=None)


def compile_active(*rules: str) -> CompiledPolicies:
    return CompiledPolicies([PolicyFile(path="own.cedar", text="\n".join(rules or (ASKS,)))], FACTS)


def make_past_decision(
    number: int,
    who: Caller = IDA,
    what: Contract = REFUND,
    *,
    facts: Mapping[str, Any] | None = None,
    is_approved: bool = True,
    rules: Sequence[str] = ("asks",),
    policies: CompiledPolicies | None = None,
    **more: Any,
) -> PastDecision:
    asked = make_question(who, what, facts=facts or {"amount": 20}, environment="production", **more)
    decided = DecisionCache(policies or compile_active(), key=b"k").decide_uncached(asked)
    replay = parse_replay(decided.record, now_ms=asked.now_ms)
    assert is_evidence(replay, policies or compile_active())
    return PastDecision(
        approval_id=f"ticket-{number}", is_approved=is_approved, people=frozenset({PEOPLE[number % 2]}),
        at_ms=MOMENT + number * DAY, rules=frozenset(rules), replay=replay,
    )  # fmt: skip


def make_past_decisions(count: int = 5, **more: Any) -> list[PastDecision]:
    return [make_past_decision(number, **more) for number in range(count)]


def suggest_from(
    decisions: Sequence[PastDecision],
    *rules: str,
    facts: FactTypes | None = None,
    hidden_arguments: tuple[str, ...] = (),
    **more: Any,
) -> SuggestionResult:
    told = {"amount": FACTS["amount"]} if facts is None else facts
    refund = ToolFacts(digest=more.get("digest", REFUND.digest), facts=told, hidden_arguments=hidden_arguments)
    tools = {("crm.refund", "1.0.0"): refund}
    until = more.get("until", UNTIL)
    return suggest_permits(decisions, compile_active(*rules), lambda *name: tools.get(name), now_ms=NOW, until=until)


def is_permitted(rule: CompiledPolicies, request: PolicyQuery) -> bool:
    return rule.evaluate_query(request).behavior is Behavior.ALLOW
