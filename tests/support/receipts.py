"""Make receipts of a small log, with and without cosignatures."""

from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.evidence.log.checkpoint import LogCheckpoint, cosign_checkpoint, sign_checkpoint
from deputize.evidence.log.inclusion_receipt import InclusionReceipt
from deputize.evidence.log.leaf import build_leaf
from deputize.evidence.log.merkle_tree import hash_children, hash_leaf
from deputize.evidence.log.signed_note import NoteSigner, SignedNote

LOG_SIGNER = NoteSigner(name="gateway.example/log/acme", private_key=Ed25519PrivateKey.from_private_bytes(b"\x01" * 32))
WITNESS_TIME = 1_700_000_000


def make_witness(number: int) -> NoteSigner:
    """Make a witness that signs under a name of its own."""
    private_key = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
    return NoteSigner(name=f"witness.example/{number}", private_key=private_key)


def make_receipt(entry: bytes, witnesses: Sequence[NoteSigner] = (), *, unix_time: int = WITNESS_TIME) -> bytes:
    """Make the receipt of the second of two entries."""
    first = hash_leaf(b"first")
    root = hash_children(first, hash_leaf(build_leaf(entry)))
    note = sign_checkpoint(LogCheckpoint(origin=LOG_SIGNER.name, size=2, root=root), [LOG_SIGNER])
    cosignatures = [cosign_checkpoint(note, witness, unix_time) for witness in witnesses]
    note = SignedNote(text=note.text, signatures=[*note.signatures, *cosignatures])
    return InclusionReceipt(index=1, proof=(first,), note=note, extra=entry).render().encode()
