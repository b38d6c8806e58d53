"""The counters' port: windows that slide and slots that expire, asked for together and taken all or none.

Two implementations stand behind it, `in_process.py` and `redis.py`; one contract test runs against both. A window is a
log whose entries of the same thousandth of it are one: no window of its length ever holds more than its limit, and what
is let through falls short of the limit by a thousandth at most.

Above: `govern/limits`, which knows the rules. Nothing here knows why something is counted.
"""

from collections.abc import Awaitable, Sequence
from typing import Final, Protocol

from deputize.core.frozen import frozen

PARTS: Final = 1000
"""How finely a window is kept; an entry leaves it when all of its part is over."""


class CountersLost(Exception):
    """Nobody can say now what was counted. The message holds no address and no secret."""


@frozen
class Window:
    """At most `limit` of weight in any `seconds`. Nothing is let into a full window, not even what weighs nothing."""

    key: str
    limit: int
    seconds: float
    weight: int = 1


@frozen
class Slot:
    """One of `limit` places that a holder keeps until it lets go, or for `seconds` if it never does."""

    key: str
    limit: int
    seconds: float
    holder: str


Ask = Window | Slot


@frozen
class Taken:
    """What became of everything one call asked for. If one ask is `refused` (its place among them), none was taken.

    `used` and `retry_after_ms` speak of the refused one; `at` is the counters' own time, which later changes refer to.
    """

    refused: int | None
    at: int = 0
    used: int = 0
    retry_after_ms: int = 0


@frozen
class Recount:
    """More or less weight than was taken. More counts from now on; less is taken off where it was charged."""

    key: str
    seconds: float
    weight: int
    at: int


@frozen
class Release:
    """The holder's slot is free again; letting go twice, or of what has expired, changes nothing."""

    key: str
    holder: str


Change = Recount | Release


class Counters(Protocol):
    """Whoever is asked in process answers at once; whoever has to ask elsewhere answers with something to await."""

    @property
    def shared(self) -> bool:
        """Whether other processes count here too, which takes a round trip."""

    def take(self, asks: Sequence[Ask]) -> Taken | Awaitable[Taken]:
        """All of it in one step, or nothing; raises `CountersLost`."""

    def settle(self, changes: Sequence[Change]) -> Awaitable[None] | None:
        """What became known after the call, in one step, and before anything this process takes afterwards; raises
        `CountersLost`, now or when awaited."""

    async def close(self) -> None: ...
