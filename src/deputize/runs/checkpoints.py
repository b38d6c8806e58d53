"""Encode checkpoints: the saved states of a long-running tool, from which another worker can resume its call.

The checkpoints of a call form two strands, the even and the odd ones, written in turn. Each strand has a frame, which
is a whole state; later checkpoints of the strand are deltas to that frame. So the newest two never depend on a common
row: whichever single row is damaged, one of them can be read.

`runs/checkpoint_writer.py` stores them.
"""

import hashlib
import zlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import structlog

from deputize.core.errors import UnsealFailed
from deputize.runs.deltas import DeltaNotApplicable, apply_delta, compute_delta
from deputize.store.keys import KeySet

CheckpointKind = Literal["micro", "macro", "named"]

COMPRESS_ABOVE = 10_240
_LEVEL = 6
# Most checkpoints per frame: deltas grow with the distance from it.
_MAX_FRAME_CHECKPOINTS = 8
_PLAIN_FLAG, _COMPRESSED_FLAG = b"\0", b"\1"
_DIGEST_BYTES = 32
log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """One row. `parent` is the frame of a delta, None for a whole state. `epoch` identifies the owner that wrote it."""

    seq: int
    epoch: int
    kind: CheckpointKind
    name: str | None
    parent: int | None
    ciphertext: bytes

    @property
    def context(self) -> str:
        """The associated data of the encryption: a row that was moved, renamed or re-parented cannot be decrypted."""
        return f"checkpoint\0{self.seq}\0{self.epoch}\0{self.kind}\0{self.name or ''}\0{self.parent}"


@dataclass(slots=True)
class _Frame:
    """A whole state, and how many checkpoints depend on it."""

    seq: int
    state: bytes
    checkpoint_count: int = 1


class CheckpointChain:
    """The checkpoints that one owner of a call writes. It starts its own frames, apart from those of earlier owners."""

    def __init__(self, keys: KeySet, call_id: str, *, epoch: int, last: int = -1) -> None:
        self._keys = keys
        self._call_id = call_id
        self._epoch = epoch
        self._last = last
        self._frames: dict[int, _Frame] = {}

    def seal_next(self, state: bytes, kind: CheckpointKind, name: str | None = None) -> Checkpoint:
        """Encrypt the next checkpoint. It counts only once `mark_stored` is called."""
        seq = self._last + 1
        frame = self._frames.get(seq % 2)
        content, parent = state, None
        if frame is not None and frame.checkpoint_count < _MAX_FRAME_CHECKPOINTS:
            delta = compute_delta(frame.state, state)
            # A state that changed too much starts a new frame, and so does one whose delta is not exact.
            if len(delta) < len(state) // 2 and apply_delta(frame.state, delta) == state:
                content, parent = delta, frame.seq
        flag = _PLAIN_FLAG
        if len(content) > COMPRESS_ABOVE:
            flag, content = _COMPRESSED_FLAG, zlib.compress(content, _LEVEL)
        checkpoint = Checkpoint(seq=seq, epoch=self._epoch, kind=kind, name=name, parent=parent, ciphertext=b"")
        body = hashlib.sha256(state).digest() + flag + content
        return replace(checkpoint, ciphertext=self._keys.seal(self._call_id, checkpoint.context, body))

    def mark_stored(self, checkpoint: Checkpoint, state: bytes) -> None:
        """Note that a checkpoint is durable, so that later ones may depend on it."""
        self._last = checkpoint.seq
        if checkpoint.parent is None:
            self._frames[checkpoint.seq % 2] = _Frame(checkpoint.seq, state)
        else:
            self._frames[checkpoint.seq % 2].checkpoint_count += 1

    def list_frames(self, checkpoint: Checkpoint) -> list[int]:
        """List the frames that checkpoints after this one may depend on."""
        seqs = {strand: frame.seq for strand, frame in self._frames.items()}
        if checkpoint.parent is None:
            seqs[checkpoint.seq % 2] = checkpoint.seq
        return list(seqs.values())


# Reads the checkpoint with a number, or None.
ReadCheckpoint = Callable[[int], Awaitable[Checkpoint | None]]


def unseal_state(keys: KeySet, call_id: str, row: Checkpoint, frame: Checkpoint | None) -> bytes:
    """Decrypt the state of a checkpoint; raise `UnsealFailed` unless its key, frame and digest all match."""
    digest, content = _unseal_body(keys, call_id, row)
    if row.parent is not None:
        if frame is None or frame.seq != row.parent:
            raise UnsealFailed("the frame of this checkpoint is missing")
        _, older = _unseal_body(keys, call_id, frame)
        try:
            content = apply_delta(older, content)
        except DeltaNotApplicable as error:
            raise UnsealFailed("this checkpoint does not match its frame") from error
    if hashlib.sha256(content).digest() != digest:
        raise UnsealFailed("this checkpoint does not have the digest it was saved with")
    return content


def _unseal_body(keys: KeySet, call_id: str, row: Checkpoint) -> tuple[bytes, bytes]:
    body = keys.unseal(call_id, row.context, row.ciphertext)
    digest, flag, content = body[:_DIGEST_BYTES], body[_DIGEST_BYTES : _DIGEST_BYTES + 1], body[_DIGEST_BYTES + 1 :]
    try:
        return digest, zlib.decompress(content) if flag == _COMPRESSED_FLAG else content
    except zlib.error as error:
        raise UnsealFailed("this checkpoint cannot be decompressed") from error


async def find_newest_valid(
    keys: KeySet, call_id: str, seqs: Iterable[int], read: ReadCheckpoint
) -> tuple[Checkpoint, bytes] | None:
    """Find the first of these checkpoints, newest first, whose state is valid; None if none is."""
    for seq in seqs:
        row = await read(seq)
        if row is None:
            continue
        frame = None if row.parent is None else await read(row.parent)
        try:
            return row, unseal_state(keys, call_id, row, frame)
        except UnsealFailed as broken:
            log.warning("checkpoint_damaged", call_id=call_id, seq=seq, reason=broken.message)
    return None
