"""A gateway without the barrier: what a commit says of the epochs is not heard, only notifications and polls are."""

import asyncio
from collections.abc import Callable

from deputize.core.caller import Epochs
from deputize.operations.gateway import Gateway
from deputize.store.commit_rows import CommitResult, CommitRow
from deputize.store.group_commit import GroupCommit
from proofs.kit.gateway_internals import get_runtime, replace_runtime
from proofs.kit.gateway_variant import serve_variant


class EpochlessCommit(GroupCommit):
    """Hands rows to the real writer and forgets the epochs it answers with."""

    def __init__(self, real: GroupCommit) -> None:
        self._real = real

    def put(
        self, row: CommitRow, *, seconds: float = 5.0, on_orphan: Callable[[], None] | None = None
    ) -> "asyncio.Future[CommitResult]":
        async def drop_epochs() -> CommitResult:
            return (await self._real.put(row, seconds=seconds, on_orphan=on_orphan))._replace(epochs=Epochs())

        return asyncio.ensure_future(drop_epochs())


def change(gateway: Gateway) -> Gateway:
    runtime = get_runtime(gateway)
    return replace_runtime(gateway, writer=EpochlessCommit(runtime.writer))


if __name__ == "__main__":
    serve_variant(change)
