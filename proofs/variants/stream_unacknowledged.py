"""A gateway that moves on whether or not the broker acknowledged: what did not arrive is forgotten."""

from collections.abc import Sequence

from deputize.composition import background_tasks
from deputize.evidence.cloud_events import OutgoingEvent
from deputize.operations.background.events.publisher import EventPublisher
from deputize.operations.background.events.sink import SinkFailure
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


class HastyPublisher(EventPublisher):
    """Takes what was sent for what arrived."""

    async def _send(self, events: Sequence[OutgoingEvent]) -> int:
        try:
            return await super()._send(events)
        except SinkFailure:
            return len(events)


def change(gateway: Gateway) -> Gateway:
    return gateway


if __name__ == "__main__":
    # The gateway is composed by this name.
    vars(background_tasks)["EventPublisher"] = HastyPublisher
    serve_variant(change)
