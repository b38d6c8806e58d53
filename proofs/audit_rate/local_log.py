"""Write a log of any size into files, as one who mirrors a gateway's log has it, and verify all of it."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.evidence.log.checkpoint import LogCheckpoint, sign_checkpoint
from deputize.evidence.log.log_walk import LogFault
from deputize.evidence.log.merkle_tree import MerkleFrontier, hash_leaves
from deputize.evidence.log.signed_note import NoteSigner
from deputize.evidence.log.tiles import TILE_HEIGHT, TILE_WIDTH, Tile, encode_bundle
from deputize.interfaces.cli.local.log_audit import LogAudit, LogVerdict

# How many entries a checkpoint adds: what a busy gateway signs at once.
_SIGNED_ENTRIES: Final = 1000
_PAGE: Final = 1000
# About what an ordinary call leaves behind.
_ENTRY: Final = b'{"id":"00000000-0000-7000-8000-%012d","text":"' + 500 * b"e" + b'"}'


@dataclass(kw_only=True, slots=True)
class LocalLog:
    """A log in a folder: tiles and bundles are files, checkpoints are in memory."""

    folder: Path
    signer: NoteSigner = field(
        default_factory=lambda: NoteSigner(name="example.com/log", private_key=Ed25519PrivateKey.generate())
    )
    notes: list[tuple[LogCheckpoint, str]] = field(default_factory=list)
    _level_hashes: dict[int, list[bytes]] = field(default_factory=dict)

    def write(self, size: int) -> None:
        """Write a log of this size."""
        frontier = MerkleFrontier()
        for begin in range(0, size, TILE_WIDTH):
            entries = [_ENTRY % number for number in range(begin, min(begin + TILE_WIDTH, size))]
            self._write_tile(Tile(level=None, index=begin // TILE_WIDTH, width=len(entries)), encode_bundle(entries))
            hashes = hash_leaves(entries)
            self._level_hashes.setdefault(0, []).extend(hashes)
            at = 0
            while at < len(hashes):
                end = min(at + _SIGNED_ENTRIES - frontier.size % _SIGNED_ENTRIES, len(hashes))
                for (height, _), node_hash in frontier.append_all(hashes[at:end], TILE_HEIGHT):
                    self._level_hashes.setdefault(height // TILE_HEIGHT, []).append(node_hash)
                at = end
                if frontier.size % _SIGNED_ENTRIES == 0 or frontier.size == size:
                    self._sign(frontier)
        for level, hashes in self._level_hashes.items():
            for begin in range(0, len(hashes), TILE_WIDTH):
                part = hashes[begin : begin + TILE_WIDTH]
                self._write_tile(Tile(level=level, index=begin // TILE_WIDTH, width=len(part)), b"".join(part))

    def read(self, path: str) -> bytes | None:
        """Answer for a path below the log's address, as a gateway does."""
        if path.startswith("tile/"):
            file = self.folder / path
            return file.read_bytes() if file.exists() else None
        if path.startswith("checkpoints?after="):
            after, _, limit = path.removeprefix("checkpoints?after=").partition("&limit=")
            first = int(after) // _SIGNED_ENTRIES
            rows = [
                {"size": checkpoint.size, "note": note, "signed_at": "2026-11-01T00:00:00+00:00"}
                for checkpoint, note in self.notes[first : first + int(limit or _PAGE)]
            ]
            return json.dumps({"checkpoints": rows}).encode()
        return json.dumps({"entry_ids": [], "next_after": None, "has_backlog": False}).encode()

    def verify(self) -> tuple[LogVerdict, float]:
        """Verify every entry, signature and hash; return the verdict and the seconds that took."""
        began = time.perf_counter()
        verdict = LogAudit(self.read, [self.signer.verifier_key]).verify(self.notes[-1][0])
        return verdict, time.perf_counter() - began

    def find_changed_entry(self, index: int) -> LogFault | None:
        """Change one letter of an entry, and return the fault that is found."""
        bundle, offset = divmod(index, TILE_WIDTH)
        size = self.notes[-1][0].size
        file = self.folder / Tile(level=None, index=bundle, width=min(size - bundle * TILE_WIDTH, TILE_WIDTH)).path
        content = bytearray(file.read_bytes())
        content[offset * (2 + len(_ENTRY % 0)) + 60] ^= 1
        file.write_bytes(content)
        return self.verify()[0].fault

    def _sign(self, frontier: MerkleFrontier) -> None:
        checkpoint = LogCheckpoint(origin=self.signer.name, size=frontier.size, root=frontier.compute_root())
        self.notes.append((checkpoint, str(sign_checkpoint(checkpoint, [self.signer]))))

    def _write_tile(self, tile: Tile, content: bytes) -> None:
        file = self.folder / tile.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
