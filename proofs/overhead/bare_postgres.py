"""PostgreSQL doing what a governed write makes it do, and nothing else: the same two batched transactions, rows ready
made, one connection, sixty-four rows at a time.
"""

import time

import asyncpg

from deputize.core.clock import Clock
from deputize.store.commit_functions import COMMIT_CALLS
from deputize.store.commit_rows import CloseCallRow, OpenCallRow
from proofs.kit.load import Load, Sample

_ROWS = 64
_BATCH_COUNT = 400
# About what an ordinary call leaves behind.
_ENTRY = b"e" * 560
_CIPHERTEXT = b"b" * 700


async def make_postgres_load(connection: asyncpg.Connection, *, tenant: str) -> Load:
    clock = Clock()
    boot = clock.new_id()

    async def load(seconds: int) -> Sample:
        batches = [_build_batch(clock, tenant) for _ in range(_BATCH_COUNT)]
        began, row_count = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            if not batches:
                raise RuntimeError("PostgreSQL was faster than the rows made ready for it; make more")
            openings, closings = batches.pop()
            opening_arguments = COMMIT_CALLS.build_batch_arguments([tenant], boot, openings=openings)
            await connection.fetch(COMMIT_CALLS.sql, *opening_arguments)
            rows = [each[:-1] for each in closings]
            closing_arguments = COMMIT_CALLS.build_batch_arguments([tenant], boot, closings=rows)
            await connection.fetch(COMMIT_CALLS.sql, *closing_arguments)
            row_count += _ROWS
        return Sample(requests=row_count, seconds=time.monotonic() - began)

    return load


def _build_batch(clock: Clock, tenant: str) -> tuple[list[OpenCallRow], list[CloseCallRow]]:
    openings = [_build_opening(clock, tenant) for _ in range(_ROWS)]
    closings = [
        CloseCallRow(
            tenant,
            each.call_id,
            1,
            "succeeded",
            None,
            False,
            _CIPHERTEXT,
            clock.new_id(),
            _ENTRY,
            clock.random_bytes(16),
        )
        for each in openings
    ]
    return openings, closings


def _build_opening(clock: Clock, tenant: str) -> OpenCallRow:
    call_id = clock.new_id()
    return OpenCallRow(
        tenant, call_id, "orders.place", "0.1.0", "sha256:" + "a" * 64, "write-reversible", "ana", "bot", None,
        clock.random_bytes(32), b"s" * 32, clock.random_bytes(32), 5.0, 3600, call_id.replace("-", ""),
        clock.new_id(), _ENTRY, clock.random_bytes(16),
    )  # fmt: skip
