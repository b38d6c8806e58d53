"""Post events in batches to an HTTP server, signed as Standard Webhooks with a key of the tenant.

One request at a time, in the order of the tenant's log. A batch is acknowledged by an answer of 200 to 299.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from deputize.core.clock import Clock
from deputize.core.errors import Problem
from deputize.core.settings import EventSinkSettings
from deputize.evidence.cloud_events import OutgoingEvent
from deputize.execute.egress import Egress
from deputize.lifecycle.callbacks import sign_delivery
from deputize.operations.background.events.sink import SEND_SECONDS, SinkFailure
from deputize.store.keys import TenantKeys

_BATCH_MEDIA_TYPE: Final = "application/cloudevents-batch+json"
_MAX_BATCH_BYTES: Final = 900_000
_MAX_BATCH_EVENTS: Final = 100


class WebhookSink:
    """A receiver of signed batches."""

    def __init__(self, settings: EventSinkSettings, keys: TenantKeys, clock: Clock) -> None:
        self._settings = settings
        self._keys = keys
        self._clock = clock
        # A separate egress: only this sink may reach the host that the operator named for it.
        self._egress = Egress(allow_hosts=frozenset({settings.host}))

    async def send(self, events: Sequence[OutgoingEvent]) -> int:
        """Post as many of the first events as one request can take."""
        batch = take_batch(events)
        keys = await self._keys.get(batch[0].tenant)
        body = b"[" + b",".join(event.body for event in batch) + b"]"
        # Not the id of an event alone: a repeated batch may have grown, and a receiver must not take it for the first.
        delivery_id = f"{batch[0].id}.{len(batch)}"
        signing_keys = keys.derive_webhook_keys(self._settings.name)
        headers = sign_delivery(signing_keys, delivery_id, self._clock.epoch_ms() // 1000, body)
        try:
            status = await self._egress.send(
                self._settings.url.get_secret_value(),
                body,
                headers={**headers, "content-type": _BATCH_MEDIA_TYPE},
                seconds=SEND_SECONDS,
            )
        except Problem as problem:
            raise SinkFailure(problem.message) from problem
        if not 200 <= status < 300:
            raise SinkFailure(f"the receiver at {self._settings.host} answered {status}")
        return len(batch)

    async def aclose(self) -> None:
        await self._egress.aclose()


def take_batch(events: Sequence[OutgoingEvent]) -> Sequence[OutgoingEvent]:
    """Take the first events, as many as a receiver can take at once, at least one."""
    sizes = accumulate(len(event.body) + 1 for event in events)
    count = sum(1 for size in sizes if size <= _MAX_BATCH_BYTES)
    return events[: min(max(count, 1), _MAX_BATCH_EVENTS)]
