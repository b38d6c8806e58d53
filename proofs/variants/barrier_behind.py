"""A gateway that asks for the epochs behind its commit, not under it: safe, but it refuses calls that were first."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from deputize.core.caller import Epochs
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.run import Lifecycle
from deputize.store.batch import GroupCommit
from deputize.store.pool import Store
from deputize.store.queries import load
from deputize.store.rows import Committed, Row
from proofs.kit.variant import serve_changed

_SQL = load("epochs")


class Behind(GroupCommit):
    """Hands rows to the real writer and, when they are durable, reads the epochs as they are by then."""

    def __init__(self, real: GroupCommit, store: Store) -> None:
        self._real = real
        self._store = store

    def put(
        self, row: Row, *, seconds: float = 5.0, orphaned: Callable[[], None] | None = None
    ) -> "asyncio.Future[Committed]":
        async def looked_after() -> Committed:
            committed = await self._real.put(row, seconds=seconds, orphaned=orphaned)
            async with self._store.reading(row.tenant) as connection:
                found = await connection.fetchrow(_SQL["epochs_of_tenant"], row.tenant)
            assert found is not None
            return committed._replace(epochs=Epochs(registry=found[0], policy=found[1], revocation=found[2]))

        return asyncio.ensure_future(looked_after())


def change(gateway: Gateway) -> Gateway:
    rooms = gateway.lifecycle.rooms
    return replace(gateway, lifecycle=Lifecycle(replace(rooms, writer=Behind(rooms.writer, rooms.store))))


if __name__ == "__main__":
    serve_changed(change)
