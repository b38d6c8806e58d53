"""The crash matrix itself: every boundary a call passes, every tool, and what must come of a kill there."""

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


class EffectTool(StrEnum):
    LOOK = "look"
    BOOK = "book"
    SEND = "send"
    HAUL = "haul"

    @property
    def deduplicates(self) -> bool:
        return self is EffectTool.BOOK


TOOL_KINDS = {
    EffectTool.LOOK: "read",
    EffectTool.BOOK: "write, upstream deduplicates",
    EffectTool.SEND: "write, upstream cannot",
    EffectTool.HAUL: "slow write, upstream cannot",
}


class RetryEnd(StrEnum):
    """What one retry with the same key finds."""

    ANEW = "anew"  # nothing was begun before, or it was a read: the retry does it, and succeeds
    TAKEN_OVER = "taken over"  # begun by the dead, done by the retry, once at the upstream; succeeds
    REPLAYED = "replayed"  # had succeeded; the stored outcome, byte for byte
    UNKNOWN = "unknown"  # begun by the dead, and nobody may begin it again


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedEnd:
    end: RetryEnd
    effects: int

    def __str__(self) -> str:
        return f"{self.end} {self.effects}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    boundary: Boundary
    tool: EffectTool

    @property
    def expected_end(self) -> ExpectedEnd:
        if self.tool is EffectTool.LOOK:
            return ExpectedEnd(end=RetryEnd.ANEW, effects=0)
        if self.boundary in _BEFORE_CLAIM:
            return ExpectedEnd(end=RetryEnd.ANEW, effects=1)
        if self.boundary in _AFTER_OUTCOME:
            return ExpectedEnd(end=RetryEnd.REPLAYED, effects=1)
        if self.tool.deduplicates:
            return ExpectedEnd(end=RetryEnd.TAKEN_OVER, effects=1)
        return ExpectedEnd(end=RetryEnd.UNKNOWN, effects=0 if self.boundary in _NOT_DONE else 1)

    @property
    def expected_evidence(self) -> tuple[str, ...]:
        """What PostgreSQL and the ledger may show right after the kill, if it struck where it was meant to."""
        if self.tool is EffectTool.LOOK:
            return ("no row",)
        if self.boundary in _BEFORE_CLAIM:
            return ("no row",)
        if self.boundary in _AFTER_OUTCOME:
            return ("succeeded, owner 1, asked 1, happened 1",)
        attempt_count, effect_count = _UPSTREAM_COUNTS[self.boundary]
        owner = 2 if self.boundary is Boundary.RETAKE_UNHEARD else 1
        states = ["running"]
        if self.boundary is Boundary.RETAKE_UNSENT:
            # The first owner died earlier: a sweeper may have said so in the meantime.
            states.append("unknown")
        return tuple(f"{state}, owner {owner}, asked {attempt_count}, happened {effect_count}" for state in states)

    @property
    def delay_ms(self) -> int | None:
        """How slow the upstream is made, where that is what the kill needs; otherwise the tool's own pace."""
        if self.boundary is not Boundary.DURING_EFFECT:
            return None
        # A booking still under way when its retry arrives: both are at the upstream at once.
        return 4500 if self.tool.deduplicates else 600

    def __str__(self) -> str:
        return f"{self.boundary} x {self.tool}"


_B = Boundary
_BEFORE_CLAIM = frozenset({_B.BEFORE_REQUEST, _B.CLAIM_UNSENT})
_AFTER_OUTCOME = frozenset({_B.OUTCOME_UNHEARD, _B.BEFORE_REPLY, _B.AFTER_REPLY})
_NOT_DONE = frozenset({_B.CLAIM_UNHEARD, _B.BEFORE_EFFECT})
_UPSTREAM_COUNTS = {
    _B.CLAIM_UNHEARD: (0, 0),
    _B.BEFORE_EFFECT: (1, 0),
    _B.DURING_EFFECT: (0, 0),
    _B.AFTER_EFFECT: (1, 1),
    _B.OUTCOME_UNSENT: (1, 1),
    _B.RETAKE_UNSENT: (1, 1),
    _B.RETAKE_UNHEARD: (1, 1),
}
TAKEOVERS = frozenset({_B.RETAKE_UNSENT, _B.RETAKE_UNHEARD})
_NEVER_OF_A_READ = frozenset({_B.CLAIM_UNSENT, _B.CLAIM_UNHEARD, _B.DURING_EFFECT})


def is_applicable(boundary: Boundary, tool: EffectTool) -> bool:
    """A read claims nothing; a call is taken over only where the upstream deduplicates."""
    if boundary in TAKEOVERS:
        return tool.deduplicates
    return not (tool is EffectTool.LOOK and boundary in _NEVER_OF_A_READ)


MATRIX = tuple(
    Cell(boundary=boundary, tool=tool) for boundary in Boundary for tool in EffectTool if is_applicable(boundary, tool)
)

# Every boundary, every tool and every kind of end at least once.
QUICK_MATRIX = tuple(
    cell
    for cell in MATRIX
    if cell.tool is EffectTool.SEND
    or (cell.tool is EffectTool.BOOK and cell.boundary not in (_B.BEFORE_REQUEST, _B.DURING_EFFECT, _B.BEFORE_REPLY))
    or (cell.tool is EffectTool.HAUL and cell.boundary in (_B.DURING_EFFECT, _B.OUTCOME_UNSENT))
    or (cell.tool is EffectTool.LOOK and cell.boundary in (_B.OUTCOME_UNSENT, _B.OUTCOME_UNHEARD))
)
