"""A sweeper that ends tickets one after the other, each in a commit of its own."""

from collections.abc import Sequence

import asyncpg

from proofs.waiting.timed import Timed, serve_with


class OneByOne(Timed):
    async def end(self, over: Sequence[asyncpg.Record]) -> None:
        for row in over:
            await super().end([row])


if __name__ == "__main__":
    serve_with(OneByOne)
