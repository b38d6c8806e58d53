"""Prove offline that an entry is in a log, in the text form of C2SP's tlog-proof."""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from deputize_verify.log.checkpoint import LogCheckpoint, open_checkpoint, parse_decimal
from deputize_verify.log.merkle_tree import HASH_SIZE, hash_leaf, verify_inclusion
from deputize_verify.log.signed_note import (
    MAX_NOTE_SIZE,
    InvalidNote,
    SignedNote,
    VerifierKey,
    decode_base64,
    parse_note,
)

_FIRST_LINE: Final = "c2sp.org/tlog-proof@v1"
_EXTRA: Final = "extra "
_INDEX: Final = "index "
_MAX_HASHES: Final = 63


@dataclass(frozen=True, kw_only=True, slots=True)
class InclusionReceipt:
    """An entry's place in a log, the proof, and the signed checkpoint; `extra` carries the entry itself."""

    index: int
    proof: tuple[bytes, ...]
    note: SignedNote
    extra: bytes = b""

    def render(self) -> str:
        """Render the receipt as text."""
        lines = [_FIRST_LINE]
        if self.extra:
            lines.append(f"{_EXTRA}{base64.b64encode(self.extra).decode()}")
        lines.append(f"{_INDEX}{self.index}")
        lines += [base64.b64encode(each).decode() for each in self.proof]
        return "\n".join([*lines, "", str(self.note)])

    @classmethod
    def parse(cls, content: bytes) -> "InclusionReceipt":
        """Parse a receipt; nothing in it may be believed before `verify`."""
        if len(content) > MAX_NOTE_SIZE:
            raise InvalidNote(f"the receipt has more than {MAX_NOTE_SIZE:,} bytes")
        head, separator, note = content.partition(b"\n\n")
        try:
            lines = head.decode("ascii").split("\n")
        except UnicodeDecodeError as error:
            raise InvalidNote("the lines before the checkpoint are not ASCII") from error
        if not separator or lines.pop(0) != _FIRST_LINE:
            raise InvalidNote(f"a receipt begins with the line {_FIRST_LINE} and ends with a checkpoint")
        extra = b""
        if lines and lines[0].startswith(_EXTRA):
            extra = decode_base64(lines.pop(0).removeprefix(_EXTRA))
        if not lines or not lines[0].startswith(_INDEX):
            raise InvalidNote("the receipt does not say which entry it is about: the line `index N` is missing")
        index = parse_decimal(lines.pop(0).removeprefix(_INDEX))
        proof = tuple(decode_base64(line) for line in lines)
        if len(proof) > _MAX_HASHES or any(len(each) != HASH_SIZE for each in proof):
            raise InvalidNote("the inclusion proof has hashes of another size, or too many")
        return cls(index=index, proof=proof, note=parse_note(note), extra=extra)

    def verify(self, entry: bytes, log_keys: Iterable[VerifierKey]) -> LogCheckpoint:
        """Return the checkpoint if the log signed it and the entry is under it; raise otherwise."""
        checkpoint = open_checkpoint(self.note, log_keys)
        verify_inclusion(hash_leaf(entry), self.index, checkpoint.size, self.proof, checkpoint.root)
        return checkpoint
