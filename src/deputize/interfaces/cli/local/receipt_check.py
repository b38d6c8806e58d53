"""Read receipts and keys from files, and verify a receipt without a gateway."""

from collections.abc import Callable, Sequence
from pathlib import Path

from deputize.core.config_error import ConfigError
from deputize.evidence.log.merkle_tree import InvalidProof
from deputize.evidence.log.receipt_check import (
    CheckedReceipt,
    check_receipt,
    describe_receipt,
    parse_log_keys,
    parse_witness_keys,
)
from deputize.evidence.log.signed_note import MAX_NOTE_SIZE, InvalidNote, VerifierKey

_MAX_KEY_BYTES = 100_000


def read_receipt(path: Path) -> bytes:
    """Read the file of a receipt, but no more than a receipt can have."""
    return _read_file(path, MAX_NOTE_SIZE)


def read_log_keys(key: str) -> list[VerifierKey]:
    """Parse a log's key, or the keys in a file, one on each line."""
    return _read_keys(key, parse_log_keys, "Get the log's key again: deputize keys status.")


def read_witness_keys(keys: Sequence[str]) -> list[VerifierKey]:
    """Parse the keys of witnesses, each given as a key or a file."""
    advice = "Get the key from those who run the witness."
    return [parsed_key for key in keys for parsed_key in _read_keys(key, parse_witness_keys, advice)]


def _read_keys(key: str, parse_keys: Callable[[str], list[VerifierKey]], advice: str) -> list[VerifierKey]:
    path = Path(key)
    is_file = "+" not in key or path.is_file()
    text = _read_file(path, _MAX_KEY_BYTES).decode(errors="replace") if is_file else key
    try:
        keys = parse_keys(text)
    except InvalidNote as error:
        raise ConfigError(f"The key cannot be read: {error}. {advice}") from error
    if not keys:
        raise ConfigError(f"There is no key in {key}. {advice}")
    return keys


def _read_file(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if len(content) > limit:
        raise ConfigError(f"{path} has more than {limit:,} bytes: it is no receipt or key.")
    return content


__all__ = [
    "CheckedReceipt",
    "InvalidNote",
    "InvalidProof",
    "check_receipt",
    "describe_receipt",
    "read_log_keys",
    "read_receipt",
    "read_witness_keys",
]
