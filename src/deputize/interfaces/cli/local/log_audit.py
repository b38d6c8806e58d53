"""Verify a whole log: signatures, every entry, tiles, and that it continues the log that was seen before."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from deputize.core.config_error import ConfigError
from deputize.evidence.log.checkpoint import LogCheckpoint, open_checkpoint
from deputize.evidence.log.log_walk import LogFault, LogWalk, fit_tile
from deputize.evidence.log.merkle_tree import (
    HASH_SIZE,
    InvalidProof,
    hash_range,
    list_subtrees,
    plan_consistency,
    verify_consistency,
)
from deputize.evidence.log.signed_note import MAX_NOTE_SIZE, InvalidNote, VerifierKey, parse_note
from deputize.evidence.log.tiles import (
    TILE_HEIGHT,
    TILE_WIDTH,
    InvalidTile,
    Tile,
    TileHashes,
    decode_bundle,
    locate_subtree,
)

# How many bundles are read while another one is hashed; the gateway serves four at once to a tenant.
_READERS: Final = 3
_AHEAD: Final = 4
ReadLog = Callable[[str], bytes | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogVerdict:
    """What a log is worth: everything in it, or everything before a fault."""

    log: str
    size: int
    signed_at: str | None
    """When the newest checkpoint was signed or, of a log with a fault, the first one that covers it."""
    fault: LogFault | None = None
    entry_id: str | None = None
    unlogged_entries: Sequence[str] = ()
    # Whether entries from before the log are still queued: then none can be named that is missing.
    has_backlog: bool = False
    # How many of the oldest entries expired: their hashes were verified, their bytes are gone.
    expired_count: int = 0

    @property
    def is_trusted(self) -> bool:
        """Whether nothing is wrong."""
        return self.fault is None and not self.unlogged_entries and not self.has_backlog


def load_checkpoint(read_log: ReadLog, keys: Sequence[VerifierKey]) -> tuple[bytes, LogCheckpoint]:
    """Load the newest checkpoint and verify its signature; raise `InvalidNote` if no trusted key signed it."""
    content = read_log("checkpoint")
    if content is None:
        raise ConfigError("The log has no signed checkpoint yet: make a call, and try again in a second.")
    return content, open_checkpoint(parse_note(content), keys)


def load_keys(read_log: ReadLog) -> list[VerifierKey]:
    """Load the keys that the gateway says are those of the log."""
    content = read_log("keys")
    if content is None:
        raise ConfigError("The log has no key yet: make a call, and try again in a second.")
    return [VerifierKey.parse(each["verifier_key"]) for each in json.loads(content)["keys"]]


def read_checkpoint(path: Path, keys: Sequence[VerifierKey]) -> LogCheckpoint:
    """Read a checkpoint from a file and verify its signature; raise `InvalidNote` if no trusted key signed it."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_NOTE_SIZE + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    return open_checkpoint(parse_note(content), keys)


def verify_growth(read_log: ReadLog, old: LogCheckpoint, new: LogCheckpoint) -> None:
    """Raise `InvalidProof` unless the new checkpoint's log begins with everything that the old one covers."""
    if old.origin != new.origin:
        raise InvalidProof(f"they are of different logs, {old.origin} and {new.origin}")
    if new.size < old.size:
        raise InvalidProof(f"the log had {old.size:,} entries and has {new.size:,} now: entries are gone")
    ranges = plan_consistency(old.size, new.size)
    subtrees = [subtree for leaves in ranges for subtree in list_subtrees(leaves)]
    contents: dict[tuple[int, int], bytes] = {}
    for level, index in {locate_subtree(subtree) for subtree in subtrees}:
        width = min((new.size >> TILE_HEIGHT * level) - index * TILE_WIDTH, TILE_WIDTH)
        contents[level, index] = read_log(Tile(level=level, index=index, width=width).path) or b""
    try:
        hashes = TileHashes(contents)
        proof = [hash_range(leaves, hashes.read_hash) for leaves in ranges]
    except InvalidTile as error:
        raise InvalidProof(f"the gateway lacks hashes of its log: {error}") from error
    verify_consistency(old.size, old.root, new.size, new.root, proof)


class LogAudit:
    """Walks a log once, from its first entry to its newest checkpoint, in memory that does not grow with the log."""

    def __init__(
        self,
        read_log: ReadLog,
        keys: Sequence[VerifierKey],
        kept_checkpoint: LogCheckpoint | None = None,
        *,
        report_progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        """Read paths below the log's address with a function; the kept checkpoint was seen before."""
        self._read_log = read_log
        self._keys = keys
        self._kept_checkpoint = kept_checkpoint
        self._report_progress = report_progress
        # What is wrong beside entries: they are as they were signed, so a fault in one of them is told first.
        self._other_fault: LogFault | None = None
        self._has_backlog = False
        self._expired_count = 0

    def verify(self, newest: LogCheckpoint) -> LogVerdict:
        """Verify everything that a checkpoint covers, whose signature was verified."""
        fault = self._find_rollback(newest) or self._walk(newest) or self._other_fault
        if fault is None:
            unlogged_entries = tuple(self._list_unlogged_entries())
            signed_at = self._find_signed_at(newest.size - 1)
            return LogVerdict(
                log=newest.origin,
                size=newest.size,
                signed_at=signed_at,
                unlogged_entries=unlogged_entries,
                has_backlog=self._has_backlog,
                expired_count=self._expired_count,
            )
        return LogVerdict(
            log=newest.origin,
            size=newest.size,
            signed_at=self._find_signed_at(fault.first),
            fault=fault,
            entry_id=self._find_entry_id(fault.first, newest.size),
        )

    def _find_rollback(self, newest: LogCheckpoint) -> LogFault | None:
        kept_size = 0 if self._kept_checkpoint is None else self._kept_checkpoint.size
        if newest.size >= kept_size:
            return None
        reason = f"the log had {kept_size:,} entries when it was last verified: it was rolled back or cut off"
        return LogFault(first=newest.size, last=kept_size - 1, reason=reason)

    def _walk(self, newest: LogCheckpoint) -> LogFault | None:
        walk, checkpoints = LogWalk(self._keys), self._list_checkpoints(newest)
        checkpoint, kept_root = next(checkpoints), None
        for entries, leaf_content in self._read_bundles(newest.size):
            at = 0
            while at < len(entries):
                next_size = self._find_next_size(walk.size, checkpoint)
                end = at + min(len(entries) - at, next_size - walk.size)
                walk.add_entries(entries[at:end], leaf_content[at * HASH_SIZE : end * HASH_SIZE])
                at = end
                if self._kept_checkpoint is not None and walk.size == self._kept_checkpoint.size:
                    kept_root = walk.compute_root()
                if walk.size == checkpoint.size:
                    if (fault := walk.check_root(checkpoint)) is not None:
                        return fault
                    checkpoint = next(checkpoints, newest)
            self._other_fault = self._other_fault or walk.check_nodes(self._read_log)
            self._report_progress(walk.size / newest.size)
        self._other_fault = self._other_fault or walk.check_nodes(self._read_log, is_end=True)
        if self._kept_checkpoint is not None and kept_root not in (None, self._kept_checkpoint.root):
            reason = "the log signed another history than the one that was last verified: its key signed both"
            return LogFault(first=0, last=self._kept_checkpoint.size - 1, reason=reason)
        self._expired_count = walk.missing_count
        return walk.check_expiry()

    def _find_next_size(self, size: int, checkpoint: LogCheckpoint) -> int:
        """Find where to stop next: at a checkpoint, or at the size of the kept one."""
        if self._kept_checkpoint is not None and size < self._kept_checkpoint.size < checkpoint.size:
            return self._kept_checkpoint.size
        return checkpoint.size

    def _list_checkpoints(self, newest: LogCheckpoint) -> Iterator[LogCheckpoint]:
        """Yield what the log signed, by size, up to the newest; what it did not sign is passed over and reported."""
        size = 0
        while size < newest.size:
            rows = self._read_json(f"checkpoints?after={size}").get("checkpoints", [])
            rows = [row for row in rows if size < row["size"] < newest.size]
            for row in rows:
                try:
                    checkpoint = open_checkpoint(parse_note(row["note"].encode()), self._keys)
                    if (checkpoint.size, checkpoint.origin) != (row["size"], newest.origin):
                        raise InvalidNote("it is of another size or log")
                    yield checkpoint
                except InvalidNote as error:
                    reason = f"the stored checkpoint of {row['size']:,} entries is not what the log signed: {error}"
                    fault = LogFault(first=size, last=row["size"] - 1, reason=reason)
                    self._other_fault = self._other_fault or fault
                size = row["size"]
            if not rows:
                break
        yield newest

    def _read_bundles(self, size: int) -> Iterator[tuple[Sequence[bytes], bytes]]:
        """Yield entries and the stored hashes of their leaves, 256 at a time, and read some ahead."""
        with ThreadPoolExecutor(_READERS) as executor:
            futures: list[Future[tuple[Sequence[bytes], bytes]]] = []
            index, count = 0, -(-size // TILE_WIDTH)
            try:
                while index < count or futures:
                    while index < count and len(futures) < _AHEAD:
                        width = min(size - index * TILE_WIDTH, TILE_WIDTH)
                        futures.append(executor.submit(self._read_bundle, index, width))
                        index += 1
                    yield futures.pop(0).result()
            finally:
                for future in futures:
                    future.cancel()

    def _read_bundle(self, index: int, width: int) -> tuple[Sequence[bytes], bytes]:
        entries: list[bytes] = []
        # A bundle that cannot be read counts as empty entries, which fit no leaf.
        with suppress(InvalidTile):
            entries += decode_bundle(self._read_log(Tile(level=None, index=index, width=width).path) or b"")[:width]
        entries += [b""] * (width - len(entries))
        content = self._read_log(Tile(level=0, index=index, width=width).path)
        return entries, fit_tile(content, width)

    def _list_unlogged_entries(self) -> Iterator[str]:
        after: str | None = str(UUID(int=0))
        while after is not None:
            page = self._read_json(f"unlogged?after={after}")
            self._has_backlog |= bool(page.get("has_backlog"))
            yield from page.get("entry_ids", [])
            after = page.get("next_after")

    def _find_signed_at(self, index: int) -> str | None:
        """Find when an entry was signed: at the time of the first checkpoint that covers it."""
        rows = self._read_json(f"checkpoints?after={index}&limit=1").get("checkpoints", [])
        return rows[0]["signed_at"] if rows else None

    def _find_entry_id(self, index: int, size: int) -> str | None:
        """Find the id in an entry, which may have been changed too."""
        if index >= size:
            return None
        bundle, offset = divmod(index, TILE_WIDTH)
        entries, _ = self._read_bundle(bundle, min(size - bundle * TILE_WIDTH, TILE_WIDTH))
        with suppress(ValueError, RecursionError, KeyError, TypeError):
            return str(UUID(json.loads(entries[offset])["id"]))
        return None

    def _read_json(self, path: str) -> Mapping[str, Any]:
        content = self._read_log(path)
        answer: Mapping[str, Any] = {} if content is None else json.loads(content)
        return answer


__all__ = [
    "InvalidNote",
    "InvalidProof",
    "LogAudit",
    "LogVerdict",
    "VerifierKey",
    "load_checkpoint",
    "load_keys",
    "read_checkpoint",
    "verify_growth",
]
