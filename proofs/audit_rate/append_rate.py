"""Append audit entries as gateways do, and copy the same rows into bare tables, in equal batches and in turn."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import asyncpg

from deputize.core.clock import Clock
from deputize.operations.background.log_sequencer import LogSequencer
from deputize.store.commit_rows import AuditEntryRow
from deputize.store.group_commit import GroupCommit
from deputize.store.keys import KEY_BYTES, MasterKey, TenantKeys
from deputize.store.pool import WRITER, Store, connect_with_role
from deputize.store.tenants import ensure_tenant
from proofs.kit.load import Sample

TENANT: Final = "acme"
BATCH: Final = 1000
# About what an ordinary call leaves behind.
_ENTRY: Final = (
    '{"arguments":"%s","attempts":1,"call":"%s","caller":["%s","%s"],"decision":"%s","digest":"%s","id":"%s",'
    '"kind":"intent","policy":"%s","rules":["open"],"tenant":"acme","tool":"orders.place","v":2,"version":"0.1.0"}'
)
_CREATE_TABLES: Final = """
create schema bare;
create table bare.entries (tenant text, id uuid, call_id uuid, entry bytea, salt bytea, primary key (tenant, id));
create table bare.leaves (like deputize.log_leaves including all);
"""


@dataclass(kw_only=True, slots=True)
class AppendRates:
    """Of each round, how fast entries and leaves were written, and how fast the same rows were copied."""

    entries: list[Sample] = field(default_factory=list)
    copied_entries: list[Sample] = field(default_factory=list)
    leaves: list[Sample] = field(default_factory=list)
    copied_leaves: list[Sample] = field(default_factory=list)


async def measure_append_rates(dsn: str, *, rounds: int, batches: int, batch: int = BATCH) -> AppendRates:
    """Measure rounds of so many batches; each is committed, and waits for the disk, before the next."""
    rates, clock = AppendRates(), Clock()
    owner = await asyncpg.connect(dsn)
    store = await Store.open(dsn, read_connections=1)
    try:
        await ensure_tenant(owner, TENANT)
        await owner.execute(f"drop schema if exists bare cascade; {_CREATE_TABLES}")
        async with _open_writer(dsn, batch) as writer:
            sequencer = make_sequencer(store, clock, batch)
            for _ in range(rounds + 1):
                rows = [_make_row(clock) for _ in range(batches * batch)]
                rates.entries.append(await _write_entries(writer, rows, batch))
                rates.copied_entries.append(await _copy_rows(owner, "entries", _list_entry_records(rows), batch))
                rates.leaves.append(await _sequence(sequencer, owner, len(rows)))
                leaves = await owner.fetch(
                    "select tenant, leaf_index, entry_id, hash from deputize.log_leaves where entry_id = any($1)",
                    [row.id for row in rows],
                )
                rates.copied_leaves.append(await _copy_rows(owner, "leaves", [tuple(row) for row in leaves], batch))
            await sequencer.stop()
    finally:
        await store.close()
        await owner.close()
    # The first round warms up.
    return AppendRates(
        entries=rates.entries[1:],
        copied_entries=rates.copied_entries[1:],
        leaves=rates.leaves[1:],
        copied_leaves=rates.copied_leaves[1:],
    )


@asynccontextmanager
async def _open_writer(dsn: str, batch: int) -> AsyncIterator[GroupCommit]:
    writer = GroupCommit(lambda: connect_with_role(dsn, WRITER), boot_id=Clock().new_id(), max_rows=batch)
    await writer.start()
    try:
        yield writer
    finally:
        await writer.stop()


def make_sequencer(store: Store, clock: Clock, batch: int) -> LogSequencer:
    keys = TenantKeys(store, MasterKey(material=bytes(KEY_BYTES)), clock)
    return LogSequencer(store, keys, clock, boot_id=clock.new_id(), batch_entries_each=batch)


async def _write_entries(writer: GroupCommit, rows: Sequence[AuditEntryRow], batch: int) -> Sample:
    began = time.perf_counter()
    for start in range(0, len(rows), batch):
        await asyncio.gather(*(writer.put(row) for row in rows[start : start + batch]))
    return Sample(requests=len(rows), seconds=time.perf_counter() - began)


async def _sequence(sequencer: LogSequencer, owner: asyncpg.Connection, count: int) -> Sample:
    """Let the sequencer append and sign what is queued, as it does in a gateway; it signs after each batch."""
    size = await owner.fetchval("select coalesce(max(size), 0) from deputize.log_checkpoints")
    began = time.perf_counter()
    while await sequencer.run_step() == 0.0:
        pass
    seconds = time.perf_counter() - began
    signed = await owner.fetchval("select max(size) from deputize.log_checkpoints") - size
    if signed != count:
        raise RuntimeError(f"{count} entries were queued, and {signed} were signed")
    return Sample(requests=count, seconds=seconds)


async def _copy_rows(
    connection: asyncpg.Connection, table: str, records: Sequence[tuple[object, ...]], batch: int
) -> Sample:
    began = time.perf_counter()
    for start in range(0, len(records), batch):
        await connection.copy_records_to_table(table, schema_name="bare", records=records[start : start + batch])
    return Sample(requests=len(records), seconds=time.perf_counter() - began)


def _make_row(clock: Clock) -> AuditEntryRow:
    call_id, entry_id = clock.new_id(), clock.new_id()
    a, b = clock.random_bytes(32).hex(), clock.random_bytes(16).hex()
    entry = (_ENTRY % (a, call_id, a, a, b, a, entry_id, a)).encode()
    return AuditEntryRow(tenant=TENANT, id=entry_id, call_id=call_id, entry=entry, salt=clock.random_bytes(16))


def _list_entry_records(rows: Sequence[AuditEntryRow]) -> list[tuple[object, ...]]:
    return [(row.tenant, UUID(row.id), UUID(row.call_id), row.entry, row.salt) for row in rows]
