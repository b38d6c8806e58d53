"""A sweeper that ends approval requests one after the other, each in a commit of its own."""

from collections.abc import Sequence

import asyncpg

from proofs.approval_backlog.timed_escalation import TimedEscalation, serve_with_class


class UnbatchedEscalation(TimedEscalation):
    async def expire_requests(self, over: Sequence[asyncpg.Record]) -> None:
        for row in over:
            await super().expire_requests([row])


if __name__ == "__main__":
    serve_with_class(UnbatchedEscalation)
