"""What is asked before a call, and what was answered: the words every policy engine and hook speaks."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal

from deputize.core.caller import Caller, Epochs
from deputize.core.contract import Contract, Effects
from deputize.core.frozen import frozen

Environment = Literal["development", "staging", "production"]
Source = Literal["cedar", "authzen", "hook"]


class Behavior(StrEnum):
    """`passthrough` is the answer of a hook that has no opinion; it is never the answer of a decision."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"
    PASSTHROUGH = "passthrough"

    @property
    def strictness(self) -> int:
        return _STRICTNESS[self]


_STRICTNESS = {Behavior.PASSTHROUGH: 0, Behavior.ALLOW: 1, Behavior.ASK: 2, Behavior.DENY: 3}


@frozen
class Rule:
    """A rule that spoke: its id, where it is written (`policies/default.cedar:8`), and its author's reason."""

    id: str
    where: str = ""
    reason: str = ""


@frozen
class Demand:
    """What one asking rule wants: somebody of these groups, so many of them, signed in this way, until then."""

    rule: str
    where: str
    reason: str
    # An escalation chain: the first is asked first. Empty is the chain of the settings.
    groups: tuple[str, ...] = ()
    quorum: int = 1
    # None is the deadline of the settings.
    deadline_seconds: int | None = None
    # What an approver's token must have in `amr` or `acr`.
    step_up: str = ""


def demanded(rules: Iterable[Rule]) -> tuple[Demand, ...]:
    """The demands of rules that say no more than that somebody has to be asked."""
    return tuple(Demand(rule=rule.id, where=rule.where, reason=rule.reason) for rule in rules)


@frozen
class Question:
    """Everything a policy may know about one call. Facts are the arguments its contract exposes to policy."""

    caller: Caller
    contract: Contract
    environment: Environment
    session: str | None
    now_ms: int
    facts: Mapping[str, Any]
    # Facts that rules may read and records must not hold, by name.
    withheld: frozenset[str] = frozenset()
    # What the call would change, filled in from its arguments: (resource, operation, scope).
    touches: tuple[tuple[str, str, str], ...] = ()
    cost_micros: int = 0
    labels: frozenset[str] = frozenset()

    @property
    def sweeping(self) -> bool:
        return sweeps(self.contract.effects, self.touches)


def sweeps(effects: Effects, touches: Sequence[tuple[str, str, str]]) -> bool:
    """Whether a call may change more than it names: a `*` in what it would touch, or nothing declared at all. What it
    creates has no name yet.
    """
    if effects is Effects.READ:
        return False
    for _, op, scope in touches:  # a loop, because it stands before every write
        if "*" in scope and op != "create":
            return True
    return not touches


@frozen
class Verdict:
    """What one engine answered, by which rules, under which policies. `errors` are evaluation errors: they deny.
    `demands` has one for each asking rule that spoke, where the answer is to ask.
    """

    behavior: Behavior
    rules: tuple[Rule, ...]
    digest: str
    source: Source = "cedar"
    reason: str = ""
    errors: tuple[str, ...] = ()
    suggestion: str = ""
    demands: tuple[Demand, ...] = ()


@frozen
class Decided:
    """A verdict and the record it can be replayed from (canonical JSON, redacted), named by its keyed digest."""

    verdict: Verdict
    record_id: str
    record: bytes


@frozen
class Decision:
    """Why a call may go on: the rules that allowed it, as of which epochs, and the record they were decided from.
    With demands it may go on only once humans have met every one of them.
    """

    rules: tuple[str, ...]
    epochs: Epochs
    policy_digest: str = ""
    record_id: str = ""
    demands: tuple[Demand, ...] = ()
