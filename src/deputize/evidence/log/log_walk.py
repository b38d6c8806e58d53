"""Check a whole log from its first entry to its newest checkpoint; memory does not grow with the log.

Entries are hashed and compared with the stored hashes of their leaves, and the root over them with each checkpoint on
the way. Two checkpoints enclose a fault: what they were signed for tells where it is, and when it was signed.

The oldest entries may have expired: their bytes are gone, and their hashes stand for them. A later entry of the log has
to say so, signed by the log: one that is not is a fault itself. An entry that is missing without that, or after one
that is there, is a fault.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from deputize.evidence.log.checkpoint import LogCheckpoint
from deputize.evidence.log.entry_expiry import EXPIRY_COMMAND, is_expiry, read_expiry
from deputize.evidence.log.merkle_tree import HASH_SIZE, MerkleFrontier, hash_leaves
from deputize.evidence.log.signed_note import VerifierKey
from deputize.evidence.log.tiles import TILE_HEIGHT, TILE_WIDTH, Tile

ReadTile = Callable[[str], bytes | None]
_EXPIRY_MARK: Final = f'"command":"{EXPIRY_COMMAND}"'.encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFault:
    """Where a log stops being trustworthy: at entry `first`, or at one of the entries from there to `last`."""

    first: int
    last: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafDifference:
    """The first entry that is not what its stored leaf is the hash of, and the tree over the stored leaves.

    Up to this entry both trees are one, so the second is computed only from here on.
    """

    index: int
    is_missing: bool
    leaves: MerkleFrontier


class LogWalk:
    """Goes over a log once. After a fault it must not be used again."""

    def __init__(self, keys: Sequence[VerifierKey]) -> None:
        """Believe what one of these keys of the log signed."""
        self._keys = keys
        self._entries = MerkleFrontier()
        self._nodes = NodeCheck()
        self._signed_size = 0
        self._difference: LeafDifference | None = None
        self._missing_count = 0
        self._announced_size = 0
        self._forged_expiry: int | None = None

    @property
    def size(self) -> int:
        """How many entries were added."""
        return self._entries.size

    @property
    def missing_count(self) -> int:
        """How many of the oldest entries are missing; `check_expiry` tells whether they expired."""
        return self._missing_count

    def add_entries(self, entries: Sequence[bytes], leaf_content: bytes) -> None:
        """Add the next entries, and what the log stores as hashes of their leaves; a missing entry is empty."""
        if len(leaf_content) != len(entries) * HASH_SIZE:
            raise ValueError(f"{len(leaf_content)} bytes are not the hashes of {len(entries)} leaves")
        entry_hashes = hash_leaves(entries)
        missing_count = self._count_missing(entries)
        if missing_count:
            entry_hashes[:missing_count] = split_hashes(leaf_content)[:missing_count]
            self._missing_count += missing_count
        self._read_expiries(entries)
        if self._difference is None and b"".join(entry_hashes) != leaf_content:
            pairs = zip(entry_hashes, split_hashes(leaf_content), strict=True)
            offset = next(at for at, (entry_hash, leaf_hash) in enumerate(pairs) if entry_hash != leaf_hash)
            self._difference = LeafDifference(
                index=self.size + offset, is_missing=not entries[offset], leaves=self._entries.copy()
            )
        self._nodes.add(self._entries.append_all(entry_hashes, TILE_HEIGHT))
        if self._difference is not None:
            self._difference.leaves.append_all(split_hashes(leaf_content), TILE_HEIGHT)

    def compute_root(self) -> bytes:
        """Compute the root over what was added."""
        return self._entries.compute_root()

    def check_root(self, checkpoint: LogCheckpoint) -> LogFault | None:
        """Compare what was added with a checkpoint of the same size, whose signature was verified."""
        if checkpoint.size != self.size:
            raise ValueError(f"the checkpoint is of {checkpoint.size} entries, and {self.size} were added")
        is_signed = self._entries.compute_root() == checkpoint.root
        if self._difference is not None:
            index = self._difference.index
            if is_signed:
                reason = "the stored hash of the entry was changed; the entry itself is as it was signed"
                return LogFault(first=index, last=index, reason=reason)
            if self._difference.leaves.compute_root() == checkpoint.root:
                reason = "the entry is missing" if self._difference.is_missing else "the entry is not what was signed"
                return LogFault(first=index, last=index, reason=reason)
            return self._make_range_fault(index)
        if not is_signed:
            return self._make_range_fault(checkpoint.size - 1)
        self._signed_size = checkpoint.size
        return None

    def check_expiry(self) -> LogFault | None:
        """Tell, at the end of a walk without a fault, whether the log says of all missing entries that they expired."""
        forged = self._forged_expiry
        if self._missing_count > self._announced_size:
            reason = "entries are missing, and no entry of the log says that they expired"
            if forged is not None:
                reason = (
                    f"entries are missing; entry {forged} says that they expired, but no key of the log signed that"
                )
            return LogFault(first=self._announced_size, last=self._missing_count - 1, reason=reason)
        if forged is not None:
            reason = "the entry says that entries expired, but no key of the log signed that: it was forged"
            return LogFault(first=forged, last=forged, reason=reason)
        return None

    def _count_missing(self, entries: Sequence[bytes]) -> int:
        """Count the entries that are missing at the beginning of the log."""
        if self._missing_count != self.size:
            return 0
        return next((offset for offset, entry in enumerate(entries) if entry), len(entries))

    def _read_expiries(self, entries: Sequence[bytes]) -> None:
        """Read what entries announce as expired."""
        # One search for all of them: few logs have any.
        if _EXPIRY_MARK in b"".join(entries):
            for offset, entry in enumerate(entries):
                if _EXPIRY_MARK in entry and is_expiry(entry):
                    self._read_expiry(entry, self.size + offset)

    def _read_expiry(self, entry: bytes, index: int) -> None:
        """Read up to where an entry says that the log expired. It counts only for what is before it, without a gap."""
        expiry = read_expiry(entry, self._keys)
        if expiry is None:
            self._forged_expiry = index if self._forged_expiry is None else self._forged_expiry
        elif expiry.first_index <= self._announced_size and expiry.end_index <= index:
            self._announced_size = max(self._announced_size, expiry.end_index)

    def check_nodes(self, read_tile: ReadTile, *, is_end: bool = False) -> LogFault | None:
        """Compare the stored hashes of larger subtrees, a tile for 65,536 entries; at the end, what is left."""
        fault = self._nodes.check(read_tile)
        return self._nodes.check_last(read_tile) if fault is None and is_end else fault

    def _make_range_fault(self, last: int) -> LogFault:
        reason = "the log is not what was signed: entries were changed, inserted, removed or reordered"
        return LogFault(first=self._signed_size, last=last, reason=reason)


class NodeCheck:
    """Collects the hashes of complete subtrees, and compares them with the tiles above the leaves."""

    def __init__(self) -> None:
        self._hashes: dict[int, list[bytes]] = {}
        self._counts: dict[int, int] = {}
        self._full_tiles: list[tuple[Tile, bytes]] = []

    def add(self, nodes: Sequence[tuple[tuple[int, int], bytes]]) -> None:
        """Add the hashes of subtrees, in the order in which they became complete."""
        for (height, _), node_hash in nodes:
            level = height // TILE_HEIGHT
            hashes = self._hashes.setdefault(level, [])
            hashes.append(node_hash)
            self._counts[level] = self._counts.get(level, 0) + 1
            if len(hashes) == TILE_WIDTH:
                tile = Tile(level=level, index=(self._counts[level] - 1) // TILE_WIDTH)
                self._full_tiles.append((tile, b"".join(hashes)))
                hashes.clear()

    def check(self, read_tile: ReadTile) -> LogFault | None:
        """Compare the full tiles that were collected since the last check."""
        tiles, self._full_tiles = self._full_tiles, []
        return _find_fault(tiles, read_tile)

    def check_last(self, read_tile: ReadTile) -> LogFault | None:
        """Compare what is left at the end of the log: tiles that are not full."""
        tiles = [
            (Tile(level=level, index=self._counts[level] // TILE_WIDTH, width=len(hashes)), b"".join(hashes))
            for level, hashes in self._hashes.items()
            if hashes
        ]
        return _find_fault(tiles, read_tile)


def fit_tile(content: bytes | None, count: int) -> bytes:
    """Cut the content of a tile to so many hashes; what is missing at its end becomes a hash that no entry has."""
    content = (content or b"")[: count * HASH_SIZE]
    content = content[: len(content) // HASH_SIZE * HASH_SIZE]
    return content.ljust(count * HASH_SIZE, b"\x00")


def split_hashes(content: bytes) -> list[bytes]:
    """Split the content of a tile into hashes."""
    return [content[at : at + HASH_SIZE] for at in range(0, len(content), HASH_SIZE)]


def _find_fault(tiles: Sequence[tuple[Tile, bytes]], read_tile: ReadTile) -> LogFault | None:
    for tile, computed_content in tiles:
        assert tile.level is not None
        stored_content = fit_tile(read_tile(tile.path), tile.width)
        pairs = zip(split_hashes(computed_content), split_hashes(stored_content), strict=True)
        for offset, (node_hash, stored_hash) in enumerate(pairs):
            if node_hash != stored_hash:
                first = (tile.index * TILE_WIDTH + offset) << TILE_HEIGHT * tile.level
                reason = (
                    f"a stored hash over these entries was changed ({tile.path}); the entries are as they were signed"
                )
                return LogFault(first=first, last=first + (1 << TILE_HEIGHT * tile.level) - 1, reason=reason)
    return None
