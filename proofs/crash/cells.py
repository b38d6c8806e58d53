"""The crash matrix itself: every boundary a call passes, every tool, and what must come of a kill there.

Above: `crash_matrix`. Below: nothing; this is the table that is printed and checked.
"""

from dataclasses import dataclass
from enum import StrEnum


class Boundary(StrEnum):
    """Where the gateway dies, in the order in which a call gets there."""

    BEFORE_REQUEST = "before the request"
    CLAIM_UNSENT = "before the claim's commit"
    CLAIM_UNHEARD = "claim committed, not acknowledged"
    BEFORE_EFFECT = "before the effect"
    DURING_EFFECT = "while the upstream works"
    AFTER_EFFECT = "after the effect, before its answer"
    OUTCOME_UNSENT = "before the outcome's commit"
    OUTCOME_UNHEARD = "outcome committed, not acknowledged"
    BEFORE_REPLY = "before the reply"
    AFTER_REPLY = "after the reply"
    RETAKE_UNSENT = "retry: before the takeover's commit"
    RETAKE_UNHEARD = "retry: takeover committed, not acknowledged"


class Tool(StrEnum):
    LOOK = "look"
    BOOK = "book"
    SEND = "send"
    HAUL = "haul"

    @property
    def deduplicates(self) -> bool:
        return self is Tool.BOOK


WHAT = {
    Tool.LOOK: "read",
    Tool.BOOK: "write, upstream deduplicates",
    Tool.SEND: "write, upstream cannot",
    Tool.HAUL: "slow write, upstream cannot",
}


class End(StrEnum):
    """What one retry with the same key finds."""

    ANEW = "anew"  # nothing was begun before, or it was a read: the retry does it, and succeeds
    TAKEN_OVER = "taken over"  # begun by the dead, done by the retry, once at the upstream; succeeds
    REPLAYED = "replayed"  # had succeeded; the stored outcome, byte for byte
    UNKNOWN = "unknown"  # begun by the dead, and nobody may begin it again


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    end: End
    effects: int

    def __str__(self) -> str:
        return f"{self.end} {self.effects}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    boundary: Boundary
    tool: Tool

    @property
    def expected(self) -> Expected:
        if self.tool is Tool.LOOK:
            return Expected(end=End.ANEW, effects=0)
        if self.boundary in _UNCLAIMED:
            return Expected(end=End.ANEW, effects=1)
        if self.boundary in _STORED:
            return Expected(end=End.REPLAYED, effects=1)
        if self.tool.deduplicates:
            return Expected(end=End.TAKEN_OVER, effects=1)
        return Expected(end=End.UNKNOWN, effects=0 if self.boundary in _NOT_DONE else 1)

    @property
    def evidence(self) -> tuple[str, ...]:
        """What PostgreSQL and the ledger may show right after the kill, if it struck where it was meant to."""
        if self.tool is Tool.LOOK:
            return ("no row",)
        if self.boundary in _UNCLAIMED:
            return ("no row",)
        if self.boundary in _STORED:
            return ("succeeded, owner 1, asked 1, happened 1",)
        asked, happened = _ASKED[self.boundary]
        owner = 2 if self.boundary is Boundary.RETAKE_UNHEARD else 1
        states = ["running"]
        if self.boundary is Boundary.RETAKE_UNSENT:
            # The first owner died earlier: a sweeper may have said so in the meantime.
            states.append("unknown")
        return tuple(f"{state}, owner {owner}, asked {asked}, happened {happened}" for state in states)

    @property
    def delay_ms(self) -> int | None:
        """How slow the upstream is made, where that is what the kill needs; otherwise the tool's own pace."""
        if self.boundary is not Boundary.DURING_EFFECT:
            return None
        # A booking still under way when its retry arrives: both are at the upstream at once.
        return 4500 if self.tool.deduplicates else 600

    def __str__(self) -> str:
        return f"{self.boundary} x {self.tool}"


B = Boundary
_UNCLAIMED = frozenset({B.BEFORE_REQUEST, B.CLAIM_UNSENT})
_STORED = frozenset({B.OUTCOME_UNHEARD, B.BEFORE_REPLY, B.AFTER_REPLY})
_NOT_DONE = frozenset({B.CLAIM_UNHEARD, B.BEFORE_EFFECT})
_ASKED = {
    B.CLAIM_UNHEARD: (0, 0),
    B.BEFORE_EFFECT: (1, 0),
    B.DURING_EFFECT: (0, 0),
    B.AFTER_EFFECT: (1, 1),
    B.OUTCOME_UNSENT: (1, 1),
    B.RETAKE_UNSENT: (1, 1),
    B.RETAKE_UNHEARD: (1, 1),
}
TAKEOVERS = frozenset({B.RETAKE_UNSENT, B.RETAKE_UNHEARD})
_NEVER_OF_A_READ = frozenset({B.CLAIM_UNSENT, B.CLAIM_UNHEARD, B.DURING_EFFECT})


def exists(boundary: Boundary, tool: Tool) -> bool:
    """A read claims nothing; a call is taken over only where the upstream deduplicates."""
    if boundary in TAKEOVERS:
        return tool.deduplicates
    return not (tool is Tool.LOOK and boundary in _NEVER_OF_A_READ)


MATRIX = tuple(Cell(boundary=boundary, tool=tool) for boundary in Boundary for tool in Tool if exists(boundary, tool))

# Every boundary, every tool and every kind of end at least once.
QUICK = tuple(
    cell
    for cell in MATRIX
    if cell.tool is Tool.SEND
    or (cell.tool is Tool.BOOK and cell.boundary not in (B.BEFORE_REQUEST, B.DURING_EFFECT, B.BEFORE_REPLY))
    or (cell.tool is Tool.HAUL and cell.boundary in (B.DURING_EFFECT, B.OUTCOME_UNSENT))
    or (cell.tool is Tool.LOOK and cell.boundary in (B.OUTCOME_UNSENT, B.OUTCOME_UNHEARD))
)
