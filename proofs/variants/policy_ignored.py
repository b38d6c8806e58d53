"""A gateway to which the policy epoch of a commit means nothing: policies count when a notification or poll says so."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.run import Lifecycle
from deputize.store.batch import GroupCommit
from deputize.store.rows import Committed, Row
from proofs.kit.variant import serve_changed


class Deaf(GroupCommit):
    """Hands rows to the real writer and forgets which policies it committed under."""

    def __init__(self, real: GroupCommit) -> None:
        self._real = real

    def put(
        self, row: Row, *, seconds: float = 5.0, orphaned: Callable[[], None] | None = None
    ) -> "asyncio.Future[Committed]":
        async def forgotten() -> Committed:
            committed = await self._real.put(row, seconds=seconds, orphaned=orphaned)
            return committed._replace(epochs=replace(committed.epochs, policy=0))

        return asyncio.ensure_future(forgotten())


def change(gateway: Gateway) -> Gateway:
    rooms = gateway.lifecycle.rooms
    return replace(gateway, lifecycle=Lifecycle(replace(rooms, writer=Deaf(rooms.writer))))


if __name__ == "__main__":
    serve_changed(change)
