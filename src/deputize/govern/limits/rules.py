"""Rules as they are applied: which calls one concerns, and which counter of it a call falls under.

What is counted apart is named by a digest, so that no subject, session or argument is ever spelled out in a counter.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from hashlib import blake2b
from math import ceil
from typing import Final, Literal

from deputize.core.caller import Caller
from deputize.core.contract import Contract
from deputize.core.errors import BudgetSpent, Problem, RateLimited, Runaway, TooManyAtOnce
from deputize.core.frozen import frozen
from deputize.core.limit_settings import LimitRule
from deputize.core.mistakes import Misconfigured

Per = Literal["caller", "agent", "tool", "provider", "session", "task"]
MICROS: Final = 1_000_000
# What Redis's numbers and PostgreSQL's can both hold many times over.
_MOST_MICROS: Final = 10**15
# A loop is one caller's in one session, unless the rule says otherwise.
_LOOPS: Final[tuple[Per, ...]] = ("caller", "session")
_COSTS: Final = frozenset({"budget", "cost_rate"})
_REFUSALS: Final[dict[str, type[Problem]]] = {
    "rate": RateLimited,
    "concurrency": TooManyAtOnce,
    "budget": BudgetSpent,
    "repeats": Runaway,
    "cost_rate": Runaway,
}


@frozen
class Asked:
    """What limits may know of one call."""

    call_id: str
    caller: Caller
    contract: Contract
    session: str | None
    canonical: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One rule of the settings, read once. `limit` counts calls, or millionths of a unit of cost."""

    source: LimitRule
    limit: int
    per: tuple[Per, ...]
    tenants: re.Pattern[str]
    tools: re.Pattern[str]

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def lost_denies(self) -> bool:
        return self.source.when_lost == "deny"

    def concerns(self, tenant: str, tool: str) -> bool:
        return self.tenants.fullmatch(tenant) is not None and self.tools.fullmatch(tool) is not None

    @property
    def costs(self) -> bool:
        """Whether it counts cost, and not calls."""
        return self.source.kind in _COSTS

    def digest(self, asked: Asked) -> str:
        parts = tuple(_apart(each, asked) for each in self.per)
        digest = blake2b(repr(parts).encode(), digest_size=16)
        if self.source.kind == "repeats":
            # What `repr` makes holds no NUL, so nothing before it can pass for arguments.
            digest.update(b"\0" + asked.contract.full_name.encode() + b"\0" + asked.canonical)
        return digest.hexdigest()

    def key(self, asked: Asked) -> str:
        """The braces keep a tenant's counters together where Redis is spread over several servers."""
        return f"deputize:{{{asked.caller.tenant}}}:{self.name}:{self.source.seconds * 1000:.0f}:{self.digest(asked)}"

    def refusal(self, *, used: int, retry_after_ms: int) -> Problem:
        source = self.source
        cost = source.kind in _COSTS
        return _REFUSALS[source.kind](
            self._sentence(),
            details={
                "rule": self.name,
                "kind": source.kind,
                "limit": source.limit,
                "used": used / MICROS if cost else used,
                "seconds": None if source.kind == "concurrency" else source.seconds,
                "per": list(self.per),
                **({"begins_anew_in_seconds": retry_after_ms // 1000 + 1} if source.kind == "budget" else {}),
            },
            retry_after_ms=retry_after_ms,
            nothing_happened=True,
        )

    def _sentence(self) -> str:
        limit, seconds = f"{self.source.limit:g}", f"{self.source.seconds:g} s"
        match self.source.kind:
            case "rate":
                said = f"at most {limit} calls in {seconds}"
            case "concurrency":
                said = f"at most {limit} calls at once"
            case "budget":
                said = f"at most {limit} of cost in each {seconds}"
            case "repeats":
                said = f"the same call at most {limit} times in {seconds}"
            case "cost_rate":
                said = f"at most {limit} of cost in any {seconds}"
        apart = f", counted per {' and '.join(self.per)}" if self.per else ""
        return f"limit {self.name} says: {said}{apart}"


def read_rules(rules: Sequence[LimitRule]) -> tuple[Rule, ...]:
    """The rules, or the sentence that says which of them cannot be meant."""
    names = [rule.name for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise Misconfigured(f"Two limits are named {name}: give each of limits.rules a name of its own.")
    return tuple(_read(rule) for rule in rules)


def _read(rule: LimitRule) -> Rule:
    limit = micros(rule.limit) if rule.kind in _COSTS else int(rule.limit)
    if limit < 1:
        raise Misconfigured(f"The limit {rule.name} lets nothing through: set its limit to 1 or more.")
    return Rule(
        source=rule,
        limit=limit,
        per=rule.per or (_LOOPS if rule.kind == "repeats" else ()),
        tenants=re.compile(translate(rule.tenants)),
        tools=re.compile(translate(rule.tools)),
    )


def _apart(what: Per, asked: Asked) -> tuple[str | None, ...]:
    """Who or what a counter belongs to. A session is its caller's own, and a task its user's, whatever they are named:
    nobody uses up another's by naming it. Where there is no agent, session or task, it is the person's own.
    """
    caller, contract = asked.caller, asked.contract
    match what:
        case "caller":
            return caller.lent_to
        case "agent":
            return ("agent", caller.agents[-1]) if caller.agents else ("user", caller.user)
        case "tool":
            return (contract.full_name,)
        case "provider":
            return (contract.external_service or contract.provider or contract.namespace,)
        case "session":
            return (asked.session, *caller.lent_to)
        case "task":
            return (caller.task, caller.user)


def micros(cost: float) -> int:
    """Cost in millionths, rounded up: a cost is never nothing because it is small."""
    # The inner rounding takes back what a float adds to a decimal fraction.
    return min(ceil(round(cost * MICROS, 3)), _MOST_MICROS) if cost > 0 else 0
