"""Append queued entries to the logs of their tenants, in batches, and know which of them have to be signed.

An appender belongs to one turn of the sequencer: it remembers the right edges of logs, and a process that loses its
turn throws it away. Leaf hashes are computed by PostgreSQL, so that entries need not travel.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

import asyncpg

from deputize.core.bounded_dict import BoundedDict
from deputize.evidence.log.checkpoint import open_checkpoint
from deputize.evidence.log.leaf import build_large_leaf
from deputize.evidence.log.merkle_tree import MerkleFrontier, hash_leaf
from deputize.evidence.log.signed_note import InvalidNote, parse_note
from deputize.evidence.log.tiles import MAX_ENTRY_SIZE, TILE_HEIGHT, InvalidTile
from deputize.evidence.tenant_log.log_keys import load_log_keys
from deputize.evidence.tenant_log.log_tiles import load_frontier, load_range_hashes
from deputize.store.pool import Connection
from deputize.store.queries import load_statements
from deputize.store.restore_guard.checkpoint_files import SavedCheckpoint

BATCH_TENANTS: Final = 20
BATCH_ENTRIES_EACH: Final = 1000
_MAX_FRONTIERS: Final = 10_000
_SQL = load_statements("log")


class LogDivergence(Exception):
    """A log in the database that does not fit its newest checkpoint."""

    def __init__(self, tenant: str, reason: str) -> None:
        super().__init__(reason)
        self.tenant = tenant


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeHead:
    """The size and root of a tenant's log after a batch."""

    tenant: str
    size: int
    root: bytes


# Returns what is remembered outside the database as the newest checkpoint of a tenant's log.
GetSavedCheckpoint = Callable[[str], SavedCheckpoint | None]


class LogAppender:
    """Appends entries of many tenants, one transaction for each batch."""

    def __init__(
        self,
        diverged_tenants: set[str],
        *,
        get_saved_checkpoint: GetSavedCheckpoint = lambda _: None,
        tenants: int = BATCH_TENANTS,
        entries_each: int = BATCH_ENTRIES_EACH,
    ) -> None:
        self._frontiers: BoundedDict[str, MerkleFrontier] = BoundedDict(_MAX_FRONTIERS)
        self._get_saved_checkpoint = get_saved_checkpoint
        self._tenants = tenants
        self._entries_each = entries_each
        self._after_tenant = ""
        self.has_more = True
        """Whether more may be queued than the last batch took."""
        self.diverged_tenants = diverged_tenants
        """Tenants whose log does not fit its newest checkpoint: nothing is added to it and nothing is signed."""

    async def append_batch(self, connection: Connection) -> list[TreeHead]:
        """Append the next entries in the caller's transaction; if that fails, this appender must not be used again."""
        queue_rows = await self._take_queue(connection)
        if not queue_rows:
            return []
        # In the order in which they were written: the outcome of a call comes after its intent. An entry that is queued
        # twice, by the previous release, is appended once.
        in_order = sorted(queue_rows, key=itemgetter("tenant", "number"))
        entries = list(dict.fromkeys((row["tenant"], row["entry_id"]) for row in in_order))
        entry_ids = [entry_id for _, entry_id in entries]
        rows = await connection.fetch(
            _SQL["hash_entries"],
            [tenant for tenant, _ in entries],
            entry_ids,
            min(entry_ids),
            max(entry_ids),
            MAX_ENTRY_SIZE,
        )
        heads: list[TreeHead] = []
        for tenant, tenant_rows in groupby(rows, key=itemgetter("tenant")):
            heads.append(await self._append_entries(connection, tenant, list(tenant_rows)))
            await asyncio.sleep(0)
        return heads

    async def _take_queue(self, connection: Connection) -> Sequence[asyncpg.Record]:
        """Take the entries of the next tenants in turn, beginning again after the last one."""
        for after_tenant in dict.fromkeys((self._after_tenant, "")):
            queue_rows = await connection.fetch(
                _SQL["take_queue"], after_tenant, self._tenants, self._entries_each, sorted(self.diverged_tenants)
            )
            if queue_rows:
                counts = Counter(row["tenant"] for row in queue_rows)
                self._after_tenant = max(counts)
                is_full = len(counts) >= self._tenants or max(counts.values()) >= self._entries_each
                # A batch that began after some tenant did not look at those before it.
                self.has_more = is_full or after_tenant != ""
                return queue_rows
        return ()

    async def load_head(self, connection: Connection, tenant: str) -> TreeHead:
        """Load the size and root of a log."""
        frontier = await self._load_frontier(connection, tenant)
        return TreeHead(tenant=tenant, size=frontier.size, root=frontier.compute_root())

    async def _append_entries(self, connection: Connection, tenant: str, entries: Sequence[asyncpg.Record]) -> TreeHead:
        frontier = await self._load_frontier(connection, tenant)
        first_index = frontier.size
        leaf_hashes = [
            row["leaf_hash"] or hash_leaf(build_large_leaf(row["entry_size"], row["entry_digest"])) for row in entries
        ]
        nodes = frontier.append_all(leaf_hashes, TILE_HEIGHT)
        try:
            await connection.execute(
                _SQL["insert_leaves"],
                [tenant] * len(entries),
                range(first_index, frontier.size),
                [row["id"] for row in entries],
                leaf_hashes,
            )
            if nodes:
                await connection.execute(
                    _SQL["insert_nodes"],
                    [tenant] * len(nodes),
                    [level // TILE_HEIGHT for (level, _), _ in nodes],
                    [index for (_, index), _ in nodes],
                    [node_hash for _, node_hash in nodes],
                )
        except asyncpg.UniqueViolationError as error:
            self.diverged_tenants.add(tenant)
            raise LogDivergence(tenant, f"it has rows that no sequencer wrote ({error.detail})") from error
        return TreeHead(tenant=tenant, size=frontier.size, root=frontier.compute_root())

    async def _load_frontier(self, connection: Connection, tenant: str) -> MerkleFrontier:
        frontier = self._frontiers.get(tenant)
        if frontier is None:
            try:
                frontier = await load_checked_frontier(connection, tenant, self._get_saved_checkpoint(tenant))
            except LogDivergence:
                self.diverged_tenants.add(tenant)
                raise
            self._frontiers.put(tenant, frontier)
        return frontier


async def load_checked_frontier(
    connection: Connection, tenant: str, saved_checkpoint: SavedCheckpoint | None = None
) -> MerkleFrontier:
    """Load the right edge of a log; raise `LogDivergence` if the log does not fit its newest signed checkpoint, or the
    one that is saved outside the database.
    """
    size = await connection.fetchval(_SQL["load_size"], tenant)
    row = await connection.fetchrow(_SQL["load_newest_checkpoint"], tenant)
    try:
        if row is not None:
            stored_keys = (await load_log_keys(connection, [tenant]))[tenant]
            checkpoint = open_checkpoint(parse_note(row["note"]), [each.verifier_key for each in stored_keys])
            await _compare_log(connection, tenant, size, checkpoint.size, checkpoint.root)
        if saved_checkpoint is not None:
            await _compare_log(connection, tenant, size, saved_checkpoint.size, saved_checkpoint.root)
        return await load_frontier(connection, tenant, size)
    except (InvalidNote, InvalidTile) as error:
        raise LogDivergence(tenant, str(error)) from error


async def _compare_log(connection: Connection, tenant: str, size: int, signed_size: int, signed_root: bytes) -> None:
    if signed_size > size:
        raise LogDivergence(tenant, f"it has {size} entries, and {signed_size} were signed")
    (root,) = await load_range_hashes(connection, tenant, [(0, signed_size)])
    if root != signed_root:
        raise LogDivergence(tenant, f"its first {signed_size} entries are not what was signed")
