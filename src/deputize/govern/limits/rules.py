"""Compile limit rules: to which calls a rule applies, and which of its counters a call uses.

Counter keys contain a digest, so that no subject, session or argument is readable in a counter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil
from typing import Final, Literal

from deputize.core.caller import Caller
from deputize.core.config_error import ConfigError
from deputize.core.contract.contract import Contract
from deputize.core.errors import BudgetExhausted, ConcurrencyLimitReached, Problem, RateLimited, RunawayLoop
from deputize.core.patterns import LinearPattern, compile_glob
from deputize.core.settings.limits import LimitRule
from deputize.core.value_types import frozen

CounterScope = Literal["caller", "user", "agent", "tool", "provider", "session", "task"]
MICROS: Final = 1_000_000
# Far below the largest integers of Redis and PostgreSQL.
_MAX_MICROS: Final = 10**15
# Repeated calls are counted per caller and session, unless the rule sets `per`.
_LOOP_SCOPE: Final[tuple[CounterScope, ...]] = ("caller", "session")
_COST_KINDS: Final = frozenset({"budget", "cost_rate"})
_REFUSALS: Final[dict[str, type[Problem]]] = {
    "rate": RateLimited,
    "concurrency": ConcurrencyLimitReached,
    "budget": BudgetExhausted,
    "repeats": RunawayLoop,
    "cost_rate": RunawayLoop,
}


@frozen
class MeteredCall:
    """What limit rules can read of one call."""

    call_id: str
    caller: Caller
    contract: Contract
    session: str | None
    canonical_arguments: bytes
    # One execution of a run, which holds the slots instead of the call: another worker may execute the call again.
    execution_id: str | None = None

    @property
    def is_run(self) -> bool:
        return self.execution_id is not None

    @property
    def slot_holder(self) -> str:
        return self.execution_id or self.call_id


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledLimit:
    """A limit rule of the settings, compiled. `limit` counts calls, or millionths of a cost unit."""

    source: LimitRule
    limit: int
    per: tuple[CounterScope, ...]
    tenants: LinearPattern
    tools: LinearPattern

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def should_deny_when_lost(self) -> bool:
        return self.source.when_lost == "deny"

    def is_applicable(self, tenant: str, tool: str) -> bool:
        return self.tenants.matches_whole(tenant) and self.tools.matches_whole(tool)

    @property
    def is_cost_limit(self) -> bool:
        """Whether the rule limits cost instead of calls."""
        return self.source.kind in _COST_KINDS

    def compute_digest(self, call: MeteredCall) -> str:
        scopes = tuple(_resolve_scope(each, call) for each in self.per)
        digest = blake2b(repr(scopes).encode(), digest_size=16)
        if self.source.kind == "repeats":
            # `repr` contains no NUL, so scopes and arguments cannot be confused.
            digest.update(b"\0" + call.contract.full_name.encode() + b"\0" + call.canonical_arguments)
        return digest.hexdigest()

    def build_key(self, call: MeteredCall) -> str:
        """Build the counter's key. The braces keep a tenant's counters on one node of a Redis cluster."""
        window_ms = f"{self.source.seconds * 1000:.0f}"
        return f"deputize:{{{call.caller.tenant}}}:{self.name}:{window_ms}:{self.compute_digest(call)}"

    def build_refusal(self, *, usage: int, retry_after_ms: int) -> Problem:
        source = self.source
        is_cost = source.kind in _COST_KINDS
        return _REFUSALS[source.kind](
            self._describe_limit(),
            details={
                "rule": self.name,
                "kind": source.kind,
                "limit": source.limit,
                "used": usage / MICROS if is_cost else usage,
                "seconds": None if source.kind == "concurrency" else source.seconds,
                "per": list(self.per),
                **({"begins_anew_in_seconds": retry_after_ms // 1000 + 1} if source.kind == "budget" else {}),
            },
            retry_after_ms=retry_after_ms,
            nothing_happened=True,
        )

    def _describe_limit(self) -> str:
        limit, seconds = f"{self.source.limit:g}", f"{self.source.seconds:g} s"
        match self.source.kind:
            case "rate":
                text = f"at most {limit} calls in {seconds}"
            case "concurrency":
                text = f"at most {limit} concurrent calls"
            case "budget":
                text = f"at most a cost of {limit} in each {seconds}"
            case "repeats":
                text = f"the same call at most {limit} times in {seconds}"
            case "cost_rate":
                text = f"at most a cost of {limit} in any {seconds}"
        scope_text = f", counted per {' and '.join(self.per)}" if self.per else ""
        return f"limit {self.name} allows {text}{scope_text}"


def compile_limits(rules: Sequence[LimitRule]) -> tuple[CompiledLimit, ...]:
    """Compile all rules, or raise `ConfigError` for the first that cannot work."""
    names = [rule.name for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"Two limits are named {name}: give each entry of limits.rules its own name.")
    return tuple(_compile_limit(rule) for rule in rules)


def _compile_limit(rule: LimitRule) -> CompiledLimit:
    limit = to_micros(rule.limit) if rule.kind in _COST_KINDS else int(rule.limit)
    if limit < 1:
        raise ConfigError(f"The limit {rule.name} would refuse every call: set its limit to 1 or more.")
    return CompiledLimit(
        source=rule,
        limit=limit,
        per=rule.per or (_LOOP_SCOPE if rule.kind == "repeats" else ()),
        tenants=compile_glob(rule.tenants),
        tools=compile_glob(rule.tools),
    )


def _resolve_scope(scope: CounterScope, call: MeteredCall) -> tuple[str | None, ...]:
    """Resolve what a counter belongs to.

    Sessions include their caller and tasks their user, so that no caller uses up another's limit by reusing a name.
    Without an agent, session or task, the counter belongs to the user.
    """
    caller, contract = call.caller, call.contract
    match scope:
        case "caller":
            return caller.delegation_origin
        case "user":
            return ("user", caller.user)
        case "agent":
            return ("agent", caller.agents[-1]) if caller.agents else ("user", caller.user)
        case "tool":
            return (contract.full_name,)
        case "provider":
            return (contract.external_service or contract.provider or contract.namespace,)
        case "session":
            return (call.session, *caller.delegation_origin)
        case "task":
            return (caller.task, caller.user)


def to_micros(cost: float) -> int:
    """Convert cost to millionths, rounded up, so that a small cost never becomes zero."""
    # The inner rounding removes the float error of decimal fractions.
    return min(ceil(round(cost * MICROS, 3)), _MAX_MICROS) if cost > 0 else 0
