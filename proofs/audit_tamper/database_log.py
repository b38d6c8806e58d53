"""Read a tenant's log through one connection, inside its transaction, as a gateway serves it.

So a change can be verified before it is committed, and taken back by a rollback: the gateway's own reads of tiles and
bundles are used, without HTTP around them. Tiles and bundles whose rows are what they were are read once.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from deputize.evidence.log.checkpoint import LogCheckpoint
from deputize.evidence.log.leaf import build_leaf
from deputize.evidence.log.signed_note import VerifierKey
from deputize.evidence.log.tiles import TILE_WIDTH, Tile, encode_bundle
from deputize.evidence.tenant_log.log_tiles import load_bundle, load_tile
from deputize.interfaces.cli.local.log_audit import InvalidNote, LogAudit, LogVerdict, load_checkpoint
from deputize.store.queries import load_statements

_SQL = load_statements("log")
_PAGE = 1000
_COMPARED_ENTRIES = 5000
# One number for all rows that a tile of leaves and its bundle are read from.
_DIGEST_TILES = """
select l.leaf_index / 256 as tile,
       bit_xor(hash_record_extended((l.leaf_index, l.entry_id, l.hash, a.entry), 0)) as digest
from deputize.log_leaves l left join deputize.audit_entries a on a.tenant = l.tenant and a.id = l.entry_id
where l.tenant = $1 group by 1
"""


class DatabaseLog:
    """Answers for the paths of a log. The audit reads in threads; the connection serves one of them at a time."""

    def __init__(self, connection: asyncpg.Connection, tenant: str) -> None:
        self._connection = connection
        self._tenant = tenant
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._contents: dict[str, bytes | None] = {}
        self._digests: dict[int, int] = {}
        self._changed_tiles: set[int] = set()

    async def remember_tiles(self, size: int) -> None:
        """Read every tile of leaves and every bundle; later only those whose rows have changed are read again."""
        for index in range(-(-size // TILE_WIDTH)):
            for level in (None, 0):
                tile = Tile(level=level, index=index, width=min(size - index * TILE_WIDTH, TILE_WIDTH))
                self._contents[tile.path] = await self._load_tile(tile)
        self._digests = await self._digest_tiles()

    async def verify(
        self, keys: Sequence[VerifierKey], kept_checkpoint: LogCheckpoint | None
    ) -> LogVerdict | InvalidNote:
        """Verify all of it; return the error if even the newest checkpoint cannot be believed."""
        digests = await self._digest_tiles()
        tiles = digests.keys() | self._digests.keys()
        self._changed_tiles = {tile for tile in tiles if digests.get(tile) != self._digests.get(tile)}

        def verify() -> LogVerdict | InvalidNote:
            try:
                _, newest = load_checkpoint(self.read, keys)
            except InvalidNote as error:
                return error
            return LogAudit(self.read, keys, kept_checkpoint).verify(newest)

        return await asyncio.to_thread(verify)

    def read(self, path: str) -> bytes | None:
        """Answer for a path, from any thread but the event loop's."""
        if path in self._contents and Tile.parse_path(path).index not in self._changed_tiles:
            return self._contents[path]
        return asyncio.run_coroutine_threadsafe(self._read(path), self._loop).result()

    async def _read(self, path: str) -> bytes | None:
        async with self._lock:
            if path == "checkpoint":
                return await self._load_checkpoint()
            name, _, query = path.partition("?")
            options = dict(each.split("=") for each in query.split("&")) if query else {}
            if name == "checkpoints":
                return _dump(await self._list_checkpoints(int(options["after"]), int(options.get("limit", _PAGE))))
            if name == "unlogged":
                return _dump(await self._find_unlogged_entries(UUID(options["after"])))
            return await self._load_tile(Tile.parse_path(path))

    async def _load_checkpoint(self) -> bytes | None:
        row = await self._connection.fetchrow(_SQL["load_newest_checkpoint"], self._tenant)
        return None if row is None else bytes(row["note"])

    async def _list_checkpoints(self, after: int, limit: int) -> dict[str, Any]:
        rows = await self._connection.fetch(_SQL["list_checkpoints"], self._tenant, after, limit)
        return {
            "checkpoints": [
                {
                    "size": row["size"],
                    "note": row["note"].decode(errors="replace"),
                    "signed_at": row["signed_at"].isoformat(timespec="seconds"),
                }
                for row in rows
            ]
        }

    async def _find_unlogged_entries(self, after: UUID) -> dict[str, Any]:
        row = await self._connection.fetchrow(_SQL["find_unlogged_entries"], self._tenant, after, _COMPARED_ENTRIES)
        assert row is not None
        return {
            "entry_ids": [str(each) for each in row["ids"]],
            "next_after": None if row["entries"] < _COMPARED_ENTRIES else str(row["last_id"]),
            "has_backlog": row["has_backlog"],
        }

    async def _digest_tiles(self) -> dict[int, int]:
        rows = await self._connection.fetch(_DIGEST_TILES, self._tenant)
        return {row["tile"]: row["digest"] for row in rows}

    async def _load_tile(self, tile: Tile) -> bytes | None:
        if tile.level is not None:
            return await load_tile(self._connection, self._tenant, tile)
        entries = await load_bundle(self._connection, self._tenant, tile)
        return encode_bundle(b"" if each.entry is None else build_leaf(each.entry) for each in entries)


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
