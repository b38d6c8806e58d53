"""Define policy requests, verdicts and decisions, for every policy engine and hook."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal

from deputize.core.caller import Caller, Epochs
from deputize.core.contract.availability import AdmittedDrift
from deputize.core.contract.contract import Contract, Effects
from deputize.core.contract.isolation import BackendDemand
from deputize.core.value_types import frozen

Environment = Literal["development", "staging", "production"]
VerdictSource = Literal["cedar", "authzen", "hook"]


class Behavior(StrEnum):
    """What a rule or hook says. `passthrough` is for hooks without an opinion; a decision never has it."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"
    PASSTHROUGH = "passthrough"

    @property
    def strictness(self) -> int:
        return _STRICTNESS[self]


_STRICTNESS = {Behavior.PASSTHROUGH: 0, Behavior.ALLOW: 1, Behavior.ASK: 2, Behavior.DENY: 3}


@frozen
class MatchedRule:
    """A rule that matched: its id, its place (`policies/default.cedar:8`), and its author's reason."""

    id: str
    where: str = ""
    reason: str = ""


@frozen
class ApprovalRequirement:
    """The approval that one rule requires: by which groups, how many people, signed in how, and by when."""

    rule: str
    where: str
    reason: str
    # The escalation chain, first group first. Empty: the groups of the settings.
    groups: tuple[str, ...] = ()
    quorum: int = 1
    # None: the deadline of the settings.
    deadline_seconds: int | None = None
    # What an approver's token must have in `amr` or `acr`.
    step_up: str = ""


def build_approval_requirements(rules: Iterable[MatchedRule]) -> tuple[ApprovalRequirement, ...]:
    """Build the requirements of rules that require approval and give no further terms."""
    return tuple(ApprovalRequirement(rule=rule.id, where=rule.where, reason=rule.reason) for rule in rules)


@frozen
class UndoneCall:
    """The call that another one takes back: its tool, and the agents that acted in it, or in a call that it took back
    itself. Whatever is sent to take it back may be their words.
    """

    tool: str
    agents: tuple[str, ...] = ()


@frozen
class PolicyRequest:
    """Everything a policy may know about one call. Facts are the arguments that its contract exposes to policies."""

    caller: Caller
    contract: Contract
    environment: Environment
    session: str | None
    now_ms: int
    facts: Mapping[str, Any]
    # Names of facts that rules may read and decision records must not contain.
    unrecorded_facts: frozenset[str] = frozenset()
    # What the call would change, from its arguments: (resource, operation, scope).
    side_effects: tuple[tuple[str, str, str], ...] = ()
    cost_micros: int = 0
    labels: frozenset[str] = frozenset()
    # Set for a call that takes another one back.
    undone: UndoneCall | None = None

    @property
    def has_unbounded_scope(self) -> bool:
        return has_unbounded_scope(self.contract.effects, self.side_effects)


def has_unbounded_scope(effects: Effects, side_effects: Sequence[tuple[str, str, str]]) -> bool:
    """Tell whether a call may change more than it names: a scope contains `*`, or no effects are declared. A created
    resource has no name yet, so its `*` does not count.
    """
    if effects is Effects.READ:
        return False
    for _, op, scope in side_effects:  # a loop, because every write runs it
        if "*" in scope and op != "create":
            return True
    return not side_effects


@frozen
class Verdict:
    """The answer of one engine: by which rules, under which policies. Evaluation errors deny. If the answer is to ask,
    `requirements` has one entry for each rule that requires approval.
    """

    behavior: Behavior
    rules: tuple[MatchedRule, ...]
    digest: str
    source: VerdictSource = "cedar"
    reason: str = ""
    errors: tuple[str, ...] = ()
    suggestion: str = ""
    requirements: tuple[ApprovalRequirement, ...] = ()
    # Which effects a tool that its server changed may have all the same, by the rules that permit the call.
    admitted_drift: AdmittedDrift = AdmittedDrift.NONE
    # Whether an irreversible call may come without an idempotency key, by one of these rules.
    is_key_optional: bool = False
    # The sandboxes that rules demand: the call is made in no weaker one.
    backend_demands: tuple[BackendDemand, ...] = ()
    # If it denies because a demand was not met: where the call would have run, such as `none`.
    weak_sandbox: str = ""


@frozen
class RecordedVerdict:
    """A verdict with its decision record (canonical JSON, redacted) for replay; its id is a keyed digest."""

    verdict: Verdict
    record_id: str
    record: bytes


@frozen
class Decision:
    """Why a call may proceed: the rules that allowed it, the epochs, and the decision record. With requirements, it
    proceeds only once people have approved each of them.
    """

    rules: tuple[str, ...]
    epochs: Epochs
    policy_digest: str = ""
    record_id: str = ""
    requirements: tuple[ApprovalRequirement, ...] = ()
    admitted_drift: AdmittedDrift = AdmittedDrift.NONE
    # Whether an irreversible call may come without an idempotency key, by one of these rules.
    is_key_optional: bool = False
    backend_demands: tuple[BackendDemand, ...] = ()
