"""What is asked before a call, and what was answered: the words every policy engine and hook speaks."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from deputize.core.caller import Caller, Epochs
from deputize.core.contract import Contract
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


@frozen
class Verdict:
    """What one engine answered, by which rules, under which policies. `errors` are evaluation errors: they deny."""

    behavior: Behavior
    rules: tuple[Rule, ...]
    digest: str
    source: Source = "cedar"
    reason: str = ""
    errors: tuple[str, ...] = ()
    suggestion: str = ""


@frozen
class Decided:
    """A verdict and the record it can be replayed from (canonical JSON, redacted), named by its keyed digest."""

    verdict: Verdict
    record_id: str
    record: bytes


@frozen
class Decision:
    """Why a call may go on: the rules that allowed it, as of which epochs, and the record they were decided from."""

    rules: tuple[str, ...]
    epochs: Epochs
    policy_digest: str = ""
    record_id: str = ""
