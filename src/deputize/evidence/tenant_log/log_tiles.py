"""Read the hashes of a tenant's log from the database, tile by tile."""

from collections.abc import Iterable
from dataclasses import dataclass

from deputize.evidence.log.merkle_tree import HASH_SIZE, LeafRange, MerkleFrontier, hash_range, list_subtrees
from deputize.evidence.log.tiles import TILE_WIDTH, Tile, TileHashes, locate_subtree
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("log")


@dataclass(frozen=True, kw_only=True, slots=True)
class BundledEntry:
    """An entry of a bundle with its leaf; the entry is None if the database lacks it."""

    leaf_index: int
    leaf_hash: bytes
    entry: bytes | None


async def load_tiles(
    connection: Connection, tenant: str, tiles: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], bytes]:
    """Load the contents of tiles, by level and index, as wide as they are now; those without hashes are left out."""
    places = sorted(set(tiles))
    levels, indexes = [level for level, _ in places], [index for _, index in places]
    rows = await connection.fetch(_SQL["load_tiles"], tenant, levels, indexes)
    return {(row["level"], row["tile_index"]): row["content"] for row in rows}


async def load_range_hashes(connection: Connection, tenant: str, ranges: Iterable[LeafRange]) -> list[bytes]:
    """Load the hashes of ranges of leaves, such as those of a proof, in one query."""
    ranges = list(ranges)
    subtrees = [subtree for leaves in ranges for subtree in list_subtrees(leaves)]
    hashes = TileHashes(await load_tiles(connection, tenant, map(locate_subtree, subtrees)))
    return [hash_range(leaves, hashes.read_hash) for leaves in ranges]


async def load_frontier(connection: Connection, tenant: str, size: int) -> MerkleFrontier:
    """Load the right edge of a log of that size, to append to it."""
    subtrees = list(list_subtrees((0, size)))
    hashes = TileHashes(await load_tiles(connection, tenant, map(locate_subtree, subtrees)))
    return MerkleFrontier(size, map(hashes.read_hash, subtrees))


async def load_tile(connection: Connection, tenant: str, tile: Tile) -> bytes | None:
    """Load a tile of hashes in the width that it names, or None if the log is not that large."""
    assert tile.level is not None
    place = tile.level, tile.index
    content = (await load_tiles(connection, tenant, [place])).get(place, b"")
    byte_count = tile.width * HASH_SIZE
    return content[:byte_count] if len(content) >= byte_count else None


async def load_bundle(connection: Connection, tenant: str, bundle: Tile) -> list[BundledEntry]:
    """Load the entries of a bundle in the width that it names."""
    first = bundle.index * TILE_WIDTH
    leaves = await connection.fetch(_SQL["list_leaves"], tenant, first, first + bundle.width)
    ids = [row["entry_id"] for row in leaves]
    rows = await connection.fetch(_SQL["load_entries"], tenant, ids, min(ids), max(ids)) if ids else ()
    entries = {row["id"]: row["entry"] for row in rows}
    return [
        BundledEntry(leaf_index=row["leaf_index"], leaf_hash=row["hash"], entry=entries.get(row["entry_id"]))
        for row in leaves
    ]
