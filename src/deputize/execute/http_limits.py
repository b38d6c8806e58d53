"""How much of an HTTP answer may be something else than its content, for all clients of this gateway.

A peer may send heads before its answer, chunks of one byte, extensions of chunks and trailers, all without end. None of
that is content, so no limit of content ends it, and each byte of it takes far longer to parse.
"""

from collections.abc import Callable
from typing import Final

# As much as is parsed in less than 2 ms, whatever it contains. After each piece, the event loop does other things.
PIECE_BYTES: Final = 8_192
MAX_HEAD_BYTES: Final = 65_536
MAX_HEAD_LINES: Final = 256
# Heads with a status below 200.
MAX_INFORMATIONAL_HEADS: Final = 16
# Beyond a quarter of the content: one answer may have so much, and a stream that stays open as much in each minute.
_MAX_FRAMING_BYTES: Final = 65_536
_FRAMING_PER_SECOND: Final = 1_024


class FramingBudget:
    """Count the bytes of one answer that are not content. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counted_at = clock()
        self._excess = 0.0

    def spend(self, framing: int, content: int) -> bool:
        """Count bytes that were received; false if there are far more of framing than the content needs."""
        now = self._clock()
        earned = content / 4 + (now - self._counted_at) * _FRAMING_PER_SECOND
        self._counted_at = now
        self._excess = max(0.0, self._excess + framing - earned)
        return self._excess <= _MAX_FRAMING_BYTES
