"""Define the port of counters: sliding windows and expiring slots, requested together and taken all or none.

`in_process.py` and `redis.py` implement it, and one contract test runs against both. A window is a log that merges the
entries of each thousandth of its length: it never contains more than its limit, and allows at most a thousandth less.
`govern/limits` has the rules.
"""

from collections.abc import Awaitable, Sequence
from typing import Final, Protocol

from deputize.core.value_types import frozen

WINDOW_PARTS: Final = 1000
"""The parts of a window; an entry leaves the window when its whole part is over."""


class CountersUnavailable(Exception):
    """The counters cannot be reached. The message contains no address and no secret."""


@frozen
class Window:
    """At most `limit` of weight in any `seconds`. A full window accepts nothing, not even a request without weight."""

    key: str
    limit: int
    seconds: float
    weight: int = 1


@frozen
class Slot:
    """One of `limit` slots, which a holder keeps until it releases it, or for `seconds`."""

    key: str
    limit: int
    seconds: float
    holder: str


CounterRequest = Window | Slot


@frozen
class TakeResult:
    """The result of all requests of one call. If one was refused (`refused_index`), none was taken.

    `usage` and `retry_after_ms` belong to the refused request; `at` is the counters' time, for later corrections.
    """

    refused_index: int | None
    at: int = 0
    usage: int = 0
    retry_after_ms: int = 0


@frozen
class WeightCorrection:
    """A correction of weight. More counts from now on; less is subtracted where it was charged."""

    key: str
    seconds: float
    weight: int
    at: int


@frozen
class SlotRelease:
    """A release of a holder's slot. Releasing twice, or after it expired, changes nothing."""

    key: str
    holder: str


CounterUpdate = WeightCorrection | SlotRelease


class Counters(Protocol):
    """Counters of limits. In-process counters return results, shared ones return awaitables."""

    @property
    def is_shared(self) -> bool:
        """True if other processes share these counters, which takes a round trip."""

    def take(self, requests: Sequence[CounterRequest]) -> TakeResult | Awaitable[TakeResult]:
        """Take all requests in one step, or none; raise `CountersUnavailable`."""

    def apply_updates(self, updates: Sequence[CounterUpdate]) -> Awaitable[None] | None:
        """Apply corrections and releases in one step, before anything this process takes later; raise
        `CountersUnavailable`, now or when awaited.
        """

    async def close(self) -> None:
        """Close the connections."""
