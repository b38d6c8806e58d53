"""Share the event loop: let others run before a long piece of work has kept it for some milliseconds."""

import asyncio
from typing import Final

from deputize.core.clock import Clock

_TURN_SECONDS: Final = 0.005


class LoopPace:
    """The turns of one piece of work on the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turn_ends_at = clock.monotonic() + _TURN_SECONDS

    async def take_turn(self) -> None:
        """Continue at once within a turn; after it, let the event loop do everything else first."""
        if self._clock.monotonic() >= self._turn_ends_at:
            await asyncio.sleep(0)
            self._turn_ends_at = self._clock.monotonic() + _TURN_SECONDS
