"""PostgreSQL doing what a governed write makes it do, and nothing else: the same two batched transactions, rows ready
made, one connection, sixty-four rows at a time.
"""

import time

import asyncpg

from deputize.core.clock import Clock
from deputize.store.batch import COMMIT_CALLS
from deputize.store.rows import Closing, Opening
from deputize.store.runs import columns
from proofs.kit.load import Load, Sample

_ROWS = 64
_BATCHES_READY = 400
# About what an ordinary call leaves behind.
_ENTRY = b"e" * 560
_BOX = b"b" * 700


async def bare_postgres(connection: asyncpg.Connection, *, tenant: str) -> Load:
    clock = Clock()
    boot = clock.new_id()

    async def load(seconds: int) -> Sample:
        ready = [_batch(clock, tenant) for _ in range(_BATCHES_READY)]
        began, done = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            if not ready:
                raise RuntimeError("PostgreSQL was faster than the rows made ready for it; make more")
            openings, closings = ready.pop()
            await connection.fetch(
                COMMIT_CALLS, [tenant], boot, *columns(openings, 18), *columns([], 10), *columns([], 5)
            )
            await connection.fetch(
                COMMIT_CALLS, [tenant], boot, *columns([], 18), *columns(closings, 10), *columns([], 5)
            )
            done += _ROWS
        return Sample(requests=done, seconds=time.monotonic() - began)

    return load


def _batch(clock: Clock, tenant: str) -> tuple[list[Opening], list[Closing]]:
    openings = [_opening(clock, tenant) for _ in range(_ROWS)]
    closings = [
        Closing(tenant, each.call_id, 1, "succeeded", None, False, _BOX, clock.new_id(), _ENTRY, clock.random_bytes(16))
        for each in openings
    ]
    return openings, closings


def _opening(clock: Clock, tenant: str) -> Opening:
    call_id = clock.new_id()
    return Opening(
        tenant, call_id, "orders.place", "0.1.0", "sha256:" + "a" * 64, "write-reversible", "ana", "bot", None,
        clock.random_bytes(32), b"s" * 32, clock.random_bytes(32), 5.0, 3600, call_id.replace("-", ""),
        clock.new_id(), _ENTRY, clock.random_bytes(16),
    )  # fmt: skip
