"""Questions that people answered, and what is learned from them."""

from collections.abc import Mapping, Sequence
from typing import Any

from deputize.core.caller import Caller
from deputize.core.contract import Contract
from deputize.core.decision import Behavior
from deputize.govern.approvals.suggest import Past, Suggested, Tool, is_evidence, suggest
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.decisions import Decisions
from deputize.govern.policy.records import question_from
from deputize.govern.policy.rules import PolicyFile
from deputize.govern.policy.world import Asked, FactTypes
from tests.unit.govern.policy.asking import MOMENT, caller, question, tool

DAY = 86_400_000
NOW = MOMENT + 10 * DAY
UNTIL = NOW // 1000 + 30 * 86_400
FACTS: FactTypes = {"amount": "Long", "order": "Long", "note": "String", "fast": "Bool", "to": "Set<String>"}
ASKS = '@id("asks") @decision("ask") permit (principal, action, resource);'
REFUND = tool("crm.refund", effects="write")
IDA = caller("ida", agents=("bot",), groups=frozenset({"support"}), scopes=frozenset({"crm:write"}))
PEOPLE = ("ana", "ben")
NOTHING = Suggested(drafts=(), withheld=(), file=None)


def in_force(*rules: str) -> CompiledPolicies:
    return CompiledPolicies([PolicyFile(path="own.cedar", text="\n".join(rules or (ASKS,)))], FACTS)


def past(
    number: int,
    who: Caller = IDA,
    what: Contract = REFUND,
    *,
    facts: Mapping[str, Any] | None = None,
    approved: bool = True,
    rules: Sequence[str] = ("asks",),
    policies: CompiledPolicies | None = None,
    **more: Any,
) -> Past:
    asked = question(who, what, facts=facts or {"amount": 20}, environment="production", **more)
    decided = Decisions(policies or in_force(), key=b"k").decide_anew(asked)
    replay = question_from(decided.record, now_ms=asked.now_ms)
    assert is_evidence(replay, policies or in_force())
    return Past(
        ticket=f"ticket-{number}", approved=approved, people=frozenset({PEOPLE[number % 2]}),
        at_ms=MOMENT + number * DAY, rules=frozenset(rules), replay=replay,
    )  # fmt: skip


def several(count: int = 5, **more: Any) -> list[Past]:
    return [past(number, **more) for number in range(count)]


def learn(
    found: Sequence[Past], *rules: str, facts: FactTypes | None = None, unseen: tuple[str, ...] = (), **more: Any
) -> Suggested:
    told = {"amount": FACTS["amount"]} if facts is None else facts
    refund = Tool(digest=more.get("digest", REFUND.digest), facts=told, unseen=unseen)
    tools = {("crm.refund", "1.0.0"): refund}
    until = more.get("until", UNTIL)
    return suggest(found, in_force(*rules), lambda *name: tools.get(name), now_ms=NOW, until=until)


def permits(rule: CompiledPolicies, asked: Asked) -> bool:
    return rule.replay(asked).behavior is Behavior.ALLOW
