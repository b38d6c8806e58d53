"""Checkpoints: what a long tool saved of its state, so that whoever takes its call over goes on from there.

A call's checkpoints are two strands, written in turn: the even ones and the odd ones. Each strand has a frame, a state
written whole, and what follows in it is written as the difference to that frame. So the newest two never stand on a
common row: whichever single row is damaged, the newest or the one before it can be read.

Pure, but for the randomness of a seal. Below: `deltas.py` and the tenant's keys. Above: `keeper.py`, which stores them.
"""

import hashlib
import zlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import structlog

from deputize.core.errors import SealBroken
from deputize.runs.deltas import NotApplicable, difference, patched
from deputize.store.keys import KeySet

Kind = Literal["micro", "macro", "named"]

COMPRESS_ABOVE = 10_240
_LEVEL = 6
# So many of a strand are written against one frame: a difference grows with every step away from it.
_FRAME_HOLDS = 8
_PLAIN, _COMPRESSED = b"\0", b"\1"
_DIGEST_BYTES = 32
log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """One row. `parent` is the frame it was written against; None where it is whole. `epoch` is whose it is."""

    seq: int
    epoch: int
    kind: Kind
    name: str | None
    parent: int | None
    box: bytes

    @property
    def context(self) -> str:
        """What the seal vouches for beside the state: a row that was moved, renamed or re-parented does not open."""
        return f"checkpoint\0{self.seq}\0{self.epoch}\0{self.kind}\0{self.name or ''}\0{self.parent}"


@dataclass(slots=True)
class _Frame:
    seq: int
    state: bytes
    held: int = 1


class Chain:
    """What one owner of a call writes. It begins frames of its own, and leaves those of owners before it alone."""

    def __init__(self, keys: KeySet, call_id: str, *, epoch: int, last: int = -1) -> None:
        self._keys = keys
        self._call_id = call_id
        self._epoch = epoch
        self._last = last
        self._frames: dict[int, _Frame] = {}

    def next(self, state: bytes, kind: Kind, name: str | None = None) -> Checkpoint:
        """The next one, sealed. It counts only once `stored` was told of it."""
        seq = self._last + 1
        frame = self._frames.get(seq % 2)
        content, parent = state, None
        if frame is not None and frame.held < _FRAME_HOLDS:
            changed = difference(frame.state, state)
            # A state that changed beyond recognition begins a new frame; so does one whose difference is not exact.
            if len(changed) < len(state) // 2 and patched(frame.state, changed) == state:
                content, parent = changed, frame.seq
        flag = _PLAIN
        if len(content) > COMPRESS_ABOVE:
            flag, content = _COMPRESSED, zlib.compress(content, _LEVEL)
        made = Checkpoint(seq=seq, epoch=self._epoch, kind=kind, name=name, parent=parent, box=b"")
        body = hashlib.sha256(state).digest() + flag + content
        return replace(made, box=self._keys.seal(self._call_id, made.context, body))

    def stored(self, made: Checkpoint, state: bytes) -> None:
        self._last = made.seq
        if made.parent is None:
            self._frames[made.seq % 2] = _Frame(made.seq, state)
        else:
            self._frames[made.seq % 2].held += 1

    def frames(self, made: Checkpoint) -> list[int]:
        """Rows that what comes after this one may be written against."""
        seqs = {strand: frame.seq for strand, frame in self._frames.items()}
        if made.parent is None:
            seqs[made.seq % 2] = made.seq
        return list(seqs.values())


# The row of a number, if it is there.
Read = Callable[[int], Awaitable[Checkpoint | None]]


def opened(keys: KeySet, call_id: str, row: Checkpoint, frame: Checkpoint | None) -> bytes:
    """The state of a row, or `SealBroken`: its seal, its frame and its digest must all hold."""
    digest, content = _unsealed(keys, call_id, row)
    if row.parent is not None:
        if frame is None or frame.seq != row.parent:
            raise SealBroken("the checkpoint this one was written against is gone")
        _, older = _unsealed(keys, call_id, frame)
        try:
            content = patched(older, content)
        except NotApplicable as error:
            raise SealBroken("a checkpoint does not fit the one it was written against") from error
    if hashlib.sha256(content).digest() != digest:
        raise SealBroken("a checkpoint does not have the digest it was saved with")
    return content


def _unsealed(keys: KeySet, call_id: str, row: Checkpoint) -> tuple[bytes, bytes]:
    body = keys.open(call_id, row.context, row.box)
    digest, flag, content = body[:_DIGEST_BYTES], body[_DIGEST_BYTES : _DIGEST_BYTES + 1], body[_DIGEST_BYTES + 1 :]
    try:
        return digest, zlib.decompress(content) if flag == _COMPRESSED else content
    except zlib.error as error:
        raise SealBroken("a checkpoint cannot be unpacked") from error


async def newest(keys: KeySet, call_id: str, seqs: Iterable[int], read: Read) -> tuple[Checkpoint, bytes] | None:
    """The first of these (the newest comes first) whose state verifies; None where none does."""
    for seq in seqs:
        row = await read(seq)
        if row is None:
            continue
        frame = None if row.parent is None else await read(row.parent)
        try:
            return row, opened(keys, call_id, row, frame)
        except SealBroken as broken:
            log.warning("checkpoint_damaged", call_id=call_id, seq=seq, reason=broken.message)
    return None
