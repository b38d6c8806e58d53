"""Hold a log in memory and answer for its paths, as a gateway does; tests change what it holds."""

import json
from collections.abc import Sequence

from deputize.evidence.log.checkpoint import LogCheckpoint, sign_checkpoint
from deputize.evidence.log.merkle_tree import HASH_SIZE, MerkleFrontier, hash_leaf
from deputize.evidence.log.signed_note import NoteSigner
from deputize.evidence.log.tiles import TILE_HEIGHT, TILE_WIDTH, Tile, encode_bundle
from tests.support.receipts import LOG_SIGNER


class MemoryLog:
    """A log of small entries, signed after each of some sizes."""

    def __init__(self, entries: Sequence[bytes], signed_sizes: Sequence[int], signer: NoteSigner = LOG_SIGNER) -> None:
        self.entries = list(entries)
        self.leaves = [hash_leaf(entry) for entry in entries]
        self.nodes: dict[tuple[int, int], bytes] = {}
        self.notes: dict[int, str] = {}
        self.unlogged_ids: list[str] = []
        self.has_backlog = False
        frontier = MerkleFrontier()
        for size, leaf_hash in enumerate(self.leaves, start=1):
            self.nodes |= {
                (level // TILE_HEIGHT, index): node
                for (level, index), node in frontier.append_all([leaf_hash], TILE_HEIGHT)
            }
            if size in signed_sizes:
                checkpoint = LogCheckpoint(origin=signer.name, size=size, root=frontier.compute_root())
                self.notes[size] = str(sign_checkpoint(checkpoint, [signer]))

    def read(self, path: str) -> bytes | None:
        """Answer for a path below the log's address."""
        if path == "checkpoint":
            return self.notes[max(self.notes)].encode()
        if path.startswith("checkpoints?after="):
            after, _, limit = path.removeprefix("checkpoints?after=").partition("&limit=")
            sizes = [size for size in sorted(self.notes) if size > int(after)][: int(limit or 7)]
            rows = [{"size": size, "note": self.notes[size], "signed_at": f"at {size}"} for size in sizes]
            return json.dumps({"checkpoints": rows}).encode()
        if path.startswith("unlogged?"):
            page = {"entry_ids": self.unlogged_ids, "next_after": None, "has_backlog": self.has_backlog}
            return json.dumps(page).encode()
        return self._read_tile(Tile.parse_path(path))

    def _read_tile(self, tile: Tile) -> bytes | None:
        first = tile.index * TILE_WIDTH
        if tile.level is None:
            return encode_bundle(self.entries[first : first + tile.width])
        if tile.level == 0:
            content = b"".join(self.leaves[first : first + tile.width])
        else:
            content = b"".join(self.nodes.get((tile.level, first + at), b"") for at in range(tile.width))
        return content if len(content) == tile.width * HASH_SIZE else None
