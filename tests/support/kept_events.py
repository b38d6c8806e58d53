"""Sinks that keep the events they get, for tests to look at."""

from collections.abc import Callable, Sequence
from typing import Any

from deputize.evidence.cloud_events import OutgoingEvent
from deputize.operations.background.events.sink import SinkFailure


class KeptEvents:
    """A sink that keeps what it gets, or refuses it."""

    def __init__(self) -> None:
        self.events: list[OutgoingEvent] = []
        self.refusals = 0
        self.before_send: Callable[[], Any] | None = None
        self.limit = 1_000_000

    async def send(self, events: Sequence[OutgoingEvent]) -> int:
        if self.before_send is not None:
            await self.before_send()
        if self.refusals:
            self.refusals -= 1
            raise SinkFailure("refused by the test")
        self.events += events[: self.limit]
        return min(len(events), self.limit)

    async def aclose(self) -> None:
        pass


class RefusedTenant(KeptEvents):
    """A sink that refuses the events of one tenant."""

    def __init__(self, refused: str) -> None:
        super().__init__()
        self.refused: str | None = refused

    async def send(self, events: Sequence[OutgoingEvent]) -> int:
        if events[0].tenant == self.refused:
            raise SinkFailure("refused by the test")
        return await super().send(events)
