"""What one call went through, as whoever took part in it knows: who asked, who tried to decide, what was answered.

Above: `stories` write it, `judge` holds it against the ledger and the audit entries. Below: nothing.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Expect(StrEnum):
    RUNS = "runs once"
    NEVER = "never runs"
    EITHER = "runs once or never"


class Why(StrEnum):
    """Why a call must not run."""

    CHANGED = "changed"
    EXPIRED = "expired"
    NOT_APPROVED = "not approved"


@dataclass(frozen=True, kw_only=True, slots=True)
class Heard:
    """A decision that a gateway said it took."""

    ticket: str
    who: str
    word: str
    state: str
    at: float


@dataclass(kw_only=True, slots=True)
class Tale:
    label: str
    kind: str
    user: str
    agent: str | None
    tool: str
    token: str
    delay_ms: int = 0
    hasty: bool = False
    call: str = ""
    tickets: list[str] = field(default_factory=list)
    expires: float = 0.0
    expect: Expect = Expect.EITHER
    why: Why = Why.NOT_APPROVED
    people_needed: int = 1
    # What `wipe` acts upon; people say yes to this and nothing else.
    mark: str = "as it was"
    # By ticket: how often somebody tried to decide, and how often the gateway said no to somebody it knew.
    tries: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    refused_by: Counter[str] = field(default_factory=Counter)
    heard: list[Heard] = field(default_factory=list)
    # Who may have said something that counts; everybody else has not.
    rightful: set[str] = field(default_factory=set)
    # What an administrator did while it was being decided: the command and its subject, as entries name them.
    raced: tuple[str, str] | None = None
    wrong: list[str] = field(default_factory=list)

    @property
    def ticket(self) -> str:
        return self.tickets[-1]

    @property
    def lossy(self) -> bool:
        """Whether its upstream cannot tell a repeat, so that a worker's death may leave it unknown."""
        return self.tool == "asked.send"
