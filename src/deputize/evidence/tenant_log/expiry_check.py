"""Check what is about to expire against what the log signed, because the signature of an expiry vouches for it.

The database chooses what is old enough, and whoever owns it could make it choose otherwise. So the entries themselves
have to be what was signed, and as old by the ids in their own bytes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from uuid import UUID

import asyncpg
import orjson

from deputize.evidence.log.checkpoint import LogCheckpoint, open_checkpoint
from deputize.evidence.log.leaf import build_leaf
from deputize.evidence.log.merkle_tree import LeafRange, MerkleFrontier, hash_leaf
from deputize.evidence.log.signed_note import InvalidNote, VerifierKey, parse_note
from deputize.evidence.log.tiles import TILE_HEIGHT, InvalidTile
from deputize.evidence.tenant_log.log_appender import LogDivergence
from deputize.evidence.tenant_log.log_tiles import load_frontier
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("log")


async def check_expiring_entries(
    connection: Connection, tenant: str, leaves: LeafRange, keys: Sequence[VerifierKey], *, before_ms: int
) -> None:
    """Raise `LogDivergence` unless these entries are what the log signed, and all are older than this moment."""
    first_index, end_index = leaves
    try:
        note = await connection.fetchval(_SQL["load_covering_checkpoint"], tenant, end_index)
        if note is None:
            raise LogDivergence(tenant, f"no checkpoint covers its first {end_index} entries")
        checkpoint = open_checkpoint(parse_note(note), keys)
        leaf_rows = await connection.fetch(_SQL["list_leaves"], tenant, first_index, checkpoint.size)
        ids = [row["entry_id"] for row in leaf_rows[: end_index - first_index]]
        entry_rows = await connection.fetch(_SQL["load_entries"], tenant, ids, min(ids), max(ids)) if ids else ()
        frontier = await load_frontier(connection, tenant, first_index)
    except (InvalidNote, InvalidTile) as error:
        raise LogDivergence(tenant, str(error)) from error
    entries = {row["id"]: row["entry"] for row in entry_rows}
    reason = await asyncio.to_thread(_find_fault, leaf_rows, entries, frontier, checkpoint, end_index, before_ms)
    if reason is not None:
        raise LogDivergence(tenant, reason)


def _find_fault(
    leaf_rows: Sequence[asyncpg.Record],
    entries_by_id: Mapping[UUID, bytes],
    frontier: MerkleFrontier,
    checkpoint: LogCheckpoint,
    end_index: int,
    before_ms: int,
) -> str | None:
    expected_count = end_index - frontier.size
    entries = [entries_by_id[row["entry_id"]] for row in leaf_rows[:expected_count] if row["entry_id"] in entries_by_id]
    if len(leaf_rows) != checkpoint.size - frontier.size or len(entries) != expected_count:
        return f"entries before {end_index} are missing"
    young_index = next((at for at, entry in enumerate(entries, frontier.size) if not _is_older(entry, before_ms)), None)
    if young_index is not None:
        return f"entry {young_index} is too young to expire, and the database says that it is old enough"
    leaf_hashes = [hash_leaf(build_leaf(entry)) for entry in entries]
    frontier.append_all([*leaf_hashes, *(row["hash"] for row in leaf_rows[expected_count:])], TILE_HEIGHT)
    if frontier.compute_root() != checkpoint.root:
        return f"its first {checkpoint.size} entries are not what was signed"
    return None


def _is_older(entry: bytes, before_ms: int) -> bool:
    try:
        return UUID(orjson.loads(entry)["id"]).int >> 80 < before_ms
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
