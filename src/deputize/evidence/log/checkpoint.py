"""State the size and root of a log, as C2SP's tlog-checkpoint defines it, and cosign it as witnesses do."""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from deputize.evidence.log.merkle_tree import HASH_SIZE
from deputize.evidence.log.signed_note import (
    COSIGNATURE_TYPE,
    InvalidNote,
    NoteSignature,
    NoteSigner,
    SignedNote,
    VerifierKey,
    decode_base64,
    sign_note,
    verify_note,
)

_MAX_DIGITS: Final = 19
_TIME_SIZE: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class LogCheckpoint:
    """What a log signs: its name, how many entries it has, and the root over them."""

    origin: str
    size: int
    root: bytes
    extension_lines: tuple[str, ...] = ()

    def render(self) -> str:
        """Render the text to be signed."""
        lines = [self.origin, str(self.size), base64.b64encode(self.root).decode(), *self.extension_lines]
        return "".join(f"{line}\n" for line in lines)

    @classmethod
    def parse(cls, text: str) -> "LogCheckpoint":
        """Parse the text of a note."""
        lines = text.split("\n")[:-1]
        if len(lines) < 3 or not all(lines):
            raise InvalidNote("a checkpoint has at least three lines, none of them empty: origin, size and root")
        origin, size, root, *extension_lines = lines
        checkpoint = cls(
            origin=origin,
            size=parse_decimal(size),
            root=decode_base64(root),
            extension_lines=tuple(extension_lines),
        )
        if len(checkpoint.root) != HASH_SIZE:
            raise InvalidNote("the root of a checkpoint has 32 bytes")
        return checkpoint


def sign_checkpoint(checkpoint: LogCheckpoint, signers: Iterable[NoteSigner]) -> SignedNote:
    """Sign a checkpoint with the keys of its log."""
    return sign_note(checkpoint.render(), signers)


def open_checkpoint(note: SignedNote, log_keys: Iterable[VerifierKey]) -> LogCheckpoint:
    """Verify that the log signed the note under its own name, and return the checkpoint."""
    key = verify_note(note, log_keys)
    checkpoint = LogCheckpoint.parse(note.text)
    if checkpoint.origin != key.name:
        raise InvalidNote(f"the checkpoint is of log {checkpoint.origin}, but was signed by {key.name}")
    return checkpoint


def get_witness_key(signer: NoteSigner) -> VerifierKey:
    """Get the key with which others verify cosignatures of this signer."""
    public_key = signer.private_key.public_key().public_bytes_raw()
    return VerifierKey(name=signer.name, signature_type=COSIGNATURE_TYPE, public_key=public_key)


def cosign_checkpoint(note: SignedNote, signer: NoteSigner, unix_time: int) -> NoteSignature:
    """Cosign a checkpoint at a time (cosignature/v1)."""
    signature = signer.private_key.sign(_build_cosigned_message(note.text, unix_time))
    return NoteSignature(
        name=signer.name,
        key_id=get_witness_key(signer).key_id,
        signature=unix_time.to_bytes(_TIME_SIZE, "big") + signature,
    )


def verify_cosignature(note: SignedNote, witness_key: VerifierKey) -> int | None:
    """Return when a witness cosigned the note, or None if it did not; raise if its cosignature is wrong."""
    latest: int | None = None
    for each in note.list_signatures(witness_key):
        unix_time = int.from_bytes(each.signature[:_TIME_SIZE], "big")
        message = _build_cosigned_message(note.text, unix_time)
        if unix_time >= 1 << 63 or not witness_key.is_valid(message, each.signature[_TIME_SIZE:]):
            raise InvalidNote(f"the cosignature of {witness_key.name} does not fit the checkpoint: it was changed")
        latest = unix_time if latest is None else max(latest, unix_time)
    return latest


def parse_decimal(text: str) -> int:
    """Parse a decimal number without leading zeros, of at most 19 digits."""
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS or (text[0] == "0" and text != "0"):
        raise InvalidNote("a size or an index is a decimal number without leading zeros")
    return int(text)


def _build_cosigned_message(text: str, unix_time: int) -> bytes:
    return f"cosignature/v1\ntime {unix_time}\n{text}".encode()
