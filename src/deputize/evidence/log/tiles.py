"""Name, cut and read the tiles of a log, as C2SP's tlog-tiles defines them.

A tile at level L holds the hashes of up to 256 neighbouring subtrees of `256**L` leaves; a full tile never changes. An
entry bundle holds the entries of up to 256 neighbouring leaves.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deputize.evidence.log.merkle_tree import HASH_SIZE, Subtree, hash_pairs

TILE_HEIGHT: Final = 8
TILE_WIDTH: Final = 1 << TILE_HEIGHT
MAX_ENTRY_SIZE: Final = 0xFFFF
_MAX_PATH_LENGTH: Final = 64
_PATH: Final = re.compile(
    r"tile/(entries|[1-5]?[0-9]|6[0-3])/((?:x[0-9]{3}/){0,6}[0-9]{3})(?:\.p/([1-9][0-9]{0,2}))?", re.ASCII
)


class InvalidTile(ValueError):
    """A path or content that no tile can have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """A tile of hashes, or an entry bundle if its level is None. A width below 256 makes it partial."""

    level: int | None
    index: int
    width: int = TILE_WIDTH

    @property
    def path(self) -> str:
        """The path below the log's address."""
        digits = f"{self.index:03d}"
        digits = digits.zfill(-len(digits) // 3 * -3)
        parts = [digits[start : start + 3] for start in range(0, len(digits), 3)]
        name = "/".join([*(f"x{part}" for part in parts[:-1]), parts[-1]])
        partial = "" if self.width == TILE_WIDTH else f".p/{self.width}"
        return f"tile/{'entries' if self.level is None else self.level}/{name}{partial}"

    @classmethod
    def parse_path(cls, path: str) -> "Tile":
        """Parse a path; only the one way to write it is accepted."""
        match = _PATH.fullmatch(path) if len(path) <= _MAX_PATH_LENGTH else None
        if match is None:
            raise InvalidTile("no tile has this path: tile/LEVEL/INDEX or tile/entries/INDEX, with .p/WIDTH if partial")
        level, digits, width = match.groups()
        tile = cls(
            level=None if level == "entries" else int(level),
            index=int(digits.replace("x", "").replace("/", "")),
            width=TILE_WIDTH if width is None else int(width),
        )
        if tile.path != path or tile.width > TILE_WIDTH or (width is not None and tile.width == TILE_WIDTH):
            raise InvalidTile(f"the path is not how tile {tile.path} is written")
        return tile


def list_new_tiles(old_size: int, new_size: int) -> list[Tile]:
    """List the tiles that are new or wider once a log has grown, bundles included; the last ones may be partial."""
    tiles: list[Tile] = []
    for level in (None, *range(64 // TILE_HEIGHT)):
        shift = TILE_HEIGHT * (level or 0)
        old_count, new_count = old_size >> shift, new_size >> shift
        if level is not None and new_count == 0:
            break
        for index in range(old_count >> TILE_HEIGHT, -(-new_count >> TILE_HEIGHT)):
            width = min(new_count - (index << TILE_HEIGHT), TILE_WIDTH)
            if index << TILE_HEIGHT < new_count and (index << TILE_HEIGHT) + width > old_count:
                tiles.append(Tile(level=level, index=index, width=width))
    return tiles


def locate_subtree(subtree: Subtree) -> tuple[int, int]:
    """Locate the tile, by level and index, from which the hash of a complete subtree can be computed."""
    level, index = subtree
    return level // TILE_HEIGHT, (index << (level % TILE_HEIGHT)) >> TILE_HEIGHT


def compute_subtree_hash(subtree: Subtree, tile_content: bytes) -> bytes:
    """Compute the hash of a complete subtree from the content of its tile."""
    level, index = subtree
    height = level % TILE_HEIGHT
    first = (index << height) % TILE_WIDTH
    hashes = [tile_content[at * HASH_SIZE : (at + 1) * HASH_SIZE] for at in range(first, first + (1 << height))]
    if len(hashes[-1]) != HASH_SIZE:
        raise InvalidTile("the tile is too narrow for this subtree")
    while len(hashes) > 1:
        hashes = hash_pairs(hashes)
    return hashes[0]


class TileHashes:
    """Reads the hashes of subtrees from the contents of tiles, by level and index."""

    def __init__(self, contents: Mapping[tuple[int, int], bytes]) -> None:
        self._contents = contents

    def read_hash(self, subtree: Subtree) -> bytes:
        """Read or compute the hash of a complete subtree."""
        content = self._contents.get(locate_subtree(subtree))
        if content is None:
            raise InvalidTile(f"the tile of subtree {subtree} is missing")
        return compute_subtree_hash(subtree, content)


def encode_bundle(entries: Iterable[bytes]) -> bytes:
    """Encode entries as a bundle: each after its length in two bytes."""
    parts: list[bytes] = []
    for entry in entries:
        if len(entry) > MAX_ENTRY_SIZE:
            raise InvalidTile(f"an entry of {len(entry)} bytes does not fit into a bundle")
        parts += (len(entry).to_bytes(2, "big"), entry)
    return b"".join(parts)


def decode_bundle(content: bytes) -> Sequence[bytes]:
    """Decode the entries of a bundle."""
    entries: list[bytes] = []
    at, size = 0, len(content)
    while at < size:
        begin = at + 2
        if begin > size or len(entries) == TILE_WIDTH:
            raise InvalidTile("the bundle is cut off or has too many entries")
        at = begin + (content[at] << 8 | content[at + 1])
        entries.append(content[begin:at])
    if at > size:
        raise InvalidTile("the bundle is cut off or has too many entries")
    return entries
