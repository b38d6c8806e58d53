"""A gateway that asks for the epochs behind its commit, not under it: safe, but it refuses calls that were first."""

import asyncio
from collections.abc import Callable

from deputize.core.caller import Epochs
from deputize.operations.gateway import Gateway
from deputize.store.commit_rows import CommitResult, CommitRow
from deputize.store.group_commit import GroupCommit
from deputize.store.pool import Store
from deputize.store.queries import load_statements
from proofs.kit.gateway_internals import get_runtime, replace_runtime
from proofs.kit.gateway_variant import serve_variant

_SQL = load_statements("epochs")


class LateEpochCommit(GroupCommit):
    """Hands rows to the real writer and, when they are durable, reads the epochs as they are by then."""

    def __init__(self, real: GroupCommit, store: Store) -> None:
        self._real = real
        self._store = store

    def put(
        self, row: CommitRow, *, seconds: float = 5.0, on_orphan: Callable[[], None] | None = None
    ) -> "asyncio.Future[CommitResult]":
        async def read_epochs_after() -> CommitResult:
            result = await self._real.put(row, seconds=seconds, on_orphan=on_orphan)
            async with self._store.read_transaction(row.tenant) as connection:
                epochs_row = await connection.fetchrow(_SQL["load_epochs"], row.tenant)
            assert epochs_row is not None
            return result._replace(
                epochs=Epochs(registry=epochs_row[0], policy=epochs_row[1], revocation=epochs_row[2])
            )

        return asyncio.ensure_future(read_epochs_after())


def change(gateway: Gateway) -> Gateway:
    runtime = get_runtime(gateway)
    return replace_runtime(gateway, writer=LateEpochCommit(runtime.writer, runtime.store))


if __name__ == "__main__":
    serve_variant(change)
