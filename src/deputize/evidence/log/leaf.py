"""Build the leaf of an entry: its bytes, or for an entry that is too large for a bundle, a text with its digest."""

from hashlib import sha256
from typing import Final

from deputize.evidence.log.tiles import MAX_ENTRY_SIZE

_LARGE_VERSION: Final = "large-entry/1"


def build_leaf(entry: bytes) -> bytes:
    """Build the leaf of an entry."""
    return entry if len(entry) <= MAX_ENTRY_SIZE else build_large_leaf(len(entry), sha256(entry).digest())


def build_large_leaf(entry_size: int, entry_digest: bytes) -> bytes:
    """Build what stands in the log for an entry of more than 65,535 bytes, in canonical JSON."""
    return f'{{"entry_sha256":"{entry_digest.hex()}","entry_size":{entry_size},"v":"{_LARGE_VERSION}"}}'.encode()
