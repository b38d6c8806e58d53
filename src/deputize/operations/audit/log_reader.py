"""Show a tenant's log to its administrators: the newest checkpoint, tiles, entry bundles and the log's keys.

Only what a signed checkpoint covers is shown. Hashes and checkpoints may be read at any rate; who reads entries is
recorded, once in an hour, because a monitor that follows the log would otherwise have its own reads to follow.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import structlog

from deputize.core.caller import Caller
from deputize.core.errors import LogNotFound
from deputize.evidence.log.leaf import build_leaf
from deputize.evidence.log.merkle_tree import hash_leaf
from deputize.evidence.log.tiles import TILE_HEIGHT, TILE_WIDTH, InvalidTile, Tile, encode_bundle
from deputize.evidence.tenant_log.log_keys import describe_log_keys
from deputize.evidence.tenant_log.log_tiles import BundledEntry, load_bundle, load_tile
from deputize.govern.limits.tenant_slots import TenantSlots
from deputize.govern.token_authorization import require_admin
from deputize.operations.audit.entry_reader import EntryReader
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

# A bundle may have 16 MB.
_MAX_BUNDLES: Final = 4
_RECORD_SECONDS: Final = 3600.0
_SQL = load_statements("log")
_HOLDS = load_statements("holds")
log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class TileContent:
    """The bytes of a tile or bundle. One that does not fit the log's leaves must not be kept."""

    content: bytes
    is_immutable: bool = True


class LogReader:
    def __init__(self, reader: EntryReader) -> None:
        self._reader = reader
        self._slots = TenantSlots("bundles of the log", _MAX_BUNDLES)

    async def load_checkpoint(self, caller: Caller, tenant: str) -> bytes:
        """Load the newest signed checkpoint, with the cosignatures of witnesses if it has enough of them."""
        await self.require_reader(caller, tenant)
        async with self._reader.runtime.store.read_transaction(tenant) as connection:
            row = await connection.fetchrow(_SQL["load_newest_checkpoint"], tenant)
            witnessed_row = await connection.fetchrow(_SQL["load_newest_witnessed_checkpoint"], tenant)
        if row is not None and witnessed_row is not None and witnessed_row["size"] == row["size"]:
            row = witnessed_row
        if row is None:
            raise LogNotFound("this log has no signed checkpoint yet")
        note: bytes = row["note"]
        return note

    async def list_keys(self, caller: Caller, tenant: str) -> dict[str, Any]:
        """List the keys that verify the checkpoints of the log, the newest first."""
        await self.require_reader(caller, tenant)
        async with self._reader.runtime.store.read_transaction(tenant) as connection:
            keys = await describe_log_keys(connection, tenant)
        if not keys:
            raise LogNotFound("this log has no key yet")
        return {"keys": keys}

    async def load_tile(self, caller: Caller, tenant: str, path: str) -> TileContent:
        """Load a tile, or a bundle of entries, by its path below the log's address."""
        await self.require_reader(caller, tenant)
        try:
            tile = Tile.parse_path(path)
        except InvalidTile as error:
            raise LogNotFound(str(error)) from None
        if tile.level is not None:
            return await self._load_hashes(tenant, tile)
        with self._slots.take(caller):
            async with self._reader.runtime.store.read_transaction(tenant, repeatable=True) as connection:
                await _require_covered(connection, tenant, tile)
                entries = await load_bundle(connection, tenant, tile)
                expired_size = await connection.fetchval(_HOLDS["load_expired_size"], tenant)
            content, wrong_indexes = await asyncio.to_thread(_encode_entries, entries)
        faults = [index for index in wrong_indexes if index >= expired_size]
        if faults:
            log.error("entries_do_not_fit_their_log", tenant=tenant, count=len(faults), first=faults[0])
        await self._reader.record_look(caller, "read_log", "entries of the log", seconds=_RECORD_SECONDS)
        return TileContent(content=content, is_immutable=not wrong_indexes)

    async def _load_hashes(self, tenant: str, tile: Tile) -> TileContent:
        async with self._reader.runtime.store.read_transaction(tenant) as connection:
            await _require_covered(connection, tenant, tile)
            content = await load_tile(connection, tenant, tile)
        if content is None:
            log.error("log_lacks_hashes", tenant=tenant, tile=tile.path)
            raise LogNotFound("the database lacks hashes of this tile, although a checkpoint covers it")
        return TileContent(content=content)

    async def require_reader(self, caller: Caller, tenant: str) -> None:
        """Require an administrator of this tenant; the log of another one looks as if it did not exist."""
        require_admin(caller)
        await self._reader.check_caller(caller)
        if caller.tenant != tenant:
            raise LogNotFound("there is no log of this name, or it is not yours")


async def _require_covered(connection: Connection, tenant: str, tile: Tile) -> None:
    """Require that the newest signed checkpoint covers the whole tile."""
    row = await connection.fetchrow(_SQL["load_newest_checkpoint"], tenant)
    end = (tile.index * TILE_WIDTH + tile.width) << TILE_HEIGHT * (tile.level or 0)
    if row is None or end > row["size"]:
        raise LogNotFound("the log is not that large: no signed checkpoint covers this tile")


def _encode_entries(entries: list[BundledEntry]) -> tuple[bytes, list[int]]:
    """Encode a bundle, and list the leaves that its entries do not fit.

    An entry that is missing is given as an empty one: who verifies the bundle learns which one it is.
    """
    leaves = [b"" if each.entry is None else build_leaf(each.entry) for each in entries]
    wrong_indexes = [
        each.leaf_index for each, leaf in zip(entries, leaves, strict=True) if hash_leaf(leaf) != each.leaf_hash
    ]
    return encode_bundle(leaves), wrong_indexes
