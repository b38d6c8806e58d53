"""Define what a sink does: it sends events and returns when the receiver has them."""

from collections.abc import Sequence
from typing import Final, Protocol

from deputize.evidence.cloud_events import OutgoingEvent

# The longest time that one send may take, well within the lease of the process that sends.
SEND_SECONDS: Final = 10.0


class SinkFailure(Exception):
    """The receiver has not acknowledged what was sent; the message says why, without secrets."""


class EventSink(Protocol):
    """A receiver of events."""

    async def send(self, events: Sequence[OutgoingEvent]) -> int:
        """Send events of one tenant, those of a call in their order; return how many of the first were acknowledged.

        At least one is, or `SinkFailure` is raised.
        """

    async def aclose(self) -> None:
        """End the connection."""
