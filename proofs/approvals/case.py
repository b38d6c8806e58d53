"""Record one approval case: who asked, who tried to decide, what each was answered."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Expectation(StrEnum):
    RUNS = "runs once"
    NEVER = "never runs"
    EITHER = "runs once or never"


class NoRunReason(StrEnum):
    """Why a call must not run."""

    CHANGED = "changed"
    EXPIRED = "expired"
    NOT_APPROVED = "not approved"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeardDecision:
    """A decision that a gateway said it took."""

    ticket: str
    who: str
    action: str
    state: str
    at: float


@dataclass(kw_only=True, slots=True)
class ApprovalCase:
    label: str
    kind: str
    user: str
    agent: str | None
    tool: str
    token: str
    delay_ms: int = 0
    has_short_deadline: bool = False
    call_id: str = ""
    request_ids: list[str] = field(default_factory=list)
    expires_at: float = 0.0
    expectation: Expectation = Expectation.EITHER
    reason: NoRunReason = NoRunReason.NOT_APPROVED
    quorum: int = 1
    # What `wipe` acts upon; people say yes to this and nothing else.
    guard_text: str = "as it was"
    # By ticket: how often somebody tried to decide, and how often the gateway said no to somebody it knew.
    tries: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    refusals_by_way: Counter[str] = field(default_factory=Counter)
    decisions: list[HeardDecision] = field(default_factory=list)
    # Who may have said something that counts; everybody else has not.
    allowed_voters: set[str] = field(default_factory=set)
    # What an administrator did while it was being decided: the command and its subject, as entries name them.
    concurrent_command: tuple[str, str] | None = None
    faults: list[str] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        return self.request_ids[-1]

    @property
    def is_lossy(self) -> bool:
        """Whether its upstream cannot tell a repeat, so that a worker's death may leave it unknown."""
        return self.tool == "asked.send"
