"""A gateway to which the policy epoch of a commit means nothing: policies count when a notification or poll says so."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from deputize.operations.gateway import Gateway
from deputize.store.commit_rows import CommitResult, CommitRow
from deputize.store.group_commit import GroupCommit
from proofs.kit.gateway_internals import get_runtime, replace_runtime
from proofs.kit.gateway_variant import serve_variant


class PolicyEpochlessCommit(GroupCommit):
    """Hands rows to the real writer and forgets which policies it committed under."""

    def __init__(self, real: GroupCommit) -> None:
        self._real = real

    def put(
        self, row: CommitRow, *, seconds: float = 5.0, on_orphan: Callable[[], None] | None = None
    ) -> "asyncio.Future[CommitResult]":
        async def drop_policy_epoch() -> CommitResult:
            result = await self._real.put(row, seconds=seconds, on_orphan=on_orphan)
            return result._replace(epochs=replace(result.epochs, policy=0))

        return asyncio.ensure_future(drop_policy_epoch())


def change(gateway: Gateway) -> Gateway:
    runtime = get_runtime(gateway)
    return replace_runtime(gateway, writer=PolicyEpochlessCommit(runtime.writer))


if __name__ == "__main__":
    serve_variant(change)
